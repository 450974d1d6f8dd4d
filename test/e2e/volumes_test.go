// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/test/world/storage"
)

// TestVolumes: volumes are in zones, by the topology key of their CSI driver. Pods get nodes where their volumes are, and where a
// StorageClass allows them to be.
func TestVolumes(t *testing.T) {
	t.Parallel()
	c := acquireCluster(t, violet)
	c.storage(t)
	c.nodePool(t, "data")

	var zones map[string]string
	t.Run("When a StatefulSet requires volumes in three zones, each of its pods should get a node and a volume in one", func(t *testing.T) {
		g := NewWithT(t)
		c.database(t, "db", storage.ClassName, 3, "500m")
		zones = c.waitDatabase(t, "db", 3)
		distinct := map[string]bool{}
		for _, zone := range zones {
			distinct[zone] = true
		}
		g.Expect(distinct).To(HaveLen(3), "zones of the pods: %v", zones)
	})

	t.Run("When it is scaled to zero and back, its pods should come up on new nodes, in the zones of their volumes", func(t *testing.T) {
		g := NewWithT(t)
		old := map[string]bool{}
		for _, node := range c.nodes(g, t.Context()) {
			old[node.Name] = true
		}
		c.scaleDatabase(t, "db", 0)
		c.waitNothingLeft(t)
		c.scaleDatabase(t, "db", 3)
		g.Expect(c.waitDatabase(t, "db", 3)).To(Equal(zones))
		for _, node := range c.nodes(g, t.Context()) {
			g.Expect(old).NotTo(HaveKey(node.Name))
			g.Expect(node.Labels).To(HaveKeyWithValue(storage.TopologyKey, node.Labels[corev1.LabelTopologyZone]))
		}
	})

	t.Run("When a StorageClass allows one zone, by the driver's key, its volume's pod should get a node there", func(t *testing.T) {
		g := NewWithT(t)
		binding := storagev1.VolumeBindingWaitForFirstConsumer
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "only-b"}, Provisioner: storage.DriverName, VolumeBindingMode: &binding}
		class.AllowedTopologies = []corev1.TopologySelectorTerm{{
			MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: storage.TopologyKey, Values: []string{"b"}}},
		}}
		g.Expect(c.guest.Create(t.Context(), class)).To(Succeed())
		t.Cleanup(func() {
			NewWithT(t).Expect(client.IgnoreNotFound(c.guest.Delete(context.WithoutCancel(t.Context()), class))).To(Succeed())
		})
		c.database(t, "single", class.Name, 1, "1900m") // for which the nodes that are there have no room
		g.Expect(c.waitDatabase(t, "single", 1)).To(Equal(map[string]string{"single-0": "b"}))
	})
}

// storage installs a CSI driver in the guest until the test ends. By then nothing may have a volume of it.
func (c *cluster) storage(t *testing.T) {
	t.Helper()
	driver, err := storage.Install(t.Context(), c.world.Guest(c.name).RESTConfig(), logr.Discard())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		g := NewWithT(t)
		ctx := context.WithoutCancel(t.Context())
		g.Expect(c.guest.DeleteAllOf(ctx, &appsv1.StatefulSet{}, client.InNamespace(metav1.NamespaceDefault), client.PropagationPolicy(metav1.DeletePropagationBackground))).To(Succeed())
		g.Expect(c.guest.DeleteAllOf(ctx, &corev1.PersistentVolumeClaim{}, client.InNamespace(metav1.NamespaceDefault))).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			volumes := &corev1.PersistentVolumeList{}
			g.Expect(c.guest.List(ctx, volumes)).To(Succeed())
			g.Expect(volumes.Items).To(BeEmpty())
		}).WithContext(ctx).WithTimeout(eventually).WithPolling(interval).Should(Succeed(), "a test leaves no volume behind")
		g.Expect(driver.Uninstall(ctx)).To(Succeed())
	})
}

// database creates a StatefulSet in the namespace default, whose pods are spread over zones and have a volume each.
func (c *cluster) database(t *testing.T, name, class string, replicas int32, cpu string) {
	t.Helper()
	labels := map[string]string{"app": name}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, ServiceName: name, PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64(1)),
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						// Without a minimum, the scheduler has the zones of nodes alone, and puts all pods on the first node.
						MinDomains: new(int32(3)),
						MaxSkew:    1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
						LabelSelector: &metav1.LabelSelector{MatchLabels: maps.Clone(labels)},
					}},
					Containers: []corev1.Container{{
						Name: "db", Image: "registry.example/db:1",
						VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
							corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Mi"),
						}},
					}},
				},
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			}},
		},
	}
	NewWithT(t).Expect(c.guest.Create(t.Context(), set)).To(Succeed())
}

func (c *cluster) scaleDatabase(t *testing.T, name string, replicas int32) {
	t.Helper()
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	NewWithT(t).Expect(c.guest.Patch(t.Context(), set, patch)).To(Succeed())
}

// waitDatabase waits until every replica of a StatefulSet is ready, and returns each pod's zone. That its volume is there, the
// scheduler has made sure of.
func (c *cluster) waitDatabase(t *testing.T, name string, replicas int32) map[string]string {
	t.Helper()
	zones := map[string]string{}
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		set := &appsv1.StatefulSet{}
		g.Expect(c.guest.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, set)).To(Succeed())
		g.Expect(set.Status.ObservedGeneration).To(Equal(set.Generation))
		g.Expect(set.Status.ReadyReplicas).To(Equal(replicas), "ready replicas of %s", name)
		pods := &corev1.PodList{}
		g.Expect(c.guest.List(ctx, pods, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{"app": name})).To(Succeed())
		for _, pod := range pods.Items {
			node := &corev1.Node{}
			g.Expect(c.guest.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node)).To(Succeed())
			zones[pod.Name] = node.Labels[corev1.LabelTopologyZone]
		}
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	return zones
}
