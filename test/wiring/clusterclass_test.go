// SPDX-License-Identifier: Apache-2.0

package wiring_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	runtimev1 "sigs.k8s.io/cluster-api/api/runtime/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/core/reconcilers/clusterclass"
	topologycluster "sigs.k8s.io/cluster-api/core/reconcilers/topology/cluster"
	"sigs.k8s.io/cluster-api/util/index"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
)

// topologyPool is the entry of the topology, the NodePool and the value of the label that selects its MachineDeployment.
const topologyPool = "hosted"

// topologyCRD is the definition of a kind of which a ClusterClass has templates, and a Cluster one object.
const topologyCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %[2]ss.%[1]s
  labels: {cluster.x-k8s.io/v1beta2: v1beta1}
spec:
  group: %[1]s
  scope: Namespaced
  names: {kind: %[3]s, listKind: %[3]sList, plural: %[2]ss, singular: %[2]s}
  versions:
    - name: v1beta1
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

const controlPlaneGroup = "controlplane.cluster.x-k8s.io"

// installTopology installs the kinds that Cluster API's topology controller reads beside those of every environment.
func (w *world) installTopology(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	g.Expect(err).NotTo(HaveOccurred())
	bases := filepath.Join(strings.TrimSpace(string(out)), "core/config/crd/bases")
	install := envtest.CRDInstallOptions{Paths: []string{
		filepath.Join(bases, "cluster.x-k8s.io_clusterclasses.yaml"), filepath.Join(bases, "cluster.x-k8s.io_machinepools.yaml"),
		filepath.Join(bases, "cluster.x-k8s.io_machinesets.yaml"), filepath.Join(bases, "runtime.cluster.x-k8s.io_extensionconfigs.yaml"),
	}}
	for _, kind := range []schema.GroupKind{
		{Group: environment.TestMachine.Group, Kind: "TestCluster"}, {Group: environment.TestMachine.Group, Kind: "TestClusterTemplate"},
		{Group: controlPlaneGroup, Kind: "TestControlPlane"}, {Group: controlPlaneGroup, Kind: "TestControlPlaneTemplate"},
	} {
		install.CRDs = append(install.CRDs, decodeCRD(g, fmt.Sprintf(topologyCRD, kind.Group, strings.ToLower(kind.Kind), kind.Kind)))
	}
	g.Expect(apiserver.InstallCRDs(w.Guest.GetConfig(), install)).To(Succeed())
	scheme := runtime.NewScheme()
	g.Expect(apiextensionsv1.AddToScheme(scheme)).To(Succeed())
	admin, err := client.New(w.Guest.GetConfig(), client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	for _, name := range []string{"kubeadmconfigtemplates", "kubeadmconfigs"} { // which their provider's kustomization labels
		crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name + "." + environment.KubeadmConfig.Group}}
		g.Expect(admin.Patch(t.Context(), crd, client.RawPatch("application/merge-patch+json",
			[]byte(`{"metadata":{"labels":{"cluster.x-k8s.io/v1beta2":"v1beta2"}}}`)))).To(Succeed())
	}
}

func decodeCRD(g Gomega, text string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	g.Expect(yaml.Unmarshal([]byte(text), crd)).To(Succeed())
	return crd
}

// runTopology runs Cluster API's controllers of ClusterClasses and topologies until the test ends.
func (w *world) runTopology(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, runtimev1.AddToScheme, apiextensionsv1.AddToScheme} {
		g.Expect(add(scheme)).To(Succeed())
	}
	manager, err := ctrl.NewManager(w.Guest.GetConfig(), ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}, Unstructured: true}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	g.Expect(index.ByClusterClassRef(ctx, manager)).To(Succeed())
	g.Expect((&clusterclass.Reconciler{Client: manager.GetClient()}).SetupWithManager(ctx, manager, ctrlcontroller.Options{})).To(Succeed())
	g.Expect((&topologycluster.Reconciler{
		Client: manager.GetClient(), APIReader: manager.GetAPIReader(),
		ClusterCache: clustercache.NewFakeClusterCache(w.Admin, client.ObjectKeyFromObject(w.Cluster)),
	}).SetupWithManager(ctx, manager, ctrlcontroller.Options{})).To(Succeed())
	done := make(chan error, 1)
	go func() { done <- manager.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// object makes an object of a kind, in the environment's namespace.
func (w *world) object(group, kind, name string, content map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: content}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1beta1", Kind: kind})
	object.SetNamespace(w.Namespace)
	object.SetName(name)
	return object
}

