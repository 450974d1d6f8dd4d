// SPDX-License-Identifier: Apache-2.0

package garbagecollection_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/garbagecollection"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

var machineKind = clusterv1.GroupVersion.WithKind("Machine")

type fixture struct {
	*environment.Environment
	clock      *clocktesting.FakeClock
	controller *garbagecollection.Controller
}

func newFixture(t *testing.T, guestLive func(client.Reader) client.Reader) *fixture {
	t.Helper()
	s := environment.New(t)
	clk := clocktesting.NewFakeClock(time.Now())
	var live client.Reader = s.Admin
	if guestLive != nil {
		live = guestLive(live)
	}
	return &fixture{Environment: s, clock: clk, controller: garbagecollection.New(garbagecollection.Config{
		Guest:          s.Guest.GetClient(),
		GuestLive:      live,
		ManagementLive: s.Admin,
		Machines:       s.Machines(nil),
		Clock:          clk,
	})}
}

// twice collects, lets the grace period pass, and collects again.
func (f *fixture) twice(ctx context.Context) error {
	_, first := f.controller.Reconcile(ctx)
	f.clock.Step(garbagecollection.GracePeriod)
	_, second := f.controller.Reconcile(ctx)
	return errors.Join(first, second)
}

// create makes a NodeClaim's machine and waits until the cache has it.
func (f *fixture) create(t *testing.T, nodeClaim *karpv1.NodeClaim) *clusterv1.Machine {
	t.Helper()
	g := NewWithT(t)
	created, err := f.Machines(nil).Create(t.Context(), f.Plan(nodeClaim))
	g.Expect(err).NotTo(HaveOccurred())
	f.cached(t, created)
	return created
}

func (f *fixture) cached(t *testing.T, m *clusterv1.Machine) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		return f.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(m), &clusterv1.Machine{})
	}).Should(Succeed())
}

func (f *fixture) remove(t *testing.T, nodeClaim *karpv1.NodeClaim) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(f.Admin.Delete(t.Context(), nodeClaim)).To(Succeed())
	g.Eventually(func() bool {
		err := f.Guest.GetClient().Get(t.Context(), client.ObjectKeyFromObject(nodeClaim), &karpv1.NodeClaim{})
		return apierrors.IsNotFound(err)
	}).Should(BeTrue())
}

func (f *fixture) child(kind schema.GroupVersionKind, name string) *unstructured.Unstructured {
	child := &unstructured.Unstructured{}
	child.SetGroupVersionKind(kind)
	child.SetNamespace(f.Namespace)
	child.SetName(name)
	return child
}

