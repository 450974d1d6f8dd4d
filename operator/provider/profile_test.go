// SPDX-License-Identifier: Apache-2.0

package provider_test

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/autonode-io/autonode/api/v1beta1"
	guestassets "github.com/autonode-io/autonode/assets/guest"
	karpenterassets "github.com/autonode-io/autonode/assets/karpenter"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/steps/access"
	"github.com/autonode-io/autonode/operator/steps/component"
)

// Every profile has to keep what the steps, the other manifests and the monitoring rely on. A new one belongs into this list.
var profiles = []*provider.Profile{clusterapi.New(clusterapi.DefaultGroups), aws.New()}

func TestDeployment(t *testing.T) {
	ours, err := karpenterassets.Deployment()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, profile := range profiles {
		t.Run("When "+string(profile.Platform)+"'s Deployment is rendered, it should be what everything else counts on", func(t *testing.T) {
			g := NewWithT(t)
			deployment, err := profile.Deployment()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(deployment.Name).To(Equal(v1beta1.KarpenterComponent))
			g.Expect(component.PodSelector.Matches(labels.Set(deployment.Spec.Template.Labels))).To(BeTrue())
			g.Expect(deployment.Spec.Selector).To(Equal(ours.Spec.Selector), "teardown looks for pods by it, and a selector is immutable")
			g.Expect(deployment.Spec.Strategy).To(Equal(ours.Spec.Strategy))
			g.Expect(deployment.Spec.Replicas).To(Equal(ours.Spec.Replicas))

			pod, container := deployment.Spec.Template.Spec, onlyContainer(g, deployment)
			like := onlyContainer(g, ours)
			g.Expect(pod.SecurityContext).To(Equal(ours.Spec.Template.Spec.SecurityContext))
			g.Expect(pod.Affinity).To(Equal(ours.Spec.Template.Spec.Affinity))
			g.Expect(pod.TopologySpreadConstraints).To(Equal(ours.Spec.Template.Spec.TopologySpreadConstraints))
			g.Expect(container.SecurityContext).To(Equal(like.SecurityContext))
			g.Expect(container.Ports).To(Equal(like.Ports))
			g.Expect(container.LivenessProbe).To(Equal(like.LivenessProbe))
			g.Expect(container.ReadinessProbe).To(Equal(like.ReadinessProbe))
			g.Expect(value(container, "LEADER_ELECTION_NAME")).To(Equal("karpenter-leader-election"), "teardown deletes it")
			known := value(like, "FEATURE_GATES")
			if profile.Platform == v1beta1.PlatformAWS { // which is built with Karpenter 1.14
				known = strings.NewReplacer(",TerminateFirstDrift=true", "", ",TerminateFirstRepair=true", "").Replace(known)
			}
			g.Expect(value(container, "FEATURE_GATES")).To(Equal(known), "NodePools mean the same on every platform")

			mounts := slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
				return v.Secret != nil && v.Secret.SecretName == v1beta1.GuestAccessSecret
			})
			g.Expect(mounts).To(BeTrue(), "the guest access Secret has to be mounted")
			g.Expect(*pod.AutomountServiceAccountToken).To(Equal(profile.Role != nil), "who may do nothing in management needs no token of it")
		})
	}
}