func inTemplate(spec map[string]any) map[string]any {
	return map[string]any{"spec": map[string]any{"template": map[string]any{"spec": spec}}}
}

// makeClass makes a ClusterClass with a class of workers, and gives the Cluster a topology of it.
func (w *world) makeClass(t *testing.T) *clusterv1.ClusterClass {
	t.Helper()
	g := NewWithT(t)
	const infrastructure = "infrastructure.cluster.x-k8s.io"
	larger := w.object(infrastructure, "TestMachineTemplate", "hosted-large", inTemplate(map[string]any{"size": "c8"}))
	objects := []client.Object{
		w.object(infrastructure, "TestClusterTemplate", "hosted", inTemplate(map[string]any{"region": "local"})),
		w.object(controlPlaneGroup, "TestControlPlaneTemplate", "hosted", inTemplate(map[string]any{"flavor": "small"})),
		w.object(infrastructure, "TestMachineTemplate", "hosted", inTemplate(map[string]any{"size": "c4"})), larger,
	}
	reference := func(group, kind string) clusterv1.ClusterClassTemplateReference {
		version := "v1beta1"
		if group == environment.KubeadmConfig.Group {
			version = "v1beta2"
		}
		return clusterv1.ClusterClassTemplateReference{APIVersion: group + "/" + version, Kind: kind, Name: "hosted"}
	}
	bootstrap := w.BootstrapTemplate.DeepCopy()
	bootstrap.SetName("hosted")
	bootstrap.SetResourceVersion("")
	bootstrap.SetUID("")
	class := &clusterv1.ClusterClass{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "hosted"}, Spec: clusterv1.ClusterClassSpec{
		Infrastructure: clusterv1.InfrastructureClass{TemplateRef: reference(infrastructure, "TestClusterTemplate")},
		ControlPlane:   clusterv1.ControlPlaneClass{TemplateRef: reference(controlPlaneGroup, "TestControlPlaneTemplate")},
		Workers: clusterv1.WorkersClass{MachineDeployments: []clusterv1.MachineDeploymentClass{{
			Class:          "default-worker",
			Bootstrap:      clusterv1.MachineDeploymentClassBootstrapTemplate{TemplateRef: reference(environment.KubeadmConfig.Group, "KubeadmConfigTemplate")},
			Infrastructure: clusterv1.MachineDeploymentClassInfrastructureTemplate{TemplateRef: reference(infrastructure, "TestMachineTemplate")},
		}}},
	}}
	own := w.object(infrastructure, "TestCluster", w.Cluster.Name, map[string]any{"spec": map[string]any{}})
	own.SetLabels(map[string]string{clusterv1.ClusterTopologyOwnedLabel: "", clusterv1.ClusterNameLabel: w.Cluster.Name})
	for _, object := range append(objects, bootstrap, own, class) {
		g.Expect(w.Admin.Create(t.Context(), object)).To(Succeed())
	}
	g.Expect(w.Admin.Get(t.Context(), client.ObjectKeyFromObject(w.Cluster), w.Cluster)).To(Succeed())
	before := w.Cluster.DeepCopy()
	w.Cluster.Spec.Topology = clusterv1.Topology{
		ClassRef: clusterv1.ClusterClassRef{Name: class.Name}, Version: "v1.36.2",
		Workers: clusterv1.WorkersTopology{MachineDeployments: []clusterv1.MachineDeploymentTopology{{
			Class: "default-worker", Name: topologyPool, Replicas: new(int32(0)),
			Metadata: clusterv1.ObjectMeta{Labels: map[string]string{"pool": topologyPool}, Annotations: map[string]string{
				v1alpha1.PriceAnnotation: "0.05", "capacity.cluster-autoscaler.kubernetes.io/cpu": "4", "capacity.cluster-autoscaler.kubernetes.io/memory": "8Gi",
			}},
		}}},
	}
	g.Expect(w.Admin.Patch(t.Context(), w.Cluster, client.MergeFrom(before))).To(Succeed())
	return class
}

// deployment is the MachineDeployment of the topology.
func (w *world) deployment(g Gomega, ctx context.Context) *clusterv1.MachineDeployment {
	list := &clusterv1.MachineDeploymentList{}
	g.Expect(w.Admin.List(ctx, list, client.InNamespace(w.Namespace), client.MatchingLabels{"pool": topologyPool})).To(Succeed())
	g.Expect(list.Items).To(HaveLen(1))
	return &list.Items[0]
}

