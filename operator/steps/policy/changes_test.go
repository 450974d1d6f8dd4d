// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/steps/crd"
)

// attempt is a request to the guest in dry-run mode.
type attempt func(context.Context, client.Client) error

// trial is an attempt of an admin's.
type trial struct {
	do attempt
	// want is in the message; empty if the admin may.
	want string
}

// try makes each attempt in a subtest.
func try(t *testing.T, trials map[string]trial) {
	t.Helper()
	ctx, admin := t.Context(), as(NewWithT(t), "alice")
	for name, test := range trials {
		outcome := "they should be let through"
		if test.want != "" {
			outcome = "they should get a message that names its owner, and the operator and Karpenter be let through"
		}
		t.Run(fmt.Sprintf("When an admin changes %s, %s", name, outcome), func(t *testing.T) {
			g := NewWithT(t)
			err := test.do(ctx, admin)
			if test.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(test.want)))
			if apierrors.IsInvalid(err) {
				return // the schema's rule is for everybody
			}
			g.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
			// What the exempt may is for Kubernetes to say, beside that a name is taken.
			for _, exempt := range []client.Client{clusters.Guest.Client, as(g, karpenter)} {
				g.Expect(client.IgnoreAlreadyExists(test.do(ctx, exempt))).To(Succeed())
			}
		})
	}
}

// populate makes what admins try to change.
func populate(t *testing.T) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	mine := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
	g.Expect(as(g, "alice").Create(ctx, mine)).To(Succeed())
	withFinalizer := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{v1alpha1.NodeClassFinalizer}}}
	g.Expect(as(g, karpenter).Create(ctx, withFinalizer)).To(Succeed())
	t.Cleanup(func() {
		for _, object := range []client.Object{withFinalizer, scopetest.NodeClaim("claim")} {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
			_ = clusters.Guest.Client.Patch(context.WithoutCancel(ctx), object, patch)
		}
	})
	claim := scopetest.NodeClaim("claim")
	claim.Annotations = map[string]string{v1alpha1.MachineAnnotation: "clusters-policy/claim"}
	claim.Labels = map[string]string{v1alpha1.Group + "/tier": "a", "mine": "1"}
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
	g.Expect(as(g, karpenter).Create(ctx, claim)).To(Succeed())
}

func class(name string, change func(*v1alpha1.ClusterAPINodeClass)) attempt {
	return func(ctx context.Context, c client.Client) error {
		return edit(ctx, c, &v1alpha1.ClusterAPINodeClass{}, name, change)
	}
}

func deletion(object client.Object) attempt {
	return func(ctx context.Context, c client.Client) error { return c.Delete(ctx, object, client.DryRunAll) }
}

func creation(object client.Object) attempt {
	return func(ctx context.Context, c client.Client) error {
		return c.Create(ctx, object.DeepCopyObject().(client.Object), client.DryRunAll)
	}
}

func status(object func() client.Object) attempt {
	return func(ctx context.Context, c client.Client) error {
		changed := object()
		stored, ok := changed.DeepCopyObject().(client.Object)
		if !ok {
			return fmt.Errorf("%T is no object", changed)
		}
		if err := clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(changed), stored); err != nil {
			return err
		}
		patch, err := json.Marshal(map[string]any{"status": statusOf(changed)})
		if err != nil {
			return err
		}
		return c.Status().Patch(ctx, stored, client.RawPatch(types.MergePatchType, patch), &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}})
	}
}

func claimed(change func(*karpv1.NodeClaim)) attempt {
	return func(ctx context.Context, c client.Client) error {
		return edit(ctx, c, &karpv1.NodeClaim{}, "claim", change)
	}
}

func role(change func(*rbacv1.ClusterRole)) attempt {
	return func(ctx context.Context, c client.Client) error {
		return edit(ctx, c, &rbacv1.ClusterRole{}, "autonode:karpenter", change)
	}
}

func definition(change func(*apiextensionsv1.CustomResourceDefinition)) attempt {
	return func(ctx context.Context, c client.Client) error {
		return edit(ctx, c, &apiextensionsv1.CustomResourceDefinition{}, "nodepools.karpenter.sh", change)
	}
}

