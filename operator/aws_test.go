// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/payload"
)

// onAWS is a HostedCluster whose Karpenter is AWS's, as far as one gets without AWS: until its Deployment is there with all that it needs.
func onAWS(t *testing.T, host string) {
	ctx, management, guest := t.Context(), clusters.Management.Client, clusters.Guest.Client
	const name, namespace = "cumulus", "clusters-cumulus"
	g := NewWithT(t)
	platform(t, name)
	infrastructure := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"region": "eu-central-1"}}}
	infrastructure.SetGroupVersionKind(schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta2", Kind: "AWSCluster"})
	infrastructure.SetNamespace(namespace)
	infrastructure.SetName("cumulus-aws")
	g.Expect(management.Create(ctx, infrastructure)).To(Succeed())
	definition, err := yaml.Marshal(scopetest.EC2NodeClasses())
	g.Expect(err).NotTo(HaveOccurred())
	img, err := payload.Build(payload.Spec{Version: "1.36.2", Components: []payload.ComponentSpec{{
		Name: "karpenter-aws", Image: image + strings.Repeat("a", 64), Versions: map[string]string{payload.KubernetesVersion: "1.36.2"}, CRDs: [][]byte{definition},
	}}})
	g.Expect(err).NotTo(HaveOccurred())
	release := host + "/release:aws"
	_, err = payload.Push(ctx, release, img, payload.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	hosted := newHosted("clusters", name, release)
	hosted.Spec.AutoNode = scopetest.AWS()
	g.Expect(management.Create(ctx, hosted)).To(Succeed())
	component := metav1.ObjectMeta{Namespace: namespace, Name: v1beta1.KarpenterComponent}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "autonode:karpenter"}}

	t.Run("When the Cluster isn't on AWS, it should say so and make nothing", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, name)
			g.Expect(reasonOf(hostedCluster, v1beta1.ValidConfiguration)).To(Equal("False/InfrastructureMismatch"))
			g.Expect(hostedCluster.Status.AutoNode.Message).To(ContainSubstring("use platform ClusterAPI, or correct spec.infraID"))
			g.Expect(hostedCluster.Finalizers).To(BeEmpty())
		}).Should(Succeed())
		scopetest.ExpectGone(ctx, g, management, &v1beta1.ControlPlaneComponent{ObjectMeta: component})
	})

	t.Run("When it is, it should run the payload's AWS provider, with a token for the guest and one for AWS", func(t *testing.T) {
		g := NewWithT(t)
		cluster := scopetest.Get(ctx, g, management, namespace, name, &clusterv1.Cluster{})
		cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "AWSCluster", Name: "cumulus-aws"}
		g.Expect(management.Update(ctx, cluster)).To(Succeed())
		runs(t, name, image+strings.Repeat("a", 64))

		deployment := deploymentOf(g, ctx, namespace)
		g.Expect(deployment.Spec.Template.Spec.AutomountServiceAccountToken).To(HaveValue(BeFalse()))
		g.Expect(deployment.Spec.Template.Spec.Containers[0].Env).To(ContainElements(
			corev1.EnvVar{Name: "AWS_ROLE_ARN", Value: "arn:aws:iam::123456789012:role/karpenter"},
			corev1.EnvVar{Name: "AWS_REGION", Value: "eu-central-1"},
			corev1.EnvVar{Name: "AWS_WEB_IDENTITY_TOKEN_FILE", Value: "/etc/karpenter/guest/aws-token"},
			corev1.EnvVar{Name: "CLUSTER_ENDPOINT", Value: clusters.Guest.Config.Host},
		))
		secret := scopetest.Get(ctx, g, management, namespace, v1beta1.GuestAccessSecret, &corev1.Secret{})
		for key, audiences := range map[string][]string{"token": nil, "aws-token": {"sts.amazonaws.com"}} {
			review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: string(secret.Data[key]), Audiences: audiences}}
			g.Expect(guest.Create(ctx, review)).To(Succeed())
			g.Expect(review.Status.User.Username).To(Equal("system:serviceaccount:kube-system:karpenter"), key)
		}
		scopetest.ExpectGone(ctx, g, management, &rbacv1.Role{ObjectMeta: component}) // it has no business in the management cluster
		g.Expect(guest.Get(ctx, client.ObjectKey{Name: "ec2nodeclasses.karpenter.k8s.aws"}, &apiextensionsv1.CustomResourceDefinition{})).To(Succeed())
		g.Expect(componentOf(g, ctx, namespace).Labels).To(HaveKeyWithValue(v1beta1.PlatformLabel, "AWS"))
	})

	t.Run("When a person deletes a Role of it in the guest, it should come back", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(guest.Delete(ctx, role.DeepCopy())).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(guest.Get(ctx, client.ObjectKeyFromObject(role), role)).To(Succeed())
		}).Should(Succeed())
	})

	t.Run("When another platform is to take over while it still runs, it should refuse, and leave what runs alone", func(t *testing.T) {
		g := NewWithT(t)
		// As if AutoNode had been turned off and on again between two looks.
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.PausedUntil = ptr.To("true") })
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.AutoNode = nil })
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.AutoNode = scopetest.AutoNode() })
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.PausedUntil = nil })
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, name)
			g.Expect(reasonOf(hostedCluster, v1beta1.ValidConfiguration)).To(Equal("False/InvalidSpec"))
			g.Expect(hostedCluster.Status.AutoNode.Message).To(ContainSubstring(`"ClusterAPI" can't take over from "AWS"`))
		}).Should(Succeed())
		rollOut(g, ctx, namespace, image+strings.Repeat("a", 64))
		g.Expect(componentOf(g, ctx, namespace).Labels).To(HaveKeyWithValue(v1beta1.PlatformLabel, "AWS"))
	})

	t.Run("When AutoNode is turned off, it should remove what it was, not what the spec wanted last", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.AutoNode = nil })
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, name)
			g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("False/AutoNodeNotConfigured"))
			g.Expect(hostedCluster.Finalizers).To(BeEmpty())
		}).Should(Succeed())
		scopetest.ExpectGone(ctx, g, guest, role)
	})
}
