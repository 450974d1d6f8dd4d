// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator"
	"github.com/autonode-io/autonode/operator/metrics"
	"github.com/autonode-io/autonode/operator/scope/scopetest"
	"github.com/autonode-io/autonode/payload"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

const image = "registry.example/karpenter@sha256:"

// start runs the operator and everything that it needs beside the two clusters.
func start(t *testing.T) (registryHost string) {
	t.Helper()
	provide(t)
	run(t, clusters.Management.Config, operator.Options{LeaderElectionNamespace: "autonode-system"})
	return serveRegistry(t)
}

// provide installs the kinds of the providers that the specs name.
func provide(t *testing.T) {
	t.Helper()
	_, err := envtest.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		scopetest.Definition("cluster.x-k8s.io", "MachineDeployment", "machinedeployments", "v1beta2"),
		scopetest.Definition("infrastructure.cluster.x-k8s.io", "KwokMachine", "kwokmachines", "v1beta1"),
		scopetest.Definition("infrastructure.cluster.x-k8s.io", "KwokMachineTemplate", "kwokmachinetemplates", "v1beta1"),
		scopetest.Definition("infrastructure.cluster.x-k8s.io", "AWSCluster", "awsclusters", "v1beta2"),
		scopetest.Definition("bootstrap.cluster.x-k8s.io", "KubeadmConfig", "kubeadmconfigs", "v1beta2"),
		scopetest.Definition("bootstrap.cluster.x-k8s.io", "KubeadmConfigTemplate", "kubeadmconfigtemplates", "v1beta2"),
	}})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

func serveRegistry(t *testing.T) (host string) {
	t.Helper()
	server := httptest.NewServer(registry.New())
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// sweep removes the HostedClusters with a label when the test ends, after the operators that were started later: other tests have the same
// two clusters.
func sweep(t *testing.T, label string) {
	t.Helper()
	t.Cleanup(func() {
		g, ctx, management := NewWithT(t), context.Background(), clusters.Management.Client
		list := &v1beta1.HostedClusterList{}
		g.Expect(management.List(ctx, list, client.HasLabels{label})).To(Succeed())
		for i := range list.Items {
			hostedCluster := &list.Items[i]
			before := hostedCluster.DeepCopy()
			hostedCluster.Finalizers = nil
			g.Expect(management.Patch(ctx, hostedCluster, client.MergeFrom(before))).To(Succeed())
			g.Expect(client.IgnoreNotFound(management.Delete(ctx, hostedCluster))).To(Succeed())
		}
	})
}

// run runs an operator until the test ends.
func run(t *testing.T, config *rest.Config, options operator.Options) {
	t.Helper()
	options.SkipNameValidation, options.GuestConnectRetry, options.GuestNetworks = true, time.Second, "127.0.0.0/8"
	options.RegistryNetworks = options.GuestNetworks
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- operator.Run(ctx, config, options) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the operator ended with %v", err)
		}
	})
}

// push makes a payload and returns its tag.
func push(t *testing.T, host, version string) string {
	t.Helper()
	g := NewWithT(t)
	img, err := payload.Build(payload.Spec{Version: version, Components: []payload.ComponentSpec{{
		Name: "karpenter-clusterapi", Image: image + strings.Repeat(version[len(version)-1:], 64),
		Versions: map[string]string{payload.KubernetesVersion: version},
	}}})
	g.Expect(err).NotTo(HaveOccurred())
	tag := fmt.Sprintf("%s/release:%s", host, version)
	_, err = payload.Push(t.Context(), tag, img, payload.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	return tag
}

// platform makes what a hosting platform has: the namespaces, the Cluster, its kubeconfig.
func platform(t *testing.T, name string) {
	t.Helper()
	platformOf(t, name, clusters.Guest.Config)
}

// platformOf does it for a guest that is reached in another way.
func platformOf(t *testing.T, name string, config *rest.Config) {
	t.Helper()
	g := NewWithT(t)
	management := clusters.Management.Client
	namespace := "clusters-" + name
	for _, ns := range []string{"clusters", namespace} {
		g.Expect(client.IgnoreAlreadyExists(management.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))).To(Succeed())
	}
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Annotations: map[string]string{v1beta1.ConsentAnnotation: "clusters/" + name},
	}}
	g.Expect(management.Create(t.Context(), cluster)).To(Succeed())
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	g.Expect(management.Status().Update(t.Context(), cluster)).To(Succeed())

	admin := &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	if len(config.CertData) == 0 {
		admin.Token = "of-no-use" // its guest asks for none
	}
	data, err := clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "guest",
		Contexts:       map[string]*clientcmdapi.Context{"guest": {Cluster: "guest", AuthInfo: "admin"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"guest": {Server: "https://" + strings.TrimPrefix(config.Host, "https://"), CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"admin": admin},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(management.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: name}},
		Type:       clusterv1.ClusterSecretType,
		Data:       map[string][]byte{"value": data},
	})).To(Succeed())
}

