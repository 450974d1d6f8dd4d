// SPDX-License-Identifier: Apache-2.0

package nodeclaim_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
)

// uncopied are infrastructure machines with a provider ID that Cluster API hasn't copied into their Machines, by name.
type uncopied map[string]*unstructured.Unstructured

func (u uncopied) Get(_ context.Context, kind schema.GroupKind, name string) (*unstructured.Unstructured, error) {
	if object, ok := u[name]; ok && object.GroupVersionKind().GroupKind() == kind {
		return object, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name)
}

// reports has the infrastructure machine of a NodeClaim report a provider ID, and nothing else.
func (f *fixture) reports(nodeClaim *karpv1.NodeClaim, id string) {
	f.t.Helper()
	var m *clusterv1.Machine
	f.Eventually(func() (err error) { m, err = f.config.Machines.ForNodeClaim(f.t.Context(), nodeClaim.UID); return err }).Should(Succeed())
	object := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"providerID": id}, "status": map[string]any{"initialization": map[string]any{"provisioned": true}},
	}}
	object.SetGroupVersionKind(environment.TestMachine)
	object.SetLabels(map[string]string{v1alpha1.NodeClaimUIDLabel: string(nodeClaim.UID)})
	f.config.Machines.Infrastructure = uncopied{m.Spec.InfrastructureRef.Name: object}
}

// TestUncopied: Cluster API may take minutes to copy a provider ID, if it is busy.
func TestUncopied(t *testing.T) {
	t.Run("When the infrastructure reports a provider ID, the launch should have taken until then", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.say(f.fromTemplate)
		f.reconcile()
		f.clock.SetTime(f.machine.CreationTimestamp.Add(40 * time.Second))
		f.reports(f.nodeClaim, "cloud://uncopied")
		f.reconcile()
		f.clock.Step(time.Minute)
		f.say(provisioned("cloud://uncopied"))
		f.reconcile()
		count, seconds := f.launches("provisioned")
		f.Expect(count).To(BeEquivalentTo(1))
		f.Expect(seconds).To(BeNumerically("~", 40, 0.01))
	})

	t.Run("When it reports one, the machine should stay, however long Cluster API takes", func(t *testing.T) {
		f := newSlow(t)
		f.reports(f.nodeClaim, "cloud://uncopied")
		f.reconcile()
		f.clock.Step(maxSlow)
		f.Expect(f.isGivenUp()).To(BeFalse())
	})

	t.Run("When it reports one while the Cluster isn't ready, the NodeClaim should say that its machine is provisioned, once", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.settled()
		f.infrastructure(metav1.ConditionFalse, "VCenterUnreachable", loginFailed)
		f.reports(f.nodeClaim, "cloud://uncopied")
		after := f.reconcile()
		f.Expect(after.StatusConditions().Get(nodeclaim.ConditionMachineProvisioned).IsTrue()).To(BeTrue())
		f.Expect(f.reconcile().ResourceVersion).To(Equal(after.ResourceVersion), "it was written again")
	})

	t.Run("When it reports one within the time for a launch, the time for a registration should count", func(t *testing.T) {
		r := newRace(t, minutes(5, 15))
		r.until(4 * time.Minute)
		r.reports(r.nodeClaim, "cloud://uncopied")
		nodeClaim, age := r.until(time.Hour)
		r.Expect(nodeClaim.DeletionTimestamp).NotTo(BeNil())
		r.Expect(age).To(about(19 * time.Minute))
		r.Expect(r.recorder.Reasons()).To(Equal([]string{nodeclaim.RegistrationTimeoutReason}))
	})

	t.Run("When the Machine reports that capacity was missing before it had one, the machine should stay", func(t *testing.T) {
		f := newFixture(t)
		f.launched()
		f.reports(f.nodeClaim, "cloud://uncopied")
		f.say(infrastructure(metav1.ConditionFalse, "InsufficientInstanceCapacity", ""))
		f.Expect(f.isGivenUp()).To(BeFalse())
		f.config.Machines.Infrastructure = uncopied{}
		f.Expect(f.isGivenUp()).To(BeTrue(), "without the provider ID it should go")
	})
}
