// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// validation is about HostedClusters whose spec can't be followed. None of them reaches a guest.
func validation(t *testing.T, host string) {
	release := push(t, host, "1.36.2")
	invalid(t, release)
	t.Run("When the pull secret comes late, it should name it and go on when it is there", func(t *testing.T) { latePullSecret(t, host) })
	t.Run("When a kind isn't served, it should wait for its provider and go on when it is there", func(t *testing.T) { lateKind(t, release) })
	t.Run("When names join to a namespace of the management cluster's own, it should refuse it", func(t *testing.T) { ownNamespaces(t, release) })
	t.Run("When a name has dots or is long, it should ask for a namespace that can exist and go on when it does", func(t *testing.T) { unusualNames(t, release) })
	t.Run("When names join to the namespace of another tenant who doesn't use AutoNode, it should refuse it until that tenant has gone", func(t *testing.T) { takenName(t, release) })
}

// leavingCluster makes a Cluster that is being deleted for as long as the test runs.
func leavingCluster(ctx context.Context, t *testing.T, name string) {
	g, management := NewWithT(t), clusters.Management.Client
	namespace := "clusters-" + name
	g.Expect(client.IgnoreAlreadyExists(management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))).To(Succeed())
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: []string{"example.com/held"}}}
	g.Expect(management.Create(ctx, cluster)).To(Succeed())
	g.Expect(management.Delete(ctx, cluster)).To(Succeed())
	t.Cleanup(func() {
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		g.Expect(management.Patch(context.WithoutCancel(ctx), cluster, patch)).To(Succeed())
	})
}

// invalid is about those that stay so.
func invalid(t *testing.T, release string) {
	ctx, management := t.Context(), clusters.Management.Client
	for _, test := range []struct {
		name, hosted, namespace string
		change                  func(*v1beta1.HostedCluster)
		want, message           string
		prepare                 func(ctx context.Context, t *testing.T, name string)
	}{
		{
			name: "When there is no Cluster, it should name it", hosted: "nocluster",
			want: "False/ClusterNotFound", message: "there is no Cluster clusters-nocluster/nocluster",
		}, {
			name: "When the Cluster is being deleted, it should install nothing", hosted: "leaving", prepare: leavingCluster,
			want: "False/ClusterDeleting", message: "Cluster clusters-leaving/leaving is being deleted",
		}, {
			name: "When the namespace is another tenant's, it should refuse it", hosted: "thief",
			change: func(hc *v1beta1.HostedCluster) { hc.Spec.ControlPlaneNamespace = "clusters-blue" },
			want:   "False/ControlPlaneNamespaceForbidden", message: "clusters-blue",
		}, {
			name: "When a selector makes no sense, it should name the field", hosted: "selector",
			change: func(hc *v1beta1.HostedCluster) {
				hc.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI.InfrastructureTemplateSelectors[0].Selector.MatchExpressions =
					[]metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}
			},
			want: "False/InvalidSpec", message: "infrastructureTemplateSelectors[0].selector",
		}, {
			name: "When a maintenance window never opens, it should name the field", hosted: "never",
			change: func(hc *v1beta1.HostedCluster) {
				hc.Spec.AutoNode.NodeUpgrade = &v1beta1.NodeUpgrade{
					Policy:            v1beta1.NodeUpgradeMaintenanceWindow,
					MaintenanceWindow: &v1beta1.MaintenanceWindow{Schedule: "0 0 30 2 *", Duration: scalar.Duration{Duration: time.Hour}},
				}
			},
			want: "False/InvalidSpec", message: "spec.autoNode.nodeUpgrade.maintenanceWindow.schedule",
		}, {
			name: "When an upgrade on AWS has to prove itself, it should name the fields", hosted: "proof",
			change: func(hc *v1beta1.HostedCluster) {
				hc.Spec.AutoNode.NodeUpgrade = &v1beta1.NodeUpgrade{HaltOn: &v1beta1.NodeUpgradeHaltOn{}}
				hc.Spec.AutoNode.ProvisionerConfig.Karpenter = &v1beta1.Karpenter{Platform: v1beta1.PlatformAWS, AWS: &v1beta1.AWS{
					RoleARN: "arn:aws:iam::123456789012:role/karpenter", Region: "eu-central-1",
				}}
			},
			want: "False/InvalidSpec", message: "on platform AWS nodes follow at once; policy has to be Immediate, without canary, haltOn and after",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			hostedCluster := newHosted("clusters", test.hosted, release)
			if test.change != nil {
				test.change(hostedCluster)
			}
			consent(t, "clusters-"+test.hosted, "clusters/"+test.hosted)
			if test.prepare != nil {
				test.prepare(ctx, t, test.hosted)
			}
			g.Expect(management.Create(ctx, hostedCluster)).To(Succeed())
			g.Eventually(func(g Gomega) {
				hostedCluster := get(g, ctx, test.hosted)
				g.Expect(reasonOf(hostedCluster, v1beta1.ValidConfiguration)).To(Equal(test.want))
				g.Expect(hostedCluster.Status.AutoNode.Message).To(ContainSubstring(test.message))
				g.Expect(hostedCluster.Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStateWaiting))
				g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("False/AutoNodeWaiting"))
				g.Expect(hostedCluster.Finalizers).To(BeEmpty(), "nothing was made that it would have to guard")
			}).Should(Succeed())
			g.Expect(management.Delete(ctx, hostedCluster)).To(Succeed())
		})
	}
}

func latePullSecret(t *testing.T, host string) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	consent(t, "clusters-secretive", "clusters/secretive")
	secretive := newHosted("clusters", "secretive", push(t, host, "1.36.4")) // another payload: one that was pulled before needs no credentials
	secretive.Spec.PullSecret = &corev1.LocalObjectReference{Name: "late"}
	g.Expect(management.Create(ctx, secretive)).To(Succeed())
	g.Eventually(func(g Gomega) {
		hostedCluster := get(g, ctx, "secretive")
		g.Expect(reasonOf(hostedCluster, v1beta1.ReleaseResolved)).To(Equal("False/PullSecretInvalid"))
		g.Expect(meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.ReleaseResolved).Message).To(ContainSubstring("clusters/late"))
	}).Should(Succeed())
	g.Expect(management.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "late"},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{}}`)},
	})).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(reasonOf(get(g, ctx, "secretive"), v1beta1.ReleaseResolved)).To(Equal("True/AsExpected"))
	}).Should(Succeed())
}

func lateKind(t *testing.T, release string) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	platform(t, "late")
	hostedCluster := newHosted("clusters", "late", release)
	hostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI.InfrastructureTemplateSelectors[0].Kind = "LateMachineTemplate"
	g.Expect(management.Create(ctx, hostedCluster)).To(Succeed())
	g.Eventually(func(g Gomega) {
		hostedCluster := get(g, ctx, "late")
		g.Expect(reasonOf(hostedCluster, v1beta1.ValidConfiguration)).To(Equal("False/KindNotFound"))
		g.Expect(hostedCluster.Status.AutoNode.Message).To(ContainSubstring("LateMachineTemplate"))
	}).Should(Succeed())
	err := apiserver.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		scopetest.Definition("infrastructure.cluster.x-k8s.io", "LateMachine", "latemachines", "v1beta1"),
		scopetest.Definition("infrastructure.cluster.x-k8s.io", "LateMachineTemplate", "latemachinetemplates", "v1beta1"),
	}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		g.Expect(reasonOf(get(g, ctx, "late"), v1beta1.ValidConfiguration)).To(Equal("True/AsExpected"))
	}).Should(Succeed())
}
