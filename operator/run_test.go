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
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator"
	"github.com/autonode-io/autonode/operator/metrics"
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
	err := apiserver.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{
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

// removeAll removes the HostedClusters with a label when the test ends, after the operators that were started later: other tests have the same
// two clusters.
func removeAll(t *testing.T, label string) {
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
	options.LeaseDuration, options.RenewDeadline = time.Hour, time.Hour-time.Minute // it gives the Lease back when it ends
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

// selecting are the options of an operator that looks after the HostedClusters with a label, beside those of other tests.
func selecting(label string) operator.Options {
	return operator.Options{
		HostedClusterSelector: label, LeaderElection: true, LeaderElectionNamespace: "default", LeaseName: label, MetricsRegistry: prometheus.NewRegistry(),
	}
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
	platformIn(t, "clusters", name, clusters.Guest.Config)
}

// platformIn does it for a HostedCluster of any namespace, whose guest is reached by config.
func platformIn(t *testing.T, hostedClusters, name string, config *rest.Config) {
	t.Helper()
	g := NewWithT(t)
	management := clusters.Management.Client
	namespace := hostedClusters + "-" + name
	for _, ns := range []string{hostedClusters, namespace} {
		g.Expect(client.IgnoreAlreadyExists(management.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))).To(Succeed())
	}
	provision(t, namespace, name, hostedClusters+"/"+name, config)
}

// provision makes a Cluster that consents to a HostedCluster, and its kubeconfig.
func provision(t *testing.T, namespace, name, hostedCluster string, config *rest.Config) {
	t.Helper()
	g, management := NewWithT(t), clusters.Management.Client
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Annotations: map[string]string{v1beta1.ConsentAnnotation: hostedCluster},
	}}
	g.Expect(management.Create(t.Context(), cluster)).To(Succeed())
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	g.Expect(management.Status().Update(t.Context(), cluster)).To(Succeed())

	admin := &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	if len(config.CertData) == 0 {
		admin.Token = "of-no-use" // its guest requires none
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

// get reads a HostedCluster from the API server.
func get(g Gomega, ctx context.Context, name string) *v1beta1.HostedCluster {
	return scopetest.Get(ctx, g, clusters.Management.Client, "clusters", name, &v1beta1.HostedCluster{})
}

// newHosted returns a HostedCluster with AutoNode on and these labels.
func newHosted(namespace, name, release string, labels ...string) *v1beta1.HostedCluster {
	hostedCluster := &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}},
		Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: release}, AutoNode: scopetest.AutoNode()},
	}
	for _, label := range labels {
		hostedCluster.Labels[label] = ""
	}
	return hostedCluster
}

// newMachine returns a Machine of Karpenter's.
func newMachine(namespace, cluster, name string) *clusterv1.Machine {
	return &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{
			clusterv1.ClusterNameLabel: cluster, v1alpha1.NodeClaimLabel: name, v1alpha1.NodeClaimUIDLabel: "uid-" + name,
		}},
		Spec: clusterv1.MachineSpec{ClusterName: cluster},
	}
}

// runs waits until Karpenter runs with an image and the HostedCluster reports it.
func runs(t *testing.T, name, image string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	g.Eventually(func(g Gomega) { rollOut(g, ctx, "clusters-"+name, image) }).Should(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(reasonOf(get(g, ctx, name), v1beta1.AutoNodeEnabled)).To(Equal("True/AsExpected"))
	}).Should(Succeed())
}

func reasonOf(hostedCluster *v1beta1.HostedCluster, conditionType string) string {
	if c := meta.FindStatusCondition(hostedCluster.Status.Conditions, conditionType); c != nil {
		return string(c.Status) + "/" + c.Reason
	}
	return ""
}

// deploymentOf reads Karpenter's Deployment.
func deploymentOf(g Gomega, ctx context.Context, namespace string) *appsv1.Deployment {
	return scopetest.Get(ctx, g, clusters.Management.Client, namespace, v1beta1.KarpenterComponent, &appsv1.Deployment{})
}

// componentOf reads Karpenter's component.
func componentOf(g Gomega, ctx context.Context, namespace string) *v1beta1.ControlPlaneComponent {
	return scopetest.Get(ctx, g, clusters.Management.Client, namespace, v1beta1.KarpenterComponent, &v1beta1.ControlPlaneComponent{})
}

// rollOut stands in for the Deployment controller, which no envtest has.
func rollOut(g Gomega, ctx context.Context, namespace, image string) {
	deployment := deploymentOf(g, ctx, namespace)
	g.Expect(deployment.Spec.Template.Spec.Containers[0].Image).To(Equal(image))
	n := *deployment.Spec.Replicas
	deployment.Status = appsv1.DeploymentStatus{
		ObservedGeneration: deployment.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n,
	}
	g.Expect(clusters.Management.Client.Status().Update(ctx, deployment)).To(Succeed())
}

// reportReady stands in for Karpenter, which reports on the default node class.
func reportReady(g Gomega, ctx context.Context) {
	class := scopetest.Get(ctx, g, clusters.Guest.Client, "", v1alpha1.DefaultNodeClass, &v1alpha1.ClusterAPINodeClass{})
	for _, condition := range v1alpha1.ReadyConditions() {
		class.StatusConditions().SetTrue(condition)
	}
	class.Status.ObservedGeneration = class.Generation
	g.Expect(clusters.Guest.Client.Status().Update(ctx, class)).To(Succeed())
}

// replicas are those that Karpenter's Deployment is to have.
func replicas(g Gomega, ctx context.Context, namespace string) int32 {
	return ptr.Deref(deploymentOf(g, ctx, namespace).Spec.Replicas, 1)
}

// rollouts returns the rollout that node classes say is complete, and the one that Karpenter's Deployment is for.
func rollouts(g Gomega, ctx context.Context, namespace string) (complete, applied string) {
	class := scopetest.Get(ctx, g, clusters.Guest.Client, "", v1alpha1.DefaultNodeClass, &v1alpha1.ClusterAPINodeClass{})
	for _, variable := range deploymentOf(g, ctx, namespace).Spec.Template.Spec.Containers[0].Env {
		if variable.Name == "ROLLOUT_ID" {
			applied = variable.Value
		}
	}
	return class.Annotations[v1alpha1.RolloutAnnotation], applied
}

// scaledDown stands in for the Deployment controller during a pause.
func scaledDown(g Gomega, ctx context.Context, namespace, image string) {
	deployment := deploymentOf(g, ctx, namespace)
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

// served returns the values of the operator's metrics that have a label with that value, by their names: "name" is a HostedCluster's.
func served(g Gomega, label, value string) map[string]float64 {
	families, err := crmetrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, pair := range metric.GetLabel() {
				if strings.HasPrefix(family.GetName(), metrics.Namespace+"_") && pair.GetName() == label && pair.GetValue() == value {
					values[family.GetName()] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
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
