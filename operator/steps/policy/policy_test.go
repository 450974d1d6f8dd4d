// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/access"
	"github.com/autonode-io/autonode/operator/steps/crd"
	"github.com/autonode-io/autonode/operator/steps/nodeclass"
	"github.com/autonode-io/autonode/operator/steps/policy"
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
		Other: map[string]apiextensionsv1.JSON{"logging": {Raw: []byte(`{"verbosity":4}`)}},
	}
	config.KubeletBounds = &v1alpha1.KubeletBounds{
		Forbidden: []v1alpha1.KubeletField{"cpuCFSQuota", "clusterDNS"}, AllowedFields: []string{"maxParallelImagePulls", "logging"},
		Max: &v1alpha1.KubeletMaximums{MaxPods: ptr.To(int32(250)), PodPidsLimit: ptr.To(int64(4096))},
		Min: &v1alpha1.KubeletMinimums{
			KubeReserved:   map[string]v1alpha1.ReservedQuantity{"cpu": "50m", "pid": "0"},
			SystemReserved: map[string]v1alpha1.ReservedQuantity{"memory": "512Mi", "ephemeral-storage": "1Gi"},
		},
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
		NodeClasses: true, Default: clusterapi.New(clusterapi.DefaultGroups).DefaultNodeClass(full().ProvisionerConfig.Karpenter).(*v1alpha1.ClusterAPINodeClass),
		KubeletBounds: full().ProvisionerConfig.Karpenter.ClusterAPI.KubeletBounds,
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

// as returns a client of the guest with another user and every permission.
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
	g, s := NewWithT(t), clusters.NewScope(t, "policy")
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
		claim := scopetest.NodeClaim("probe")
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

// statusOf is what an object's status reports.
func statusOf(object client.Object) any {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil
	}
	return content["status"]
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

// nameNodePools: a user other than the operator creates NodePools with names of different lengths.
func nameNodePools(t *testing.T) {
	create := func(g Gomega, length int) error {
		nodePool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("a", length)}}
		nodePool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: v1alpha1.DefaultNodeClass}
		nodePool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
		return as(g, "probe").Create(t.Context(), nodePool, client.DryRunAll)
	}
	t.Run("When an admin creates a NodePool whose name is no label's value, it should be refused, and a shorter one admitted", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func() error { return create(g, 64) }).Should(MatchError(ContainSubstring("has 64 characters; choose one of at most 63")))
		g.Expect(create(g, 63)).To(Succeed())
	})
}

// TestPolicies tries everything with the same policies, which take a moment to be in force; the last steps change them.
func TestPolicies(t *testing.T) {
	f := setUp(t.Context(), t)
	populate(t)
	changeDefaultNodeClass(t)
	changeNodeClasses(t)
	boundKubelets(t)
	changeNodeClaims(t)
	nameNodePools(t)
	changeRights(t)
	changeDefinitions(t)
	t.Run("When the guest's control plane cleans up, it should be let through", f.letsControlPlaneCleanUp)
	t.Run("When nothing has changed, it should write nothing", f.writesNothing)
	t.Run("When an admin turns a policy off by what apply leaves alone, it should turn it on again", f.turnsOnAgain)
	t.Run("When the operator gets another identity, it should admit that one and no longer the old one", f.followsOperator)
	t.Run("When the payload has a newer version, nodes should be allowed that", f.followsPayload)
	t.Run("When AutoNode is being removed, it should keep the policies while Karpenter is there, and not recreate them", f.staysWhileDraining)
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

func (*guest) letsControlPlaneCleanUp(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	for _, user := range []string{"system:serviceaccount:kube-system:generic-garbage-collector", "system:kube-controller-manager"} {
		g.Expect(deletion(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter"}})(ctx, as(g, user))).To(Succeed(), user)
	}
	g.Expect(deletion(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter"}})(
		ctx, as(g, "system:serviceaccount:kube-system:mine"))).NotTo(Succeed(), "anybody can make a ServiceAccount there")
}

func (f *guest) writesNothing(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	before := versions(ctx, g)
	f.reconcile(ctx, g)
	g.Expect(versions(ctx, g)).To(Equal(before))
}

func (f *guest) turnsOnAgain(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	admin := as(g, "alice")
	object := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	g.Expect(admin.Get(ctx, client.ObjectKey{Name: "managed.autonode.io"}, object)).To(Succeed())
	object.Spec.MatchConditions = append(object.Spec.MatchConditions, admissionregistrationv1.MatchCondition{Name: "never", Expression: "false"})
	object.Spec.MatchConstraints.ExcludeResourceRules = []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: object.Spec.MatchConstraints.ResourceRules[0].RuleWithOperations}}
	object.Spec.MatchConstraints.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"never": "true"}}
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
	g.Expect(object.Spec.MatchConstraints.ObjectSelector.MatchLabels).NotTo(HaveKey("never"))
	g.Expect(object.Annotations).To(HaveKeyWithValue("note", "mine"))
	g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(binding), binding)).To(Succeed())
	g.Expect(binding.Spec.MatchResources).To(BeNil())
	before := versions(ctx, g)
	f.reconcile(ctx, g)
	g.Expect(versions(ctx, g)).To(Equal(before), "it was clean already")
}

