// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"context"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/v1beta1"
	karpenterassets "github.com/autonode-io/autonode/assets/karpenter"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator"
	"github.com/autonode-io/autonode/operator/steps/naming"
	"github.com/autonode-io/autonode/payload"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(written.report(scopetest.Run(m, &clusters))) }

// serve runs an operator until the test ends. It looks after the HostedClusters that have the label.
func serve(t *testing.T, label string) {
	t.Helper()
	serveAs(t, clusters.Management.Config, label)
}

// serveAs does it with a way to the management cluster that a test has made.
func serveAs(t *testing.T, config *rest.Config, label string) {
	t.Helper()
	serveUntil(t, t.Context(), config, label)
}

// serveUntil ends the operator with a context, if that ends before the test does.
func serveUntil(t *testing.T, until context.Context, config *rest.Config, label string, changes ...func(*operator.Options)) {
	t.Helper()
	g := NewWithT(t)
	err := apiserver.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		scopetest.Definition("cluster.x-k8s.io", "MachineDeployment", "machinedeployments", "v1beta2"),
		scopetest.Definition("infrastructure.cluster.x-k8s.io", "KwokMachine", "kwokmachines", "v1beta1"),
		scopetest.Definition("infrastructure.cluster.x-k8s.io", "KwokMachineTemplate", "kwokmachinetemplates", "v1beta1"),
		scopetest.Definition("bootstrap.cluster.x-k8s.io", "KubeadmConfig", "kubeadmconfigs", "v1beta2"),
		scopetest.Definition("bootstrap.cluster.x-k8s.io", "KubeadmConfigTemplate", "kubeadmconfigtemplates", "v1beta2"),
	}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(written.start(clusters.Management.Config)).To(Succeed())
	options := operator.Options{
		SkipNameValidation: true, GuestConnectRetry: 200 * time.Millisecond, GuestNetworks: "127.0.0.0/8", RegistryNetworks: "127.0.0.0/8",
		HostedClusterSelector: label, LeaderElection: true, LeaderElectionNamespace: "default", LeaseName: label,
		LeaseDuration: time.Hour, RenewDeadline: time.Hour - time.Minute, // it gives the Lease back when it ends
	}
	for _, change := range changes {
		change(&options)
	}
	ctx, cancel := context.WithCancel(until)
	done := make(chan struct{})
	go func() {
		err := operator.Run(ctx, config, options)
		if err != nil {
			t.Errorf("the operator ended with %v", err)
		}
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// namespace makes a namespace.
func namespace(t *testing.T, name string) {
	t.Helper()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	NewWithT(t).Expect(client.IgnoreAlreadyExists(clusters.Management.Client.Create(t.Context(), object))).To(Succeed())
}

// installDefinitions brings back this project's CRDs.
func installDefinitions(t *testing.T) {
	t.Helper()
	err := apiserver.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{
		Paths: []string{filepath.Join("..", "..", "manifests", "crds")}, ErrorIfPathMissing: true,
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

// enforce has a policy of manifests/policy bind these namespaces, and no others: tests run in any order, and which one of two policies that
// refuse a request the API server names is chance.
func enforce(t *testing.T, policy string, namespaces ...string) {
	t.Helper()
	g := NewWithT(t)
	manifest, err := os.ReadFile(filepath.Join("..", "..", "manifests", "policy", policy+".yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	for document := range strings.SplitSeq(string(manifest), "\n---\n") {
		object := &unstructured.Unstructured{}
		g.Expect(yaml.Unmarshal([]byte(document), &object.Object)).To(Succeed())
		if object.GetKind() == "ValidatingAdmissionPolicyBinding" {
			object.SetName(object.GetName() + "-" + namespaces[0])
			var names []any
			for _, name := range namespaces {
				names = append(names, name)
			}
			selector := []any{map[string]any{"key": corev1.LabelMetadataName, "operator": string(metav1.LabelSelectorOpIn), "values": names}}
			g.Expect(unstructured.SetNestedSlice(object.Object, selector, "spec", "matchResources", "namespaceSelector", "matchExpressions")).To(Succeed())
		}
		g.Expect(client.IgnoreAlreadyExists(clusters.Management.Client.Create(t.Context(), object))).To(Succeed())
	}
}

// bindKarpenter gives the ServiceAccount karpenter of a namespace the Role of a Karpenter, wide enough for any kind, so that only a policy
// can reject its requests. What is named further may be used as references to Secrets.
func bindKarpenter(t *testing.T, namespaceName string, references ...string) {
	t.Helper()
	namespace(t, namespaceName)
	bindServiceAccount(t, namespaceName, v1beta1.DedicatedNames(), references...)
}

// bindServiceAccount does it for the ServiceAccount that has one of these names.
func bindServiceAccount(t *testing.T, namespaceName string, names v1beta1.Names, references ...string) {
	t.Helper()
	g, management := NewWithT(t), clusters.Management.Client
	role, err := karpenterassets.Role()
	g.Expect(err).NotTo(HaveOccurred())
	role.Rules = append(role.Rules,
		rbacv1.PolicyRule{APIGroups: []string{"cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io"}, Resources: []string{"*"}, Verbs: []string{"*"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"workers"}, Verbs: []string{"get"}},
	)
	if len(references) > 0 {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{
			APIGroups: []string{v1beta1.GroupVersion.Group}, Resources: []string{"secretreferences"}, ResourceNames: references, Verbs: []string{"use"},
		})
	}
	binding, err := karpenterassets.RoleBinding()
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range []client.Object{role, binding} {
		g.Expect(naming.Apply(names, object)).To(Succeed())
		object.SetNamespace(namespaceName)
	}
	binding.Subjects[0].Namespace = namespaceName
	g.Expect(management.Create(t.Context(), role)).To(Succeed())
	g.Expect(management.Create(t.Context(), binding)).To(Succeed())
}

// bindForeign gives the ServiceAccount karpenter of a namespace, which has nothing to do with this project, rights on Secrets and Machines.
func bindForeign(t *testing.T, namespaceName string) {
	t.Helper()
	g, management := NewWithT(t), clusters.Management.Client
	namespace(t, namespaceName)
	meta := metav1.ObjectMeta{Namespace: namespaceName, Name: "upstream"}
	g.Expect(management.Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"*"}},
		{APIGroups: []string{"cluster.x-k8s.io"}, Resources: []string{"machines"}, Verbs: []string{"*"}},
	}})).To(Succeed())
	g.Expect(management.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespaceName, Name: v1beta1.KarpenterComponent}},
	})).To(Succeed())
}

