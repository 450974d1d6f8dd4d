// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/controllers/shard"
)

// counts are those that status.autoNode has to show, beside each other.
type counts struct{ nodes, claims, vcpus, drifted, byVersion int32 }

// countsOf returns them; -1 for one that isn't there.
func countsOf(hostedCluster *v1beta1.HostedCluster) counts {
	value := func(of *int32) int32 {
		if of == nil {
			return -1
		}
		return *of
	}
	status := hostedCluster.Status.AutoNode
	if status == nil {
		return counts{-1, -1, -1, -1, -1}
	}
	c := counts{nodes: value(status.NodeCount), claims: value(status.NodeClaimCount), vcpus: value(status.VCPUs), drifted: value(status.DriftedNodeCount)}
	for _, version := range status.NodeVersions {
		c.byVersion += version.Count
	}
	return c
}

// atMost reports that none of them is more than the other's.
func (c counts) atMost(other counts) bool {
	return c.nodes <= other.nodes && c.claims <= other.claims && c.vcpus <= other.vcpus && c.drifted <= other.drifted && c.byVersion <= other.byVersion
}

// history is what a watch reported of a HostedCluster.
type history struct {
	mu   sync.Mutex
	seen []*v1beta1.HostedCluster
}

// follow watches a HostedCluster from how it is now until the test ends.
func follow(t *testing.T, hostedCluster *v1beta1.HostedCluster) *history {
	t.Helper()
	g := NewWithT(t)
	management, err := client.NewWithWatch(clusters.Management.Config, client.Options{Scheme: clusters.Management.Client.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	w, err := management.Watch(t.Context(), &v1beta1.HostedClusterList{}, client.InNamespace(hostedCluster.Namespace),
		client.MatchingFields{"metadata.name": hostedCluster.Name}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: hostedCluster.ResourceVersion}})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(w.Stop)
	h := &history{seen: []*v1beta1.HostedCluster{hostedCluster}}
	go func() {
		for event := range w.ResultChan() {
			if seen, ok := event.Object.(*v1beta1.HostedCluster); ok {
				h.mu.Lock()
				h.seen = append(h.seen, seen)
				h.mu.Unlock()
			}
		}
	}()
	return h
}

// take returns what was reported since the last time, beginning with what was reported last then.
func (h *history) take() []*v1beta1.HostedCluster {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.seen
	h.seen = seen[len(seen)-1:]
	return seen
}

// last is what was reported last.
func (h *history) last() *v1beta1.HostedCluster {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen[len(h.seen)-1]
}

// platformCondition is another manager's, which applies it and never forces anything.
func platformCondition(ctx context.Context, name string) error {
	theirs := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
		"type": "EtcdHealthy", "status": "True", "reason": "Platform", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
	}}}}}
	theirs.SetGroupVersionKind(v1beta1.GroupVersion.WithKind("HostedCluster"))
	theirs.SetNamespace("clusters")
	theirs.SetName(name)
	return clusters.Management.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(theirs), client.FieldOwner("platform"))
}

// conditionTypes of a HostedCluster.
func conditionTypes(hostedCluster *v1beta1.HostedCluster) []string {
	var types []string
	for _, condition := range hostedCluster.Status.Conditions {
		types = append(types, condition.Type)
	}
	return types
}

const (
	counted, countedNamespace, countedLabel = "counted", "clusters-counted", "counted"

	// batch is how many nodes come or go at a time, and batches how often.
	batch, batches = 6, 4
)

// counting is what is seen of the operator from outside.
type counting struct {
	told *history
	// writes are the operator's about the HostedCluster, those that change nothing among them.
	writes atomic.Int64
}

// config is the operator's, and counts its writes about the HostedCluster.
func (c *counting) config() *rest.Config {
	config := rest.CopyConfig(clusters.Management.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			about := strings.Contains(request.URL.Path+"/", "/hostedclusters/"+counted+"/") || strings.Contains(request.URL.Path, "/"+countedNamespace+"/")
			if about && request.Method != http.MethodGet {
				c.writes.Add(1)
			}
			return next.RoundTrip(request)
		})
	})
	return config
}

// enable turns AutoNode on, and follows the HostedCluster from then on until the test ends.
func (c *counting) enable(t *testing.T, release string) {
	t.Helper()
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	g.Expect(management.Create(ctx, newHosted("clusters", counted, release, countedLabel))).To(Succeed())
	g.Expect(platformCondition(ctx, counted)).To(Succeed())
	g.Eventually(func(g Gomega) { rollOut(g, ctx, countedNamespace, image+strings.Repeat("2", 64)) }).Should(Succeed())
	g.Eventually(func(g Gomega) { reportReady(g, ctx) }).Should(Succeed())
	g.Eventually(func(g Gomega) {
		hostedCluster := get(g, ctx, counted)
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
		g.Expect(hostedCluster.Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStateEnabled))
		g.Expect(countsOf(hostedCluster)).To(Equal(counts{}))
	}).Should(Succeed())
	c.told = follow(t, get(g, ctx, counted))
}

// settle waits until the counts are right, no longer than they may be wrong, and returns what was to be seen until then.
func (c *counting) settle(g Gomega, want counts) []*v1beta1.HostedCluster {
	g.Eventually(func() counts { return countsOf(c.told.last()) }).Should(Equal(want))
	seen := c.told.take()
	for _, hostedCluster := range seen {
		got := countsOf(hostedCluster)
		g.Expect(got.byVersion).To(Equal(got.nodes), "the versions are of other nodes")
		g.Expect(got.vcpus).To(Equal(4*got.nodes), "the CPUs are of other nodes")
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
		g.Expect(reasonOf(hostedCluster, v1beta1.NodesUpToDate)).To(Equal("True/AsExpected"))
		g.Expect(reasonOf(hostedCluster, "EtcdHealthy")).To(Equal("True/Platform"))
		g.Expect(hostedCluster.Status.Operator).To(Equal("default/" + countedLabel))
	}
	return seen
}

