// SPDX-License-Identifier: Apache-2.0

package sleep_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/guest/watch"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/sleep"
	"github.com/autonode-io/autonode/operator/steps/teardown"
)

// nightly is asleep on weekdays from 20:00 to 7:00, and on weekends.
var nightly = v1beta1.SleepSchedule{Start: "0 20 * * 1-5", End: "0 7 * * 1-5", TimeZone: "Europe/Zurich"}

// monday is a Monday of winter at noon in Zurich.
var monday = time.Date(2026, 11, 23, 11, 0, 0, 0, time.UTC)

// fixture is a hosted cluster with a management cluster and a guest in memory, and an operator that a test steps.
type fixture struct {
	*WithT
	*scope.Scope
	t                 *testing.T
	management, guest client.WithWatch
	clock             *clocktesting.FakePassiveClock
	events            *events.FakeRecorder
	step              sleep.Sleep
	// stuck are NodeClaims that Karpenter doesn't remove.
	stuck map[string]bool
}

// newFixture returns a hosted cluster whose guest has a node class and a NodePool.
func newFixture(t *testing.T, spec *v1beta1.Sleep) *fixture {
	t.Helper()
	scheme := runtime.NewScheme()
	f := &fixture{WithT: NewWithT(t), t: t, clock: clocktesting.NewFakePassiveClock(monday), events: events.NewFakeRecorder(100), stuck: map[string]bool{}}
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, policyv1.AddToScheme, clusterv1.AddToScheme, v1beta1.AddToScheme, watch.AddToScheme,
	} {
		f.Expect(add(scheme)).To(Succeed())
	}
	f.management, f.guest = inMemory(scheme), inMemory(scheme)
	clusters := scopetest.Clusters{Management: scopetest.Cluster{Client: f.management}, Guest: scopetest.Cluster{Client: f.guest}}
	f.Scope = clusters.NewScope(t, "blue")
	f.HostedCluster.Spec.AutoNode.Sleep = spec
	definitions, err := crds.Embedded()
	f.Expect(err).NotTo(HaveOccurred())
	for _, definition := range definitions {
		f.create(f.guest, definition.DeepCopy())
	}
	f.create(f.guest, &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultNodeClass, Finalizers: []string{v1alpha1.NodeClassFinalizer}}})
	f.create(f.guest, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "general"}})
	f.reachable()
	f.restart()
	return f
}

// in has a subtest fail, and not the test that made the fixture.
func (f *fixture) in(t *testing.T) { f.t, f.WithT = t, NewWithT(t) }

func inMemory(scheme *runtime.Scheme) client.WithWatch {
	var uids atomic.Int64
	return fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&clusterv1.Cluster{}, &v1beta1.HostedCluster{}, &v1beta1.ControlPlaneComponent{}, &karpv1.NodeClaim{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(object client.Object) []string { return []string{object.(*corev1.Pod).Spec.NodeName} }).
		WithInterceptorFuncs(interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			object.SetUID(types.UID(fmt.Sprint(uids.Add(1))))
			return c.Create(ctx, object, options...)
		}}).Build()
}

// cached is the guest as the operator's watches have it: with the objects and the fields that they keep.
func (f *fixture) cached() client.Client {
	kinds, err := watch.StoreKinds(f.guest.Scheme(), nil)
	f.Expect(err).NotTo(HaveOccurred())
	return interceptor.NewClient(f.guest, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if err := c.List(ctx, list, options...); err != nil {
			return err
		}
		var kept []runtime.Object
		err := meta.EachListItem(list, func(item runtime.Object) error {
			object := item.(client.Object)
			gvk, err := apiutil.GVKForObject(object, c.Scheme())
			kind := kinds(gvk)
			if err != nil || kind.Label != nil && !kind.Label.Matches(labels.Set(object.GetLabels())) {
				return err
			}
			_, err = kind.Transform(object)
			kept = append(kept, object)
			return err
		})
		if err != nil {
			return err
		}
		return meta.SetList(list, kept)
	}})
}

// restart replaces the operator.
func (f *fixture) restart() {
	f.step = sleep.Sleep{Clock: f.clock, Teardown: teardown.New(teardown.Config{
		Management: f.management, Live: f.management, Apply: apply.New(), Recorder: f.events, Clock: f.clock,
	})}
}

func (f *fixture) unreachable() { f.Guest = nil }

func (f *fixture) reachable() {
	f.Guest = &scope.Guest{Cached: f.cached(), Live: f.guest, Complete: true}
}

// reconcile runs the step, and then does with the status what the reconciler does.
func (f *fixture) reconcile() scope.Result {
	f.t.Helper()
	f.Sleep = scope.Sleep{}
	result := scopetest.Reconcile(f.t, f.step, f.Scope)
	f.Expect(result.Wait).To(BeFalse(), "the steps behind it go on")
	if status := f.HostedCluster.Status.AutoNode; status != nil && (status.Sleep == nil || status.Sleep.Since != nil) {
		status.DrainStartedTime, status.DrainRequestedTime, status.DrainForcedTime = nil, nil, nil
	}
	return result
}

