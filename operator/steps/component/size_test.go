// SPDX-License-Identifier: Apache-2.0

package component

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/guest/watch"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

func sizeOf(nodes, replicas int32, cpu string) Size {
	return Size{Nodes: nodes, Replicas: replicas, Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
}

func profile(platform v1beta1.Platform) *provider.Profile {
	return &provider.Profile{Platform: platform, NodeClass: provider.NodeClass{GroupVersionKind: v1alpha1.GroupVersion.WithKind("ClusterAPINodeClass")}}
}

// launching is a NodeClaim that has no machine yet.
func launching(name, group string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{Group: group}}}
}

// TestSize steps through the life of one guest: each case has the Deployment of the one before.
func TestSize(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1beta1.AddToScheme, watch.AddToScheme} {
		g.Expect(add(scheme)).To(Succeed())
	}
	owner := &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "karpenter", UID: "owner"}}
	live := deployment("a", func(d *appsv1.Deployment) {
		d.Namespace, d.Name = owner.Namespace, owner.Name
		d.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, v1beta1.GroupVersion.WithKind("ControlPlaneComponent"))}
	})
	now := clocktesting.NewFakePassiveClock(time.Now())
	management, guest := fake.NewClientBuilder().WithScheme(scheme).Build(), fake.NewClientBuilder().WithScheme(scheme).Build()
	component := New(Config{Management: management, Clock: now, Settings: Settings{ResourcesByNodes: []Size{
		sizeOf(0, 1, "50m"), sizeOf(1, 2, "100m"), sizeOf(3, 2, "200m"),
	}}})
	s := &scope.Scope{
		HostedCluster:         &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue", UID: "blue"}},
		ControlPlaneNamespace: owner.Namespace, Component: owner, Profile: profile(v1beta1.PlatformClusterAPI),
	}
	for i, step := range []struct {
		name        string
		claims      int
		launching   bool
		unreachable bool
		after       time.Duration
		want        int32 // nodes of the size
		again       time.Duration
	}{
		{name: "When there is no Deployment and no node, it should be the first size", want: 0},
		{name: "When nodes are launching, it should stay as it is", claims: 4, launching: true, want: 0},
		{name: "When they have launched, it should be as large as they need", claims: 4, want: 3},
		{name: "When fewer nodes suffice, it should stay so for an hour", claims: 2, want: 3, again: time.Hour},
		{name: "When it looks meanwhile, it should wait for the rest of the hour", claims: 2, after: 20 * time.Minute, want: 3, again: 40 * time.Minute},
		{name: "When more come back, it should forget that fewer sufficed", claims: 3, want: 3},
		{name: "When fewer suffice again, it should wait for a whole hour", claims: 0, after: time.Hour, want: 3, again: time.Hour},
		{name: "When the guest can't be reached, it should stay as it is", after: 2 * time.Hour, unreachable: true, want: 3},
		{name: "When the hour has passed, it should be as small as it may", claims: 0, want: 0},
	} {
		t.Run(step.name, func(t *testing.T) {
			g := NewWithT(t)
			now.SetTime(now.Now().Add(step.after))
			g.Expect(guest.DeleteAllOf(ctx, &karpv1.NodeClaim{})).To(Succeed())
			for n := range step.claims {
				claim := launching(fmt.Sprint(n), v1alpha1.Group)
				if !step.launching {
					claim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
				}
				g.Expect(guest.Create(ctx, claim)).To(Succeed())
			}
			g.Expect(guest.Create(ctx, launching("other", "example.com"))).To(Succeed())
			s.Guest = &scope.Guest{Cached: guest, Complete: true}
			if step.unreachable {
				s.Guest = nil
			}
			size, again, err := component.size(ctx, s)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(size.Nodes).To(Equal(step.want))
			g.Expect(again).To(Equal(step.again))
			before := live.DeepCopy()
			size.adapt(live)
			if i == 0 {
				g.Expect(management.Create(ctx, live)).To(Succeed())
			} else {
				g.Expect(management.Patch(ctx, live, client.MergeFrom(before))).To(Succeed())
			}
		})
	}

	t.Run("When it is scaled to zero, it should keep its size for when it comes back", func(t *testing.T) {
		g := NewWithT(t)
		before := live.DeepCopy()
		live.Spec.Replicas = ptr.To[int32](0)
		g.Expect(management.Patch(ctx, live, client.MergeFrom(before))).To(Succeed())
		s.Guest = nil
		size, _, err := component.size(ctx, s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(size.Replicas).To(BeEquivalentTo(1))
	})
	for _, test := range []struct {
		name      string
		platform  v1beta1.Platform
		resources corev1.ResourceRequirements
		want      gomegatypes.GomegaMatcher
	}{
		{"When the platform sets nothing, one without nodes should have one replica", v1beta1.PlatformClusterAPI, corev1.ResourceRequirements{}, HaveField("Replicas", BeEquivalentTo(1))},
		{"When it sets resources, they should hold for every size", v1beta1.PlatformClusterAPI, corev1.ResourceRequirements{Requests: requests(1000, 1024)}, BeNil()},
		{"When it sets limits, no request should be above them", v1beta1.PlatformClusterAPI, corev1.ResourceRequirements{Limits: requests(1000, 64)}, BeNil()},
		{"When the Karpenter is another provider's, it should keep its own", v1beta1.PlatformAWS, corev1.ResourceRequirements{}, BeNil()},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.Profile = profile(test.platform)
			size, _, err := New(Config{Management: management, Clock: clock.RealClock{}, Settings: Settings{Resources: test.resources}}).size(ctx, s)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(size).To(test.want)
		})
	}
}