func TestMachines(t *testing.T) {
	t.Run("When a NodeClaim is gone, it should remove the Machine after the grace period and not before", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		nodeClaim := f.NodeClaim(t.Context(), "gone")
		m := f.create(t, nodeClaim)
		f.remove(t, nodeClaim)

		_, err := f.controller.Reconcile(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		f.clock.Step(garbagecollection.GracePeriod - time.Second)
		_, err = f.controller.Reconcile(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(f.Objects(t.Context(), machineKind)).To(ConsistOf(m.Name))
		f.clock.Step(time.Second)
		_, err = f.controller.Reconcile(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() []string { return f.Objects(t.Context(), machineKind) }).Should(BeEmpty())
		// Cluster API drains a node that Karpenter hasn't drained, by the person's rules.
		g.Expect(m.Annotations).NotTo(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation))
	})

	t.Run("When a NodeClaim of that name was recreated, it should remove the Machine of the first", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		first := f.NodeClaim(t.Context(), "again")
		f.create(t, first)
		f.remove(t, first)
		f.NodeClaim(t.Context(), "again")
		g.Expect(f.twice(t.Context())).To(Succeed())
		g.Eventually(func() []string { return f.Objects(t.Context(), machineKind) }).Should(BeEmpty())
	})

	t.Run("When the NodeClaim is there, it should leave the Machine with its infrastructure and bootstrap objects", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		m := f.create(t, f.NodeClaim(t.Context(), "there"))
		g.Expect(f.twice(t.Context())).To(Succeed())
		for _, kind := range append(environment.ChildKinds(t.Context()), machineKind) {
			g.Expect(f.Objects(t.Context(), kind)).To(ConsistOf(f.Name(kind, m.Name)), kind.Kind)
		}
	})

	t.Run("When things look like ours and aren't, it should leave them", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		var names []string
		owners := map[string][]metav1.OwnerReference{
			"owned-by-a-machineset": {{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachineSet", Name: "theirs", UID: "ms", Controller: ptr.To(true)}},
		}
		for name, change := range map[string]func(labels map[string]string){
			// Another Karpenter's in the same namespace, with a NodeClaim of a name that is gone here too.
			"other-cluster": func(labels map[string]string) { labels[clusterv1.ClusterNameLabel] = "green" },
			"other-cluster-of-the-same-prefix": func(labels map[string]string) {
				labels[clusterv1.ClusterNameLabel] = f.Cluster.Name + "-2"
			},
			"no-cluster":    func(labels map[string]string) { delete(labels, clusterv1.ClusterNameLabel) },
			"no-claim":      func(labels map[string]string) { delete(labels, v1alpha1.NodeClaimUIDLabel) },
			"no-claim-name": func(labels map[string]string) { delete(labels, v1alpha1.NodeClaimLabel) },
			// A person's, made from a copy of one of ours.
			"a-copy": func(labels map[string]string) { labels[v1alpha1.NodeClaimLabel] = "general-x7k2p" },
			// A MachineDeployment's, whose template is a copy of one of ours.
			"owned-by-a-machineset": func(labels map[string]string) {
				labels[v1alpha1.NodeClaimLabel] = "general-x7k2p"
				labels[clusterv1.MachineSetNameLabel] = "theirs"
			},
			"no-labels": func(labels map[string]string) { clear(labels) },
		} {
			nodeClaim := f.NodeClaim(t.Context(), name)
			f.remove(t, nodeClaim)
			objects, err := machine.Build(f.Plan(nodeClaim))
			g.Expect(err).NotTo(HaveOccurred())
			for _, object := range []client.Object{objects.Infrastructure, objects.Bootstrap, objects.Machine} {
				labels := map[string]string{}
				for key, value := range object.GetLabels() {
					labels[key] = value
				}
				change(labels)
				object.SetLabels(labels)
				if others, ok := owners[name]; ok {
					object.SetOwnerReferences(others)
				}
				g.Expect(f.Admin.Create(t.Context(), object)).To(Succeed())
			}
			f.cached(t, objects.Machine)
			names = append(names, nodeClaim.Name)
		}
		g.Expect(f.twice(t.Context())).To(Succeed())
		for _, kind := range append(environment.ChildKinds(t.Context()), machineKind) {
			wanted := make([]string, len(names))
			for i := range names {
				wanted[i] = f.Name(kind, names[i])
			}
			g.Expect(f.Objects(t.Context(), kind)).To(ConsistOf(wanted), kind.Kind)
		}
	})
}

// answering is a guest whose API server answers every read with an error.
type answering struct {
	client.Reader
	err error
}

func (a answering) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return a.err
}

func TestGuestUnsure(t *testing.T) {
	for name, err := range map[string]error{
		"When the guest's API server doesn't answer, it should remove nothing":                      errors.New("connection refused"),
		"When the guest's API server refuses to answer, it should remove nothing":                   apierrors.NewForbidden(schema.GroupResource{Resource: "nodeclaims"}, "x", nil),
		"When the guest's API server doesn't serve NodeClaims at present, it should remove nothing": apierrors.NewGenericServerResponse(404, "GET", schema.GroupResource{Group: "karpenter.sh", Resource: "nodeclaims"}, "x", "404 page not found", 0, true),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(t, func(r client.Reader) client.Reader { return answering{r, err} })
			nodeClaim := f.NodeClaim(t.Context(), "unsure")
			m := f.create(t, nodeClaim)
			f.remove(t, nodeClaim)
			g.Expect(f.twice(t.Context())).NotTo(Succeed())
			for _, kind := range append(environment.ChildKinds(t.Context()), machineKind) {
				g.Expect(f.Objects(t.Context(), kind)).To(ConsistOf(f.Name(kind, m.Name)), kind.Kind)
			}
		})
	}
}

