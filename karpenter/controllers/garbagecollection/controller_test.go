// SPDX-License-Identifier: Apache-2.0

package garbagecollection_test

import (
	"context"
	"errors"
	"maps"
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
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

var machineKind = clusterv1.GroupVersion.WithKind("Machine")

type fixture struct {
	*environment.Environment
	*WithT
	t          *testing.T
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
	return &fixture{Environment: s, WithT: NewWithT(t), t: t, clock: clk, controller: garbagecollection.New(garbagecollection.Config{
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

// look collects, and returns when it is to do so again.
func (f *fixture) look() time.Duration {
	f.t.Helper()
	result, err := f.controller.Reconcile(f.t.Context())
	f.Expect(err).NotTo(HaveOccurred())
	return result.RequeueAfter
}

// create makes a NodeClaim's machine and waits until the cache has it.
func (f *fixture) create(nodeClaim *karpv1.NodeClaim) *clusterv1.Machine {
	f.t.Helper()
	created, err := f.Machines(nil).Create(f.t.Context(), f.Plan(nodeClaim))
	f.Expect(err).NotTo(HaveOccurred())
	f.Settle(f.Management, created)
	return created
}

func (f *fixture) remove(nodeClaim *karpv1.NodeClaim) {
	f.t.Helper()
	f.Expect(f.Admin.Delete(f.t.Context(), nodeClaim)).To(Succeed())
	f.SettleGone(f.Guest, nodeClaim)
}

func (f *fixture) removeMachine(m *clusterv1.Machine) {
	f.t.Helper()
	f.Expect(f.Admin.Delete(f.t.Context(), m)).To(Succeed())
	f.SettleGone(f.Management, m)
}

// expect checks that there are the objects of just these machines.
func (f *fixture) expect(g Gomega, names ...string) {
	f.t.Helper()
	for _, kind := range append(environment.ChildKinds(f.t.Context()), machineKind) {
		var wanted []string
		for _, name := range names {
			wanted = append(wanted, f.MachineName(name))
		}
		g.Expect(f.Objects(f.t.Context(), kind)).To(ConsistOf(wanted), kind.Kind)
	}
}

// own makes a Machine the controller of its infrastructure and bootstrap objects, as Cluster API does.
func (f *fixture) own(m *clusterv1.Machine) {
	f.t.Helper()
	for _, kind := range environment.ChildKinds(f.t.Context()) {
		child := f.child(kind, f.MachineName(v1alpha1.NodeClaimOf(m)))
		f.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(child), child)).To(Succeed())
		child.SetOwnerReferences(append(child.GetOwnerReferences(), metav1.OwnerReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: m.Name, UID: m.UID, Controller: ptr.To(true),
		}))
		f.Expect(f.Admin.Update(f.t.Context(), child)).To(Succeed())
	}
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
		f := newFixture(t, nil)
		nodeClaim := f.NodeClaim(t.Context(), "gone")
		m := f.create(nodeClaim)
		f.remove(nodeClaim)
		f.Expect(f.look()).To(Equal(garbagecollection.GracePeriod))
		f.clock.Step(garbagecollection.GracePeriod - time.Second)
		f.Expect(f.look()).To(Equal(time.Second))
		f.expect(f, v1alpha1.NodeClaimOf(m))
		f.clock.Step(time.Second)
		f.Expect(f.look()).To(Equal(garbagecollection.Interval))
		f.Eventually(func() []string { return f.Objects(t.Context(), machineKind) }).Should(BeEmpty())
		// Cluster API drains a node that Karpenter hasn't drained, by the person's rules.
		f.Expect(m.Annotations).NotTo(HaveKey(clusterv1.ExcludeNodeDrainingAnnotation))
	})

	t.Run("When a NodeClaim of that name was recreated, it should remove the Machine of the first", func(t *testing.T) {
		f := newFixture(t, nil)
		first := f.NodeClaim(t.Context(), "again")
		f.create(first)
		f.remove(first)
		f.NodeClaim(t.Context(), "again")
		f.Expect(f.twice(t.Context())).To(Succeed())
		f.Eventually(func() []string { return f.Objects(t.Context(), machineKind) }).Should(BeEmpty())
	})

	t.Run("When the NodeClaim is there, it should leave the Machine with its infrastructure and bootstrap objects", func(t *testing.T) {
		f := newFixture(t, nil)
		m := f.create(f.NodeClaim(t.Context(), "there"))
		f.Expect(f.look()).To(Equal(garbagecollection.Interval))
		f.Expect(f.twice(t.Context())).To(Succeed())
		f.expect(f, v1alpha1.NodeClaimOf(m))
	})

	t.Run("When things look like ours and aren't, it should leave them", func(t *testing.T) {
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
			f.remove(nodeClaim)
			objects, err := machine.Build(f.Plan(nodeClaim))
			f.Expect(err).NotTo(HaveOccurred())
			for _, object := range []client.Object{objects.Infrastructure, objects.Bootstrap, objects.Machine} {
				labels := maps.Clone(object.GetLabels())
				change(labels)
				object.SetLabels(labels)
				if others, ok := owners[name]; ok {
					object.SetOwnerReferences(others)
				}
				f.Expect(f.Admin.Create(t.Context(), object)).To(Succeed())
			}
			f.Settle(f.Management, objects.Machine)
			names = append(names, nodeClaim.Name)
		}
		f.Expect(f.twice(t.Context())).To(Succeed())
		f.expect(f, names...)
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
			f := newFixture(t, func(r client.Reader) client.Reader { return answering{r, err} })
			nodeClaim := f.NodeClaim(t.Context(), "unsure")
			m := f.create(nodeClaim)
			f.remove(nodeClaim)
			f.Expect(f.twice(t.Context())).NotTo(Succeed())
			f.expect(f, v1alpha1.NodeClaimOf(m))
		})
	}
}

func TestChildren(t *testing.T) {
	t.Run("When the Machine refers to another bootstrap config than the existing one, it should delete the existing one", func(t *testing.T) {
		f := newFixture(t, nil)
		nodeClaim := f.NodeClaim(t.Context(), "strayed")
		plan := f.Plan(nodeClaim)
		plan.Template.Bootstrap = template.Bootstrap{DataSecretName: "data"}
		m, err := f.Machines(nil).Create(t.Context(), plan)
		f.Expect(err).NotTo(HaveOccurred())
		f.Settle(f.Management, m)
		stray := f.child(environment.KubeadmConfig, f.MachineName(nodeClaim.Name))
		stray.SetLabels(m.Labels)
		f.Expect(f.Admin.Create(t.Context(), stray)).To(Succeed())
		f.Expect(f.twice(t.Context())).To(Succeed())
		f.Expect(f.Objects(t.Context(), environment.KubeadmConfig)).To(BeEmpty())
		f.Expect(f.Objects(t.Context(), environment.TestMachine)).To(ConsistOf(m.Spec.InfrastructureRef.Name))
	})

	t.Run("When a person removes a Machine's finalizer, it should delete the infrastructure and bootstrap objects that stay", func(t *testing.T) {
		f := newFixture(t, nil)
		nodeClaim := f.NodeClaim(t.Context(), "forced")
		m := f.create(nodeClaim)
		f.own(m)
		f.remove(nodeClaim)
		f.removeMachine(m)
		f.Expect(f.twice(t.Context())).To(Succeed())
		f.expect(f)
	})
}
