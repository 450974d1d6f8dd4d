// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/status"
	"github.com/autonode-io/autonode/payload"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

func TestStatus(t *testing.T) {
	ctx, s := t.Context(), clusters.NewScope(t, "status")
	server, asked := "v1.36.2", 0
	clock := clocktesting.NewFakeClock(time.Now())
	step := status.New(status.Config{Clock: clock, Versions: guest.NewVersions(clock, func(context.Context, *rest.Config) (string, error) {
		asked++
		return server, nil
	})})
	condition := func() metav1.Condition {
		if c := meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.NodesUpToDate); c != nil {
			return *c
		}
		return metav1.Condition{}
	}

	t.Run("When the guest has no definitions yet, it should count nothing", func(t *testing.T) {
		g := NewWithT(t)
		s.Guest.Complete = false
		scopetest.Reconcile(t, step, s)
		g.Expect(s.HostedCluster.Status.AutoNode).To(BeNil())
		s.Guest.Complete = true
	})

	t.Run("When there are no nodes, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(clusters.InstallDefinitions()).To(Succeed())
		scopetest.Reconcile(t, step, s)
		g.Expect(*s.HostedCluster.Status.AutoNode).To(Equal(v1beta1.AutoNodeStatus{
			NodeCount: ptr.To[int32](0), NodeClaimCount: ptr.To[int32](0), VCPUs: ptr.To[int32](0), DriftedNodeCount: ptr.To[int32](0),
			OutdatedNodeCount: ptr.To[int32](0), NodeVersions: []v1beta1.NodeVersion{},
		}))
	})

	t.Run("When there are nodes, it should count them and keep what others say", func(t *testing.T) {
		g := NewWithT(t)
		for name, labels := range map[string]map[string]string{"n1": {karpv1.NodePoolLabelKey: "general"}, "static": nil} {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
			g.Expect(clusters.Guest.Client.Create(ctx, node)).To(Succeed())
			node.Status.NodeInfo.KubeletVersion = "v1.36.2"
			node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
			g.Expect(clusters.Guest.Client.Status().Update(ctx, node)).To(Succeed())
		}
		for name, node := range map[string]string{"c1": "n1", "c2": ""} {
			claim := scopetest.NodeClaim(name)
			g.Expect(clusters.Guest.Client.Create(ctx, claim)).To(Succeed())
			claim.Status.NodeName = node
			g.Expect(clusters.Guest.Client.Status().Update(ctx, claim)).To(Succeed())
		}
		s.HostedCluster.Status.AutoNode.State, s.HostedCluster.Status.AutoNode.Message = v1beta1.AutoNodeStateEnabled, "another owner's"
		scopetest.Reconcile(t, step, s)
		g.Expect(*s.HostedCluster.Status.AutoNode).To(Equal(v1beta1.AutoNodeStatus{
			State: v1beta1.AutoNodeStateEnabled, Message: "another owner's",
			NodeCount: ptr.To[int32](1), NodeClaimCount: ptr.To[int32](2), VCPUs: ptr.To[int32](4), DriftedNodeCount: ptr.To[int32](0),
			OutdatedNodeCount: ptr.To[int32](1), NodeVersions: []v1beta1.NodeVersion{{Version: "1.36.2", Count: 1}},
		}))
		g.Expect(condition().Reason).To(Equal(v1beta1.ControlPlaneOlderReason))
	})

	t.Run("When the control plane is upgraded, it should find out within half a minute, and not ask again", func(t *testing.T) {
		g := NewWithT(t)
		before := asked
		g.Expect(scopetest.Reconcile(t, step, s).RequeueAfter).To(Equal(30 * time.Second))
		g.Expect(asked).To(Equal(before))
		server = "v1.36.3"
		clock.Step(30 * time.Second)
		scopetest.Reconcile(t, step, s)
		g.Expect(condition().Reason).To(Equal(v1beta1.NodesOutdatedReason))
		clock.Step(time.Hour)
		scopetest.Reconcile(t, step, s)
		g.Expect(asked).To(Equal(before + 1))
	})

	t.Run("When Karpenter gives nodes a newer version, it should ask the control plane at once", func(t *testing.T) {
		g := NewWithT(t)
		server = "v1.36.4"
		later := *s
		later.Karpenter.Versions = map[string]string{payload.KubernetesVersion: "1.36.5"}
		scopetest.Reconcile(t, step, &later)
		g.Expect(condition().Message).To(ContainSubstring("nodes stay on 1.36.4"))
		server = "v1.36.5"
		scopetest.Reconcile(t, step, &later)
		g.Expect(condition().Message).To(ContainSubstring("nodes stay on 1.36.4"))
		class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		g.Expect(clusters.Guest.Client.Create(ctx, class)).To(Succeed())
		class.Status.Version = "1.36.5"
		g.Expect(clusters.Guest.Client.Status().Update(ctx, class)).To(Succeed())
		scopetest.Reconcile(t, step, &later)
		g.Expect(condition().Reason).To(Equal(v1beta1.NodesOutdatedReason))
	})

	t.Run("When the guest can't be reached, the last known numbers should stay", func(t *testing.T) {
		g := NewWithT(t)
		before := s.HostedCluster.Status.DeepCopy()
		away := *s
		away.Guest = nil
		g.Expect(step.Reconcile(ctx, &away)).To(Equal(scope.Result{}))
		g.Expect(step.Observe(ctx, &away)).To(Succeed())
		g.Expect(s.HostedCluster.Status).To(Equal(*before))
	})

	t.Run("When the release isn't resolved, it should go by the one resolved last", func(t *testing.T) {
		g := NewWithT(t)
		unresolved := *s
		unresolved.Release = nil
		s.HostedCluster.Status.Version = &v1beta1.VersionStatus{Desired: &v1beta1.DesiredVersion{NodeVersion: "1.36.2"}}
		g.Expect(step.Observe(ctx, &unresolved)).To(Succeed())
		g.Expect(condition().Status).To(Equal(metav1.ConditionTrue))
	})

	t.Run("When AutoNode is being turned off, it should go on counting but not call nodes outdated", func(t *testing.T) {
		g := NewWithT(t)
		off := *s
		off.HostedCluster = s.HostedCluster.DeepCopy()
		off.HostedCluster.Spec.AutoNode = nil
		g.Expect(step.Observe(ctx, &off)).To(Succeed())
		g.Expect(off.HostedCluster.Status.AutoNode.NodeCount).To(HaveValue(BeEquivalentTo(1)))
		g.Expect(off.HostedCluster.Status.AutoNode.OutdatedNodeCount).To(BeNil())
		g.Expect(meta.FindStatusCondition(off.HostedCluster.Status.Conditions, v1beta1.NodesUpToDate)).To(BeNil())
	})

	t.Run("When the API server doesn't report its version, it should report the error", func(t *testing.T) {
		g := NewWithT(t)
		broken := errors.New("connection reset")
		failing := status.New(status.Config{Versions: guest.NewVersions(nil, func(context.Context, *rest.Config) (string, error) { return "", broken })})
		_, err := failing.Reconcile(ctx, s)
		g.Expect(err).To(MatchError(broken))
	})
}

