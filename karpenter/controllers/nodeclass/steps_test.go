// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"fmt"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// bootstrapPatch returns the patches of one bootstrap kind: one that has a variable for its value.
func bootstrapPatch(kind schema.GroupKind, op v1alpha1.JSONPatchOperation, path, variable string) []v1alpha1.BootstrapPatches {
	return []v1alpha1.BootstrapPatches{{
		APIGroup: kind.Group, Kind: kind.Kind,
		Patches: []v1alpha1.JSONPatch{{Op: op, Path: path, ValueFrom: &v1alpha1.JSONPatchValue{Variable: variable}}},
	}}
}

func TestBootstrap(t *testing.T) {
	for _, tc := range []struct {
		name      string
		bootstrap *v1alpha1.Bootstrap
		reason    string
		message   string
	}{
		{"When templates are selected without a bootstrap, it should say what to set", nil,
			v1alpha1.BootstrapMissingReason, "set spec.bootstrap"},
		{"When the bootstrap template doesn't exist, it should name it", &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
			APIGroup: environment.KubeadmConfig.Group, Kind: "KubeadmConfigTemplate", Name: "other"}},
			v1alpha1.BootstrapNotFoundReason, "spec.bootstrap.configTemplateRef: KubeadmConfigTemplate other doesn't exist in namespace"},
		{"When the bootstrap kind isn't served, it should name it", &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
			APIGroup: environment.KubeadmConfig.Group, Kind: "NoSuchTemplate", Name: "other"}},
			v1alpha1.SourceUnreadableReason, "NoSuchTemplate"},
		{"When the bootstrap Secret doesn't exist, it should name it", &v1alpha1.Bootstrap{DataSecretName: "join"},
			v1alpha1.BootstrapNotFoundReason, "spec.bootstrap.dataSecretName: Secret join doesn't exist in namespace"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := startSmall(t, func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Bootstrap = tc.bootstrap })
			f.condition(v1alpha1.ConditionBootstrapReady, "False", tc.reason, ContainSubstring(tc.message))
			f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.ConditionTemplatesReady)
			f.condition(status.ConditionReady, "False", tc.reason, ContainSubstring(tc.message))
			f.Expect(f.instanceTypes()).To(Equal([]string{"c2-small"}), "what nodes were made from still exists")
			f.Expect(f.events.reasons()).To(Equal([]string{tc.reason}))
		})
	}
	t.Run("When the object that the bootstrap refers to is no template, it should say so", func(t *testing.T) {
		f := startSmall(t, func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.Bootstrap.ConfigTemplateRef = &v1alpha1.BootstrapTemplateReference{
				APIGroup: environment.TestMachine.Group, Kind: "TestMachineTemplate", Name: "other",
			}
		})
		f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.BootstrapNotFoundReason, ContainSubstring("doesn't exist"))
		other := f.InfrastructureTemplate.DeepCopy()
		other.SetName("other")
		other.SetResourceVersion("")
		other.Object["spec"] = map[string]any{}
		f.Expect(f.Admin.Create(t.Context(), other)).To(Succeed())
		f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.BootstrapNotFoundReason, ContainSubstring("has no spec.template"))
	})
	t.Run("When the bootstrap kind isn't known, it should be ready and say which patches are missing, until they are there", func(t *testing.T) {
		f := startSmall(t, func(n *v1alpha1.ClusterAPINodeClass) {
			// To this provider it is a template like any other.
			n.Spec.Bootstrap.ConfigTemplateRef = &v1alpha1.BootstrapTemplateReference{
				APIGroup: environment.TestMachine.Group, Kind: "TestMachineTemplate", Name: "c4-large",
			}
		})
		f.ready()
		f.condition(v1alpha1.ConditionBootstrapReady, "True", v1alpha1.RegistrationUnknownReason,
			ContainSubstring("set spec.bootstrapPatches for TestMachine (infrastructure.cluster.x-k8s.io)"))
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.BootstrapPatches = bootstrapPatch(environment.TestMachine.GroupKind(), v1alpha1.JSONPatchAdd, "/spec/taints", "taints")
		})
		f.condition(v1alpha1.ConditionBootstrapReady, "True", v1alpha1.ConditionBootstrapReady)
	})
	t.Run("When a bootstrap patch doesn't apply, it should launch nothing and name the patch until it does", func(t *testing.T) {
		f := startSmall(t, func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.BootstrapPatches = bootstrapPatch(environment.KubeadmConfig.GroupKind(), v1alpha1.JSONPatchReplace, "/spec/missing", "zone")
		})
		f.condition(v1alpha1.ConditionTemplatesReady, "False", v1alpha1.AllInvalidReason, And(
			ContainSubstring("c2-small"), ContainSubstring("spec.bootstrapPatches for"), ContainSubstring("patch 0 (replace /spec/missing): /spec/missing doesn't exist")))
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.BootstrapPatches[0].Patches[0].Op = v1alpha1.JSONPatchAdd
		})
		f.ready()
	})
	t.Run("When one template's patches can't be used, it should close that one, name the patch, and leave the others in use", func(t *testing.T) {
		f := start(t, "")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		for name, patches := range map[string]string{
			"malformed": `[{op: add, path: /spec/zone, valueFrom: {template: "{{ .zone"}}]`, "inapplicable": `[{op: remove, path: /spec/zone}]`, "unknown": `[{op: add, path: /spec/zone, valueFrom: {variable: region}}]`,
		} {
			annotations := sized("4", "8Gi", "0.042")
			annotations[v1alpha1.InfrastructurePatchesAnnotation] = patches
			f.template(name, annotations)
		}
		f.nodeClass(nil)
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.SomeInvalidReason, And(
			ContainSubstring("inapplicable: annotation karpenter.cluster.x-k8s.io/infrastructure-patches: patch 0 (remove /spec/zone): /spec/zone doesn't exist"),
			ContainSubstring("malformed: annotation karpenter.cluster.x-k8s.io/infrastructure-patches"), ContainSubstring("unclosed action"),
			ContainSubstring(`unknown variable "region"`), HaveSuffix("the other 1 template is in use")))
	})
	t.Run("When Karpenter may not read the Secret, it should let no machine boot with it", func(t *testing.T) {
		f := startWith(t, "", "nobody", nil, nil)
		f.secret("blue-kubeconfig")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.Bootstrap = &v1alpha1.Bootstrap{DataSecretName: "blue-kubeconfig"}
		})
		f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.BootstrapNotAllowedReason, And(
			ContainSubstring("Secret blue-kubeconfig: Karpenter may not read it"), ContainSubstring("spec.autoNode"), ContainSubstring("nobody")))
		f.condition(status.ConditionReady, "False", v1alpha1.BootstrapNotAllowedReason)
		snapshot, err := f.store.Cached(f.name)
		f.Expect(err).NotTo(HaveOccurred())
		for _, choice := range snapshot.Choices() {
			f.Expect(choice.Offering.Available).To(BeFalse())
			f.Expect(choice.Template.Bootstrap.IsDefined()).To(BeFalse(), "whatever the condition reports at that moment")
		}
	})
	t.Run("When the platform allows some patches, it should accept those and no others", func(t *testing.T) {
		patches := func(variable string) []v1alpha1.BootstrapPatches {
			rke2 := schema.GroupKind{Group: "bootstrap.cluster.x-k8s.io", Kind: "RKE2Config"}
			return bootstrapPatch(rke2, v1alpha1.JSONPatchAdd, "/spec/agentConfig/nodeTaints", variable)
		}
		f := startWith(t, "", "", patches("taintList"), nil)
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.BootstrapPatches = patches("taintList") })
		f.ready()
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.BootstrapPatches = patches("labelList") })
		f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.BootstrapNotAllowedReason, And(
			ContainSubstring("RKE2Config (bootstrap.cluster.x-k8s.io)"), ContainSubstring("spec.autoNode")))
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.BootstrapPatches = nil })
		f.ready()
	})
	t.Run("When the bootstrap template appears, it should become ready", func(t *testing.T) {
		f := startSmall(t, func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Bootstrap.ConfigTemplateRef.Name = "late" })
		f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.BootstrapNotFoundReason)
		late := f.BootstrapTemplate.DeepCopy()
		late.SetName("late")
		late.SetResourceVersion("")
		f.Expect(f.Admin.Create(t.Context(), late)).To(Succeed())
		f.ready()
	})
}

