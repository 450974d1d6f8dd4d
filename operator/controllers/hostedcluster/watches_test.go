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
		want    []string
	}{
		{name: "When a Machine of a cluster that drains has gone, it should look at that soon", cluster: "off", want: []string{"off"}},
		{name: "When a Machine of a cluster that is deleted has gone, it should look at that soon", cluster: "deleted", want: []string{"deleted"}},
		{name: "When a Machine has gone as they do, it should do nothing", cluster: "on"},
		{name: "When a Machine of a cluster without AutoNode has gone, it should do nothing", cluster: "never"},
		{name: "When a Machine of another Cluster in the namespace has gone, it should do nothing", cluster: "infra"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			scheme := runtime.NewScheme()
			g.Expect(v1beta1.AddToScheme(scheme)).To(Succeed())
			r := &Reconciler{management: fake.NewClientBuilder().WithScheme(scheme).
				WithIndex(&v1beta1.HostedCluster{}, controlPlaneNamespaceIndex, indexControlPlaneNamespace).
				WithObjects(
					hosted("off", func(*v1beta1.HostedCluster) {}),
					hosted("deleted", func(hc *v1beta1.HostedCluster) {
						hc.DeletionTimestamp, hc.Spec.AutoNode = &metav1.Time{Time: time.Now()}, &v1beta1.AutoNode{}
					}),
					hosted("on", func(hc *v1beta1.HostedCluster) { hc.Spec.AutoNode = &v1beta1.AutoNode{} }),
					hosted("never", func(hc *v1beta1.HostedCluster) { hc.Finalizers = nil }),
					hosted("infra", func(hc *v1beta1.HostedCluster) { hc.Spec.InfraID = "infra-x7" }),
				).Build()}
			queue := &recordingQueue{added: map[types.NamespacedName]time.Duration{}}
			r.machineGone(t.Context(), event.DeleteEvent{Object: &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
				Namespace: "clusters-" + test.cluster, Name: "general-x", Labels: map[string]string{clusterv1.ClusterNameLabel: test.cluster},
			}}}, queue)
			want := map[types.NamespacedName]time.Duration{}
			for _, name := range test.want {
				want[types.NamespacedName{Namespace: "clusters", Name: name}] = 500 * time.Millisecond
			}
			g.Expect(queue.added).To(Equal(want))
		})
	}
}