func account(change func(*corev1.ServiceAccount)) attempt {
	return func(ctx context.Context, c client.Client) error {
		return edit(ctx, c, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system"}}, "karpenter", change)
	}
}

func version(v string) func(*v1alpha1.ClusterAPINodeClass) {
	return func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.Version = v }
}

func patches(change func(*v1alpha1.BootstrapPatches)) func(*v1alpha1.ClusterAPINodeClass) {
	return func(c *v1alpha1.ClusterAPINodeClass) {
		c.Spec.BootstrapPatches = []v1alpha1.BootstrapPatches{*full().ProvisionerConfig.Karpenter.ClusterAPI.BootstrapPatches[0].DeepCopy()}
		change(&c.Spec.BootstrapPatches[0])
	}
}

func changeDefaultNodeClass(t *testing.T) {
	try(t, map[string]trial{
		"the default's bootstrap":       {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.Bootstrap.ConfigTemplateRef.Name = "evil" }), "spec.bootstrap of node class default belongs to the platform: HostedCluster clusters/policy decides it"},
		"the default's selectors":       {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.InfrastructureTemplateSelectors = nil }), "spec.infrastructureTemplateSelectors of node class default belongs to the platform"},
		"the default's patches":         {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.BootstrapPatches = nil }), "spec.bootstrapPatches of node class default belongs to the platform"},
		"the default's maxPods":         {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.Kubelet.MaxPods = ptr.To(int32(10)) }), "spec.kubelet.maxPods of node class default belongs to the platform"},
		"the default's other field":     {class("default", func(c *v1alpha1.ClusterAPINodeClass) { delete(c.Spec.Kubelet.Other, "logging") }), "spec.kubelet.logging.verbosity of node class default belongs to the platform"},
		"the default's reserved disk":   {class("default", func(c *v1alpha1.ClusterAPINodeClass) { delete(c.Spec.Kubelet.KubeReserved, "ephemeral-storage") }), "spec.kubelet.kubeReserved[ephemeral-storage] of node class default belongs to the platform"},
		"the default's reserved memory": {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.Kubelet.KubeReserved["memory"] = "1Gi" }), ""},
		"the default's architecture":    {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.DefaultArchitecture = "arm64" }), ""},
		"the default's version":         {class("default", version("1.36.2")), ""},
		"the default's label":           {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Labels = map[string]string{"team": "web"} }), ""},
		"the default's deletion":        {deletion(&v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}), "HostedCluster clusters/policy keeps it"},
		"all node classes' deletion": {func(ctx context.Context, c client.Client) error {
			return c.DeleteAllOf(ctx, &v1alpha1.ClusterAPINodeClass{}, client.DryRunAll)
		}, "node class default belongs to the platform"},
	})
}

func setKubelet(change func(*v1alpha1.KubeletConfiguration)) func(*v1alpha1.ClusterAPINodeClass) {
	return func(c *v1alpha1.ClusterAPINodeClass) {
		if c.Spec.Kubelet == nil {
			c.Spec.Kubelet = &v1alpha1.KubeletConfiguration{}
		}
		change(c.Spec.Kubelet)
	}
}