func TestKubelet(t *testing.T) {
	t.Run("When the platform bounds kubelets, it should name what exceeds that, and launch nothing until it doesn't", func(t *testing.T) {
		f := startWith(t, "", "", nil, &v1alpha1.KubeletBounds{
			Forbidden: []v1alpha1.KubeletField{"clusterDNS"}, Max: &v1alpha1.KubeletMaximums{MaxPods: ptr.To[int32](100)},
		})
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.Kubelet = &v1alpha1.KubeletConfiguration{ClusterDNS: []string{"10.96.0.10"}, MaxPods: ptr.To[int32](101)}
		})
		f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.BootstrapNotAllowedReason, Equal(
			"spec.kubelet.clusterDNS is set, and the platform forbids it; spec.kubelet.maxPods is 101, and the platform allows at most 100: correct it, or have spec.autoNode of the HostedCluster changed"))
		f.condition(status.ConditionReady, "False", v1alpha1.BootstrapNotAllowedReason)
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To[int32](100)}
		})
		f.ready()
	})
	t.Run("When a node class sets an allowed field of another type, it should name the field, and launch nothing until that is corrected", func(t *testing.T) {
		f := startWith(t, "", "", nil, &v1alpha1.KubeletBounds{AllowedFields: []string{"maxParallelImagePulls"}})
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		pulls := func(value string) *v1alpha1.KubeletConfiguration {
			return &v1alpha1.KubeletConfiguration{Other: map[string]apiextensionsv1.JSON{"maxParallelImagePulls": {Raw: []byte(value)}}}
		}
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Kubelet = pulls(`"many"`) })
		f.condition(v1alpha1.ConditionBootstrapReady, "False", v1alpha1.KubeletSettingsInvalidReason, Equal(
			"spec.kubelet.maxParallelImagePulls: maxParallelImagePulls is a string, and Kubernetes 1.36 has the type int32: correct it, or remove it"))
		f.condition(status.ConditionReady, "False", v1alpha1.KubeletSettingsInvalidReason)
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Kubelet = pulls(`5`) })
		f.ready()
	})
	t.Run("When no patch writes what a node class sets of kubelets, it should be ready and name that", func(t *testing.T) {
		f := startSmall(t, func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.Kubelet = &v1alpha1.KubeletConfiguration{ClusterDNS: []string{"10.96.0.10"}, PodPidsLimit: ptr.To[int64](4096)}
			n.Spec.Bootstrap.ConfigTemplateRef = &v1alpha1.BootstrapTemplateReference{
				APIGroup: environment.TestMachine.Group, Kind: "TestMachineTemplate", Name: "c4-large",
			}
			n.Spec.BootstrapPatches = bootstrapPatch(environment.TestMachine.GroupKind(), v1alpha1.JSONPatchAdd, "/spec/taints", "taints")
		})
		f.ready()
		f.condition(v1alpha1.ConditionBootstrapReady, "True", v1alpha1.KubeletSettingsUnwrittenReason, Equal(
			"Karpenter doesn't write clusterDNS and podPidsLimit of spec.kubelet for nodes of 1 of 1 template; set spec.bootstrapPatches for TestMachine (infrastructure.cluster.x-k8s.io) that write kubeletArgs or kubeletArgList"))
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.BootstrapPatches[0].Patches = append(n.Spec.BootstrapPatches[0].Patches, bootstrapPatch(environment.TestMachine.GroupKind(), v1alpha1.JSONPatchAdd, "/spec/args", "kubeletArgs")[0].Patches...)
		})
		f.condition(v1alpha1.ConditionBootstrapReady, "True", v1alpha1.ConditionBootstrapReady)
	})
	t.Run("When patches write the kubelet's flags, and a node class sets a field without one, it should name the variable of those", func(t *testing.T) {
		f := startWith(t, "", "", nil, &v1alpha1.KubeletBounds{AllowedFields: []string{"maxParallelImagePulls"}})
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To[int32](20), Other: map[string]apiextensionsv1.JSON{"maxParallelImagePulls": {Raw: []byte("5")}}}
			n.Spec.Bootstrap.ConfigTemplateRef = &v1alpha1.BootstrapTemplateReference{APIGroup: environment.TestMachine.Group, Kind: "TestMachineTemplate", Name: "c4-large"}
			n.Spec.BootstrapPatches = bootstrapPatch(environment.TestMachine.GroupKind(), v1alpha1.JSONPatchAdd, "/spec/taints", "taints")
			n.Spec.BootstrapPatches[0].Patches = append(n.Spec.BootstrapPatches[0].Patches, bootstrapPatch(environment.TestMachine.GroupKind(), v1alpha1.JSONPatchAdd, "/spec/args", "kubeletArgs")[0].Patches...)
		})
		f.condition(v1alpha1.ConditionBootstrapReady, "True", v1alpha1.KubeletSettingsUnwrittenReason, Equal("Karpenter doesn't write maxParallelImagePulls of spec.kubelet for nodes of 1 of 1 template; "+
			"set spec.bootstrapPatches for TestMachine (infrastructure.cluster.x-k8s.io) that write kubeletArgs or kubeletArgList, and kubeletConfig"))
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.BootstrapPatches[0].Patches = append(n.Spec.BootstrapPatches[0].Patches, bootstrapPatch(environment.TestMachine.GroupKind(), v1alpha1.JSONPatchAdd, "/spec/config", "kubeletConfig")[0].Patches...)
		})
		f.condition(v1alpha1.ConditionBootstrapReady, "True", v1alpha1.ConditionBootstrapReady)
	})
	t.Run("When a Secret has the bootstrap data, it should be ready, say that its nodes may register without the taint, and name what the data have to have", func(t *testing.T) {
		f := start(t, "")
		f.secret("join")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.Bootstrap = &v1alpha1.Bootstrap{DataSecretName: "join"}
			n.Spec.Kubelet = &v1alpha1.KubeletConfiguration{CPUCFSQuota: ptr.To(false)}
		})
		f.condition(v1alpha1.ConditionBootstrapReady, "True", v1alpha1.RegistrationUnknownReason, And(
			ContainSubstring("1 of 1 template may register without the taint karpenter.sh/unregistered"), ContainSubstring("Secret join"),
			HaveSuffix("; Karpenter doesn't write cpuCFSQuota of spec.kubelet for nodes of 1 of 1 template; let the data in Secret join have them")))
	})
}