// karpenterOf returns a client of the management cluster that impersonates the ServiceAccount karpenter of a namespace.
func karpenterOf(t *testing.T, namespaceName string) client.Client {
	t.Helper()
	return serviceAccount(t, namespaceName, v1beta1.KarpenterComponent)
}

// serviceAccount returns a client of the management cluster that impersonates a ServiceAccount.
func serviceAccount(t *testing.T, namespaceName, name string) client.Client {
	t.Helper()
	config := rest.CopyConfig(clusters.Management.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespaceName + ":" + name, Groups: []string{"system:serviceaccounts", "system:authenticated"},
	}
	impersonating, err := client.New(config, client.Options{Scheme: clusters.Management.Client.Scheme()})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return impersonating
}

// controlPlane makes a Cluster whose infrastructure is provisioned, and its kubeconfig. It names a HostedCluster if that isn't empty.
func controlPlane(t *testing.T, key client.ObjectKey, hostedCluster string, kubeconfig []byte) *clusterv1.Cluster {
	t.Helper()
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	namespace(t, key.Namespace)
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if hostedCluster != "" {
		cluster.Annotations = map[string]string{v1beta1.ConsentAnnotation: hostedCluster}
	}
	g.Expect(management.Create(ctx, cluster)).To(Succeed())
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	g.Expect(management.Status().Update(ctx, cluster)).To(Succeed())
	secret := kubeconfigSecret(key.Namespace, key.Name)
	secret.Data = map[string][]byte{"value": kubeconfig}
	g.Expect(management.Create(ctx, secret)).To(Succeed())
	return cluster
}

func kubeconfigSecret(namespace, cluster string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: cluster + "-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: cluster}},
		Type:       clusterv1.ClusterSecretType,
	}
}