func countedNode(i int) client.Object {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("counted-%d", i), Labels: map[string]string{karpv1.NodePoolLabelKey: "general"}},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.2"},
		},
	}
}

func countedClaim(i int) client.Object { return scopetest.NodeClaim(fmt.Sprintf("counted-%d", i)) }

// together waits for no answer before the next request, as machines that come and go don't.
func together(t *testing.T, from, to int, do func(i int) error) {
	t.Helper()
	g := NewWithT(t)
	errs := make(chan error, to-from)
	for i := from; i < to; i++ {
		go func() { errs <- do(i) }()
	}
	for range to - from {
		g.Expect(<-errs).To(Succeed())
	}
}

// TestCounts goes through the steps in order; each finds the nodes that the one before has left.
func TestCounts(t *testing.T) {
	provide(t)
	host := serveRegistry(t)
	removeAll(t, countedLabel)
	release := push(t, host, "1.36.2")
	platform(t, counted)
	c := &counting{}
	run(t, c.config(), selecting(countedLabel))
	c.enable(t, release)
	t.Run("When nodes come, it should count up to them, never down, without being asked", func(t *testing.T) { c.counts(t, true) })
	t.Run("When nothing comes or goes, it should ask for no write, not even one that changes nothing", c.writesNothing)
	t.Run("When every field has been written, each should have one owner", c.ownsFields)
	t.Run("When nodes go, it should count down to what is left, never up", func(t *testing.T) { c.counts(t, false) })
	t.Run("When AutoNode is turned off, it should clear the counts, and leave what is others'", c.clearsCounts)
}

// counts has nodes come or go in batches, and expects that the counts never went the other way.
func (c *counting) counts(t *testing.T, up bool) {
	g, ctx, guest := NewWithT(t), t.Context(), clusters.Guest.Client
	for b := range batches {
		for _, made := range []func(i int) client.Object{countedClaim, countedNode} {
			together(t, b*batch, (b+1)*batch, func(i int) error {
				if up {
					return guest.Create(ctx, made(i))
				}
				return guest.Delete(ctx, made(i))
			})
		}
		n := int32((b + 1) * batch)
		if !up {
			n = batches*batch - n
		}
		seen := c.settle(g, counts{nodes: n, claims: n, vcpus: 4 * n, byVersion: n})
		for i := range seen[1:] {
			before, after := countsOf(seen[i]), countsOf(seen[i+1])
			if !up {
				before, after = after, before
			}
			g.Expect(before.atMost(after)).To(BeTrue(), "%+v and %+v", before, after)
		}
	}
}

func (c *counting) writesNothing(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	atRest := c.writes.Load()
	settled := func() bool {
		defer func() { atRest = c.writes.Load() }()
		return c.writes.Load() == atRest
	}
	g.Eventually(settled).WithPolling(time.Second).Should(BeTrue())
	before := c.told.last().ResourceVersion
	g.Expect(platformCondition(ctx, counted)).To(Succeed())
	g.Consistently(c.writes.Load, "2s").Should(Equal(atRest))
	g.Expect(get(g, ctx, counted).ResourceVersion).To(Equal(before), "who applies its own writes nothing, either")
}

func (*counting) ownsFields(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	owners := map[string]string{}
	for _, entry := range get(g, ctx, counted).ManagedFields {
		if entry.Subresource != "status" {
			continue
		}
		fields := &fieldpath.Set{}
		g.Expect(fields.FromJSON(entry.FieldsV1.GetRawReader())).To(Succeed())
		fields.Leaves().Iterate(func(path fieldpath.Path) {
			owner := fmt.Sprintf("%s %s", entry.Operation, entry.Manager)
			g.Expect(owners).NotTo(HaveKey(path.String()), "it is also "+owner+"'s")
			owners[path.String()] = owner
		})
	}
	g.Expect(owners).To(And(
		HaveKeyWithValue(".status.autoNode.nodeCount", "Apply "+apply.FieldOwner),
		HaveKeyWithValue(`.status.conditions[type="AutoNodeEnabled"].reason`, "Apply "+apply.FieldOwner),
		HaveKeyWithValue(`.status.conditions[type="EtcdHealthy"].reason`, "Apply platform"),
		HaveKeyWithValue(".status.operator", "Update "+shard.FieldOwner),
	))
}

func (*counting) clearsCounts(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	patch(g, ctx, counted, func(hc *v1beta1.HostedCluster) { hc.Spec.AutoNode = nil })
	g.Eventually(func(g Gomega) {
		hostedCluster := get(g, ctx, counted)
		g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("False/AutoNodeNotConfigured"))
		g.Expect(hostedCluster.Status.AutoNode).To(BeNil())
		g.Expect(conditionTypes(hostedCluster)).To(ConsistOf(v1beta1.AutoNodeEnabled, v1beta1.Ready, "EtcdHealthy"))
		g.Expect(hostedCluster.Status.Version.History).NotTo(BeEmpty())
		g.Expect(hostedCluster.Status.Operator).To(Equal("default/" + countedLabel))
	}).Should(Succeed())
}