func TestLaunchAllowed(t *testing.T) {
	f := startSmall(t, nil)
	f.ready()
	t.Run("When AutoNode is being turned off, it should launch nothing until it is on again", func(t *testing.T) {
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Annotations[v1alpha1.DrainingAnnotation] = "true" })
		f.condition(v1alpha1.ConditionLaunchAllowed, "False", v1alpha1.DrainingReason)
		f.condition(status.ConditionReady, "False", v1alpha1.DrainingReason)
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { delete(n.Annotations, v1alpha1.DrainingAnnotation) })
		f.ready()
	})
	t.Run("When the cluster is asleep, it should launch nothing, and say until when", func(t *testing.T) {
		const message = "the cluster is asleep until %s; pods are pending, and no nodes are launched before it wakes"
		for _, until := range []string{"2026-11-24T07:00:00+01:00", "someone wakes it"} {
			f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
				n.Annotations[v1alpha1.DrainingAnnotation], n.Annotations[v1alpha1.AsleepUntilAnnotation] = "true", until
			})
			f.condition(v1alpha1.ConditionLaunchAllowed, "False", v1alpha1.AsleepReason, Equal(fmt.Sprintf(message, until)))
			f.condition(status.ConditionReady, "False", v1alpha1.AsleepReason)
		}
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { delete(n.Annotations, v1alpha1.AsleepUntilAnnotation) })
		f.condition(v1alpha1.ConditionLaunchAllowed, "False", v1alpha1.DrainingReason)
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { delete(n.Annotations, v1alpha1.DrainingAnnotation) })
		f.ready()
	})
	t.Run("When the Cluster is paused by an annotation, it should launch nothing until it resumes", func(t *testing.T) {
		f.patch(f.Cluster, func() { metav1.SetMetaDataAnnotation(&f.Cluster.ObjectMeta, clusterv1.PausedAnnotation, "") })
		f.condition(v1alpha1.ConditionLaunchAllowed, "False", v1alpha1.ClusterPausedReason)
		f.patch(f.Cluster, func() { delete(f.Cluster.Annotations, clusterv1.PausedAnnotation) })
		f.ready()
	})
	t.Run("When the Cluster is paused, it should launch nothing until it resumes", func(t *testing.T) {
		f.patch(f.Cluster, func() { f.Cluster.Spec.Paused = ptr.To(true) })
		f.condition(v1alpha1.ConditionLaunchAllowed, "False", v1alpha1.ClusterPausedReason)
		choice := f.resolve("c2-small")
		f.Expect(choice.Offering.Available).To(BeFalse())
		f.patch(f.Cluster, func() { f.Cluster.Spec.Paused = ptr.To(false) })
		f.ready()
	})
	t.Run("When the Cluster's infrastructure isn't provisioned, as after a move, it should launch nothing and keep the zones it knew", func(t *testing.T) {
		provisioned := func(state bool, domains ...clusterv1.FailureDomain) {
			f.Cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(state)
			f.Cluster.Status.FailureDomains = domains
			f.Expect(f.Admin.Status().Update(t.Context(), f.Cluster)).To(Succeed())
		}
		provisioned(false)
		f.condition(v1alpha1.ConditionLaunchAllowed, "False", v1alpha1.ClusterNotProvisionedReason, Equal(fmt.Sprintf(
			"the Cluster's infrastructure isn't provisioned yet in namespace %s of the management cluster; nothing is launched until its infrastructure provider is done", f.Namespace)))
		f.Expect(f.available("c2-small")).To(BeTrue())
		provisioned(true, clusterv1.FailureDomain{Name: "a"}, clusterv1.FailureDomain{Name: "b"})
		f.ready()
	})
	t.Run("When the infrastructure isn't ready any more, it should have the provider's sentence and launch one Machine at a time", func(t *testing.T) {
		reports := func(status metav1.ConditionStatus, message string) {
			f.Cluster.Status.Conditions = []metav1.Condition{{
				Type: clusterv1.ClusterInfrastructureReadyCondition, Status: status, Reason: "VCenterUnreachable", Message: message, LastTransitionTime: metav1.Now(),
			}}
			f.Expect(f.Admin.Status().Update(t.Context(), f.Cluster)).To(Succeed())
		}
		sentence := fmt.Sprintf("the infrastructure of Cluster %s/%s isn't ready: VCenterUnreachable: Cannot complete login", f.Namespace, f.Cluster.Name)
		reports(metav1.ConditionFalse, "Cannot complete login")
		f.condition(v1alpha1.ConditionLaunchAllowed, "True", v1alpha1.ClusterNotReadyReason, HavePrefix(sentence))
		f.ready()
		f.store.Inventory.ObserveMachine("pending", inventory.Machine{})
		f.condition(v1alpha1.ConditionLaunchAllowed, "False", v1alpha1.ClusterNotReadyReason, HavePrefix(sentence))
		f.Expect(f.available("c2-small")).To(BeTrue(), "an offering isn't to blame")
		f.store.Inventory.ObserveMachine("pending", inventory.Machine{ProviderID: "cloud://1"})
		f.condition(v1alpha1.ConditionLaunchAllowed, "True", v1alpha1.ClusterNotReadyReason)
		f.store.Inventory.ForgetMachine("pending")
		reports(metav1.ConditionTrue, "")
		f.condition(v1alpha1.ConditionLaunchAllowed, "True", v1alpha1.ConditionLaunchAllowed)
	})
	t.Run("When the platform labels the Cluster with a region, its instance types should be in it", func(t *testing.T) {
		label := func(region string) {
			f.patch(f.Cluster, func() { f.Cluster.Labels = map[string]string{corev1.LabelTopologyRegion: region} })
		}
		for _, region := range []string{"eu-central-1", "us-east-1"} {
			label(region)
			f.Eventually(func() (string, error) {
				choice, _, err := f.store.Resolve(f.name, "c2-small", "a", "on-demand")
				if err != nil {
					return "", err
				}
				return choice.InstanceType.Requirements.Get(corev1.LabelTopologyRegion).String(), nil
			}).Should(Equal(corev1.LabelTopologyRegion + " In [" + region + "]"))
		}
	})
	t.Run("When nothing changes, it should write nothing", func(t *testing.T) {
		before := f.stored()
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(f.InfrastructureTemplate.GroupVersionKind())
		f.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(f.InfrastructureTemplate), u)).To(Succeed())
		u.SetAnnotations(map[string]string{"unrelated": "change"})
		f.Expect(f.Admin.Update(t.Context(), u)).To(Succeed())
		f.Consistently(func() (string, error) {
			after, err := f.get()
			return after.ResourceVersion, err
		}, "500ms").Should(Equal(before.ResourceVersion))
	})
	t.Run("When the Cluster is being deleted, it should launch nothing", func(t *testing.T) {
		f.patch(f.Cluster, func() { f.Cluster.Finalizers = append(f.Cluster.Finalizers, "example.com/held") })
		held := f.Cluster.DeepCopy()
		f.Expect(f.Admin.Delete(t.Context(), held)).To(Succeed())
		f.condition(v1alpha1.ConditionLaunchAllowed, "False", v1alpha1.ClusterDeletingReason)
		f.Eventually(func() bool {
			choice, _, err := f.store.Resolve(f.name, "c2-small", "a", "on-demand")
			return err == nil && choice.Offering.Available
		}).Should(BeFalse())
		f.Expect(f.Admin.Get(t.Context(), client.ObjectKeyFromObject(held), held)).To(Succeed())
		f.patch(held, func() { held.Finalizers = nil })
	})
}