// consent makes a control-plane namespace that consents to a HostedCluster.
func consent(t *testing.T, namespace, hostedCluster string) {
	t.Helper()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Annotations: map[string]string{v1beta1.ConsentAnnotation: hostedCluster}}}
	NewWithT(t).Expect(client.IgnoreAlreadyExists(clusters.Management.Client.Create(t.Context(), object))).To(Succeed())
}

// get reads a HostedCluster anew.
func get(g Gomega, ctx context.Context, name string) *v1beta1.HostedCluster {
	hostedCluster := &v1beta1.HostedCluster{}
	g.Expect(clusters.Management.Client.Get(ctx, client.ObjectKey{Namespace: "clusters", Name: name}, hostedCluster)).To(Succeed())
	return hostedCluster
}

func reasonOf(hostedCluster *v1beta1.HostedCluster, conditionType string) string {
	if c := meta.FindStatusCondition(hostedCluster.Status.Conditions, conditionType); c != nil {
		return string(c.Status) + "/" + c.Reason
	}
	return ""
}

// rollOut stands in for the Deployment controller, which no envtest has.
func rollOut(g Gomega, ctx context.Context, namespace, image string) {
	management := clusters.Management.Client
	deployment := &appsv1.Deployment{}
	g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, deployment)).To(Succeed())
	g.Expect(deployment.Spec.Template.Spec.Containers[0].Image).To(Equal(image))
	deployment.Status = appsv1.DeploymentStatus{
		ObservedGeneration: deployment.Generation, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2,
	}
	g.Expect(management.Status().Update(ctx, deployment)).To(Succeed())
}

// replicas are those that Karpenter's Deployment is to have.
func replicas(g Gomega, ctx context.Context, namespace string) int32 {
	deployment := &appsv1.Deployment{}
	g.Expect(clusters.Management.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, deployment)).To(Succeed())
	return ptr.Deref(deployment.Spec.Replicas, 1)
}

// rollouts returns the rollout that node classes say is complete, and the one that Karpenter's Deployment is for.
func rollouts(g Gomega, ctx context.Context, namespace string) (complete, applied string) {
	class, deployment := &v1alpha1.ClusterAPINodeClass{}, &appsv1.Deployment{}
	g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class)).To(Succeed())
	g.Expect(clusters.Management.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, deployment)).To(Succeed())
	for _, variable := range deployment.Spec.Template.Spec.Containers[0].Env {
		if variable.Name == "ROLLOUT_ID" {
			applied = variable.Value
		}
	}
	return class.Annotations[v1alpha1.RolloutAnnotation], applied
}

// scaledDown stands in for the Deployment controller during a pause.
func scaledDown(g Gomega, ctx context.Context, namespace, image string) {
	deployment := &appsv1.Deployment{}
	g.Expect(clusters.Management.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, deployment)).To(Succeed())
	g.Expect(deployment.Spec.Template.Spec.Containers[0].Image).To(Equal(image))
	deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: deployment.Generation}
	g.Expect(clusters.Management.Client.Status().Update(ctx, deployment)).To(Succeed())
}