// TestResize: the pods are replaced for another size, and that is no rollout.
func TestResize(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	c, s, _ := installed(t)
	c.Settings.ResourcesByNodes = []Size{sizeOf(0, 1, "50m"), sizeOf(1, 2, "100m")}
	resolved(s, "1.36.3")
	// reconcile runs the step beside a Deployment's controller that has replaced some of its pods.
	reconcile := func(updated, available int32) *appsv1.Deployment {
		component := scopetest.Get(ctx, g, c.Management, s.ControlPlaneNamespace, v1beta1.KarpenterComponent, &v1beta1.ControlPlaneComponent{})
		s.Component.ResourceVersion = component.ResourceVersion
		_, err := c.Reconcile(ctx, s)
		g.Expect(err).NotTo(HaveOccurred())
		d := scopetest.Get(ctx, g, c.Management, s.ControlPlaneNamespace, v1beta1.KarpenterComponent, &appsv1.Deployment{})
		d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = available, updated, available
		g.Expect(c.Management.Status().Update(ctx, d)).To(Succeed())
		return d
	}
	complete := func() bool { return meta.IsStatusConditionTrue(s.Component.Status.Conditions, v1beta1.RolloutComplete) }
	reconcile(1, 1)
	g.Expect(*reconcile(1, 1).Spec.Replicas).To(BeEquivalentTo(1))
	reconcile(1, 1)
	g.Expect(complete()).To(BeTrue())
	rollout := s.Rollout

	claim := launching("a", v1alpha1.Group)
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	g.Expect(s.Guest.Cached.Create(ctx, claim)).To(Succeed())
	for range 3 {
		d := reconcile(1, 2) // one new pod beside an old one
		g.Expect(*d.Spec.Replicas).To(BeEquivalentTo(2))
		g.Expect(d.Spec.Template.Spec.Containers[0].Resources.Requests.Cpu().String()).To(Equal("100m"))
		g.Expect(complete()).To(BeTrue())
		g.Expect(s.Rollout).To(Equal(rollout))
	}
	resolved(s, "1.36.4")
	for range 2 {
		reconcile(1, 2)
		g.Expect(complete()).To(BeFalse(), "of a payload it is one")
	}
}