func TestVersion(t *testing.T) {
	f := start(t, "")
	f.template("c2-small", sized("2", "4Gi", "0.021"))
	serve := func(v string) {
		f.server.mu.Lock()
		f.server.version = v
		f.server.mu.Unlock()
		_, err := f.tracker.Reconcile(t.Context())
		f.Expect(err).NotTo(HaveOccurred())
	}
	serve("v1.36.1")
	f.nodeClass(nil)
	t.Run("When the payload is ahead of the API server, it should hold nodes back and be ready", func(t *testing.T) {
		f.condition(v1alpha1.ConditionVersionReady, "True", "HeldBack", ContainSubstring("nodes stay at 1.36.1"))
		f.ready()
	})
	t.Run("When the API server is away, it should change nothing", func(t *testing.T) {
		serve("")
		f.ready()
	})
	t.Run("When the API server has been upgraded and no old one answers any more, it should follow and notify", func(t *testing.T) {
		serve("v1.36.2")
		for range version.SettlingAnswers - 1 {
			serve("v1.36.2")
		}
		f.condition(v1alpha1.ConditionVersionReady, "True", v1alpha1.ConditionVersionReady)
		f.Expect(f.stored().Status.Version).To(Equal("1.36.2"))
		f.Eventually(f.events.reasons).Should(ContainElement("VersionChanged"))
	})
	t.Run("When a new leader starts while the API servers are upgraded, it should know what nodes were resolved to and wait for the newer version to settle", func(t *testing.T) {
		f.server.mu.Lock()
		f.server.version = "v1.36.3"
		f.server.mu.Unlock()
		t.Cleanup(func() { serve("v1.36.2") })
		leader := version.NewTracker(f.server, version.ResolvedOf(f.ownNodeClasses()))
		for answered := range version.SettlingAnswers {
			_, err := leader.Reconcile(t.Context())
			f.Expect(err).NotTo(HaveOccurred())
			server, _ := leader.Server()
			want := "1.36.2"
			if answered == version.SettlingAnswers-1 {
				want = "1.36.3"
			}
			f.Expect(server.String()).To(Equal(want))
		}
	})
	t.Run("When the node class requests too much, it should launch nothing, and keep the version so that nothing drifts", func(t *testing.T) {
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Version = "1.37.0" })
		f.condition(v1alpha1.ConditionVersionReady, "False", v1alpha1.VersionTooNewReason)
		f.Expect(f.stored().Status.Version).To(Equal("1.36.2"))
		f.condition(status.ConditionReady, "False", v1alpha1.VersionTooNewReason)
	})
	t.Run("When the node class requests what is beyond the skew, it should launch nothing and say so", func(t *testing.T) {
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Version = "1.32.9" })
		f.condition(v1alpha1.ConditionVersionReady, "False", v1alpha1.VersionTooOldReason, Equal(
			"spec.version 1.32.9 is more than 3 minor versions behind the API server's version 1.36.2; raise it"))
	})
	t.Run("When the node class requests what is no version, it should launch nothing and say so", func(t *testing.T) {
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Version = "1.36.2-a_b" })
		f.condition(v1alpha1.ConditionVersionReady, "False", v1alpha1.VersionMalformedReason, Equal(`spec.version "1.36.2-a_b" is not a version, such as 1.36.3`))
	})
	t.Run("When the node class requests what the API server supports, it should be ready again", func(t *testing.T) {
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Version = "1.33.0" })
		f.ready()
		f.Expect(f.stored().Status.Version).To(Equal("1.33.0"))
	})
}
