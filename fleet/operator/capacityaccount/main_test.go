// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/internal/scopetest"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

const (
	reserved = "reservation/cr-1"
	typeName = "m5.large"
)

// fixture is an account with hosted clusters in a namespace of a test's own, and an operator that a test steps.
type fixture struct {
	*testing.T
	*WithT
	Controller *Controller
	clock      *clocktesting.FakePassiveClock
	namespace  string
	account    *autonodev1alpha1.CapacityAccount
	karpenters map[string]*karpenter
	writes     int
	events     *events.FakeRecorder
}

// spec of an account of a namespace's clusters, with ten reserved machines.
func specOf(namespace string) autonodev1alpha1.CapacityAccountSpec {
	return autonodev1alpha1.CapacityAccountSpec{
		Members: []autonodev1alpha1.CapacityMember{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}}},
		Reservations: []autonodev1alpha1.CapacityReservation{
			{ID: "cr-1", InstanceType: typeName, Zone: "a", Count: 10},
		},
	}
}

func newFixture(t *testing.T, namespace string, names ...string) *fixture {
	t.Helper()
	f := &fixture{T: t, WithT: NewWithT(t), namespace: namespace, karpenters: map[string]*karpenter{}, events: events.NewFakeRecorder(100)}
	f.clock = clocktesting.NewFakePassiveClock(time.Now().Truncate(time.Second))
	count := func() { f.writes++ }
	scheme, err := scopetest.Scheme()
	f.Expect(err).NotTo(HaveOccurred())
	management, err := client.NewWithWatch(clusters.Management.Config, client.Options{Scheme: scheme})
	f.Expect(err).NotTo(HaveOccurred())
	counting := counted(management, count)
	f.Controller = New(Config{Management: counting, Live: counting, Selector: labels.Everything(), Recorder: f.events, Clock: f.clock})
	f.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	for _, name := range names {
		f.join(name)
	}
	f.account = &autonodev1alpha1.CapacityAccount{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: specOf(namespace)}
	f.create(f.account)
	t.Cleanup(func() { f.forget(f.account) })
	return f
}

// forget removes an account, whatever it waits for.
func (f *fixture) forget(account *autonodev1alpha1.CapacityAccount) {
	ctx := context.Background()
	if err := clusters.Management.Client.Get(ctx, client.ObjectKeyFromObject(account), account); err != nil {
		return
	}
	controllerutil.RemoveFinalizer(account, autonodev1alpha1.AccountFinalizer)
	f.Expect(clusters.Management.Client.Update(ctx, account)).To(Succeed())
	f.Expect(client.IgnoreNotFound(clusters.Management.Client.Delete(ctx, account))).To(Succeed())
}

// counted calls count for each write.
func counted(inner client.WithWatch, count func()) client.Client {
	return interceptor.NewClient(inner, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			count()
			return c.Create(ctx, object, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			count()
			return c.Patch(ctx, object, patch, opts...)
		},
		SubResourceApply: func(ctx context.Context, c client.Client, name string, object runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			count()
			return c.SubResource(name).Apply(ctx, object, opts...)
		},
	})
}

func (f *fixture) create(object client.Object) {
	f.Helper()
	f.Expect(clusters.Management.Client.Create(f.Context(), object)).To(Succeed())
}

// join adds a hosted cluster with a Karpenter.
func (f *fixture) join(name string) *karpenter {
	f.Helper()
	namespace := f.namespace + "-" + name
	f.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	f.create(&v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: v1beta1.KarpenterComponent, Labels: map[string]string{
			v1beta1.HostedClusterNamespaceLabel: f.namespace, v1beta1.HostedClusterLabel: name, v1beta1.PlatformLabel: string(v1beta1.PlatformClusterAPI),
		},
	}})
	k := &karpenter{fixture: f, namespace: namespace, holder: division.NewHolder(time.Time{}), seen: map[string]bool{}, demand: map[string]bool{}}
	f.karpenters[name] = k
	return k
}

// reconcile lets the operator decide once, as its watches would.
func (f *fixture) reconcile() time.Duration {
	f.Helper()
	for _, k := range f.karpenters {
		list := k.list()
		f.Controller.counter.mu.Lock()
		known := map[client.ObjectKey]bool{}
		for key := range f.Controller.counter.machines {
			known[key] = key.Namespace == k.namespace
		}
		f.Controller.counter.mu.Unlock()
		for i := range list {
			f.Controller.counter.set(&list[i])
			known[client.ObjectKeyFromObject(&list[i])] = false
		}
		for key, gone := range known {
			if gone {
				f.Controller.counter.remove(key)
			}
		}
	}
	f.read()
	result, err := f.Controller.Reconcile(f.Context(), f.account.DeepCopy())
	f.Expect(err).NotTo(HaveOccurred())
	if client.IgnoreNotFound(clusters.Management.Client.Get(f.Context(), client.ObjectKeyFromObject(f.account), f.account)) != nil {
		f.read()
	}
	return result.RequeueAfter
}

// settleAfter settles once some time has passed.
func (f *fixture) settleAfter(d time.Duration) {
	f.Helper()
	f.clock.SetTime(f.clock.Now().Add(d))
	f.settle()
}

// settle lets the operator and all Karpenters act in turn.
func (f *fixture) settle() {
	f.Helper()
	for range 8 {
		f.reconcile()
		for _, k := range f.karpenters {
			k.step()
		}
	}
	f.reconcile()
}

func (f *fixture) read() {
	f.Helper()
	f.Expect(clusters.Management.Client.Get(f.Context(), client.ObjectKeyFromObject(f.account), f.account)).To(Succeed())
}

