// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/metrics"
)

var now = time.Unix(1_800_000_000, 0)

func ago(d time.Duration) scalar.Time { return scalar.NewTime(now.Add(-d)) }

func condition(conditionType string, status metav1.ConditionStatus, reason string, since time.Duration) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: status, Reason: reason, LastTransitionTime: ago(since).Time}
}

// hostedCluster has AutoNode on and runs payload 1.36.3 everywhere.
func hostedCluster(name string, change func(*v1beta1.HostedCluster)) *v1beta1.HostedCluster {
	h := &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name, CreationTimestamp: ago(24 * time.Hour).Time, Finalizers: []string{v1beta1.HostedClusterFinalizer}},
		Spec:       v1beta1.HostedClusterSpec{AutoNode: &v1beta1.AutoNode{}},
		Status: v1beta1.HostedClusterStatus{
			Conditions: []metav1.Condition{
				condition(v1beta1.AutoNodeEnabled, metav1.ConditionTrue, v1beta1.AsExpectedReason, time.Hour),
				condition(v1beta1.GuestReachable, metav1.ConditionTrue, v1beta1.AsExpectedReason, time.Hour),
				condition("SomebodyElses", metav1.ConditionTrue, "Request17", time.Hour), // never served
			},
			AutoNode: &v1beta1.AutoNodeStatus{
				State: v1beta1.AutoNodeStateEnabled, NodeClaimCount: ptr.To[int32](4), VCPUs: ptr.To[int32](12),
				DriftedNodeCount: ptr.To[int32](1), OutdatedNodeCount: ptr.To[int32](0),
				NodeVersions: []v1beta1.NodeVersion{{Version: "1.36.3", Count: 2}, {Version: "1.36.2", Count: 1}},
			},
			Version: &v1beta1.VersionStatus{History: []v1beta1.UpdateHistory{
				{State: v1beta1.UpdateCompleted, Version: "1.36.3", Image: "registry.example/release@sha256:3333", StartedTime: ago(2 * time.Hour)},
				{State: v1beta1.UpdateCompleted, Version: "1.36.2", Image: "registry.example/release@sha256:2222", StartedTime: ago(9 * time.Hour)},
			}},
		},
	}
	if change != nil {
		change(h)
	}
	return h
}

// images are the payloads by version; another build of one may be desired.
var images = map[string]string{
	"1.36.2": "registry.example/release@sha256:2222", "1.36.3": "registry.example/release@sha256:3333",
}

func component(owner, version string, conditions ...metav1.Condition) *v1beta1.ControlPlaneComponent {
	return &v1beta1.ControlPlaneComponent{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "clusters-" + owner, Name: v1beta1.KarpenterComponent, CreationTimestamp: ago(10 * time.Minute).Time,
			Labels: map[string]string{v1beta1.HostedClusterNamespaceLabel: "clusters", v1beta1.HostedClusterLabel: owner},
		},
		Status: v1beta1.ControlPlaneComponentStatus{Version: version, ReleaseImage: images[version], Conditions: conditions},
	}
}

func collector(t *testing.T, objects ...client.Object) (*metrics.Collector, client.Client) {
	t.Helper()
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(v1beta1.AddToScheme(scheme)).To(Succeed())
	NewWithT(t).Expect(autonodev1alpha1.AddToScheme(scheme)).To(Succeed())
	management := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	return metrics.New(metrics.Config{
		Management: management, DrainTimeout: 30 * time.Minute, Clock: clocktesting.NewFakePassiveClock(now),
	}), management
}

func lines(s string) []string {
	var lines []string
	for line := range strings.Lines(s) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

var rolledOut = condition(v1beta1.RolloutComplete, metav1.ConditionTrue, v1beta1.AsExpectedReason, time.Hour)

// collection is what is there, and what is served of it.
type collection struct {
	name    string
	objects []client.Object
	// want are the samples by the metric's name without its prefix, one a line; empty for none.
	want map[string]string
}

// collectAll collects from each in a subtest.
func collectAll(t *testing.T, tests []collection) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, _ := collector(t, test.objects...)
			got := scopetest.Samples(t, c)
			for name, want := range test.want {
				if diff := cmp.Diff(lines(want), got["autonode_"+name]); diff != "" {
					t.Errorf("autonode_%s (-want +got):\n%s", name, diff)
				}
			}
		})
	}
}