// playControlPlane reports that the control plane runs a version. As Cluster API's controller of Clusters, it makes the Cluster its owner.
func (w *world) playControlPlane(g Gomega, ctx context.Context, version string) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: controlPlaneGroup, Version: "v1beta1", Kind: "TestControlPlaneList"})
	g.Expect(w.Admin.List(ctx, list, client.InNamespace(w.Namespace))).To(Succeed())
	g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(w.Cluster), w.Cluster)).To(Succeed())
	g.Expect(list.Items).To(HaveLen(1), "%v", w.Cluster.Status.Conditions)
	wanted, _, _ := unstructured.NestedString(list.Items[0].Object, "spec", "version")
	g.Expect(wanted).To(Equal(version))
	owned := fmt.Appendf(nil, `{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":"Cluster","name":%q,"uid":%q,"controller":true}]}}`,
		clusterv1.GroupVersion, w.Cluster.Name, w.Cluster.UID)
	g.Expect(w.Admin.Patch(ctx, &list.Items[0], client.RawPatch("application/merge-patch+json", owned))).To(Succeed())
	patch := fmt.Appendf(nil, `{"status":{"version":%q,"initialization":{"controlPlaneInitialized":true}}}`, version)
	g.Expect(w.Admin.Status().Patch(ctx, &list.Items[0], client.RawPatch("application/merge-patch+json", patch))).To(Succeed())
}

// drifted returns why the topology's only node has drifted. Karpenter looks again whenever the NodeClaim changes.
func (w *world) drifted(g Gomega, ctx context.Context) string {
	list := &karpv1.NodeClaimList{}
	g.Expect(w.Admin.List(ctx, list, client.MatchingLabels{karpv1.NodePoolLabelKey: topologyPool})).To(Succeed())
	g.Expect(list.Items).To(HaveLen(1))
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/at":%q}}}`, time.Now())
	g.Expect(w.Admin.Patch(ctx, &list.Items[0], client.RawPatch("application/merge-patch+json", patch))).To(Succeed())
	if condition := list.Items[0].StatusConditions().Get(karpv1.ConditionTypeDrifted); condition.IsTrue() {
		return condition.Reason
	}
	return ""
}

