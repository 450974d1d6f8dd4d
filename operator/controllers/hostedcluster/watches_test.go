// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// recordingQueue keeps what is put into it, and for when.
type recordingQueue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	added map[types.NamespacedName]time.Duration
}

func (q *recordingQueue) AddAfter(request reconcile.Request, after time.Duration) {
	q.added[request.NamespacedName] = after
}

// watching returns a Reconciler at noon beside these HostedClusters.
func watching(t *testing.T, hostedClusters ...client.Object) *Reconciler {
	t.Helper()
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(v1beta1.AddToScheme(scheme)).To(Succeed())
	return &Reconciler{clock: clocktesting.NewFakePassiveClock(noon), management: fake.NewClientBuilder().WithScheme(scheme).
		WithIndex(&v1beta1.HostedCluster{}, controlPlaneNamespaceIndex, indexControlPlaneNamespace).WithObjects(hostedClusters...).Build()}
}

func TestMachineGone(t *testing.T) {
	hosted := func(name string, change func(*v1beta1.HostedCluster)) client.Object {
		hostedCluster := &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name, Finalizers: []string{v1beta1.HostedClusterFinalizer}}}
		change(hostedCluster)
		return hostedCluster
	}
	for _, test := range []struct {
		name string
		// cluster is the one that the Machine belongs to, in its HostedCluster's namespace.
		cluster string
		// hung: its deletion began an hour ago.
		hung bool
		want []string
	}{
		{name: "When a Machine of a cluster that drains has gone, it should look at that soon", cluster: "off", want: []string{"off"}},
		{name: "When a Machine of a cluster that is deleted has gone, it should look at that soon", cluster: "deleted", want: []string{"deleted"}},
		{name: "When a Machine has gone as they do, it should do nothing", cluster: "on"},
		{name: "When a Machine of a cluster without AutoNode has gone, it should do nothing", cluster: "never"},
		{name: "When a Machine that hung in deletion has gone, it should look at its cluster soon", cluster: "on", hung: true, want: []string{"on"}},
		{name: "When a Machine of another Cluster in the namespace has gone, it should do nothing", cluster: "infra"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			r := watching(t,
				hosted("off", func(*v1beta1.HostedCluster) {}),
				hosted("deleted", func(hc *v1beta1.HostedCluster) {
					hc.DeletionTimestamp, hc.Spec.AutoNode = &metav1.Time{Time: time.Now()}, &v1beta1.AutoNode{}
				}),
				hosted("on", func(hc *v1beta1.HostedCluster) { hc.Spec.AutoNode = &v1beta1.AutoNode{} }),
				hosted("never", func(hc *v1beta1.HostedCluster) { hc.Finalizers = nil }),
				hosted("infra", func(hc *v1beta1.HostedCluster) { hc.Spec.InfraID = "infra-x7" }),
			)
			queue := &recordingQueue{added: map[types.NamespacedName]time.Duration{}}
			m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
				Namespace: "clusters-" + test.cluster, Name: "general-x", Labels: map[string]string{clusterv1.ClusterNameLabel: test.cluster},
			}}
			if test.hung {
				m.DeletionTimestamp = &metav1.Time{Time: noon.Add(-time.Hour)}
			}
			r.machineGone(t.Context(), event.DeleteEvent{Object: m}, queue)
			want := map[types.NamespacedName]time.Duration{}
			for _, name := range test.want {
				want[types.NamespacedName{Namespace: "clusters", Name: name}] = 500 * time.Millisecond
			}
			g.Expect(queue.added).To(Equal(want))
		})
	}
}

func TestMachineDeleting(t *testing.T) {
	r := watching(t, &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue"}, Spec: v1beta1.HostedClusterSpec{AutoNode: &v1beta1.AutoNode{}}})
	running := deleted(t, "a", 0, "")
	running.DeletionTimestamp = nil
	for name, tc := range map[string]struct {
		before, after *clusterv1.Machine
		want          []time.Duration
	}{
		"When a deletion begins, it should look at the cluster when that may hang":              {running, deleted(t, "a", 0, ""), []time.Duration{2 * time.Minute}},
		"When a deletion goes on as before, it should not look again":                           {deleted(t, "a", time.Minute, "x"), deleted(t, "a", time.Minute, "x"), nil},
		"When a deletion that hangs reports something else, it should look at the cluster soon": {deleted(t, "a", time.Hour, "x"), deleted(t, "a", time.Hour, "y"), []time.Duration{burst}},
		"When a running machine changes, it should not look":                                    {running, running, nil},
	} {
		t.Run(name, func(t *testing.T) {
			queue := &recordingQueue{added: map[types.NamespacedName]time.Duration{}}
			r.machineDeleting(t.Context(), event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}, queue)
			var got []time.Duration
			for _, after := range queue.added {
				got = append(got, after)
			}
			NewWithT(t).Expect(got).To(Equal(tc.want))
		})
	}
}

// TestByLabels has two tenants, each with a control-plane namespace.
func TestByLabels(t *testing.T) {
	blue := types.NamespacedName{Namespace: "clusters", Name: "blue"}
	r := watching(t, &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: blue.Namespace, Name: blue.Name}})
	for name, test := range map[string]struct {
		namespace, labelled string
		want                []reconcile.Request
	}{
		"When an object is in the HostedCluster's control-plane namespace, it should be reconciled":            {"clusters-blue", "blue", []reconcile.Request{{NamespacedName: blue}}},
		"When an object in another tenant's namespace has the labels of one, it should not be":                 {"tenant-red", "blue", nil},
		"When an object in its namespace has the labels of a HostedCluster that doesn't exist, none should be": {"clusters-blue", "red", nil},
		"When an object has no labels, none should be":                                                         {"clusters-blue", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: test.namespace, Name: "karpenter"}}
			if test.labelled != "" {
				m.Labels = map[string]string{v1beta1.HostedClusterNamespaceLabel: blue.Namespace, v1beta1.HostedClusterLabel: test.labelled}
			}
			NewWithT(t).Expect(r.byLabels(t.Context(), m)).To(Equal(test.want))
		})
	}
}