func TestCollect(t *testing.T) {
	collectAll(t, []collection{
		{
			name:    "When all is well, it should report what runs, and that nothing is under way",
			objects: []client.Object{hostedCluster("blue", nil), component("blue", "1.36.3", rolledOut)},
			want: map[string]string{
				"component_info":      `{component="karpenter",control_plane_namespace="clusters-blue",digest="sha256:3333",name="blue",namespace="clusters",version="1.36.3"} 1`,
				"enabled":             `{name="blue",namespace="clusters"} 1`,
				"state":               `{name="blue",namespace="clusters",state="Enabled"} 1`,
				"progressing_seconds": `{name="blue",namespace="clusters"} 0`,
				"updating_seconds":    `{name="blue",namespace="clusters"} 0`,
				"guest_reachable":     `{name="blue",namespace="clusters"} 1`,
				"nodeclaims":          `{name="blue",namespace="clusters"} 4`,
				"outdated_nodes":      `{name="blue",namespace="clusters"} 0`,
				"drifted_nodes":       `{name="blue",namespace="clusters"} 1`,
				"vcpus":               `{name="blue",namespace="clusters"} 12`,
				"nodes": `{name="blue",namespace="clusters",version="1.36.2"} 1
					{name="blue",namespace="clusters",version="1.36.3"} 2`,
				"condition": `{name="blue",namespace="clusters",reason="AsExpected",status="True",type="AutoNodeEnabled"} 1
					{name="blue",namespace="clusters",reason="AsExpected",status="True",type="GuestReachable"} 1`,
				"drain_deadline_timestamp_seconds": "",
			},
		}, {
			name: "When a cluster doesn't use AutoNode, it should say that and no more",
			objects: []client.Object{hostedCluster("blue", func(h *v1beta1.HostedCluster) {
				h.Spec.AutoNode, h.Status.AutoNode, h.Finalizers = nil, nil, nil
				h.Status.Conditions = []metav1.Condition{condition(v1beta1.AutoNodeEnabled, metav1.ConditionFalse, v1beta1.AutoNodeNotConfiguredReason, time.Hour)}
			})},
			want: map[string]string{
				"enabled": `{name="blue",namespace="clusters"} 0`, "state": "", "condition": "", "progressing_seconds": "", "component_info": "",
			},
		}, {
			name: "When nothing was counted yet, it should not report zero",
			objects: []client.Object{hostedCluster("blue", func(h *v1beta1.HostedCluster) {
				h.Status.AutoNode = &v1beta1.AutoNodeStatus{State: v1beta1.AutoNodeStateProgressing}
			})},
			want: map[string]string{"vcpus": "", "nodeclaims": "", "nodes": "", "outdated_nodes": ""},
		}, {
			name: "When there are several clusters, it should distinguish them, and leave out a component of none of them",
			objects: []client.Object{
				hostedCluster("blue", nil), component("blue", "1.36.3", rolledOut),
				hostedCluster("green", nil), component("green", "1.36.2", rolledOut), component("red", "1.36.1"),
			},
			want: map[string]string{
				"enabled": `{name="blue",namespace="clusters"} 1
					{name="green",namespace="clusters"} 1`,
				"component_info": `{component="karpenter",control_plane_namespace="clusters-blue",digest="sha256:3333",name="blue",namespace="clusters",version="1.36.3"} 1
					{component="karpenter",control_plane_namespace="clusters-green",digest="sha256:2222",name="green",namespace="clusters",version="1.36.2"} 1`,
			},
		},
	})
}

func TestScrape(t *testing.T) {
	t.Run("When a list can't be read, the scrape should go without and not fail", func(t *testing.T) {
		g := NewWithT(t)
		_, management := collector(t, hostedCluster("blue", nil))
		broken := interceptor.NewClient(management.(client.WithWatch), interceptor.Funcs{
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				return errors.New("stopping")
			},
		})
		registry := prometheus.NewRegistry()
		g.Expect(registry.Register(metrics.New(metrics.Config{Management: broken}))).To(Succeed())
		families, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(families).To(BeEmpty())
	})

	t.Run("When names and help texts are linted, they should follow Prometheus' habits", func(t *testing.T) {
		c, _ := collector(t, hostedCluster("blue", func(h *v1beta1.HostedCluster) {
			h.Status.AutoNode.DrainStartedTime = ptr.To(ago(time.Minute))
		}), component("blue", "1.36.3", rolledOut))
		problems, err := testutil.CollectAndLint(c)
		NewWithT(t).Expect(problems, err).To(BeEmpty())
	})
}

func TestServe(t *testing.T) {
	t.Run("When it runs, and no longer, it should be served", func(t *testing.T) {
		g := NewWithT(t)
		registry := prometheus.NewRegistry()
		c, _ := collector(t, hostedCluster("blue", nil))
		served := func() (int, error) { return testutil.GatherAndCount(registry, "autonode_enabled") }
		g.Expect(served()).To(BeZero())
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- metrics.Serve(c, registry)(ctx) }()
		g.Eventually(served).Should(Equal(1))
		stop()
		g.Eventually(done).Should(Receive(BeNil()))
		g.Expect(served()).To(BeZero())
	})
}