func boundKubelets(t *testing.T) {
	kubelet := func(change func(*v1alpha1.KubeletConfiguration)) attempt { return class("mine", setKubelet(change)) }
	reserved := func(pairs map[string]v1alpha1.ReservedQuantity) func(*v1alpha1.KubeletConfiguration) {
		return func(k *v1alpha1.KubeletConfiguration) { k.SystemReserved = pairs }
	}
	other := func(field string) attempt {
		return kubelet(func(k *v1alpha1.KubeletConfiguration) {
			k.Other = map[string]apiextensionsv1.JSON{field: {Raw: []byte("5")}}
		})
	}
	try(t, map[string]trial{
		"another field that is allowed": {other("maxParallelImagePulls"), ""},
		"another field": {other("registryBurst"),
			"spec.kubelet has fields that the platform does not allow (registryBurst): kubeletBounds.allowedFields of HostedCluster clusters/policy decides it"},
		"a field that the platform keeps": {kubelet(func(k *v1alpha1.KubeletConfiguration) { k.ClusterDNS = []string{"10.96.0.10"} }),
			"spec.kubelet.clusterDNS is the platform's to set: HostedCluster clusters/policy bounds it"},
		"a field that the platform keeps, of the default": {class("default", setKubelet(func(k *v1alpha1.KubeletConfiguration) { k.CPUCFSQuota = ptr.To(false) })),
			"spec.kubelet.cpuCFSQuota is the platform's to set"},
		"as many pods as are allowed": {kubelet(func(k *v1alpha1.KubeletConfiguration) { k.MaxPods = ptr.To(int32(250)) }), ""},
		"more pods than are allowed": {kubelet(func(k *v1alpha1.KubeletConfiguration) { k.MaxPods = ptr.To(int32(251)) }),
			"spec.kubelet.maxPods is 251, and at most 250 is allowed: HostedCluster clusters/policy bounds it"},
		"more pods than are allowed, from the start": {creation(&v1alpha1.ClusterAPINodeClass{
			ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: v1alpha1.ClusterAPINodeClassSpec{Kubelet: &v1alpha1.KubeletConfiguration{MaxPods: ptr.To(int32(251))}},
		}), "spec.kubelet.maxPods is 251"},
		"as many processes as are allowed": {kubelet(func(k *v1alpha1.KubeletConfiguration) { k.PodPidsLimit = ptr.To(int64(4096)) }), ""},
		"no limit of processes": {kubelet(func(k *v1alpha1.KubeletConfiguration) { k.PodPidsLimit = ptr.To(int64(-1)) }),
			"spec.kubelet.podPidsLimit is -1, and at most 4096 is allowed"},
		"as much memory reserved as is wanted": {kubelet(reserved(map[string]v1alpha1.ReservedQuantity{"memory": "0.5Gi", "ephemeral-storage": "2Gi"})), ""},
		"less memory reserved than is wanted": {kubelet(reserved(map[string]v1alpha1.ReservedQuantity{"memory": "511Mi", "ephemeral-storage": "2Gi"})),
			"spec.kubelet.systemReserved[memory] has to be at least 512Mi: HostedCluster clusters/policy bounds it"},
		"no disk reserved": {kubelet(reserved(map[string]v1alpha1.ReservedQuantity{"memory": "1Gi"})), "spec.kubelet.systemReserved[ephemeral-storage] has to be at least 1Gi"},
		"what isn't bounded": {kubelet(func(k *v1alpha1.KubeletConfiguration) {
			k.EvictionSoft = map[string]v1alpha1.EvictionThreshold{"memory.available": "1Gi"}
			k.EvictionSoftGracePeriod = map[string]v1alpha1.EvictionGracePeriod{"memory.available": "90s"}
			k.PodsPerCore, k.ImageGCHighThresholdPercent = ptr.To(int32(10)), ptr.To(int32(90))
		}), ""},
	})
}