func TestOperator(t *testing.T) {
	host := start(t)
	t.Run("AWS", func(t *testing.T) { onAWS(t, host) }) // before the one that deletes definitions, which takes an API server a while
	t.Run("Life", func(t *testing.T) { life(t, host) })
	t.Run("Validation", func(t *testing.T) { validation(t, host) })
}

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

	t.Run("When somebody deletes a Role of it in the guest, it should come back by itself", func(t *testing.T) {
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

// life is a HostedCluster from its creation to its end.
func life(t *testing.T, host string) {
	ctx, management, guest := t.Context(), clusters.Management.Client, clusters.Guest.Client
	const name, namespace = "blue", "clusters-blue"
	platform(t, name)
	g := NewWithT(t)
	hostedCluster := &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name},
		Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: push(t, host, "1.36.2")}},
	}
	g.Expect(management.Create(ctx, hostedCluster)).To(Succeed())

	t.Run("When AutoNode isn't set, it should say so and hold nothing", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, name)
			g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("False/AutoNodeNotConfigured"))
			g.Expect(hostedCluster.Finalizers).To(BeEmpty())
		}).Should(Succeed())
	})

	t.Run("When AutoNode is set, it should run the payload's Karpenter", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.AutoNode = scopetest.AutoNode() })
		g.Eventually(func(g Gomega) { rollOut(g, ctx, namespace, image+strings.Repeat("2", 64)) }).Should(Succeed())
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, name)
			g.Expect(hostedCluster.Status.AutoNode).NotTo(BeNil())
			g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"), "%+v", hostedCluster.Status)
			g.Expect(hostedCluster.Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStateEnabled))
			g.Expect(hostedCluster.Status.AutoNode.Message).To(BeEmpty())
			g.Expect(hostedCluster.Status.Version.History).To(HaveLen(1))
			g.Expect(hostedCluster.Status.Version.History[0].State).To(Equal(v1beta1.UpdateCompleted))
			g.Expect(hostedCluster.Status.Version.NodeVersion).To(Equal("1.36.2"))
			g.Expect(hostedCluster.Finalizers).To(ContainElement(v1beta1.HostedClusterFinalizer))
		}).Should(Succeed())
		deployment := &appsv1.Deployment{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, deployment)).To(Succeed())
		g.Expect(deployment.Spec.Template.Spec.Containers[0].Args).To(ContainElement("--node-version=1.36.2"))
		component := &v1beta1.ControlPlaneComponent{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, component)).To(Succeed())
		g.Expect(component.Status.Version).To(Equal("1.36.2"))
		g.Expect(guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, &v1alpha1.ClusterAPINodeClass{})).To(Succeed())
	})

	t.Run("When AutoNode runs, its metrics should say so", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) {
			g.Expect(served(g, name)).To(And(
				HaveKeyWithValue("autonode_enabled", 1.0), HaveKeyWithValue("autonode_component_info", 1.0),
				HaveKeyWithValue("autonode_guest_reachable", 1.0), HaveKeyWithValue("autonode_progressing_seconds", 0.0),
			))
		}).Should(Succeed())
	})

	t.Run("When nothing changes, it should write nothing", func(t *testing.T) {
		g := NewWithT(t)
		before := ""
		settled := func() bool { // the last step's write may be on its way
			last := before
			before = get(g, ctx, name).ResourceVersion
			return before == last
		}
		g.Eventually(settled).WithPolling(time.Second).Should(BeTrue())
		g.Consistently(func(g Gomega) { g.Expect(get(g, ctx, name).ResourceVersion).To(Equal(before)) }, "2s").Should(Succeed())
	})

	t.Run("When somebody deletes the Role or the NetworkPolicy, or edits the Deployment, it should heal them", func(t *testing.T) {
		g := NewWithT(t)
		for _, object := range []client.Object{&rbacv1.Role{}, &networkingv1.NetworkPolicy{}} {
			object.SetNamespace(namespace)
			object.SetName("karpenter")
			g.Expect(management.Delete(ctx, object)).To(Succeed())
			g.Eventually(func(g Gomega) {
				g.Expect(management.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed(), "%T", object)
			}).Should(Succeed())
		}
		deployment := &appsv1.Deployment{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, deployment)).To(Succeed())
		deployment.Spec.Template.Spec.Containers[0].Image = "evil.example/miner:latest"
		g.Expect(management.Update(ctx, deployment)).To(Succeed())
		g.Eventually(func(g Gomega) { rollOut(g, ctx, namespace, image+strings.Repeat("2", 64)) }).Should(Succeed())
	})

	healing(t)

	t.Run("When a pod has another image, the rollout should not be complete until it has ended", func(t *testing.T) {
		g := NewWithT(t)
		deployment := &appsv1.Deployment{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, deployment)).To(Succeed())
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: "karpenter-stray", Labels: deployment.Spec.Template.Labels, Finalizers: []string{"autonode.io/test"},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "karpenter", Image: image + strings.Repeat("9", 64)}}},
		}
		says := func(status metav1.ConditionStatus, message string) {
			g.Eventually(func(g Gomega) {
				component := &v1beta1.ControlPlaneComponent{}
				g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, component)).To(Succeed())
				g.Expect(meta.FindStatusCondition(component.Status.Conditions, v1beta1.RolloutComplete)).To(And(
					HaveField("Status", status), HaveField("Message", HavePrefix(message))))
			}).Should(Succeed())
		}
		says(metav1.ConditionTrue, "")
		g.Expect(management.Create(ctx, pod)).To(Succeed())
		says(metav1.ConditionFalse, "Pod karpenter-stray has image "+image)
		g.Expect(management.Delete(ctx, pod)).To(Succeed())
		says(metav1.ConditionFalse, "1 old replicas are still to end")
		g.Expect(management.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
		pod.Finalizers = nil
		g.Expect(management.Update(ctx, pod)).To(Succeed())
		says(metav1.ConditionTrue, "")
	})

	t.Run("When an annotation overrides the image, it should run that and show it until the annotation goes", func(t *testing.T) {
		g := NewWithT(t)
		shown := func(g Gomega) string {
			component := &v1beta1.ControlPlaneComponent{}
			g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, component)).To(Succeed())
			return component.Status.ImageOverride
		}
		other := image + strings.Repeat("7", 64)
		annotate := func(value string) {
			patch(g, ctx, name, func(hc *v1beta1.HostedCluster) {
				metav1.SetMetaDataAnnotation(&hc.ObjectMeta, v1beta1.OverrideImageAnnotation, value)
			})
		}
		annotate("karpenter-clusterapi=" + other)
		g.Eventually(func(g Gomega) { rollOut(g, ctx, namespace, other) }).Should(Succeed())
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, name)
			g.Expect(reasonOf(hostedCluster, v1beta1.ImageOverridden)).To(Equal("True/Overridden"))
			g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
			g.Expect(meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.AutoNodeEnabled).Message).To(ContainSubstring(other))
			g.Expect(shown(g)).To(Equal(other))
		}).Should(Succeed())

		annotate("karpenter-clusterapi=latest")
		g.Eventually(func(g Gomega) { rollOut(g, ctx, namespace, image+strings.Repeat("2", 64)) }).Should(Succeed())
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, name)
			g.Expect(reasonOf(hostedCluster, v1beta1.ImageOverridden)).To(Equal("False/OverrideInvalid"))
			g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
			g.Expect(shown(g)).To(BeEmpty())
		}).Should(Succeed())

		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { delete(hc.Annotations, v1beta1.OverrideImageAnnotation) })
		g.Eventually(func(g Gomega) {
			g.Expect(reasonOf(get(g, ctx, name), v1beta1.ImageOverridden)).To(BeEmpty())
		}).Should(Succeed())
	})

	t.Run("When the wanted payload can't be resolved, it should leave what runs alone and say why", func(t *testing.T) {
		g := NewWithT(t)
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.Release.Image = host + "/release:9.9.9" })
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, name)
			g.Expect(reasonOf(hostedCluster, v1beta1.ReleaseResolved)).To(Equal("False/ImageNotFound"))
			g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
			g.Expect(hostedCluster.Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStateWaiting))
			g.Expect(hostedCluster.Status.AutoNode.Message).To(ContainSubstring("/release:9.9.9"))
			g.Expect(hostedCluster.Status.Version.Desired.Version).To(Equal("1.36.2"))
		}).Should(Succeed())
		rollOut(g, ctx, namespace, image+strings.Repeat("2", 64))
	})

	t.Run("When it is paused, it should scale Karpenter to zero, change nothing else, and resume when the time has come", func(t *testing.T) {
		g := NewWithT(t)
		upgrade := push(t, host, "1.36.3")
		until := time.Now().Add(4 * time.Second).Truncate(time.Second)
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) {
			hc.Spec.PausedUntil = ptr.To(until.Format(time.RFC3339))
			hc.Spec.Release.Image = upgrade
		})
		g.Eventually(func(g Gomega) {
			g.Expect(replicas(g, ctx, namespace)).To(BeZero())
			scaledDown(g, ctx, namespace, image+strings.Repeat("2", 64))
			hostedCluster := get(g, ctx, name)
			g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("False/Paused"))
			g.Expect(hostedCluster.Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStatePaused))
			g.Expect(hostedCluster.Status.AutoNode.Message).To(And(
				HavePrefix("paused until "), HaveSuffix("; Karpenter is scaled to zero; nodes and pods go on running")))
			g.Expect(hostedCluster.Status.Version.Desired.Version).To(Equal("1.36.2"))
			component := &v1beta1.ControlPlaneComponent{}
			g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, component)).To(Succeed())
			available := meta.FindStatusCondition(component.Status.Conditions, v1beta1.Available)
			g.Expect(available).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.PausedReason)))
		}).Should(Succeed())
		// Resumes by itself, with the upgrade.
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, name)
			g.Expect(hostedCluster.Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStateUpgrading), "%+v", hostedCluster.Status.AutoNode)
			g.Expect(hostedCluster.Status.AutoNode.Message).To(HavePrefix("Karpenter is being upgraded from payload 1.36.2 to 1.36.3: "))
			g.Expect(hostedCluster.Status.Version.History[0].Version).To(Equal("1.36.3"))
			g.Expect(hostedCluster.Status.Version.History[0].State).To(Equal(v1beta1.UpdatePartial))
		}).Should(Succeed())
		g.Expect(time.Now()).To(BeTemporally(">=", until))
		g.Expect(replicas(g, ctx, namespace)).To(BeEquivalentTo(2))
		g.Eventually(func(g Gomega) { rollOut(g, ctx, namespace, image+strings.Repeat("3", 64)) }).Should(Succeed())
	})

	t.Run("When an input went missing during a pause, it should let run what ran before", func(t *testing.T) {
		g := NewWithT(t)
		wanted := get(g, ctx, name).Spec.Release.Image
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.PausedUntil = ptr.To("true") })
		g.Eventually(func(g Gomega) { g.Expect(replicas(g, ctx, namespace)).To(BeZero()) }).Should(Succeed())
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) {
			hc.Spec.PausedUntil, hc.Spec.Release.Image = nil, host+"/release:9.9.8"
		})
		g.Eventually(func(g Gomega) {
			g.Expect(replicas(g, ctx, namespace)).To(BeEquivalentTo(2))
			g.Expect(reasonOf(get(g, ctx, name), v1beta1.ReleaseResolved)).To(Equal("False/ImageNotFound"))
		}).Should(Succeed())
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.Release.Image = wanted })
		g.Eventually(func(g Gomega) { rollOut(g, ctx, namespace, image+strings.Repeat("3", 64)) }).Should(Succeed())
	})

	t.Run("When Cluster API is paused, it should be paused for as long", func(t *testing.T) {
		annotate := func(object client.Object, value bool) {
			annotations := object.GetAnnotations()
			if annotations == nil {
				annotations = map[string]string{}
			}
			delete(annotations, clusterv1.PausedAnnotation)
			if value {
				annotations[clusterv1.PausedAnnotation] = ""
			}
			object.SetAnnotations(annotations)
		}
		change := func(g Gomega, change func(*clusterv1.Cluster)) {
			cluster := &clusterv1.Cluster{}
			g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, cluster)).To(Succeed())
			before := cluster.DeepCopy()
			change(cluster)
			g.Expect(management.Patch(ctx, cluster, client.MergeFrom(before))).To(Succeed())
		}
		const byCluster = "Cluster clusters-blue/blue is paused; unpause it to go on"
		for _, test := range []struct {
			name, message string
			set           func(g Gomega, paused bool)
		}{
			{
				name: "by the annotation of the HostedCluster", message: "paused by an annotation of the HostedCluster; remove cluster.x-k8s.io/paused to go on",
				set: func(g Gomega, paused bool) {
					patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { annotate(hc, paused) })
				},
			}, {
				name: "by the annotation of the Cluster", message: byCluster,
				set: func(g Gomega, paused bool) {
					change(g, func(cluster *clusterv1.Cluster) { annotate(cluster, paused) })
				},
			}, {
				name: "by the field of the Cluster", message: byCluster,
				set: func(g Gomega, paused bool) {
					change(g, func(cluster *clusterv1.Cluster) { cluster.Spec.Paused = ptr.To(paused) })
				},
			},
		} {
			t.Run(test.name, func(t *testing.T) {
				g := NewWithT(t)
				test.set(g, true)
				g.Eventually(func(g Gomega) {
					g.Expect(replicas(g, ctx, namespace)).To(BeZero())
					hostedCluster := get(g, ctx, name)
					g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("False/Paused"))
					g.Expect(hostedCluster.Status.AutoNode.Message).To(HavePrefix(test.message + "; Karpenter is "))
				}).Should(Succeed())
				test.set(g, false)
				g.Eventually(func(g Gomega) {
					g.Expect(replicas(g, ctx, namespace)).To(BeEquivalentTo(2))
					g.Expect(get(g, ctx, name).Status.AutoNode.State).NotTo(Equal(v1beta1.AutoNodeStatePaused))
				}).Should(Succeed())
				g.Eventually(func(g Gomega) { rollOut(g, ctx, namespace, image+strings.Repeat("3", 64)) }).Should(Succeed())
			})
		}
	})

	t.Run("When the rollout is complete, it should complete the update, unless the guest's API server is older", func(t *testing.T) {
		g := NewWithT(t)
		runs := func(g Gomega, version string, state v1beta1.UpdateState, nodes string) {
			hostedCluster, component := get(g, ctx, name), &v1beta1.ControlPlaneComponent{}
			g.Expect(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, component)).To(Succeed())
			g.Expect(component.Status).To(And(HaveField("Version", version), HaveField("ReleaseImage", hostedCluster.Status.Version.Desired.Image)))
			g.Expect(hostedCluster.Status.Version.History[0]).To(And(HaveField("Version", version), HaveField("State", state)))
			g.Expect(reasonOf(hostedCluster, v1beta1.NodesUpToDate)).To(Equal(nodes))
			g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
		}
		g.Eventually(func(g Gomega) { runs(g, "1.36.3", v1beta1.UpdateCompleted, "True/AsExpected") }).Should(Succeed())

		before, applied := rollouts(g, ctx, namespace)
		g.Expect(before).To(And(Not(BeEmpty()), Equal(applied)))
		upgrade := push(t, host, "1.37.1") // the API server is of 1.36
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.Release.Image = upgrade })
		g.Eventually(func(g Gomega) {
			complete, applied := rollouts(g, ctx, namespace)
			g.Expect(applied).NotTo(Equal(before))
			g.Expect(complete).To(Equal(before), "the new Karpenter is to replace no nodes yet")
			rollOut(g, ctx, namespace, image+strings.Repeat("1", 64))
		}).Should(Succeed())
		g.Eventually(func(g Gomega) {
			complete, applied := rollouts(g, ctx, namespace)
			g.Expect(complete).To(Equal(applied))
		}).Should(Succeed())
		older := func(g Gomega) { runs(g, "1.37.1", v1beta1.UpdatePartial, "False/ControlPlaneOlder") }
		g.Eventually(older).Should(Succeed())
		g.Consistently(older, "500ms").Should(Succeed())
	})

	t.Run("When the HostedCluster is deleted during a pause, it should hold the drain, and let Karpenter drain after it", func(t *testing.T) {
		g := NewWithT(t)
		claim := &karpv1.NodeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "general-x", Finalizers: []string{karpv1.TerminationFinalizer}},
			Spec: karpv1.NodeClaimSpec{
				NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: v1alpha1.DefaultNodeClass},
				Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
			},
		}
		g.Expect(guest.Create(ctx, claim)).To(Succeed())
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.PausedUntil = ptr.To("true") })
		g.Eventually(func(g Gomega) {
			g.Expect(replicas(g, ctx, namespace)).To(BeZero())
			g.Expect(get(g, ctx, name).Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStatePaused))
		}).Should(Succeed())
		g.Expect(management.Delete(ctx, get(g, ctx, name))).To(Succeed())
		g.Consistently(func(g Gomega) {
			g.Expect(guest.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
			g.Expect(claim.DeletionTimestamp.IsZero()).To(BeTrue())
			g.Expect(get(g, ctx, name).Status.AutoNode.State).To(Equal(v1beta1.AutoNodeStatePaused))
		}, "500ms").Should(Succeed())
		patch(g, ctx, name, func(hc *v1beta1.HostedCluster) { hc.Spec.PausedUntil = nil })
		g.Eventually(func(g Gomega) {
			g.Expect(replicas(g, ctx, namespace)).To(BeEquivalentTo(2))
			g.Expect(guest.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
			g.Expect(claim.DeletionTimestamp.IsZero()).To(BeFalse())
			hostedCluster := get(g, ctx, name)
			g.Expect(reasonOf(hostedCluster, v1beta1.AutoNodeEnabled)).To(Equal("False/AutoNodeDraining"))
			g.Expect(hostedCluster.Status.AutoNode.DrainStartedTime).NotTo(BeNil())
		}).Should(Succeed())
		machine := &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: claim.Name, Finalizers: []string{clusterv1.MachineFinalizer},
				Labels: map[string]string{clusterv1.ClusterNameLabel: name, v1alpha1.NodeClaimUIDLabel: string(claim.UID), v1alpha1.NodeClaimLabel: claim.Name},
			},
			Spec: clusterv1.MachineSpec{ClusterName: name},
		}
		g.Expect(management.Create(ctx, machine)).To(Succeed())
		claim.Finalizers = nil
		g.Expect(guest.Update(ctx, claim)).To(Succeed())
		const waits = "1 Machine is to be deleted by Cluster API"
		g.Eventually(func(g Gomega) {
			g.Expect(get(g, ctx, name).Status.AutoNode).To(HaveField("Message", HavePrefix(waits)))
		}).Should(Succeed())
		g.Expect(management.Patch(ctx, machine, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
		g.Eventually(func(g Gomega) {
			hostedCluster := &v1beta1.HostedCluster{}
			if err := management.Get(ctx, client.ObjectKey{Namespace: "clusters", Name: name}, hostedCluster); err != nil {
				g.Expect(client.IgnoreNotFound(err)).To(Succeed())
				return
			}
			g.Expect(hostedCluster.Status.AutoNode).To(Or(BeNil(), HaveField("Message", Not(HavePrefix(waits)))))
		}).WithTimeout(20*time.Second).Should(Succeed(), "it would have looked by itself only later: nothing has told it that the Machine is gone")
	})

	t.Run("When nothing of it is left, it should let the HostedCluster go", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) {
			err := management.Get(ctx, client.ObjectKey{Namespace: "clusters", Name: name}, &v1beta1.HostedCluster{})
			g.Expect(client.IgnoreNotFound(err)).To(Succeed())
			g.Expect(err).To(HaveOccurred())
		}).Should(Succeed())
		err := management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "karpenter"}, &v1beta1.ControlPlaneComponent{})
		g.Expect(client.IgnoreNotFound(err)).To(Succeed())
		g.Expect(err).To(HaveOccurred())
		g.Eventually(func(g Gomega) { g.Expect(served(g, name)).To(BeEmpty()) }).Should(Succeed())
	})
}