// hasTopology tests what docs/platform/clusterclass.md states, with Cluster API's own controllers.
func (w *world) hasTopology(t *testing.T) {
	w.installTopology(t)
	class := w.makeClass(t)
	w.runTopology(t)
	eventually := func(t *testing.T, check func(g Gomega, ctx context.Context)) {
		t.Helper()
		NewWithT(t).Eventually(check).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	}
	eventually(t, func(g Gomega, ctx context.Context) { w.playControlPlane(g, ctx, "v1.36.2") })
	nodeClass := &v1alpha1.ClusterAPINodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace + "-topology"},
		Spec: v1alpha1.ClusterAPINodeClassSpec{TemplateSelectors: v1alpha1.TemplateSelectors{
			ScalableResourceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"pool": topologyPool}},
		}},
	}
	NewWithT(t).Expect(w.Admin.Create(t.Context(), nodeClass)).To(Succeed())

	t.Run("When a topology has an entry, its MachineDeployment should be a template, with the entry's price", func(t *testing.T) {
		eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(nodeClass), nodeClass)).To(Succeed())
			g.Expect(nodeClass.Status.Templates).To(ConsistOf(And(
				HaveField("Source", HavePrefix("MachineDeployment/")), HaveField("Price", "0.05"), HaveField("Unavailable", BeEmpty()))), "%v", nodeClass.Status.Conditions)
		})
	})
	t.Run("When a pod needs a node, Karpenter alone should own its Machine, which should have the topology's version", func(t *testing.T) {
		pool := w.nodePool(topologyPool)
		pool.Spec.Template.Spec.NodeClassRef.Name = nodeClass.Name
		NewWithT(t).Expect(w.Admin.Create(t.Context(), pool)).To(Succeed())
		w.pod(t, topologyPool, karpv1.NodePoolLabelKey, topologyPool)
		eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(w.launched(g, ctx, topologyPool)).To(Equal(1))
			machines := &clusterv1.MachineList{}
			g.Expect(w.Admin.List(ctx, machines, client.InNamespace(w.Namespace), client.MatchingLabels{karpv1.NodePoolLabelKey: topologyPool})).To(Succeed())
			g.Expect(machines.Items).To(HaveLen(1))
			machine := machines.Items[0]
			g.Expect(machine.OwnerReferences).To(HaveEach(HaveField("Kind", "Cluster")))
			for _, label := range []string{clusterv1.ClusterTopologyOwnedLabel, clusterv1.ClusterTopologyMachineDeploymentNameLabel, clusterv1.MachineDeploymentNameLabel} {
				g.Expect(machine.Labels).NotTo(HaveKey(label), "by which a MachineHealthCheck of the topology, or a MachineSet, would select it")
			}
			g.Expect(machine.Spec.Version).To(Equal("v1.36.2"))
			g.Expect(w.drifted(g, ctx)).To(BeEmpty())
		})
	})
	t.Run("When a person annotates the MachineDeployment as the topology doesn't, the topology controller should take it back", func(t *testing.T) {
		g := NewWithT(t)
		deployment := w.deployment(g, t.Context())
		g.Expect(w.Admin.Patch(t.Context(), deployment, client.RawPatch("application/merge-patch+json",
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"9"}}}`, v1alpha1.PriceAnnotation)))).To(Succeed())
		eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(w.deployment(g, ctx).Annotations).To(HaveKeyWithValue(v1alpha1.PriceAnnotation, "0.05"))
		})
	})
	t.Run("When the entry has a replica, it should remain beside Karpenter's node, and count towards the max size", func(t *testing.T) {
		for _, step := range []struct {
			replicas             int32
			maxSize, unavailable string
		}{{1, "2", "Full"}, {1, "3", ""}, {0, "2", ""}} {
			g := NewWithT(t)
			g.Expect(w.Admin.Get(t.Context(), client.ObjectKeyFromObject(w.Cluster), w.Cluster)).To(Succeed())
			before := w.Cluster.DeepCopy()
			entry := &w.Cluster.Spec.Topology.Workers.MachineDeployments[0]
			entry.Replicas, entry.Metadata.Annotations[clusterv1.AutoscalerMaxSizeAnnotation] = &step.replicas, step.maxSize
			g.Expect(w.Admin.Patch(t.Context(), w.Cluster, client.MergeFrom(before))).To(Succeed())
			eventually(t, func(g Gomega, ctx context.Context) {
				deployment := w.deployment(g, ctx)
				g.Expect(deployment.Spec.Replicas).To(HaveValue(Equal(step.replicas)))
				g.Expect(deployment.Annotations).To(HaveKeyWithValue(clusterv1.AutoscalerMaxSizeAnnotation, step.maxSize))
				g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(nodeClass), nodeClass)).To(Succeed())
				g.Expect(nodeClass.Status.Templates).To(ConsistOf(HaveField("Unavailable", step.unavailable)))
				g.Expect(w.launched(g, ctx, topologyPool)).To(Equal(1))
				g.Expect(w.drifted(g, ctx)).To(BeEmpty())
			})
		}
	})
	t.Run("When the topology's version changes, the node should drift once the control plane has it, and not before", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(w.Admin.Patch(t.Context(), w.Cluster, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"topology":{"version":"v1.36.3"}}}`)))).To(Succeed())
		g.Consistently(w.drifted).WithContext(t.Context()).WithTimeout(tempted / 4).WithPolling(10 * poll).Should(BeEmpty())
		g.Expect(w.deployment(g, t.Context()).Spec.Template.Spec.Version).To(Equal("v1.36.2"))
		eventually(t, func(g Gomega, ctx context.Context) { w.playControlPlane(g, ctx, "v1.36.3") })
		eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(w.deployment(g, ctx).Spec.Template.Spec.Version).To(Equal("v1.36.3"))
			g.Expect(w.drifted(g, ctx)).To(BeEquivalentTo(drift.VersionDrifted))
		})
	})
	t.Run("When the ClusterClass names another template, the node should drift as of a replaced template", func(t *testing.T) {
		g := NewWithT(t)
		former := w.deployment(g, t.Context()).Spec.Template.Spec.InfrastructureRef.Name
		g.Expect(w.Admin.Get(t.Context(), client.ObjectKeyFromObject(class), class)).To(Succeed())
		before := class.DeepCopy()
		class.Spec.Workers.MachineDeployments[0].Infrastructure.TemplateRef.Name = "hosted-large"
		g.Expect(w.Admin.Patch(t.Context(), class, client.MergeFrom(before))).To(Succeed())
		eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(w.deployment(g, ctx).Spec.Template.Spec.InfrastructureRef.Name).NotTo(Equal(former))
			g.Expect(w.drifted(g, ctx)).To(BeEquivalentTo(drift.TemplateDrifted))
		})
	})
}
