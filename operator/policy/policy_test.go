// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/access"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/crd"
	"github.com/autonode-io/autonode/operator/nodeclass"
	"github.com/autonode-io/autonode/operator/policy"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/scope/scopetest"
	"github.com/autonode-io/autonode/payload"
)

var (
	clusters scopetest.Clusters
	update   = flag.Bool("update", false, "write the golden file")
)

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

// full is a configuration that names everything that can be.
func full() *v1beta1.AutoNode {
	autoNode := scopetest.AutoNode()
	config := autoNode.ProvisionerConfig.Karpenter.ClusterAPI
	config.Kubelet = &v1alpha1.KubeletConfiguration{
		MaxPods: ptr.To(int32(50)), KubeReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "100m", "ephemeral-storage": "1Gi"},
	}
	config.BootstrapPatches = []v1alpha1.BootstrapPatches{{
		APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "RKE2Config",
		Patches: []v1alpha1.JSONPatch{
			{Op: v1alpha1.JSONPatchAdd, Path: "/spec/agentConfig/nodeTaints", ValueFrom: &v1alpha1.JSONPatchValue{Variable: "taintList"}},
			{Op: v1alpha1.JSONPatchAdd, Path: "/spec/quoted", ValueFrom: &v1alpha1.JSONPatchValue{Template: `a "b" \ c {{ .zone }}`}},
			{Op: v1alpha1.JSONPatchReplace, Path: "/spec/any", Value: &apiextensionsv1.JSON{Raw: []byte(`{"number": 2, "decimal": 2.5, "list": ["<x>", true, null], "empty": {}, "large": 1e30}`)}},
			{Op: v1alpha1.JSONPatchRemove, Path: "/spec/gone"},
		},
	}}
	return autoNode
}

func TestDesired(t *testing.T) {
	g := NewWithT(t)
	objects, err := policy.Desired(policy.Input{
		Operator: `kubernetes-"admin"`, Owner: "HostedCluster clusters/blue", NodeVersion: "1.36.3",
		NodeClasses: true, Default: clusterapi.New().DefaultNodeClass(full().ProvisionerConfig.Karpenter).(*v1alpha1.ClusterAPINodeClass),
	})
	g.Expect(err).NotTo(HaveOccurred())
	var rendered strings.Builder
	for _, object := range objects {
		document, err := yaml.Marshal(object)
		g.Expect(err).NotTo(HaveOccurred())
		fmt.Fprintf(&rendered, "---\n%s", document)
	}
	path := filepath.Join("testdata", "policies.yaml")
	if *update {
		g.Expect(os.WriteFile(path, []byte(rendered.String()), 0o644)).To(Succeed())
	}
	golden, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cmp.Diff(string(golden), rendered.String())).To(BeEmpty())
}

// as is a client of the guest's that is somebody else, with every right.
func as(g Gomega, user string) client.Client {
	config := rest.CopyConfig(clusters.Guest.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters", "system:authenticated"}}
	c, err := client.New(config, client.Options{Scheme: clusters.Guest.Client.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	return c
}

const karpenter = "system:serviceaccount:kube-system:karpenter"

// guest is what the operator makes in a guest.
type guest struct {
	*scope.Scope
	policies *policy.Policies
	steps    []scope.Step
}

func setUp(ctx context.Context, t *testing.T) *guest {
	t.Helper()
	g := NewWithT(t)
	s, err := clusters.NewScope(ctx, "policy")
	g.Expect(err).NotTo(HaveOccurred())
	s.HostedCluster.Spec.AutoNode = full()
	s.Cluster.Spec.ControlPlaneEndpoint.Host = "blue.example"
	applier := apply.New()
	f := &guest{Scope: s, policies: policy.New(policy.Config{Apply: applier})}
	f.steps = []scope.Step{
		f.policies, crd.New(crd.Config{Apply: applier}), access.New(access.Config{
			Management: clusters.Management.Client, Live: clusters.Management.Client, Secrets: clusters.Management.Client, Apply: applier, Clock: clock.RealClock{},
		}), nodeclass.New(nodeclass.Config{Apply: applier}),
	}
	f.reconcile(ctx, g)
	// A policy is in force a moment after it was made.
	probe := as(g, "probe")
	g.Eventually(func(g Gomega) {
		for _, object := range []client.Object{
			&v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultNodeClass}},
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "autonode:karpenter"}},
		} {
			g.Expect(probe.Delete(ctx, object, client.DryRunAll)).To(MatchError(ContainSubstring("belongs to the platform")))
		}
		claim := nodeClaim("probe")
		claim.Annotations = map[string]string{v1alpha1.MachineAnnotation: "x"}
		g.Expect(probe.Create(ctx, claim, client.DryRunAll)).To(MatchError(ContainSubstring("belong to the platform")))
		g.Expect(token(ctx, probe)).To(MatchError(ContainSubstring("identity of the platform's Karpenter")))
	}).Should(Succeed())
	return f
}