func changeNodeClasses(t *testing.T) {
	try(t, map[string]trial{
		"a class of one's own":            {creation(&v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: v1alpha1.ClusterAPINodeClassSpec{Version: "v1.36.3"}}), ""},
		"a class of one's own, deleted":   {deletion(&v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}), ""},
		"a version that the payload has":  {class("mine", version("1.36.3")), ""},
		"an older minor version":          {class("mine", version("1.35.9")), ""},
		"a newer patch version":           {class("mine", version("1.36.4")), "spec.version 1.36.4 exceeds 1.36.3, the newest that nodes may have now: HostedCluster clusters/policy decides it"},
		"a newer minor version":           {class("mine", version("v1.37.0-rc.1+x")), "spec.version v1.37.0-rc.1+x exceeds 1.36.3"},
		"a newer major version":           {class("mine", version("2.0.0")), "spec.version 2.0.0 exceeds 1.36.3"},
		"a newer version from the start":  {creation(&v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: v1alpha1.ClusterAPINodeClassSpec{Version: "1.40.0"}}), "spec.version 1.40.0 exceeds 1.36.3"},
		"a version that is none":          {class("mine", version("new")), "version has to be a whole Kubernetes version"},
		"the platform's patches":          {class("mine", patches(func(*v1alpha1.BootstrapPatches) {})), ""},
		"patches of one's own":            {class("mine", patches(func(p *v1alpha1.BootstrapPatches) { p.Patches[0].ValueFrom.Variable = "labelList" })), "spec.bootstrapPatches decide what a machine boots with, which belongs to the platform"},
		"fewer patches than the platform": {class("mine", patches(func(p *v1alpha1.BootstrapPatches) { p.Patches = p.Patches[:1] })), "spec.bootstrapPatches decide what a machine boots with"},
		"a Secret of one's own choice": {class("mine", func(c *v1alpha1.ClusterAPINodeClass) {
			c.Spec.Bootstrap = &v1alpha1.Bootstrap{DataSecretName: "admin-kubeconfig"}
		}), "names a Secret of the control plane, which belongs to the platform: HostedCluster clusters/policy allows none"},
		"a bootstrap template of its own": {class("mine", func(c *v1alpha1.ClusterAPINodeClass) {
			c.Spec.Bootstrap = full().ProvisionerConfig.Karpenter.ClusterAPI.Bootstrap
		}), ""},
		"an annotation of one's own": {class("mine", func(c *v1alpha1.ClusterAPINodeClass) { c.Annotations = map[string]string{"note": "1"} }), ""},
		"the mark that it drains": {class("mine", func(c *v1alpha1.ClusterAPINodeClass) {
			c.Annotations = map[string]string{v1alpha1.DrainingAnnotation: "true"}
		}), "the annotations karpenter.cluster.x-k8s.io/… of a node class belong to the platform"},
		"a class of ours, made by another": {creation(&v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}), "HostedCluster clusters/policy makes it; choose another name"},

		"a node class's status": {status(func() client.Object {
			c := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
			c.Status.Version = "1.20.0"
			return c
		}), "the status of a node class is what Karpenter found, and belongs to the platform: the Karpenter of HostedCluster clusters/policy writes it"},
		"a node class's finalizer": {class("held", func(c *v1alpha1.ClusterAPINodeClass) { c.Finalizers = nil }),
			"holds a node class while nodes need it, and belongs to the platform"},
		"a node class's other finalizer": {class("held", func(c *v1alpha1.ClusterAPINodeClass) { c.Finalizers = append(c.Finalizers, "example.com/mine") }), ""},
	})
}