// served returns the operator's metrics about a HostedCluster.
func served(g Gomega, name string) map[string]float64 {
	families, err := crmetrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	values := map[string]float64{}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), metrics.Namespace+"_") {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "name" && label.GetValue() == name {
					values[family.GetName()] = metric.GetGauge().GetValue()
				}
			}
		}
	}
	return values
}

func patch(g Gomega, ctx context.Context, name string, change func(*v1beta1.HostedCluster)) {
	hostedCluster := get(g, ctx, name)
	before := hostedCluster.DeepCopy()
	change(hostedCluster)
	g.Expect(clusters.Management.Client.Patch(ctx, hostedCluster, client.MergeFrom(before))).To(Succeed())
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

// validation is about HostedClusters whose spec can't be followed. None of them reaches a guest.
func validation(t *testing.T, host string) {
	ctx, management := t.Context(), clusters.Management.Client
	image := push(t, host, "1.36.2")
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
					MaintenanceWindow: &v1beta1.MaintenanceWindow{Schedule: "0 0 30 2 *", Duration: metav1.Duration{Duration: time.Hour}},
				}
			},
			want: "False/InvalidSpec", message: "spec.autoNode.nodeUpgrade.maintenanceWindow.schedule",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			hostedCluster := &v1beta1.HostedCluster{
				ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: test.hosted},
				Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: image}, AutoNode: scopetest.AutoNode()},
			}
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

	t.Run("When the pull secret comes late, it should name it and go on when it is there", func(t *testing.T) {
		g := NewWithT(t)
		consent(t, "clusters-secretive", "clusters/secretive")
		g.Expect(management.Create(ctx, &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "secretive"},
			Spec: v1beta1.HostedClusterSpec{
				// Another payload: one that was pulled before needs no credentials.
				Release:    v1beta1.Release{Image: push(t, host, "1.36.4")},
				PullSecret: &corev1.LocalObjectReference{Name: "late"}, AutoNode: scopetest.AutoNode(),
			},
		})).To(Succeed())
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
	})

	t.Run("When a kind isn't served, it should wait for its provider and go on when it is there", func(t *testing.T) {
		g := NewWithT(t)
		platform(t, "late")
		hostedCluster := &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "late"},
			Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: image}, AutoNode: scopetest.AutoNode()},
		}
		hostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI.InfrastructureTemplateSelectors[0].Kind = "LateMachineTemplate"
		g.Expect(management.Create(ctx, hostedCluster)).To(Succeed())
		g.Eventually(func(g Gomega) {
			hostedCluster := get(g, ctx, "late")
			g.Expect(reasonOf(hostedCluster, v1beta1.ValidConfiguration)).To(Equal("False/KindNotFound"))
			g.Expect(hostedCluster.Status.AutoNode.Message).To(ContainSubstring("LateMachineTemplate"))
		}).Should(Succeed())
		_, err := envtest.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{
			scopetest.Definition("infrastructure.cluster.x-k8s.io", "LateMachine", "latemachines", "v1beta1"),
			scopetest.Definition("infrastructure.cluster.x-k8s.io", "LateMachineTemplate", "latemachinetemplates", "v1beta1"),
		}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func(g Gomega) {
			g.Expect(reasonOf(get(g, ctx, "late"), v1beta1.ValidConfiguration)).To(Equal("True/AsExpected"))
		}).Should(Succeed())
	})

	t.Run("When names join to a namespace of the management cluster's own, it should refuse it", func(t *testing.T) {
		for _, test := range []struct{ namespace, name string }{{"kube", "system"}, {"kube-node", "lease"}, {"autonode", "system"}} {
			g := NewWithT(t)
			g.Expect(management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: test.namespace}})).To(Succeed())
			hostedCluster := &v1beta1.HostedCluster{
				ObjectMeta: metav1.ObjectMeta{Namespace: test.namespace, Name: test.name},
				Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: image}, AutoNode: scopetest.AutoNode()},
			}
			g.Expect(management.Create(ctx, hostedCluster)).To(Succeed())
			g.Eventually(func(g Gomega) {
				g.Expect(management.Get(ctx, client.ObjectKeyFromObject(hostedCluster), hostedCluster)).To(Succeed())
				g.Expect(reasonOf(hostedCluster, v1beta1.ValidConfiguration)).To(Equal("False/ControlPlaneNamespaceForbidden"))
				g.Expect(hostedCluster.Finalizers).To(BeEmpty())
			}).Should(Succeed(), "%s-%s", test.namespace, test.name)
			g.Expect(management.Delete(ctx, hostedCluster)).To(Succeed())
		}
	})

	t.Run("When names join to the namespace of another tenant who doesn't use AutoNode, it should refuse it until that tenant has gone", func(t *testing.T) {
		g := NewWithT(t)
		consent(t, "team-red-web", "team/red-web")
		for _, ns := range []string{"team", "team-red"} {
			g.Expect(management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})).To(Succeed())
		}
		g.Expect(management.Create(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-red-web", Name: "web"}})).To(Succeed())
		victim := &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-red", Name: "web"},
			Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: image}},
		}
		g.Expect(management.Create(ctx, victim)).To(Succeed())
		thief := &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "red-web"},
			Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: image}, InfraID: "web", AutoNode: scopetest.AutoNode()},
		}
		g.Expect(management.Create(ctx, thief)).To(Succeed())
		verdict := func(g Gomega) string {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(thief), thief)).To(Succeed())
			return reasonOf(thief, v1beta1.ValidConfiguration)
		}
		g.Eventually(func(g Gomega) {
			g.Expect(verdict(g)).To(Equal("False/InvalidSpec"))
			g.Expect(thief.Status.AutoNode.Message).To(ContainSubstring("HostedCluster team-red/web"))
			g.Expect(thief.Finalizers).To(BeEmpty())
		}).Should(Succeed())
		g.Expect(management.Delete(ctx, victim)).To(Succeed())
		g.Eventually(func(g Gomega) { g.Expect(verdict(g)).To(Equal("True/AsExpected")) }).Should(Succeed())
	})

	t.Run("When two HostedClusters come to the same namespace, it should serve the first alone", func(t *testing.T) {
		g := NewWithT(t)
		for _, ns := range []string{"clusters-la", "clusters-la-te"} {
			g.Expect(management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})).To(Succeed())
		}
		for _, name := range []string{"la-te", "te"} { // not provisioned: their guest stays out of it
			g.Expect(management.Create(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
				Namespace: "clusters-la-te", Name: name, Annotations: map[string]string{v1beta1.ConsentAnnotation: "clusters/la-te"},
			}})).To(Succeed())
		}
		second := &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "la-te"},
			Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: image}, AutoNode: scopetest.AutoNode()},
		}
		third := second.DeepCopy()
		third.Namespace, third.Name = "clusters-la", "te"
		g.Expect(management.Create(ctx, second)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(get(g, ctx, "la-te").Finalizers).To(ContainElement(v1beta1.HostedClusterFinalizer))
		}).Should(Succeed())
		g.Expect(management.Create(ctx, third)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(management.Get(ctx, client.ObjectKeyFromObject(third), third)).To(Succeed())
			g.Expect(reasonOf(third, v1beta1.ValidConfiguration)).To(Equal("False/InvalidSpec"))
			g.Expect(third.Status.AutoNode.Message).To(ContainSubstring("HostedCluster clusters/la-te"))
		}).Should(Succeed())
	})
}
