// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2/textlogger"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/test/world/crd"
	"github.com/autonode-io/autonode/test/world/infrastructure"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

const (
	namespace   = "clusters-blue"
	clusterName = "blue"
	version     = "v1.36.2"
	wait        = apiserver.Timeout
	poll        = 20 * time.Millisecond
	// provisioningDelay and registrationDelay are those of machines that don't say their own.
	provisioningDelay = 50 * time.Millisecond
	registrationDelay = 50 * time.Millisecond
)

// What all tests share: two API servers, and a proxy in front of the guest's so that it can be cut off.
var (
	managementConfig *rest.Config
	guestConfig      *rest.Config
	management       client.Client
	guest            client.Client
	guestProxy       *proxy
	kubeconfig       []byte
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 1, errors.New("KUBEBUILDER_ASSETS must name a folder with etcd and kube-apiserver; `make test` sets it")
	}
	ctrl.SetLogger(textlogger.NewLogger(textlogger.NewConfig()))
	// The conversion of Cluster API's CRDs needs its manager; v1beta2 objects alone don't.
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		return 1, fmt.Errorf("finding Cluster API's module: %w", err)
	}
	bases := filepath.Join(strings.TrimSpace(string(dir)), "core", "config", "crd", "bases")

	managementEnv := apiserver.New(envtest.CRDInstallOptions{
		Paths: []string{
			filepath.Join(bases, "cluster.x-k8s.io_clusters.yaml"),
			filepath.Join(bases, "cluster.x-k8s.io_machines.yaml"),
		},
		ErrorIfPathMissing: true,
	})
	guestEnv := apiserver.New(envtest.CRDInstallOptions{})
	guestEnv.ControlPlane.GetAPIServer().Configure().
		Set("enable-bootstrap-token-auth", "true").
		Set("authorization-mode", "Node", "RBAC").
		Set("enable-admission-plugins", "NodeRestriction")
	var starting sync.WaitGroup
	var managementErr, guestErr error
	starting.Go(func() { managementConfig, managementErr = managementEnv.Start() })
	starting.Go(func() { guestConfig, guestErr = guestEnv.Start() })
	starting.Wait()
	defer func() { err = errors.Join(err, managementEnv.Stop(), guestEnv.Stop()) }()
	if err := errors.Join(managementErr, guestErr); err != nil {
		return 1, fmt.Errorf("starting API servers: %w", err)
	}

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
		if err := add(scheme); err != nil {
			return 1, err
		}
	}
	if management, err = client.New(managementConfig, client.Options{Scheme: scheme}); err != nil {
		return 1, err
	}
	if guest, err = client.New(guestConfig, client.Options{Scheme: scheme}); err != nil {
		return 1, err
	}
	if guestProxy, err = newProxy(guestConfig.Host); err != nil {
		return 1, err
	}
	defer guestProxy.cut()
	if kubeconfig, err = encodeKubeconfig(guestConfig, guestProxy.address); err != nil {
		return 1, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	crds, err := infrastructure.CRDs()
	if err != nil {
		return 1, err
	}
	if err := crd.Install(ctx, management, crds...); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// newCluster starts a provider and makes a namespace with a Cluster whose infrastructure is provisioned.
func newCluster(t *testing.T) string {
	t.Helper()
	ns := newClusterWithoutProvider(t)
	startProvider(t)
	provisionCluster(t, ns)
	return ns
}

func newClusterWithoutProvider(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	ctx := t.Context()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: namespace + "-"}}
	g.Expect(management.Create(ctx, ns)).To(Succeed())
	g.Expect(management.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: clusterName + "-kubeconfig"},
		Type:       clusterv1.ClusterSecretType,
		Data:       map[string][]byte{"value": kubeconfig},
	})).To(Succeed())

	cluster := &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: clusterName},
		Spec: clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: infrav1.GroupVersion.Group, Kind: "KwokCluster", Name: clusterName,
		}},
	}
	g.Expect(management.Create(ctx, cluster)).To(Succeed())
	kwokCluster := &infrav1.KwokCluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns.Name, Name: clusterName, Labels: map[string]string{clusterv1.ClusterNameLabel: clusterName},
			OwnerReferences: []metav1.OwnerReference{ownerReference("Cluster", cluster)},
		},
		Spec: infrav1.KwokClusterSpec{
			Region:         "here",
			FailureDomains: []clusterv1.FailureDomain{{Name: "a"}, {Name: "b"}, {Name: "c"}},
		},
	}
	g.Expect(management.Create(ctx, kwokCluster)).To(Succeed())

	t.Cleanup(func() {
		ctx := context.Background()
		_ = management.DeleteAllOf(ctx, &infrav1.KwokMachine{}, client.InNamespace(ns.Name))
		_ = management.DeleteAllOf(ctx, &clusterv1.Machine{}, client.InNamespace(ns.Name))
		_ = guest.DeleteAllOf(ctx, &corev1.Node{})
	})
	return ns.Name
}