// servePayload serves a payload and returns its tag.
func servePayload(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	images := httptest.NewServer(registry.New())
	t.Cleanup(images.Close)
	image, err := payload.Build(payload.Spec{Version: "1.36.3", Components: []payload.ComponentSpec{{
		Name: "karpenter-clusterapi", Image: "registry.example/karpenter@sha256:" + strings.Repeat("3", 64),
		Versions: map[string]string{payload.KubernetesVersion: "1.36.3"},
	}}})
	g.Expect(err).NotTo(HaveOccurred())
	tag := strings.TrimPrefix(images.URL, "http://") + "/release:1.36.3"
	_, err = payload.Push(t.Context(), tag, image, payload.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	return tag
}

// guestKubeconfig reaches the guest's API server as its administrator.
func guestKubeconfig(t *testing.T) []byte {
	t.Helper()
	config := clusters.Guest.Config
	content, err := clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "c",
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c", AuthInfo: "u"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: "https://" + hostOf(config.Host), CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}},
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return content
}

// honestGuest passes on what is asked of it to the guest's API server.
func honestGuest(t *testing.T) http.Handler {
	t.Helper()
	g := NewWithT(t)
	target, err := url.Parse("https://" + hostOf(clusters.Guest.Config.Host))
	g.Expect(err).NotTo(HaveOccurred())
	transport, err := rest.TransportFor(clusters.Guest.Config)
	g.Expect(err).NotTo(HaveOccurred())
	return &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) { request.SetURL(target) }, Transport: transport, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0),
	}
}

// hosted makes a HostedCluster with AutoNode, and has it go without finalizers when the test ends.
func hosted(t *testing.T, namespaceName, name, label string, change func(*v1beta1.HostedCluster)) *v1beta1.HostedCluster {
	t.Helper()
	g, management := NewWithT(t), clusters.Management.Client
	namespace(t, namespaceName)
	hostedCluster := &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceName, Name: name, Labels: map[string]string{label: ""}},
		Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: "127.0.0.1:1/release:1.36.3"}, AutoNode: scopetest.AutoNode()},
	}
	if change != nil {
		change(hostedCluster)
	}
	g.Expect(management.Create(t.Context(), hostedCluster)).To(Succeed())
	t.Cleanup(func() {
		g, ctx := NewWithT(t), context.Background()
		g.Eventually(func() error {
			err := management.Get(ctx, client.ObjectKeyFromObject(hostedCluster), hostedCluster)
			if err != nil {
				return client.IgnoreNotFound(err)
			}
			hostedCluster.Finalizers = nil
			if err := management.Update(ctx, hostedCluster); err != nil {
				return err
			}
			return client.IgnoreNotFound(management.Delete(ctx, hostedCluster))
		}).Should(Succeed())
	})
	return hostedCluster
}

// condition reads what is said of a HostedCluster, as "Status/Reason: message".
func condition(t *testing.T, hostedCluster *v1beta1.HostedCluster, conditionType string) func() string {
	return func() string {
		read := &v1beta1.HostedCluster{}
		if err := clusters.Management.Client.Get(t.Context(), client.ObjectKeyFromObject(hostedCluster), read); err != nil {
			return err.Error()
		}
		c := meta.FindStatusCondition(read.Status.Conditions, conditionType)
		if c == nil {
			return ""
		}
		return string(c.Status) + "/" + c.Reason + ": " + c.Message
	}
}

// foreign is an attacker's server, or one that no request may reach.
type foreign struct {
	*httptest.Server

	mu       sync.Mutex
	requests []string
}

// listen starts a foreign server. Answer is nil for one that answers with an empty object.
func listen(t *testing.T, secure bool, answer http.HandlerFunc) *foreign {
	t.Helper()
	f := &foreign{}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.requests = append(f.requests, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
		f.mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("{}"))
	}))
	if secure {
		f.StartTLS()
	} else {
		f.Start()
	}
	t.Cleanup(f.Close)
	return f
}

func (f *foreign) asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.requests...)
}

// ca is what a kubeconfig trusts the server by.
func (f *foreign) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})
}

// kubeconfig is a good one, with a token.
func (f *foreign) kubeconfig() *clientcmdapi.Config {
	return &clientcmdapi.Config{
		CurrentContext: "c",
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "c", AuthInfo: "u"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: f.URL, CertificateAuthorityData: f.ca()}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: "the-attackers-own"}},
	}
}