// change changes the account's spec.
func (f *fixture) change(change func(spec *autonodev1alpha1.CapacityAccountSpec)) {
	f.Helper()
	f.read()
	change(&f.account.Spec)
	f.Expect(clusters.Management.Client.Update(f.Context(), f.account)).To(Succeed())
}

func (f *fixture) condition(kind string) metav1.Condition {
	f.Helper()
	f.read()
	found := meta.FindStatusCondition(f.account.Status.Conditions, kind)
	f.Expect(found).NotTo(BeNil())
	return *found
}

// is matches a condition with that text in its message.
func is(status metav1.ConditionStatus, reason, message string) OmegaMatcher {
	return And(HaveField("Status", status), HaveField("Reason", reason), HaveField("Message", ContainSubstring(message)))
}

// granted is what is recorded of a cluster.
func (f *fixture) granted(name string) *division.Grant {
	f.Helper()
	f.read()
	for i := range f.account.Status.Clusters {
		if f.account.Status.Clusters[i].Name == name {
			grant := grantOf(&f.account.Status.Clusters[i])
			return &grant
		}
	}
	return nil
}

// karpenter keeps to the protocol, as the real one does.
type karpenter struct {
	*fixture
	namespace string
	holder    *division.Holder
	seen      map[string]bool
	demand    map[string]bool
	asked     int
}

func (k *karpenter) lease() *autonodev1alpha1.CapacityLease {
	k.Helper()
	lease := &autonodev1alpha1.CapacityLease{}
	k.Expect(client.IgnoreNotFound(clusters.Management.Client.Get(k.Context(), client.ObjectKey{Namespace: k.namespace, Name: autonodev1alpha1.LeaseName}, lease))).To(Succeed())
	return lease
}

// report changes what it reports.
func (k *karpenter) report(change func(*autonodev1alpha1.CapacityLeaseStatus)) {
	k.Helper()
	lease := k.lease()
	before := lease.DeepCopy()
	change(&lease.Status)
	k.Expect(clusters.Management.Client.Status().Patch(k.Context(), lease, client.MergeFrom(before))).To(Succeed())
}

// list returns its machines.
func (k *karpenter) list() []clusterv1.Machine {
	k.Helper()
	list := &clusterv1.MachineList{}
	k.Expect(clusters.Management.Client.List(k.Context(), list, client.InNamespace(k.namespace))).To(Succeed())
	return list.Items
}

// want calls for reserved machines.
func (k *karpenter) want(count int) {
	for range count {
		k.asked++
		k.demand[fmt.Sprintf("m-%d", k.asked)] = true
	}
}

// machine of an offering.
func (k *karpenter) machine(name, reservation string, size capacity.Machine) *clusterv1.Machine {
	labels := map[string]string{
		v1alpha1.NodeClaimLabel: name, v1alpha1.NodeClaimUIDLabel: "uid-" + name, clusterv1.ClusterNameLabel: "any",
		corev1.LabelInstanceTypeStable: typeName, corev1.LabelTopologyZone: "a",
	}
	if reservation != "" {
		labels[v1alpha1.ReservationIDLabel] = reservation
	}
	return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
		Namespace: k.namespace, Name: name, Labels: labels,
		Annotations: map[string]string{v1alpha1.MachineSizeAnnotation: annotation.FormatMachineSize(capacity.Priced{Machine: size, Price: 0.1})},
	}}
}

// step lets it read, launch what it may and report.
func (k *karpenter) step() {
	k.Helper()
	lease, now := k.lease(), time.Now()
	if lease.UID == "" {
		return
	}
	k.holder.Adopt(conversion.Lease(lease))
	existing := map[string]bool{}
	for _, machine := range k.list() {
		m := annotation.MachineOf(&machine).Machine
		k.holder.Exists(machine.Name, division.Charges(conversion.Rules(lease.Spec.Pools), m))
		existing[machine.Name] = true
		delete(k.demand, machine.Name)
	}
	for name := range k.seen {
		if !existing[name] {
			k.holder.Gone(name, now.Add(3*division.InFlight))
		}
	}
	k.seen = existing
	for name := range k.demand {
		machine := k.machine(name, "cr-1", capacity.Machine{VCPUs: 2000})
		m := annotation.MachineOf(machine).Machine
		if k.holder.Spend(name, division.Charges(conversion.Rules(lease.Spec.Pools), m), now) {
			k.create(machine)
		}
	}
	report, ok := k.holder.Report(now)
	if !ok {
		return
	}
	before := lease.DeepCopy()
	conversion.SetReport(&lease.Status, report)
	err := clusters.Management.Client.Status().Patch(k.Context(), lease, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil { // the operator was faster
		k.Expect(err).To(MatchError(ContainSubstring("the object has been modified")))
	}
}

func (k *karpenter) machines() int {
	k.Helper()
	return len(k.list())
}

// remove deletes a number of machines.
func (k *karpenter) remove(count int) {
	k.Helper()
	for _, machine := range k.list()[:count] {
		k.Expect(clusters.Management.Client.Delete(k.Context(), &machine)).To(Succeed())
	}
}

// pool returns the status of the only pool.
func (f *fixture) pool() autonodev1alpha1.CapacityPoolStatus {
	f.Helper()
	f.read()
	f.Expect(f.account.Status.Pools).To(HaveLen(1))
	return f.account.Status.Pools[0]
}

// said reports whether one of the events since the last call has all texts.
func (f *fixture) said(texts ...string) bool {
	found := false
	for len(f.events.Events) > 0 {
		event, all := <-f.events.Events, true
		for _, text := range texts {
			all = all && strings.Contains(event, text)
		}
		found = found || all
	}
	return found
}

func (f *fixture) pass(d time.Duration) time.Duration {
	f.clock.SetTime(f.clock.Now().Add(d))
	return f.reconcile()
}