func TestGone(t *testing.T) {
	ctx := t.Context()
	for name, test := range map[string]struct {
		profile *provider.Profile
		cluster bool
		want    int32
	}{
		"When the Cluster is gone and its guest with it, it should count no nodes":              {profile: clusterapi.New(clusterapi.DefaultGroups)},
		"When the guest can't be reached, it should keep the last known numbers":                {profile: clusterapi.New(clusterapi.DefaultGroups), cluster: true, want: 10},
		"When the Cluster is gone and its nodes aren't Machines, it should keep the last known": {profile: aws.New(), want: 10},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := &scope.Scope{HostedCluster: &v1beta1.HostedCluster{}, Profile: test.profile}
			if test.cluster {
				s.Cluster = &clusterv1.Cluster{}
			}
			s.HostedCluster.Status.AutoNode = &v1beta1.AutoNodeStatus{
				NodeCount: ptr.To[int32](10), NodeClaimCount: ptr.To[int32](10), VCPUs: ptr.To[int32](10), DriftedNodeCount: ptr.To[int32](10),
				State: v1beta1.AutoNodeStateWaiting,
			}
			g.Expect(status.New(status.Config{}).Observe(ctx, s)).To(Succeed())
			g.Expect(*s.HostedCluster.Status.AutoNode).To(Equal(v1beta1.AutoNodeStatus{
				NodeCount: &test.want, NodeClaimCount: &test.want, VCPUs: &test.want, DriftedNodeCount: &test.want, State: v1beta1.AutoNodeStateWaiting,
			}))
		})
	}
}