func changeNodeClaims(t *testing.T) {
	// claimOf has the label that names its node class to Karpenter core.
	claimOf := func(class string) *karpv1.NodeClaim {
		c := scopetest.NodeClaim("own")
		c.Labels = map[string]string{karpv1.NodeClassLabelKey(c.Spec.NodeClassRef.GroupKind()): class}
		return c
	}
	try(t, map[string]trial{
		"a NodeClaim's status": {status(func() client.Object {
			c := scopetest.NodeClaim("claim")
			c.Status.ProviderID = "capi://other/machine"
			return c
		}), "the status of a NodeClaim identifies its machine and belongs to the platform"},
		"a NodeClaim's finalizer":      {claimed(func(c *karpv1.NodeClaim) { c.Finalizers = nil }), "holds a NodeClaim until its node is drained and its machine gone"},
		"a NodeClaim's Machine":        {claimed(func(c *karpv1.NodeClaim) { c.Annotations[v1alpha1.MachineAnnotation] = "other/machine" }), "of a NodeClaim identify its Machine and belong to the platform: the Karpenter of HostedCluster clusters/policy writes them"},
		"a NodeClaim without Machine":  {claimed(func(c *karpv1.NodeClaim) { c.Annotations = nil }), "of a NodeClaim identify its Machine"},
		"a NodeClaim's hash":           {claimed(func(c *karpv1.NodeClaim) { c.Annotations[v1alpha1.NodeClassHashAnnotation] = "1" }), "of a NodeClaim identify its Machine"},
		"a NodeClaim's label of ours":  {claimed(func(c *karpv1.NodeClaim) { delete(c.Labels, v1alpha1.Group+"/tier") }), "the labels karpenter.cluster.x-k8s.io/… of a NodeClaim identify its Machine"},
		"a NodeClaim's other label":    {claimed(func(c *karpv1.NodeClaim) { c.Labels["mine"] = "2" }), ""},
		"a NodeClaim's do-not-disrupt": {claimed(func(c *karpv1.NodeClaim) { c.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true" }), ""},
		"a NodeClaim of one's own":     {creation(claimOf(v1alpha1.DefaultNodeClass)), ""},
		"a NodeClaim of another class": {creation(claimOf("another")), "the labels karpenter.cluster.x-k8s.io/… of a NodeClaim identify its Machine"},
		"a NodeClaim's deletion":       {deletion(scopetest.NodeClaim("claim")), ""},
	})
}

func changeRights(t *testing.T) {
	ours := map[string]string{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator}
	try(t, map[string]trial{
		"Karpenter's rights": {role(func(r *rbacv1.ClusterRole) { r.Rules = nil }), "ClusterRole autonode:karpenter belongs to the platform: HostedCluster clusters/policy decides what is in it"},
		"Karpenter's rights, aggregated": {role(func(r *rbacv1.ClusterRole) {
			r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}
		}), "ClusterRole autonode:karpenter belongs to the platform"},
		"Karpenter's rights without label":     {role(func(r *rbacv1.ClusterRole) { r.Labels = nil }), "marks what belongs to the platform"},
		"Karpenter's rights with a label":      {role(func(r *rbacv1.ClusterRole) { r.Labels["team"] = "web" }), ""},
		"Karpenter's rights, deleted":          {deletion(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "autonode:karpenter"}}), "HostedCluster clusters/policy keeps it for as long as AutoNode is on"},
		"Karpenter's binding, deleted":         {deletion(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "autonode:karpenter"}}), "ClusterRoleBinding autonode:karpenter belongs to the platform"},
		"Karpenter's identity, deleted":        {deletion(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter"}}), "ServiceAccount karpenter belongs to the platform"},
		"Karpenter's identity, mounted":        {account(func(a *corev1.ServiceAccount) { a.AutomountServiceAccountToken = ptr.To(true) }), "ServiceAccount karpenter belongs to the platform"},
		"Karpenter's identity, pull secrets":   {account(func(a *corev1.ServiceAccount) { a.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "x"}} }), ""},
		"Karpenter's token":                    {token, "ServiceAccount kube-system/karpenter is the identity of the platform's Karpenter: only the operator of HostedCluster clusters/policy gets tokens of it"},
		"something of one's own, as ours":      {creation(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "mine", Labels: ours}}), "only the operator of HostedCluster clusters/policy may put it on ClusterRole mine or take it away"},
		"something of one's own, as one's own": {creation(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}), ""},
	})
}

func changeDefinitions(t *testing.T) {
	try(t, map[string]trial{
		"a definition's stored versions": {status(func() client.Object {
			return &apiextensionsv1.CustomResourceDefinition{
				ObjectMeta: metav1.ObjectMeta{Name: "nodepools.karpenter.sh"},
				Status:     apiextensionsv1.CustomResourceDefinitionStatus{StoredVersions: []string{"v1beta1"}},
			}
		}), "the status of CustomResourceDefinition nodepools.karpenter.sh is the API server's"},
		"a definition's deletion": {deletion(&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "nodeclaims.karpenter.sh"}}), "CustomResourceDefinition nodeclaims.karpenter.sh belongs to the platform"},
		"a definition's content": {definition(func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Spec.Names.ShortNames = nil
			d.Spec.Names.Categories = []string{"mine"}
		}), "CustomResourceDefinition nodepools.karpenter.sh belongs to the platform: HostedCluster clusters/policy decides what is in it"},
		"a definition's mark of its creator": {definition(func(d *apiextensionsv1.CustomResourceDefinition) { delete(d.Annotations, crd.CreatedAnnotation) }), "CustomResourceDefinition nodepools.karpenter.sh belongs to the platform"},
		"a definition's other annotation":    {definition(func(d *apiextensionsv1.CustomResourceDefinition) { d.Annotations["note"] = "1" }), ""},
	})
}