func TestProfile(t *testing.T) {
	scheme, err := scopetest.Scheme()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	byPlatform := provider.NewProfiles(profiles...)
	NewWithT(t).Expect(byPlatform).To(HaveLen(len(profiles)), "each platform has one")
	NewWithT(t).Expect(byPlatform.String()).To(Equal("AWS, ClusterAPI"))

	for _, profile := range profiles {
		t.Run("When the operator has a profile for "+string(profile.Platform)+", it should be whole", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(profile.Component).NotTo(BeEmpty())
			gvk, err := apiutil.GVKForObject(profile.NodeClass.New(), scheme)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(gvk).To(Equal(profile.NodeClass.GroupVersionKind))
			gvk, err = apiutil.GVKForObject(profile.NodeClass.NewList(), scheme)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(gvk.Kind).To(Equal(profile.NodeClass.Kind + "List"))

			definitions, err := profile.Definitions()
			g.Expect(err).NotTo(HaveOccurred())
			var names []string
			for _, definition := range definitions {
				names = append(names, definition.Name)
			}
			g.Expect(names).To(ContainElements("nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "nodeoverlays.karpenter.sh"))
			g.Expect(slices.Contains(names, profile.NodeClass.Definition())).To(Equal(!profile.NodeClass.FromPayload))
			policies, err := guestassets.Policies()
			g.Expect(err).NotTo(HaveOccurred())
			for _, policy := range policies {
				if policy.Name == guestassets.NodeClassPolicy {
					rule := policy.Spec.MatchConstraints.ResourceRules[0]
					g.Expect(profile.NodeClass.Guarded).To(Equal(slices.Contains(rule.APIGroups, profile.NodeClass.Group)), "a policy is for the fields of one kind")
				}
			}
			g.Expect(profile.ApprovesCertificates).To(Equal(profile.Unattended == nil), "both are about nodes that are Machines")

			g.Expect(profile.Tokens[0]).To(Equal(provider.Token{Key: access.TokenKey}), "the kubeconfig names it")
			taken := []string{access.KubeconfigKey, access.CAKey}
			for _, token := range profile.Tokens {
				g.Expect(taken).NotTo(ContainElement(token.Key))
				taken = append(taken, token.Key)
			}
		})

		t.Run("When "+string(profile.Platform)+"'s Karpenter gets its rights in the guest, they should be the core's and those for its node classes", func(t *testing.T) {
			g := NewWithT(t)
			role, err := profile.ClusterRole()
			g.Expect(err).NotTo(HaveOccurred())
			binding, err := guestassets.ClusterRoleBinding()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(binding.RoleRef.Name).To(Equal(role.Name))
			ours, err := guestassets.ClusterRole()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(core(role, profile.NodeClass.Group)).To(Equal(core(ours, clusterapi.New(clusterapi.DefaultGroups).NodeClass.Group)),
				"what the core does it does on every platform: change both files")
			expectNoWildcards(g, role.Rules)
			if profile.Roles == nil {
				return
			}
			objects, err := profile.Roles()
			g.Expect(err).NotTo(HaveOccurred())
			account, err := guestassets.ServiceAccount()
			g.Expect(err).NotTo(HaveOccurred())
			for _, object := range objects {
				switch object := object.(type) {
				case *rbacv1.Role:
					expectNoWildcards(g, object.Rules)
				case *rbacv1.RoleBinding:
					g.Expect(object.Subjects).To(ConsistOf(rbacv1.Subject{Kind: "ServiceAccount", Namespace: account.Namespace, Name: account.Name}))
				case *rbacv1.ClusterRoleBinding:
					g.Expect(object.RoleRef.Name).To(HaveSuffix(":selfnodeclient"), "it isn't Karpenter's")
					g.Expect(object.Subjects).To(ConsistOf(rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"}))
				default:
					t.Errorf("%T is neither watched nor removed", object)
				}
			}
		})
	}
}

func TestPlatformOf(t *testing.T) {
	of := func(platform v1beta1.Platform) *v1beta1.AutoNode {
		return &v1beta1.AutoNode{ProvisionerConfig: v1beta1.ProvisionerConfig{Karpenter: &v1beta1.Karpenter{Platform: platform}}}
	}
	labelled := func(platform string) *v1beta1.ControlPlaneComponent {
		return &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1beta1.PlatformLabel: platform}}}
	}
	for name, test := range map[string]struct {
		autoNode  *v1beta1.AutoNode
		component *v1beta1.ControlPlaneComponent
		want      v1beta1.Platform
	}{
		"When nothing runs yet, it should be the spec's":                   {of("AWS"), nil, "AWS"},
		"When something runs, it should be that, independent of the spec":  {of("ClusterAPI"), labelled("AWS"), "AWS"},
		"When AutoNode is turned off, it should still be what runs":        {nil, labelled("AWS"), "AWS"},
		"When what runs has lost its label, it should be Cluster API's":    {of("AWS"), &v1beta1.ControlPlaneComponent{}, "ClusterAPI"},
		"When nothing is known, it should be the provider of this project": {nil, nil, "ClusterAPI"},
	} {
		t.Run(name, func(t *testing.T) {
			hostedCluster := &v1beta1.HostedCluster{Spec: v1beta1.HostedClusterSpec{AutoNode: test.autoNode}}
			NewWithT(t).Expect(provider.PlatformOf(hostedCluster, test.component)).To(Equal(test.want))
		})
	}
}

func onlyContainer(g Gomega, deployment *appsv1.Deployment) corev1.Container {
	g.Expect(deployment.Spec.Template.Spec.Containers).To(HaveLen(1))
	return deployment.Spec.Template.Spec.Containers[0]
}

func value(container corev1.Container, name string) string {
	for _, variable := range container.Env {
		if variable.Name == name {
			return variable.Value
		}
	}
	return ""
}

// core leaves the rules about node classes out.
func core(role *rbacv1.ClusterRole, group string) []rbacv1.PolicyRule {
	return slices.DeleteFunc(slices.Clone(role.Rules), func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.APIGroups, group) })
}

func expectNoWildcards(g Gomega, rules []rbacv1.PolicyRule) {
	for _, rule := range rules {
		g.Expect(slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs)).NotTo(ContainElement("*"))
	}
}
