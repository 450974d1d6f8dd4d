// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	g.Expect(management.Create(ctx, &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name},
		Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: release}, AutoNode: scopetest.AWS()},
	})).To(Succeed())
	component := client.ObjectKey{Namespace: namespace, Name: v1beta1.KarpenterComponent}

	t.Run("When the Cluster isn't on AWS, it should say so and make nothing", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, name)
			g.Expect(reasonOf(hostedCluster, v1beta1.ValidConfiguration)).To(Equal("False/InfrastructureMismatch"))
			g.Expect(hostedCluster.Status.AutoNode.Message).To(ContainSubstring("use platform ClusterAPI, or correct spec.infraID"))
			g.Expect(hostedCluster.Finalizers).To(BeEmpty())
		}).Should(Succeed())
		err := management.Get(ctx, component, &v1beta1.ControlPlaneComponent{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
	})

	t.Run("When it is, it should run the payload's AWS provider, with a token for the guest and one for AWS", func(t *testing.T) {
		g := NewWithT(t)
		cluster := &clusterv1.Cluster{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, cluster)).To(Succeed())
		cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "AWSCluster", Name: "cumulus-aws"}
		g.Expect(management.Update(ctx, cluster)).To(Succeed())
		g.Eventually(func(g Gomega) { rollOut(g, ctx, namespace, image+strings.Repeat("a", 64)) }).Should(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(reasonOf(get(g, ctx, name), v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
		}).Should(Succeed())

		deployment := &appsv1.Deployment{}
		g.Expect(management.Get(ctx, component, deployment)).To(Succeed())
		g.Expect(deployment.Spec.Template.Spec.AutomountServiceAccountToken).To(HaveValue(BeFalse()))
		g.Expect(deployment.Spec.Template.Spec.Containers[0].Env).To(ContainElements(
			corev1.EnvVar{Name: "AWS_ROLE_ARN", Value: "arn:aws:iam::123456789012:role/karpenter"},
			corev1.EnvVar{Name: "AWS_REGION", Value: "eu-central-1"},
			corev1.EnvVar{Name: "AWS_WEB_IDENTITY_TOKEN_FILE", Value: "/etc/karpenter/guest/aws-token"},
			corev1.EnvVar{Name: "CLUSTER_ENDPOINT", Value: clusters.Guest.Config.Host},
		))
		secret := &corev1.Secret{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1beta1.GuestAccessSecret}, secret)).To(Succeed())
		for key, audiences := range map[string][]string{"token": nil, "aws-token": {"sts.amazonaws.com"}} {
			review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: string(secret.Data[key]), Audiences: audiences}}
			g.Expect(guest.Create(ctx, review)).To(Succeed())
			g.Expect(review.Status.User.Username).To(Equal("system:serviceaccount:kube-system:karpenter"), key)
		}
		err := management.Get(ctx, component, &rbacv1.Role{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "it has no business in the management cluster")
		g.Expect(guest.Get(ctx, client.ObjectKey{Name: "ec2nodeclasses.karpenter.k8s.aws"}, &apiextensionsv1.CustomResourceDefinition{})).To(Succeed())
		made := &v1beta1.ControlPlaneComponent{}
		g.Expect(management.Get(ctx, component, made)).To(Succeed())
		g.Expect(made.Labels).To(HaveKeyWithValue(v1beta1.PlatformLabel, "AWS"))
	})

	t.Run("When a person deletes a Role of it in the guest, it should come back", func(t *testing.T) {
		g := NewWithT(t)
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "autonode:karpenter"}}
		g.Expect(guest.Delete(ctx, role)).To(Succeed())
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
		made := &v1beta1.ControlPlaneComponent{}
		g.Expect(management.Get(ctx, component, made)).To(Succeed())
		g.Expect(made.Labels).To(HaveKeyWithValue(v1beta1.PlatformLabel, "AWS"))
	})

	t.Run("When AutoNode is turned off, it should remove what it was, not what the spec wanted last", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.AutoNode = nil })
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, name)
			g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("False/AutoNodeNotConfigured"))
			g.Expect(hostedCluster.Finalizers).To(BeEmpty())
		}).Should(Succeed())
		err := guest.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "autonode:karpenter"}, &rbacv1.Role{})
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
	})
}