// settle reconciles until neither Karpenter nor Cluster API has anything left to do, and returns when the operator wants to be called again.
func (f *fixture) settle() time.Duration {
	f.t.Helper()
	for range 20 {
		result := f.reconcile()
		if !f.others() {
			return result.RequeueAfter
		}
	}
	f.t.Fatal("it doesn't settle")
	return 0
}

func (f *fixture) pass(d time.Duration) { f.clock.SetTime(f.clock.Now().Add(d)) }

func (f *fixture) status() *v1beta1.SleepStatus {
	return ptr.Deref(f.HostedCluster.Status.AutoNode, v1beta1.AutoNodeStatus{}).Sleep
}

func (f *fixture) create(in client.Client, object client.Object) {
	f.t.Helper()
	f.Expect(in.Create(f.t.Context(), object)).To(Succeed())
}

// launch makes what Karpenter makes of a node: the NodeClaim, the Machine and the Node.
func (f *fixture) launch(name string, price float64) {
	f.t.Helper()
	claim := scopetest.NodeClaim(name)
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
	f.create(f.guest, claim)
	claim.Status.NodeName = name
	f.Expect(f.guest.Status().Update(f.t.Context(), claim)).To(Succeed())
	f.node(name, "general")
	f.machine(name, map[string]string{v1alpha1.NodeClaimUIDLabel: "uid-" + name, v1alpha1.NodeClaimLabel: name}, price)
}

func (f *fixture) node(name, pool string) {
	f.t.Helper()
	f.create(f.guest, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: pool}, Finalizers: []string{karpv1.TerminationFinalizer},
	}})
}

func (f *fixture) machine(name string, labels map[string]string, price float64) {
	f.t.Helper()
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.ControlPlaneNamespace, Name: name, Labels: labels, Finalizers: []string{clusterv1.MachineFinalizer},
			Annotations: map[string]string{v1alpha1.MachineSizeAnnotation: annotation.FormatMachineSize(capacity.Priced{Price: price})},
		},
		Spec: clusterv1.MachineSpec{ClusterName: "blue"},
	}
	metav1.SetMetaDataLabel(&machine.ObjectMeta, clusterv1.ClusterNameLabel, "blue")
	f.create(f.management, machine)
}

// others does what Karpenter does with NodeClaims that are being deleted while it has replicas, and Cluster API with Machines. It reports
// whether there were any.
func (f *fixture) others() (busy bool) {
	f.t.Helper()
	claims := &karpv1.NodeClaimList{}
	f.Expect(f.guest.List(f.t.Context(), claims)).To(Succeed())
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.DeletionTimestamp.IsZero() || f.stuck[claim.Name] || f.Sleep.Asleep {
			continue
		}
		busy = true
		f.removeIfThere(f.guest, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: claim.Name}})
		f.removeIfThere(f.management, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: f.ControlPlaneNamespace, Name: claim.Name}})
		f.remove(f.guest, claim)
	}
	machines := &clusterv1.MachineList{}
	f.Expect(f.management.List(f.t.Context(), machines)).To(Succeed())
	for i := range machines.Items {
		if !machines.Items[i].DeletionTimestamp.IsZero() {
			busy = true
			f.remove(f.management, &machines.Items[i])
		}
	}
	return busy
}

// remove deletes an object without its finalizers.
func (f *fixture) remove(in client.Client, object client.Object) {
	f.t.Helper()
	object.SetFinalizers(nil)
	f.Expect(in.Update(f.t.Context(), object)).To(Succeed())
	f.Expect(client.IgnoreNotFound(in.Delete(f.t.Context(), object))).To(Succeed())
}

func (f *fixture) removeIfThere(in client.Client, object client.Object) {
	f.t.Helper()
	if in.Get(f.t.Context(), client.ObjectKeyFromObject(object), object) == nil {
		f.remove(in, object)
	}
}

// nodes are the names of Nodes and Machines, sorted.
func (f *fixture) nodes() (nodes, machines []string) {
	f.t.Helper()
	nodeList, machineList := &corev1.NodeList{}, &clusterv1.MachineList{}
	f.Expect(f.guest.List(f.t.Context(), nodeList)).To(Succeed())
	f.Expect(f.management.List(f.t.Context(), machineList)).To(Succeed())
	for i := range nodeList.Items {
		nodes = append(nodes, nodeList.Items[i].Name)
	}
	for i := range machineList.Items {
		machines = append(machines, machineList.Items[i].Name)
	}
	return nodes, machines
}

// marks are the annotations of a node class.
func (f *fixture) marks(name string) map[string]string {
	f.t.Helper()
	return scopetest.Get(f.t.Context(), f.WithT, f.guest, "", name, &v1alpha1.ClusterAPINodeClass{}).Annotations
}

// asleepUntil are the marks of node classes until then.
func asleepUntil(until string) map[string]string {
	return map[string]string{v1alpha1.DrainingAnnotation: "true", v1alpha1.AsleepUntilAnnotation: until}
}
