// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/crd"
	"github.com/autonode-io/autonode/operator/steps/featuregate"
)

// gated are both steps of feature gates that need a definition.
type gated struct {
	scope *scope.Scope
	clock *clocktesting.FakePassiveClock
	gates *featuregate.FeatureGates
	step  *crd.Definitions
}

func newGated(s *scope.Scope, platform map[string]bool) gated {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	return gated{
		scope: s, clock: clock, step: crd.New(crd.Config{Apply: apply.New()}),
		gates: featuregate.New(featuregate.Config{Management: clusters.Management.Client, Clock: clock, Platform: platform}),
	}
}

// settle runs the steps until they wait for nothing, and returns when the first is to run again.
func (s gated) settle(t *testing.T) (again time.Duration) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		result, err := s.gates.Reconcile(t.Context(), s.scope)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.Wait).To(BeFalse())
		again = result.RequeueAfter
		g.Expect(reconcile(t.Context(), s.step, s.scope)(g)).To(Equal(scope.Result{}))
	}).Should(Succeed())
	return again
}

func (s gated) accepted() *metav1.Condition {
	return meta.FindStatusCondition(s.scope.HostedCluster.Status.Conditions, v1beta1.FeatureGatesAccepted)
}

// autoscalers is the definition of CapacityBuffers that the Cluster Autoscaler's chart would bring.
func autoscalers(version string) *apiextensionsv1.CustomResourceDefinition {
	definition := scopetest.Definition("autoscaling.x-k8s.io", "CapacityBuffer", "capacitybuffers", version)
	definition.Annotations = map[string]string{
		"meta.helm.sh/release-name": "cluster-autoscaler", "meta.helm.sh/release-namespace": "kube-system",
		"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/8151",
	}
	return definition
}

func buffers() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crds.CapacityBuffer}}
}

// removeBuffers removes the definition that another test may have left.
func removeBuffers(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		g.Expect(client.IgnoreNotFound(clusters.Guest.Client.Delete(t.Context(), buffers()))).To(Succeed())
		scopetest.ExpectGone(t.Context(), g, clusters.Guest.Client, buffers())
	}).Should(Succeed())
}

