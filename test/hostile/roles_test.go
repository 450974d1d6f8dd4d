// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
)

// TestRoles is an author of a HostedCluster who has the operator grant rights to Karpenter, whose image that author chooses.
func TestRoles(t *testing.T) {
	selecting := func(group, kind string) *v1beta1.Karpenter {
		config := scopetest.AutoNode().ProvisionerConfig.Karpenter
		config.ClusterAPI.InfrastructureTemplateSelectors[0].APIGroup, config.ClusterAPI.InfrastructureTemplateSelectors[0].Kind = group, kind
		return config
	}
	bootstrapping := func(group, kind string) *v1beta1.Karpenter {
		config := scopetest.AutoNode().ProvisionerConfig.Karpenter
		config.ClusterAPI.Bootstrap.ConfigTemplateRef.APIGroup, config.ClusterAPI.Bootstrap.ConfigTemplateRef.Kind = group, kind
		return config
	}

	for _, test := range []struct {
		name   string
		groups string
		config *v1beta1.Karpenter
		want   string
	}{
		{"When templates are of another API group, it should be refused", clusterapi.DefaultGroups, selecting("argoproj.io", "WorkflowTemplate"), `API group "argoproj.io"`},
		{"When bootstrap templates are, it should be refused", clusterapi.DefaultGroups, bootstrapping("argoproj.io", "WorkflowTemplate"), `API group "argoproj.io"`},
		{"When a group only ends likewise, it should be refused", clusterapi.DefaultGroups, selecting("evilcluster.x-k8s.io", "MachineTemplate"), "evilcluster.x-k8s.io"},
		{"When a group is the suffix itself, it should be refused", clusterapi.DefaultGroups, selecting("cluster.x-k8s.io", "MachineTemplate"), "cluster.x-k8s.io"},
		{"When the core group is named, it should be refused", clusterapi.DefaultGroups, selecting("", "PodTemplate"), `API group ""`},
		{"When a template is one of control planes, it should be refused", clusterapi.DefaultGroups, selecting("controlplane.cluster.x-k8s.io", "KubeadmControlPlaneTemplate"), "no template of machines"},
		{"When a template is one of clusters, it should be refused", clusterapi.DefaultGroups, selecting("infrastructure.cluster.x-k8s.io", "AWSClusterTemplate"), "no template of machines"},
		{"When a kind is no template, it should be refused", clusterapi.DefaultGroups, selecting("infrastructure.cluster.x-k8s.io", "AWSMachine"), "is no template"},
		{"When a template is a provider's, it should be allowed", clusterapi.DefaultGroups, selecting("infrastructure.cluster.x-k8s.io", "AWSMachineTemplate"), ""},
		{"When the platform allows a group, it should be allowed", "*.cluster.x-k8s.io, infra.example.com", selecting("infra.example.com", "BoxMachineTemplate"), ""},
		{"When a pattern has no dot, it should allow nothing", "*", selecting("argoproj.io", "WorkflowTemplate"), `API group "argoproj.io"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			err := clusterapi.New(test.groups).CheckSpec(test.config)
			if test.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(test.want)))
			}
		})
	}

	t.Run("When a MachineDeployment refers to another API group, no right should come of it", func(t *testing.T) {
		g := NewWithT(t)
		deployment := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "a"}}
		deployment.Spec.ClusterName = "a"
		deployment.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "argoproj.io", Kind: "WorkflowTemplate", Name: "a"}
		config := &v1beta1.Karpenter{ClusterAPI: &v1beta1.ClusterAPI{TemplateSelectors: v1alpha1.TemplateSelectors{ScalableResourceSelector: &metav1.LabelSelector{}}}}
		g.Expect(groupsOf(g, t, config, deployment)).NotTo(ContainElement("argoproj.io"))
	})

	t.Run("When a MachineDeployment of the Cluster names a bootstrap Secret, machines may name it, and none of another Cluster's", func(t *testing.T) {
		g := NewWithT(t)
		var deployments []client.Object
		for _, cluster := range []string{"a", "b"} {
			deployment := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: cluster}}
			deployment.Spec.ClusterName = cluster
			deployment.Spec.Template.Spec.Bootstrap.DataSecretName = ptr.To("workers-of-" + cluster)
			deployments = append(deployments, deployment)
		}
		config := &v1beta1.Karpenter{ClusterAPI: &v1beta1.ClusterAPI{}}
		role, err := clusterapi.New(clusterapi.DefaultGroups).Role(t.Context(), inputOf(g, t, config, deployments...))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(role.Rules).To(ContainElement(rbacv1.PolicyRule{
			APIGroups: []string{"autonode.io"}, Resources: []string{"secretreferences"}, Verbs: []string{"use"},
			ResourceNames: []string{"Machine.cluster.x-k8s.io spec.bootstrap.dataSecretName=workers-of-a"},
		}))
		role, err = clusterapi.New(clusterapi.DefaultGroups).Role(t.Context(), inputOf(g, t, config))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(role.Rules).NotTo(ContainElement(HaveField("Resources", ContainElement("secretreferences"))), "without names it would allow all")
	})

	t.Run("When a spec that was allowed once names another API group, no right should be kept", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(groupsOf(g, t, selecting("argoproj.io", "WorkflowTemplate"))).NotTo(ContainElement("argoproj.io"))
	})

	const allowed = v1beta1.BootstrapDataLabel
	owner := func(group, kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: group + "/v1beta2", Kind: kind, Name: "x", UID: "1"}}
	}
	for _, test := range []struct {
		name   string
		secret corev1.Secret
		want   string
	}{
		{"When the Secret is the Cluster's kubeconfig, it should be refused, label or not", secretOf("a-kubeconfig", map[string]string{allowed: "true"}, nil, ""), "of the control plane itself"},
		{"When it is the key of its authority, it should be refused", secretOf("a-ca", map[string]string{allowed: "true"}, nil, ""), "of the control plane itself"},
		{"When it signs service accounts' tokens, it should be refused", secretOf("a-sa", map[string]string{allowed: "true"}, nil, ""), "of the control plane itself"},
		{"When it is a cloud's credentials, it should be refused", secretOf("cloud", nil, nil, ""), "isn't labelled autonode.io/bootstrap-data=true"},
		{"When it isn't there, it should be refused in the same words", secretOf("elsewhere", nil, nil, ""), "doesn't exist, or isn't labelled"},
		{"When it is the operator's, it should be refused", secretOf("karpenter-guest-access", map[string]string{allowed: "true", v1beta1.ManagedByLabel: v1beta1.ManagedByOperator}, nil, ""), "is the operator's"},
		{"When it belongs to a control plane, it should be refused", secretOf("cp", map[string]string{allowed: "true"}, owner("controlplane.cluster.x-k8s.io", "KubeadmControlPlane"), ""), "no bootstrap config"},
		{"When it is a ServiceAccount's token, it should be refused", secretOf("sat", map[string]string{allowed: "true"}, nil, corev1.SecretTypeServiceAccountToken), "is of type"},
		{"When it is the key of another Cluster's authority, which a bootstrap config owns, it should be refused", private(secretOf("b-ca", nil, owner("bootstrap.cluster.x-k8s.io", "KubeadmConfig"), "")), "has the key tls.key"},
		{"When it is such a key and labelled, it should be refused", private(secretOf("c-ca", map[string]string{allowed: "true"}, nil, "")), "has the key tls.key"},
		{"When who may write it has labelled it, it should be allowed", secretOf("join", map[string]string{allowed: "true"}, nil, ""), ""},
		{"When it belongs to a bootstrap config, it should be allowed", secretOf("made", nil, owner("bootstrap.cluster.x-k8s.io", "KubeadmConfig"), ""), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			config := &v1beta1.Karpenter{ClusterAPI: &v1beta1.ClusterAPI{Bootstrap: &v1alpha1.Bootstrap{DataSecretName: test.secret.Name}}}
			var objects []client.Object
			if test.secret.Name != "elsewhere" {
				objects = append(objects, &test.secret)
			}
			in := inputOf(g, t, config, objects...)
			finding, err := clusterapi.New(clusterapi.DefaultGroups).CheckCluster(t.Context(), in)
			g.Expect(err).NotTo(HaveOccurred())
			role, err := clusterapi.New(clusterapi.DefaultGroups).Role(t.Context(), in)
			g.Expect(err).NotTo(HaveOccurred())
			if test.want == "" {
				g.Expect(finding).To(BeZero())
				g.Expect(readable(role)).To(ConsistOf(test.secret.Name))
				return
			}
			g.Expect(finding.Reason).To(Equal(v1beta1.InvalidSpecReason))
			g.Expect(finding.Message).To(ContainSubstring(test.want))
			g.Expect(finding.Recheck).To(BeNumerically(">", 0), "nothing watches it")
			g.Expect(readable(role)).To(BeEmpty())
		})
	}
}

func secretOf(name string, labels map[string]string, owners []metav1.OwnerReference, kind corev1.SecretType) corev1.Secret {
	return corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, Labels: labels, OwnerReferences: owners}, Type: kind}
}

// private adds a private key.
func private(secret corev1.Secret) corev1.Secret {
	secret.Data = map[string][]byte{"tls.crt": []byte("certificate"), "tls.key": []byte("key")}
	return secret
}

// inputOf is what the profile reads of Cluster team-a/a, in a management cluster that has Argo Workflows.
func inputOf(g Gomega, t *testing.T, config *v1beta1.Karpenter, objects ...client.Object) provider.Input {
	t.Helper()
	scheme, err := scopetest.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: "argoproj.io", Version: "v1alpha1"}, {Group: "bootstrap.cluster.x-k8s.io", Version: "v1beta2"}})
	for _, kind := range []schema.GroupVersionKind{
		{Group: "argoproj.io", Version: "v1alpha1", Kind: "Workflow"}, {Group: "argoproj.io", Version: "v1alpha1", Kind: "WorkflowTemplate"},
		{Group: "bootstrap.cluster.x-k8s.io", Version: "v1beta2", Kind: "KubeadmConfig"},
		{Group: "bootstrap.cluster.x-k8s.io", Version: "v1beta2", Kind: "KubeadmConfigTemplate"},
	} {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	return provider.Input{
		Namespace: "team-a", ClusterName: "a", Config: config, Mapper: mapper,
		Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(),
	}
}

// groupsOf are the API groups of the Role that comes of a configuration.
func groupsOf(g Gomega, t *testing.T, config *v1beta1.Karpenter, objects ...client.Object) []string {
	t.Helper()
	role, err := clusterapi.New(clusterapi.DefaultGroups).Role(t.Context(), inputOf(g, t, config, objects...))
	g.Expect(err).NotTo(HaveOccurred())
	var groups []string
	for _, rule := range role.Rules {
		groups = append(groups, rule.APIGroups...)
	}
	return groups
}

// readable are the Secrets that a Role lets be read.
func readable(role *rbacv1.Role) []string {
	var names []string
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			if resource == "secrets" {
				names = append(names, rule.ResourceNames...)
			}
		}
	}
	return names
}