func (f *guest) reconcile(ctx context.Context, g Gomega) {
	for _, step := range f.steps {
		g.Eventually(func(g Gomega) {
			result, err := step.Reconcile(ctx, f.Scope)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.Wait).To(BeFalse(), result.Message)
		}).Should(Succeed(), step.Name())
	}
}

// statusOf is what an object's status says.
func statusOf(object client.Object) any {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil
	}
	return content["status"]
}

func nodeClaim(name string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: karpv1.NodeClaimSpec{
		NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: v1alpha1.DefaultNodeClass},
		Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
	}}
}

func token(ctx context.Context, c client.Client) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter"}}
	return c.SubResource("token").Create(ctx, account, &authenticationv1.TokenRequest{})
}

// edit patches an object, without changing it.
func edit[T client.Object](ctx context.Context, c client.Client, object T, name string, change func(T)) error {
	if err := clusters.Guest.Client.Get(ctx, client.ObjectKey{Name: name, Namespace: object.GetNamespace()}, object); err != nil {
		return err
	}
	before, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", object)
	}
	change(object)
	return c.Patch(ctx, object, client.MergeFrom(before), client.DryRunAll)
}

func TestPolicies(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	f := setUp(ctx, t)
	admin := as(g, "alice")
	mine := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
	g.Expect(admin.Create(ctx, mine)).To(Succeed())
	held := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{v1alpha1.NodeClassFinalizer}}}
	g.Expect(as(g, karpenter).Create(ctx, held)).To(Succeed())
	t.Cleanup(func() {
		for _, object := range []client.Object{held, nodeClaim("claim")} {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
			_ = clusters.Guest.Client.Patch(context.WithoutCancel(ctx), object, patch)
		}
	})
	claim := nodeClaim("claim")
	claim.Annotations = map[string]string{v1alpha1.MachineAnnotation: "clusters-policy/claim"}
	claim.Labels = map[string]string{v1alpha1.Group + "/tier": "a", "mine": "1"}
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
	g.Expect(as(g, karpenter).Create(ctx, claim)).To(Succeed())

	class := func(name string, change func(*v1alpha1.ClusterAPINodeClass)) func(client.Client) error {
		return func(c client.Client) error { return edit(ctx, c, &v1alpha1.ClusterAPINodeClass{}, name, change) }
	}
	deletion := func(object client.Object) func(client.Client) error {
		return func(c client.Client) error { return c.Delete(ctx, object, client.DryRunAll) }
	}
	creation := func(object client.Object) func(client.Client) error {
		return func(c client.Client) error {
			return c.Create(ctx, object.DeepCopyObject().(client.Object), client.DryRunAll)
		}
	}
	status := func(object func() client.Object) func(client.Client) error {
		return func(c client.Client) error {
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
	claimed := func(change func(*karpv1.NodeClaim)) func(client.Client) error {
		return func(c client.Client) error { return edit(ctx, c, &karpv1.NodeClaim{}, "claim", change) }
	}
	role := func(change func(*rbacv1.ClusterRole)) func(client.Client) error {
		return func(c client.Client) error { return edit(ctx, c, &rbacv1.ClusterRole{}, "autonode:karpenter", change) }
	}
	definition := func(change func(*apiextensionsv1.CustomResourceDefinition)) func(client.Client) error {
		return func(c client.Client) error {
			return edit(ctx, c, &apiextensionsv1.CustomResourceDefinition{}, "nodepools.karpenter.sh", change)
		}
	}
	account := func(change func(*corev1.ServiceAccount)) func(client.Client) error {
		return func(c client.Client) error {
			return edit(ctx, c, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system"}}, "karpenter", change)
		}
	}
	version := func(v string) func(*v1alpha1.ClusterAPINodeClass) {
		return func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.Version = v }
	}
	patches := func(change func(*v1alpha1.BootstrapPatches)) func(*v1alpha1.ClusterAPINodeClass) {
		return func(c *v1alpha1.ClusterAPINodeClass) {
			c.Spec.BootstrapPatches = []v1alpha1.BootstrapPatches{*full().ProvisionerConfig.Karpenter.ClusterAPI.BootstrapPatches[0].DeepCopy()}
			change(&c.Spec.BootstrapPatches[0])
		}
	}
	ours := map[string]string{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator}

	for name, test := range map[string]struct {
		do func(client.Client) error
		// want is in the message; empty if the admin may.
		want string
	}{
		// The default node class.
		"the default's bootstrap":       {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.Bootstrap.ConfigTemplateRef.Name = "evil" }), "spec.bootstrap of node class default belongs to the platform: HostedCluster clusters/policy decides it"},
		"the default's selectors":       {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.InfrastructureTemplateSelectors = nil }), "spec.infrastructureTemplateSelectors of node class default belongs to the platform"},
		"the default's patches":         {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.BootstrapPatches = nil }), "spec.bootstrapPatches of node class default belongs to the platform"},
		"the default's maxPods":         {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.Kubelet.MaxPods = ptr.To(int32(10)) }), "spec.kubelet.maxPods of node class default belongs to the platform"},
		"the default's reserved disk":   {class("default", func(c *v1alpha1.ClusterAPINodeClass) { delete(c.Spec.Kubelet.KubeReserved, "ephemeral-storage") }), "spec.kubelet.kubeReserved[ephemeral-storage] of node class default belongs to the platform"},
		"the default's reserved memory": {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.Kubelet.KubeReserved["memory"] = "1Gi" }), ""},
		"the default's architecture":    {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.DefaultArchitecture = "arm64" }), ""},
		"the default's version":         {class("default", version("1.36.2")), ""},
		"the default's label":           {class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Labels = map[string]string{"team": "web"} }), ""},
		"the default's deletion":        {deletion(&v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}), "HostedCluster clusters/policy keeps it"},
		"all node classes' deletion": {func(c client.Client) error {
			return c.DeleteAllOf(ctx, &v1alpha1.ClusterAPINodeClass{}, client.DryRunAll)
		}, "node class default belongs to the platform"},

		// Any node class.
		"a class of one's own":            {creation(&v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: v1alpha1.ClusterAPINodeClassSpec{Version: "v1.36.3"}}), ""},
		"a class of one's own, deleted":   {deletion(mine), ""},
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

		// NodeClaims.
		"a NodeClaim's status": {status(func() client.Object {
			c := nodeClaim("claim")
			c.Status.ProviderID = "capi://other/machine"
			return c
		}), "the status of a NodeClaim tells its machine and belongs to the platform"},
		"a NodeClaim's finalizer":      {claimed(func(c *karpv1.NodeClaim) { c.Finalizers = nil }), "holds a NodeClaim until its node is drained and its machine gone"},
		"a NodeClaim's Machine":        {claimed(func(c *karpv1.NodeClaim) { c.Annotations[v1alpha1.MachineAnnotation] = "other/machine" }), "of a NodeClaim tell its Machine and belong to the platform: the Karpenter of HostedCluster clusters/policy writes them"},
		"a NodeClaim without Machine":  {claimed(func(c *karpv1.NodeClaim) { c.Annotations = nil }), "of a NodeClaim tell its Machine"},
		"a NodeClaim's hash":           {claimed(func(c *karpv1.NodeClaim) { c.Annotations[v1alpha1.NodeClassHashAnnotation] = "1" }), "of a NodeClaim tell its Machine"},
		"a NodeClaim's label of ours":  {claimed(func(c *karpv1.NodeClaim) { delete(c.Labels, v1alpha1.Group+"/tier") }), "the labels karpenter.cluster.x-k8s.io/… of a NodeClaim tell its Machine"},
		"a NodeClaim's other label":    {claimed(func(c *karpv1.NodeClaim) { c.Labels["mine"] = "2" }), ""},
		"a NodeClaim's do-not-disrupt": {claimed(func(c *karpv1.NodeClaim) { c.Annotations[karpv1.DoNotDisruptAnnotationKey] = "true" }), ""},
		"a NodeClaim's deletion":       {deletion(claim), ""},

		// What the operator keeps.
		"a definition's stored versions": {status(func() client.Object {
			return &apiextensionsv1.CustomResourceDefinition{
				ObjectMeta: metav1.ObjectMeta{Name: "nodepools.karpenter.sh"},
				Status:     apiextensionsv1.CustomResourceDefinitionStatus{StoredVersions: []string{"v1beta1"}},
			}
		}), "the status of CustomResourceDefinition nodepools.karpenter.sh is the API server's"},
		"Karpenter's rights": {role(func(r *rbacv1.ClusterRole) { r.Rules = nil }), "ClusterRole autonode:karpenter belongs to the platform: HostedCluster clusters/policy decides what is in it"},
		"Karpenter's rights, aggregated": {role(func(r *rbacv1.ClusterRole) {
			r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}
		}), "ClusterRole autonode:karpenter belongs to the platform"},
		"Karpenter's rights without label":   {role(func(r *rbacv1.ClusterRole) { r.Labels = nil }), "marks what belongs to the platform"},
		"Karpenter's rights with a label":    {role(func(r *rbacv1.ClusterRole) { r.Labels["team"] = "web" }), ""},
		"Karpenter's rights, deleted":        {deletion(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "autonode:karpenter"}}), "HostedCluster clusters/policy keeps it for as long as AutoNode is on"},
		"Karpenter's binding, deleted":       {deletion(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "autonode:karpenter"}}), "ClusterRoleBinding autonode:karpenter belongs to the platform"},
		"Karpenter's identity, deleted":      {deletion(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter"}}), "ServiceAccount karpenter belongs to the platform"},
		"Karpenter's identity, mounted":      {account(func(a *corev1.ServiceAccount) { a.AutomountServiceAccountToken = ptr.To(true) }), "ServiceAccount karpenter belongs to the platform"},
		"Karpenter's identity, pull secrets": {account(func(a *corev1.ServiceAccount) { a.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "x"}} }), ""},
		"Karpenter's token":                  {func(c client.Client) error { return token(ctx, c) }, "ServiceAccount kube-system/karpenter is the identity of the platform's Karpenter: only the operator of HostedCluster clusters/policy gets tokens of it"},
		"a definition's deletion":            {deletion(&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "nodeclaims.karpenter.sh"}}), "CustomResourceDefinition nodeclaims.karpenter.sh belongs to the platform"},
		"a definition's content": {definition(func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Spec.Names.ShortNames = nil
			d.Spec.Names.Categories = []string{"mine"}
		}), "CustomResourceDefinition nodepools.karpenter.sh belongs to the platform: HostedCluster clusters/policy decides what is in it"},
		"a definition's mark of its creator":   {definition(func(d *apiextensionsv1.CustomResourceDefinition) { delete(d.Annotations, crd.CreatedAnnotation) }), "CustomResourceDefinition nodepools.karpenter.sh belongs to the platform"},
		"a definition's other annotation":      {definition(func(d *apiextensionsv1.CustomResourceDefinition) { d.Annotations["note"] = "1" }), ""},
		"something of one's own, as ours":      {creation(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "mine", Labels: ours}}), "only the operator of HostedCluster clusters/policy may put it on ClusterRole mine or take it away"},
		"something of one's own, as one's own": {creation(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}), ""},
	} {
		verdict := "they should be let through"
		if test.want != "" {
			verdict = "they should be told whose it is, and the operator and Karpenter be let through"
		}
		t.Run(fmt.Sprintf("When an admin changes %s, %s", name, verdict), func(t *testing.T) {
			g := NewWithT(t)
			err := test.do(admin)
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
				g.Expect(client.IgnoreAlreadyExists(test.do(exempt))).To(Succeed())
			}
		})
	}

	t.Run("When the guest's control plane cleans up, it should be let through", func(t *testing.T) {
		g := NewWithT(t)
		for _, user := range []string{"system:serviceaccount:kube-system:generic-garbage-collector", "system:kube-controller-manager"} {
			g.Expect(deletion(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter"}})(as(g, user))).To(Succeed(), user)
		}
		g.Expect(deletion(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter"}})(
			as(g, "system:serviceaccount:kube-system:mine"))).NotTo(Succeed(), "anybody can make a ServiceAccount there")
	})

	t.Run("When nothing has changed, it should write nothing", func(t *testing.T) {
		g := NewWithT(t)
		before := versions(ctx, g)
		f.reconcile(ctx, g)
		g.Expect(versions(ctx, g)).To(Equal(before))
	})

	t.Run("When an admin turns a policy off by what apply leaves alone, it should turn it on again", func(t *testing.T) {
		g := NewWithT(t)
		object := &admissionregistrationv1.ValidatingAdmissionPolicy{}
		g.Expect(admin.Get(ctx, client.ObjectKey{Name: "managed.autonode.io"}, object)).To(Succeed())
		object.Spec.MatchConditions = append(object.Spec.MatchConditions, admissionregistrationv1.MatchCondition{Name: "never", Expression: "false"})
		object.Spec.MatchConstraints.ExcludeResourceRules = []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: object.Spec.MatchConstraints.ResourceRules[0].RuleWithOperations}}
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, "note", "mine")
		g.Expect(admin.Update(ctx, object)).To(Succeed())
		binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
		g.Expect(admin.Get(ctx, client.ObjectKey{Name: "managed.autonode.io"}, binding)).To(Succeed())
		binding.Spec.MatchResources = &admissionregistrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"never": "true"}}}
		g.Expect(admin.Update(ctx, binding)).To(Succeed())

		f.reconcile(ctx, g)
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
		g.Expect(object.Spec.MatchConditions).To(HaveLen(1))
		g.Expect(object.Spec.MatchConstraints.ExcludeResourceRules).To(BeEmpty())
		g.Expect(object.Annotations).To(HaveKeyWithValue("note", "mine"))
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(binding), binding)).To(Succeed())
		g.Expect(binding.Spec.MatchResources).To(BeNil())
		before := versions(ctx, g)
		f.reconcile(ctx, g)
		g.Expect(versions(ctx, g)).To(Equal(before), "it was clean already")
	})

	t.Run("When the operator comes as somebody else, it should let that one through, and not who it was", func(t *testing.T) {
		g := NewWithT(t)
		was := f.Guest
		defer func() { f.Guest = was; f.reconcile(ctx, g) }()
		config := rest.CopyConfig(was.Config)
		config.Impersonate = rest.ImpersonationConfig{UserName: "new-operator", Groups: []string{"system:masters"}}
		operator := as(g, "new-operator")
		f.Guest = &scope.Guest{Cached: operator, Live: operator, Config: config, Complete: true}
		attempt := deletion(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "autonode:karpenter"}})
		// The test before has healed the policies, and an API server takes a moment to follow.
		g.Eventually(func() error { return attempt(operator) }).ShouldNot(Succeed())
		_, err := f.policies.Reconcile(ctx, f.Scope)
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func(g Gomega) { g.Expect(attempt(operator)).To(Succeed()) }).Should(Succeed())
		g.Expect(attempt(clusters.Guest.Client)).To(MatchError(ContainSubstring("belongs to the platform")))
	})

	t.Run("When the payload has a newer version, nodes should be allowed that", func(t *testing.T) {
		g := NewWithT(t)
		was := f.Karpenter
		defer func() { f.Karpenter = was; f.reconcile(ctx, g) }()
		f.Karpenter.Versions = map[string]string{payload.KubernetesVersion: "1.37.1"}
		f.reconcile(ctx, g)
		g.Eventually(func(g Gomega) { g.Expect(class("mine", version("1.37.0"))(admin)).To(Succeed()) }).Should(Succeed())
	})

	t.Run("When AutoNode is being removed, it should keep the policies while Karpenter is there, and not make them anew", func(t *testing.T) {
		g := NewWithT(t)
		draining := f.policies.WhileDraining()
		scopes := *f.Scope
		scopes.HostedCluster = f.HostedCluster.DeepCopy()
		scopes.HostedCluster.Spec.AutoNode, scopes.Release = nil, nil
		_, err := draining.Reconcile(ctx, &scopes)
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func(g Gomega) {
			g.Expect(class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.Bootstrap.ConfigTemplateRef.Name = "other" })(admin)).To(Succeed())
		}).Should(Succeed(), "nobody decides it any more")
		g.Expect(class("mine", func(c *v1alpha1.ClusterAPINodeClass) {
			c.Annotations = map[string]string{v1alpha1.DrainingAnnotation: "true"}
		})(admin)).NotTo(Succeed())

		object := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "tokens.autonode.io"}}
		g.Expect(admin.Delete(ctx, object)).To(Succeed())
		scopes.Component = nil
		_, err = draining.Reconcile(ctx, &scopes)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(object), object))).To(BeTrue())
		scopes.Guest = nil
		_, err = draining.Reconcile(ctx, &scopes)
		g.Expect(err).NotTo(HaveOccurred())
	})
}

// versions are the resource versions of all policies and bindings.
func versions(ctx context.Context, g Gomega) map[string]string {
	all := map[string]string{}
	policies, bindings := &admissionregistrationv1.ValidatingAdmissionPolicyList{}, &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{}
	g.Expect(clusters.Guest.Client.List(ctx, policies, client.MatchingLabels{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator})).To(Succeed())
	g.Expect(clusters.Guest.Client.List(ctx, bindings, client.MatchingLabels{v1beta1.ManagedByLabel: v1beta1.ManagedByOperator})).To(Succeed())
	for i := range policies.Items {
		all["policy "+policies.Items[i].Name] = policies.Items[i].ResourceVersion
	}
	for i := range bindings.Items {
		all["binding "+bindings.Items[i].Name] = bindings.Items[i].ResourceVersion
	}
	return all
}