// provisionCluster plays Cluster API's part: what the KwokCluster reports shows in the Cluster.
func provisionCluster(t *testing.T, ns string) {
	t.Helper()
	g := NewWithT(t)
	key := client.ObjectKey{Namespace: ns, Name: clusterName}
	kwokCluster, cluster := &infrav1.KwokCluster{}, &clusterv1.Cluster{}
	g.Eventually(func(g Gomega) {
		g.Expect(management.Get(t.Context(), key, kwokCluster)).To(Succeed())
		g.Expect(kwokCluster.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	}, wait, poll).Should(Succeed())
	g.Expect(management.Get(t.Context(), key, cluster)).To(Succeed())
	cluster.Status.Initialization.InfrastructureProvisioned = kwokCluster.Status.Initialization.Provisioned
	cluster.Status.FailureDomains = kwokCluster.Status.FailureDomains
	g.Expect(management.Status().Update(t.Context(), cluster)).To(Succeed())
}

func startProvider(t *testing.T) *infrastructure.Provider {
	t.Helper()
	provider, err := infrastructure.Start(t.Context(), infrastructure.Config{
		Management:        managementConfig,
		Logger:            ctrl.Log,
		ProvisioningDelay: provisioningDelay,
		RegistrationDelay: registrationDelay,
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(provider.Stop()).To(Succeed()) })
	return provider
}

func ownerReference(kind string, owner client.Object) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: kind, Name: owner.GetName(), UID: owner.GetUID()}
}

// encodeKubeconfig writes an admin kubeconfig for a cluster that is reached at an address.
func encodeKubeconfig(config *rest.Config, address string) ([]byte, error) {
	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"guest": {Server: "https://" + address, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"admin": {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{"guest": {Cluster: "guest", AuthInfo: "admin"}},
		CurrentContext: "guest",
	})
}

// proxy forwards connections to an API server until it is cut.
type proxy struct {
	address, target string

	mutex       sync.Mutex
	listener    net.Listener
	connections []net.Conn
}

func newProxy(host string) (*proxy, error) {
	target := host
	if parsed, err := url.Parse(host); err == nil && parsed.Host != "" {
		target = parsed.Host
	}
	p := &proxy{address: "127.0.0.1:0", target: target}
	return p, p.mend()
}

// mend lets connections through, at the same address as before.
func (p *proxy) mend() error {
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		return err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.listener, p.address = listener, listener.Addr().String()
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", p.target)
			if err != nil {
				_ = near.Close()
				continue
			}
			p.mutex.Lock()
			p.connections = append(p.connections, near, far)
			p.mutex.Unlock()
			forward := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_ = to.Close()
			}
			go forward(near, far)
			go forward(far, near)
		}
	}()
	return nil
}

// cut ends all connections and refuses new ones.
func (p *proxy) cut() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	_ = p.listener.Close()
	for _, connection := range p.connections {
		_ = connection.Close()
	}
	p.connections = nil
}
