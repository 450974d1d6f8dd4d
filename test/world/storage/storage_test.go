// SPDX-License-Identifier: Apache-2.0

package storage_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/textlogger"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/test/world/storage"
)

const (
	// startTimeout is how long an API server may take to start: a loaded machine is slow.
	startTimeout = 2 * time.Minute
	poll         = 20 * time.Millisecond
)

var config *rest.Config

func TestMain(m *testing.M) {
	env := &envtest.Environment{ControlPlaneStartTimeout: startTimeout}
	var err error
	if config, err = env.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "starting the API server:", err)
		os.Exit(1)
	}
	code := m.Run()
	if err := env.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping the API server:", err)
		code = 1
	}
	os.Exit(code)
}

// guest is an API server without controllers: the tests are the scheduler and the volume binder.
type guest struct{ client.Client }

func newGuest(t *testing.T) guest {
	t.Helper()
	g := NewWithT(t)
	c, err := client.New(config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	driver, err := storage.Install(t.Context(), config, textlogger.NewLogger(textlogger.NewConfig()))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		g.Expect(driver.Uninstall(ctx)).To(Succeed())
		for _, object := range []client.Object{&storagev1.CSIDriver{}, &storagev1.StorageClass{}, &storagev1.CSINode{}, &corev1.Node{}} {
			g.Expect(c.DeleteAllOf(ctx, object)).To(Succeed())
		}
	})
	return guest{c}
}

// node creates a Node in a zone, and makes it ready.
func (c guest) node(t *testing.T, name, zone string, ready bool) *corev1.Node {
	t.Helper()
	g := NewWithT(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	if zone != "" {
		node.Labels[corev1.LabelTopologyZone] = zone
	}
	node.Spec.ProviderID = "kwok://" + name
	g.Expect(c.Create(t.Context(), node)).To(Succeed())
	if ready {
		c.ready(t, node)
	}
	return node
}

func (c guest) ready(t *testing.T, node *corev1.Node) {
	t.Helper()
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	NewWithT(t).Expect(c.Status().Update(t.Context(), node)).To(Succeed())
}

// claim creates a claim for which the scheduler has selected a node.
func (c guest) claim(t *testing.T, name, node string) *corev1.PersistentVolumeClaim {
	t.Helper()
	class := storage.ClassName
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: name, Annotations: map[string]string{
			"volume.kubernetes.io/selected-node": node, "volume.kubernetes.io/storage-provisioner": storage.DriverName,
		},
	}}
	claim.Spec.StorageClassName = &class
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	g := NewWithT(t)
	g.Expect(c.Create(t.Context(), claim)).To(Succeed())
	t.Cleanup(func() {
		claim.Finalizers = nil // no controller removes them here
		ctx := context.WithoutCancel(t.Context())
		g.Expect(client.IgnoreNotFound(c.Patch(ctx, claim, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))))).To(Succeed())
		g.Expect(client.IgnoreNotFound(c.Delete(ctx, claim))).To(Succeed())
	})
	return claim
}

func (c guest) volumeOf(g Gomega, ctx context.Context, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	volume := &corev1.PersistentVolume{}
	g.Expect(c.Get(ctx, client.ObjectKey{Name: "pvc-" + string(claim.UID)}, volume)).To(Succeed())
	return volume
}

func TestDriver(t *testing.T) {
	t.Run("When a node is ready, its kubelet should have the driver, its topology label and the number of its volumes", func(t *testing.T) {
		g, c := NewWithT(t), newGuest(t)
		node := c.node(t, "one", "b", false)
		g.Consistently(func(ctx context.Context) error {
			return c.Get(ctx, client.ObjectKey{Name: "one"}, &storagev1.CSINode{})
		}).
			WithContext(t.Context()).WithTimeout(10 * poll).WithPolling(poll).Should(Satisfy(apierrors.IsNotFound))
		c.ready(t, node)
		g.Eventually(func(g Gomega, ctx context.Context) {
			registered := &storagev1.CSINode{}
			g.Expect(c.Get(ctx, client.ObjectKey{Name: "one"}, registered)).To(Succeed())
			g.Expect(registered.OwnerReferences).To(ConsistOf(HaveField("UID", node.UID)))
			g.Expect(registered.Spec.Drivers).To(HaveLen(1))
			g.Expect(registered.Spec.Drivers[0].TopologyKeys).To(ConsistOf(storage.TopologyKey))
			g.Expect(*registered.Spec.Drivers[0].Allocatable.Count).To(BeEquivalentTo(storage.MaxVolumes))
			g.Expect(c.Get(ctx, client.ObjectKeyFromObject(node), node)).To(Succeed())
			g.Expect(node.Labels).To(HaveKeyWithValue(storage.TopologyKey, "b"))
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	})
	t.Run("When a node's zone isn't known, it should have no driver", func(t *testing.T) {
		g, c := NewWithT(t), newGuest(t)
		c.node(t, "nowhere", "", true)
		c.node(t, "somewhere", "a", true)
		g.Eventually(func(ctx context.Context) error {
			return c.Get(ctx, client.ObjectKey{Name: "somewhere"}, &storagev1.CSINode{})
		}).
			WithContext(t.Context()).WithPolling(poll).Should(Succeed())
		g.Expect(c.Get(t.Context(), client.ObjectKey{Name: "nowhere"}, &storagev1.CSINode{})).To(Satisfy(apierrors.IsNotFound))
	})
	t.Run("When the scheduler has selected a node, the volume should be in its zone, and the claim's", func(t *testing.T) {
		g, c := NewWithT(t), newGuest(t)
		node := c.node(t, "late", "c", false)
		claim := c.claim(t, "early", "late")
		c.ready(t, node) // the driver comes to the node afterwards
		g.Eventually(func(g Gomega, ctx context.Context) {
			volume := c.volumeOf(g, ctx, claim)
			g.Expect(volume.Spec.ClaimRef.UID).To(Equal(claim.UID))
			g.Expect(volume.Spec.NodeAffinity.Required.NodeSelectorTerms).To(ConsistOf(HaveField("MatchExpressions",
				ConsistOf(corev1.NodeSelectorRequirement{Key: storage.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"c"}}))))
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())

		volume := c.volumeOf(g, t.Context(), claim)
		volume.Status.Phase = corev1.VolumeReleased // as the binder says it when the claim has gone
		g.Expect(c.Status().Update(t.Context(), volume)).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			// The finalizer that protects volumes in use keeps it: nothing removes that here.
			g.Expect(c.Get(ctx, client.ObjectKeyFromObject(volume), volume)).To(Succeed())
			g.Expect(volume.DeletionTimestamp).NotTo(BeNil(), "a released volume")
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	})
	t.Run("When the selected node has gone, the scheduler should be asked for another one", func(t *testing.T) {
		g, c := NewWithT(t), newGuest(t)
		claim := c.claim(t, "lost", "gone")
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
			g.Expect(claim.Annotations).NotTo(HaveKey("volume.kubernetes.io/selected-node"))
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	})
}