func (f *guest) followsOperator(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	was := f.Guest
	defer func() { f.Guest = was; f.reconcile(ctx, g) }()
	config := rest.CopyConfig(was.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "new-operator", Groups: []string{"system:masters"}}
	operator := as(g, "new-operator")
	f.Guest = &scope.Guest{Cached: operator, Live: operator, Config: config, Complete: true}
	remove := deletion(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "autonode:karpenter"}})
	// The test before has healed the policies, and an API server takes a moment to follow.
	g.Eventually(func() error { return remove(ctx, operator) }).ShouldNot(Succeed())
	scopetest.Reconcile(t, f.policies, f.Scope)
	g.Eventually(func(g Gomega) { g.Expect(remove(ctx, operator)).To(Succeed()) }).Should(Succeed())
	g.Expect(remove(ctx, clusters.Guest.Client)).To(MatchError(ContainSubstring("belongs to the platform")))
}

func (f *guest) followsPayload(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	admin := as(g, "alice")
	was := f.Karpenter
	defer func() { f.Karpenter = was; f.reconcile(ctx, g) }()
	f.Karpenter.Versions = map[string]string{payload.KubernetesVersion: "1.37.1"}
	f.reconcile(ctx, g)
	g.Eventually(func(g Gomega) { g.Expect(class("mine", version("1.37.0"))(ctx, admin)).To(Succeed()) }).Should(Succeed())
}

func (f *guest) staysWhileDraining(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	admin := as(g, "alice")
	scopes := *f.Scope
	scopes.Mode, scopes.HostedCluster = scope.Upkeep, f.HostedCluster.DeepCopy()
	scopes.HostedCluster.Spec.AutoNode, scopes.Release = nil, nil
	scopetest.Reconcile(t, f.policies, &scopes)
	g.Eventually(func(g Gomega) {
		g.Expect(class("default", func(c *v1alpha1.ClusterAPINodeClass) { c.Spec.Bootstrap.ConfigTemplateRef.Name = "other" })(ctx, admin)).To(Succeed())
	}).Should(Succeed(), "no policy decides it any more")
	g.Expect(class("mine", func(c *v1alpha1.ClusterAPINodeClass) {
		c.Annotations = map[string]string{v1alpha1.DrainingAnnotation: "true"}
	})(ctx, admin)).NotTo(Succeed())

	object := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "tokens.autonode.io"}}
	g.Expect(admin.Delete(ctx, object)).To(Succeed())
	scopes.Component = nil
	scopetest.Reconcile(t, f.policies, &scopes)
	scopetest.ExpectGone(ctx, g, admin, object)
	scopes.Guest = nil
	scopetest.Reconcile(t, f.policies, &scopes)
}