func TestGated(t *testing.T) {
	s, guest := clusters.NewScope(t, "gated"), clusters.Guest.Client
	removeBuffers(t)
	on := newGated(s, map[string]bool{featuregate.CapacityBuffer: true})
	const owner = "CustomResourceDefinition capacitybuffers.autoscaling.x-k8s.io in the guest belongs to Helm release kube-system/cluster-autoscaler"

	t.Run("When no feature gate needs a definition, the guest should have none", func(t *testing.T) {
		g := NewWithT(t)
		off := newGated(s, map[string]bool{featuregate.CapacityBuffer: false, "SpotToSpotConsolidation": true})
		g.Expect(off.settle(t)).To(BeZero())
		g.Expect(s.FeatureGates.Set).To(Equal(map[string]bool{featuregate.CapacityBuffer: false, "SpotToSpotConsolidation": true}))
		scopetest.ExpectGone(t.Context(), g, guest, buffers())
		g.Expect(off.accepted()).To(BeNil())
	})

	t.Run("When another's definition lacks the version that Karpenter reads, the gate should be off, and the definition stay", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(guest.Create(t.Context(), autoscalers("v1alpha1"))).To(Succeed())
		before := get(t.Context(), g, crds.CapacityBuffer).Spec
		g.Expect(on.settle(t)).To(Equal(time.Minute))
		g.Expect(s.FeatureGates.Set).To(HaveKeyWithValue(featuregate.CapacityBuffer, false))
		g.Expect(s.FeatureGates.InUse).NotTo(HaveKey(featuregate.CapacityBuffer))
		g.Expect(*on.accepted()).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.FeatureGateUnsupportedReason),
			HaveField("Message", "CapacityBuffer is off: "+owner+" and doesn't serve version v1beta1; let its owner upgrade or delete it, and the operator tries again within 1m0s")))
		live := get(t.Context(), g, crds.CapacityBuffer)
		g.Expect(live.Spec).To(Equal(before))
		g.Expect(live.Labels).To(BeEmpty())
	})

	t.Run("When another's definition has all that Karpenter reads and writes, the gate should be on, and the definition stay its owner's", func(t *testing.T) {
		g := NewWithT(t)
		removeBuffers(t)
		theirs := autoscalers("v1beta1")
		theirs.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
		g.Expect(guest.Create(t.Context(), theirs)).To(Succeed())
		before := get(t.Context(), g, crds.CapacityBuffer).Spec
		on.settle(t)
		g.Expect(on.accepted().Reason).To(Equal(v1beta1.FeatureGateUnsupportedReason), "within a minute the guest isn't asked again")
		on.clock.SetTime(on.clock.Now().Add(time.Minute))
		NewWithT(t).Eventually(func(g Gomega) { // it takes a moment until it is established
			on.clock.SetTime(on.clock.Now().Add(time.Minute))
			g.Expect(on.settle(t)).To(Equal(time.Minute), "the operator doesn't watch it")
			g.Expect(on.accepted().Reason).To(Equal(v1beta1.DefinitionNotOwnedReason))
		}).Should(Succeed())
		g.Expect(*on.accepted()).To(And(HaveField("Status", metav1.ConditionTrue),
			HaveField("Message", "CapacityBuffer is on: "+owner+"; Karpenter uses it, and the operator neither changes nor removes it")))
		g.Expect(s.FeatureGates.Set).To(HaveKeyWithValue(featuregate.CapacityBuffer, true))
		g.Expect(s.FeatureGates.InUse).To(HaveKey(featuregate.CapacityBuffer))
		live := get(t.Context(), g, crds.CapacityBuffer)
		g.Expect(live.Spec).To(Equal(before))
		g.Expect(live.Labels).To(BeEmpty())
		g.Expect(live.Annotations).NotTo(HaveKey(crd.CreatedAnnotation))
	})

	t.Run("When its owner hands it over, the operator should keep it up to date as its own", func(t *testing.T) {
		g := NewWithT(t)
		live := get(t.Context(), g, crds.CapacityBuffer)
		before := client.MergeFrom(live.DeepCopy())
		live.Annotations[crd.CreatedAnnotation] = "true"
		g.Expect(guest.Patch(t.Context(), live, before)).To(Succeed())
		on.clock.SetTime(on.clock.Now().Add(time.Minute))
		g.Expect(on.settle(t)).To(BeZero())
		g.Expect(on.accepted()).To(BeNil())
		live = get(t.Context(), g, crds.CapacityBuffer)
		g.Expect(live.Labels).To(HaveKeyWithValue(apply.LabelManagedBy, apply.FieldOwner))
		g.Expect(live.Spec.Versions[0].AdditionalPrinterColumns).NotTo(BeEmpty())
	})

	t.Run("When its owner has deleted it, the operator should create its own, and say nothing more", func(t *testing.T) {
		g := NewWithT(t)
		removeBuffers(t)
		on.clock.SetTime(on.clock.Now().Add(time.Minute))
		g.Expect(on.settle(t)).To(BeZero())
		g.Expect(on.accepted()).To(BeNil())
		live := get(t.Context(), g, crds.CapacityBuffer)
		g.Expect(live.Annotations).To(HaveKeyWithValue(crd.CreatedAnnotation, "true"))
		g.Expect(live.Labels).To(HaveKeyWithValue(apply.LabelManagedBy, apply.FieldOwner))
	})

	t.Run("When the gate is turned off, the definition should stay, for the sake of what is in it", func(t *testing.T) {
		g := NewWithT(t)
		newGated(s, nil).settle(t)
		g.Expect(get(t.Context(), g, crds.CapacityBuffer).DeletionTimestamp).To(BeNil())
	})

	t.Run("When a replica may still run with a gate, the gate's permissions should stay, in a drain too", func(t *testing.T) {
		g := NewWithT(t)
		deployment := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.ControlPlaneNamespace, Name: v1beta1.KarpenterComponent},
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "karpenter"}},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "karpenter"}},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{
						Name: "karpenter", Image: "registry.example/karpenter", Env: []corev1.EnvVar{{Name: "FEATURE_GATES", Value: "CapacityBuffer=true"}},
					}}},
				},
			},
		}
		g.Expect(clusters.Management.Client.Create(t.Context(), deployment)).To(Succeed())
		draining := *s
		draining.HostedCluster = s.HostedCluster.DeepCopy()
		draining.HostedCluster.Spec.AutoNode = nil
		for _, in := range []*scope.Scope{s, &draining} {
			scopetest.Reconcile(t, newGated(in, nil).gates, in)
			g.Expect(in.FeatureGates.InUse).To(HaveKey(featuregate.CapacityBuffer))
			g.Expect(in.FeatureGates.Definitions).To(BeEmpty())
		}
		g.Expect(clusters.Management.Client.Delete(t.Context(), deployment)).To(Succeed())
		finished := s.Component.DeepCopy()
		finished.Status.FeatureGates = []string{featuregate.CapacityBuffer}
		rolledBack := *s
		rolledBack.Component = finished
		scopetest.Reconcile(t, newGated(&rolledBack, nil).gates, &rolledBack)
		g.Expect(rolledBack.FeatureGates.InUse).To(HaveKey(featuregate.CapacityBuffer), "of the last complete rollout")
	})
	removeBuffers(t)
}