func TestChildren(t *testing.T) {
	t.Run("When the Machine was never created and the NodeClaim is gone, it should delete the infrastructure and bootstrap objects", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		nodeClaim := f.NodeClaim(t.Context(), "half")
		_, err := f.Machines(&environment.Faults{Client: f.Management.GetClient(), FailAt: 3}).Create(t.Context(), f.Plan(nodeClaim))
		g.Expect(err).To(MatchError(environment.ErrFault))
		g.Expect(f.twice(t.Context())).To(Succeed())
		for _, kind := range environment.ChildKinds(t.Context()) {
			g.Expect(f.Objects(t.Context(), kind)).To(ConsistOf(f.Name(kind, nodeClaim.Name)), "the NodeClaim may yet get its Machine")
		}
		f.remove(t, nodeClaim)
		g.Expect(f.twice(t.Context())).To(Succeed())
		for _, kind := range environment.ChildKinds(t.Context()) {
			g.Expect(f.Objects(t.Context(), kind)).To(BeEmpty(), kind.Kind)
		}
	})

	t.Run("When the Machine refers to another bootstrap config than the existing one, it should delete the existing one", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		nodeClaim := f.NodeClaim(t.Context(), "strayed")
		plan := f.Plan(nodeClaim)
		plan.BootstrapTemplate, plan.DataSecretName = nil, "data"
		m, err := f.Machines(nil).Create(t.Context(), plan)
		g.Expect(err).NotTo(HaveOccurred())
		f.cached(t, m)
		stray := f.child(environment.KubeadmConfig, nodeClaim.Name)
		stray.SetLabels(m.Labels)
		g.Expect(f.Admin.Create(t.Context(), stray)).To(Succeed())
		g.Expect(f.twice(t.Context())).To(Succeed())
		g.Expect(f.Objects(t.Context(), environment.KubeadmConfig)).To(BeEmpty())
		g.Expect(f.Objects(t.Context(), environment.TestMachine)).To(ConsistOf(m.Spec.InfrastructureRef.Name))
	})

	t.Run("When a person removes a Machine's finalizer, it should delete the infrastructure and bootstrap objects that stay", func(t *testing.T) {
		g := NewWithT(t)
		f := newFixture(t, nil)
		nodeClaim := f.NodeClaim(t.Context(), "forced")
		m := f.create(t, nodeClaim)
		controller := true
		for _, kind := range environment.ChildKinds(t.Context()) {
			child := f.child(kind, f.Name(kind, nodeClaim.Name))
			g.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(child), child)).To(Succeed())
			child.SetOwnerReferences(append(child.GetOwnerReferences(), metav1.OwnerReference{
				APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: m.Name, UID: m.UID, Controller: &controller,
			}))
			g.Expect(f.Admin.Update(t.Context(), child)).To(Succeed())
		}
		f.remove(t, nodeClaim)
		g.Expect(f.Admin.Delete(t.Context(), m)).To(Succeed())
		g.Eventually(func() bool {
			return apierrors.IsNotFound(f.Management.GetClient().Get(t.Context(), client.ObjectKeyFromObject(m), &clusterv1.Machine{}))
		}).Should(BeTrue())
		g.Expect(f.twice(t.Context())).To(Succeed())
		for _, kind := range environment.ChildKinds(t.Context()) {
			g.Expect(f.Objects(t.Context(), kind)).To(BeEmpty(), kind.Kind)
		}
	})
}
