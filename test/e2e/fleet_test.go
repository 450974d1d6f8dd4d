// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
)

// fleetObjects are those of testdata/fleet.yaml: the account, and those of one cluster.
func fleetObjects(g *WithT, namespace string) (account *autonodev1alpha1.CapacityAccount, catalog *unstructured.Unstructured, guest []*unstructured.Unstructured) {
	management, guest := objectsOf(g, "fleet.yaml", namespace)
	account = &autonodev1alpha1.CapacityAccount{}
	g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(management[0].Object, account, true)).To(Succeed())
	return account, management[1], guest
}

// reservations are the Machines of a reservation in all clusters, as a watch reports them.
type reservations struct {
	mu       sync.Mutex
	machines map[string]bool
	most     int
	reached  time.Time
}

func watchReservations(t *testing.T, management client.WithWatch) *reservations {
	t.Helper()
	g := NewWithT(t)
	watcher, err := management.Watch(t.Context(), &clusterv1.MachineList{}, client.HasLabels{v1alpha1.ReservationIDLabel})
	g.Expect(err).NotTo(HaveOccurred())
	r := &reservations{machines: map[string]bool{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			if machine, ok := event.Object.(*clusterv1.Machine); ok && machine.Labels[v1alpha1.ReservationIDLabel] == "block-10" {
				r.observe(machine.Namespace+"/"+machine.Name, event.Type != watch.Deleted)
			}
		}
	}()
	t.Cleanup(func() {
		watcher.Stop()
		<-done
	})
	return r
}

func (r *reservations) observe(name string, exists bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.machines[name] = exists; !exists {
		delete(r.machines, name)
	}
	if len(r.machines) > r.most {
		r.most, r.reached = len(r.machines), time.Now()
	}
}

// now returns how many there are, and the most that there ever were, since when.
func (r *reservations) now() (count, most int, reached time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.machines), r.most, r.reached
}

// in returns how many there are in a cluster.
func (r *reservations) in(c *cluster) (count int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.machines {
		if strings.HasPrefix(name, c.namespace()+"/") {
			count++
		}
	}
	return count
}

// enableShared turns AutoNode on in a cluster, with the catalog of testdata, node class and NodePool.
func (c *cluster) enableShared(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	c.enable(t, initialRelease)
	_, catalog, guest := fleetObjects(g, c.namespace())
	g.Expect(c.management.Create(t.Context(), catalog)).To(Succeed())
	for _, object := range guest {
		g.Expect(c.guest.Create(t.Context(), object)).To(Succeed())
	}
}

// TestFleetCapacity: three hosted clusters race for ten reserved machines of the account that they share. The world is this test's own: machines that go are
// counted for minutes, for which other tests would wait.
func TestFleetCapacity(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	clusters := ownWorld(t, blue, green, red)
	clusters[0].leavesNoTrace(t)
	management := clusters[0].management
	account, _, _ := fleetObjects(g, "")
	g.Expect(management.Create(t.Context(), account)).To(Succeed())
	for _, c := range clusters {
		c.enableShared(t)
	}
	reserved := watchReservations(t, management)
	shared := &fleet{clusters: clusters, management: management, account: account}

	t.Run("When the account is applied, each Karpenter should acknowledge its lease", func(t *testing.T) {
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			for _, c := range clusters {
				lease := shared.lease(g, ctx, c)
				g.Expect(lease.Spec.Sequence).To(And(BeNumerically(">", 0), Equal(lease.Status.AcknowledgedSequence)))
			}
			ready := meta.FindStatusCondition(shared.found(g, ctx).Status.Conditions, autonodev1alpha1.Ready)
			g.Expect(ready).To(HaveValue(And(HaveField("Status", metav1.ConditionTrue), HaveField("Message", "3 clusters share 2 pools"))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})
	t.Run("When all three call for six machines, they should use all ten reserved ones, and never eleven, whoever dies meanwhile", func(t *testing.T) {
		g := NewWithT(t)
		for _, c := range clusters {
			c.workload(t, "web", 0, "3", onPool("shared"), apart)
			g.Eventually(func(g Gomega, ctx context.Context) {
				class := &v1alpha1.ClusterAPINodeClass{}
				g.Expect(c.guest.Get(ctx, client.ObjectKey{Name: "shared"}, class)).To(Succeed())
				g.Expect(class.StatusConditions().IsTrue("Ready")).To(BeTrue(), "%v", class.Status.Conditions)
			}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		}
		// Only make bench-fleet bounds the time: beside other tests, and with deaths, it means little.
		limit := os.Getenv("FLEET_LIMIT")
		if limit == "" {
			// What could take another machine wouldn't call for a reserved one any more when the operator is back.
			shared.allowCapacityTypes(t, karpv1.CapacityTypeReserved)
		}
		began := time.Now()
		if limit == "" {
			shared.callMidway(t, reserved, 6)
		} else {
			shared.scale(t, 6)
		}
		g.Eventually(func(g Gomega) {
			count, _, _ := reserved.now()
			g.Expect(count).To(Equal(10))
			if limit == "" { // else it launches on demand instead
				g.Expect(reserved.in(clusters[0])).To(BeNumerically(">=", 2), "the guaranteed amount")
			}
		}).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		_, _, reached := reserved.now()
		took := reached.Sub(began).Round(100 * time.Millisecond)
		t.Logf("all ten in use %s after the demand", took)
		if limit != "" {
			longest, err := time.ParseDuration(limit)
			g.Expect(err).NotTo(HaveOccurred(), "FLEET_LIMIT")
			g.Expect(took).To(BeNumerically("<=", longest), "all ten in use within FLEET_LIMIT")
		}
	})
	t.Run("When nodes in the full reservation drift, they should be terminated first, one at a time, and none be lost to those that wait", shared.upgraded)
	t.Run("When the reservation is full, what it has no room for should be on demand", func(t *testing.T) {
		shared.allowCapacityTypes(t, karpv1.CapacityTypeReserved, karpv1.CapacityTypeOnDemand)
		for _, c := range clusters {
			c.waitRunning(t, "web")
		}
		shared.waitLaunched(t, 10, 8)
	})
	t.Run("When the reservation expires, its machines should stay, and the next ones be on demand", shared.expired)
	t.Run("When a cluster finds that a zone has no spot capacity, another one should launch in the next zone at once", shared.exhausted)
	t.Run("When a quota is reached while pods wait for it in two clusters, they should run as soon as it is raised", shared.limited)
	t.Run("When a machine of a dearer type is committed, it should be launched first, and then the cheapest", shared.committed)
	t.Run("When everything has happened, there should never have been more than ten reserved machines", func(t *testing.T) {
		_, most, _ := reserved.now()
		NewWithT(t).Expect(most).To(Equal(10))
	})
}
