// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	certutil "k8s.io/client-go/util/cert"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/crd"
	"github.com/autonode-io/autonode/operator/egress"
	"github.com/autonode-io/autonode/operator/guest"
	autonodekubeconfig "github.com/autonode-io/autonode/operator/kubeconfig"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/scope/scopetest"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

// parent reconciles HostedClusters by the guest step and the one that applies definitions, and remembers what came of it.
type parent struct {
	management client.Client
	steps      []scope.Step

	mu    sync.Mutex
	last  map[types.NamespacedName]*scope.Scope
	count map[types.NamespacedName]int
}

func (p *parent) Reconcile(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (reconcile.Result, error) {
	p.mu.Lock()
	before := p.last[client.ObjectKeyFromObject(hostedCluster)]
	p.mu.Unlock()
	if before != nil {
		before.HostedCluster.Status.DeepCopyInto(&hostedCluster.Status)
	}
	s := &scope.Scope{HostedCluster: hostedCluster, ControlPlaneNamespace: hostedCluster.Namespace + "-" + hostedCluster.Name}
	cluster := &clusterv1.Cluster{}
	if err := p.management.Get(ctx, s.ClusterKey(), cluster); err == nil {
		s.Cluster = cluster
	}
	full, err := clusters.NewScope(ctx, hostedCluster.Name) // for its payload
	if err != nil {
		return reconcile.Result{}, err
	}
	s.Release, s.Karpenter, s.Profile = full.Release, full.Karpenter, full.Profile
	var result scope.Result
	for _, step := range p.steps {
		if result, err = step.Reconcile(ctx, s); err != nil || result.Wait || s.Guest == nil {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := client.ObjectKeyFromObject(hostedCluster)
	p.last[key] = s
	p.count[key]++
	return reconcile.Result{RequeueAfter: result.RequeueAfter}, err
}

// reachable returns the step's last verdict on a HostedCluster, and the guest that it gave.
func (p *parent) reachable(name string) (metav1.Condition, *scope.Guest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.last[types.NamespacedName{Namespace: "clusters", Name: name}]
	if s == nil {
		return metav1.Condition{}, nil
	}
	if c := meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.GuestReachable); c != nil {
		return *c, s.Guest
	}
	return metav1.Condition{}, s.Guest
}

func (p *parent) reconciled(name string) func() int {
	return func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.count[types.NamespacedName{Namespace: "clusters", Name: name}]
	}
}

func TestConnections(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	scheme, err := scopetest.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	mgr, err := manager.New(clusters.Management.Config, manager.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	g.Expect(err).NotTo(HaveOccurred())
	seen := make(chan string, 10)
	loopback, err := egress.NewPolicy("127.0.0.0/8")
	g.Expect(err).NotTo(HaveOccurred())
	connections, err := guest.New(ctx, guest.Config{Manager: mgr, Egress: loopback, ConnectRetry: 200 * time.Millisecond, Watches: []guest.Watch{{
		Object: &certificatesv1.CertificateSigningRequest{},
		Index:  "signer",
		Extract: func(object client.Object) []string {
			return []string{object.(*certificatesv1.CertificateSigningRequest).Spec.SignerName}
		},
		For: func(s *scope.Scope) bool { return s.HostedCluster.Name == "blue" },
		Handle: func(hostedCluster types.NamespacedName) toolscache.ResourceEventHandler {
			return toolscache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
				seen <- hostedCluster.String() + " " + object.(client.Object).GetName()
			}}
		},
	}}})
	g.Expect(err).NotTo(HaveOccurred())
	p := &parent{
		management: mgr.GetClient(), last: map[types.NamespacedName]*scope.Scope{}, count: map[types.NamespacedName]int{},
		steps: []scope.Step{connections, crd.New(crd.Config{Apply: apply.New()})},
	}
	g.Expect(builder.ControllerManagedBy(mgr).For(&v1beta1.HostedCluster{}).WatchesRawSource(connections.Source()).
		Complete(reconcile.AsReconciler(mgr.GetClient(), p))).To(Succeed())
	done := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() { done <- mgr.Start(running) }()
	t.Cleanup(func() {
		stop()
		NewWithT(t).Eventually(done).Should(Receive(BeNil()))
	})
	management := clusters.Management.Client

	status := func(name string) func() metav1.ConditionStatus {
		return func() metav1.ConditionStatus { c, _ := p.reachable(name); return c.Status }
	}
	message := func(name string) func() string {
		return func() string { c, _ := p.reachable(name); return c.Reason + ": " + c.Message }
	}

	t.Run("When there is no kubeconfig yet, it should say so, and connect once there is one", func(t *testing.T) {
		g := NewWithT(t)
		_, err := clusters.NewScope(ctx, "blue")
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(message("blue")).Should(Equal("Connecting: waiting for kubeconfig Secret clusters-blue/blue-kubeconfig"))
		g.Expect(status("blue")()).To(Equal(metav1.ConditionUnknown))
		g.Expect(management.Create(ctx, kubeconfig(g, "blue", nil))).To(Succeed())
		g.Eventually(status("blue")).Should(Equal(metav1.ConditionTrue))
		_, given := p.reachable("blue")
		g.Expect(given.Config.Host).To(ContainSubstring(hostOf(clusters.Guest.Config.Host)))
		g.Expect(given.Live.Get(ctx, client.ObjectKey{Name: "kube-system"}, &corev1.Namespace{})).To(Succeed())
	})

	t.Run("When the definitions are established, it should reconcile for what happens to NodeClaims and Nodes, and not for heartbeats", func(t *testing.T) {
		g := NewWithT(t)
		guestClient := clusters.Guest.Client
		quiet := func(g Gomega) { // no reconciliation in a while
			before := p.reconciled("blue")()
			g.Consistently(p.reconciled("blue"), 1500*time.Millisecond).Should(Equal(before))
		}
		g.Eventually(func(g Gomega) {
			for _, name := range []string{guest.NodeClaimDefinition, guest.NodePoolDefinition, clusterapi.New().NodeClass.Definition()} {
				established, err := guest.IsEstablished(ctx, guestClient, name)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(established).To(BeTrue())
			}
		}).Should(Succeed())
		g.Eventually(quiet).Should(Succeed())
		reconciles := func(change func() error) {
			before := p.reconciled("blue")()
			t.Helper()
			g.Expect(change()).To(Succeed())
			g.Eventually(p.reconciled("blue")).Should(BeNumerically(">", before))
			g.Eventually(quiet).Should(Succeed())
		}

		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{karpv1.NodePoolLabelKey: "general"}}}
		reconciles(func() error { return guestClient.Create(ctx, node) })
		node.Status.NodeInfo.KubeletVersion = "v1.36.2"
		node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
		reconciles(func() error { return guestClient.Status().Update(ctx, node) })

		_, given := p.reachable("blue")
		cached := &corev1.Node{}
		g.Expect(given.Cached.Get(ctx, client.ObjectKey{Name: "n1"}, cached)).To(Succeed())
		g.Expect(cached.Status.NodeInfo.KubeletVersion).To(Equal("v1.36.2"))
		g.Expect(cached.Status.Capacity.Cpu().Value()).To(BeEquivalentTo(4))

		before := p.reconciled("blue")()
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
		g.Expect(guestClient.Status().Update(ctx, node)).To(Succeed())
		g.Consistently(p.reconciled("blue"), time.Second).Should(Equal(before))

		claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c1"}, Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
		}}
		reconciles(func() error { return guestClient.Create(ctx, claim) })
		claim.StatusConditions().SetTrue(karpv1.ConditionTypeDrifted)
		reconciles(func() error { return guestClient.Status().Update(ctx, claim) })
		reconciles(func() error { return guestClient.Delete(ctx, claim) })
		class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
		reconciles(func() error { return guestClient.Create(ctx, class) })
		reconciles(func() error { return guestClient.Delete(ctx, node) })
	})

	t.Run("When another controller watches a kind, it should be told of it for the guests that it wants, and read it by its index", func(t *testing.T) {
		g := NewWithT(t)
		g.Consistently(seen, 300*time.Millisecond).ShouldNot(Receive())
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		g.Expect(err).NotTo(HaveOccurred())
		content, err := certutil.MakeCSR(key, &pkix.Name{CommonName: "x"}, nil, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(clusters.Guest.Client.Create(ctx, &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "x"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: content, SignerName: "example.com/x", Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
			},
		})).To(Succeed())
		g.Eventually(seen).Should(Receive(Equal("clusters/blue x")))

		blue := &v1beta1.HostedCluster{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: "clusters", Name: "blue"}, blue)).To(Succeed())
		of, again, err := connections.Of(ctx, blue)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again).To(BeZero())
		list := &certificatesv1.CertificateSigningRequestList{}
		g.Expect(of.Cached.List(ctx, list, client.MatchingFields{"signer": "example.com/x"})).To(Succeed())
		g.Expect(list.Items).To(HaveLen(1))
		of, again, err = connections.Of(ctx, &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "nowhere"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(of).To(BeNil())
		g.Expect(again).To(BeZero())
	})

	t.Run("When AutoNode is off, it should not connect, until it is turned on", func(t *testing.T) {
		g := NewWithT(t)
		s, err := clusters.NewScope(ctx, "green")
		g.Expect(err).NotTo(HaveOccurred())
		off := client.MergeFrom(s.HostedCluster.DeepCopy())
		s.HostedCluster.Spec.AutoNode, s.HostedCluster.Finalizers = nil, nil
		g.Expect(management.Patch(ctx, s.HostedCluster, off)).To(Succeed())
		g.Eventually(func() *v1beta1.AutoNode { return p.spec("green") }).Should(BeNil())
		g.Expect(management.Create(ctx, kubeconfig(g, "green", nil))).To(Succeed())
		g.Consistently(func() *scope.Guest { _, given := p.reachable("green"); return given }, time.Second).Should(BeNil())

		on := client.MergeFrom(s.HostedCluster.DeepCopy())
		s.HostedCluster.Spec.AutoNode = scopetest.AutoNode()
		g.Expect(management.Patch(ctx, s.HostedCluster, on)).To(Succeed())
		g.Eventually(status("green")).Should(Equal(metav1.ConditionTrue))
	})

	t.Run("When the kubeconfig leads nowhere, it should say so, and recover when it is corrected", func(t *testing.T) {
		g := NewWithT(t)
		secret := kubeconfig(g, "red", func(s string) string { return strings.ReplaceAll(s, hostOf(clusters.Guest.Config.Host), "127.0.0.1:1") })
		_, err := clusters.NewScope(ctx, "red")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(management.Create(ctx, secret)).To(Succeed())
		g.Eventually(message("red")).Should(Equal("Unreachable: https://127.0.0.1:1 doesn't answer, or refuses the credentials " +
			"of kubeconfig Secret clusters-red/red-kubeconfig"))
		g.Expect(status("red")()).To(Equal(metav1.ConditionFalse))

		made := counter(g, "autonode_guest_connections_total")
		secret.Data = kubeconfig(g, "red", nil).Data
		g.Expect(management.Update(ctx, secret)).To(Succeed())
		g.Eventually(status("red")).Should(Equal(metav1.ConditionTrue))
		g.Expect(counter(g, "autonode_guest_connections_total")).To(Equal(made + 1))
	})

	t.Run("When the kubeconfig is renewed, it should connect anew, and one that says the same should change nothing", func(t *testing.T) {
		g := NewWithT(t)
		user, err := clusters.Guest.Environment.AddUser(envtest.User{Name: "renewed", Groups: []string{"system:masters"}}, nil)
		g.Expect(err).NotTo(HaveOccurred())
		renewed, err := user.KubeConfig()
		g.Expect(err).NotTo(HaveOccurred())
		secret := &corev1.Secret{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: "clusters-red", Name: "red-kubeconfig"}, secret)).To(Succeed())
		made := counter(g, "autonode_guest_connections_total")
		secret.Data["value"] = renewed
		g.Expect(management.Update(ctx, secret)).To(Succeed())
		g.Eventually(func(g Gomega) {
			_, guest := p.reachable("red")
			g.Expect(guest).NotTo(BeNil())
			g.Expect(guest.Config.CertData).To(Equal(user.Config().CertData))
			g.Expect(guest.Live.List(ctx, &corev1.NodeList{})).To(Succeed())
		}).Should(Succeed())
		metav1.SetMetaDataAnnotation(&secret.ObjectMeta, "touched", "true")
		g.Expect(management.Update(ctx, secret)).To(Succeed())
		g.Consistently(func() float64 { return counter(g, "autonode_guest_connections_total") }, time.Second).Should(Equal(made + 1))
	})

	t.Run("When a token is renewed, the connection that stands should use it, whatever other Secrets of the Cluster say", func(t *testing.T) {
		g := NewWithT(t)
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "tokens"}}
		g.Expect(clusters.Guest.Client.Create(ctx, account)).To(Succeed())
		g.Expect(clusters.Guest.Client.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "tokens"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "tokens"}},
		})).To(Succeed())
		token := func() string {
			request := &authenticationv1.TokenRequest{}
			g.Expect(clusters.Guest.Client.SubResource("token").Create(ctx, account, request)).To(Succeed())
			return request.Status.Token
		}
		config := func(token string) []byte {
			config := clusters.Guest.Config
			content, err := (&autonodekubeconfig.Access{Server: "https://" + hostOf(config.Host), CA: config.CAData, Token: token}).Config("", "")
			g.Expect(err).NotTo(HaveOccurred())
			return content
		}
		_, err := clusters.NewScope(ctx, "eks")
		g.Expect(err).NotTo(HaveOccurred())
		secret := kubeconfig(g, "eks", nil)
		secret.Data["value"] = config(token())
		g.Expect(management.Create(ctx, secret)).To(Succeed())
		g.Eventually(status("eks")).Should(Equal(metav1.ConditionTrue))
		made := counter(g, "autonode_guest_connections_total")
		reconciled := p.reconciled("eks")()

		renewed := token()
		secret.Data["value"] = config(renewed)
		g.Expect(management.Update(ctx, secret)).To(Succeed())
		other := kubeconfig(g, "eks", func(s string) string { return strings.ReplaceAll(s, hostOf(clusters.Guest.Config.Host), "127.0.0.1:1") })
		other.Name = "eks-user-kubeconfig"
		g.Expect(management.Create(ctx, other)).To(Succeed())
		g.Eventually(p.reconciled("eks")).Should(BeNumerically(">", reconciled))
		_, given := p.reachable("eks")
		g.Eventually(func() (string, error) {
			content, err := os.ReadFile(given.Config.BearerTokenFile)
			return string(content), err
		}).Should(Equal(renewed))
		g.Expect(given.Live.List(ctx, &corev1.NodeList{})).To(Succeed())
		g.Consistently(func() float64 { return counter(g, "autonode_guest_connections_total") }, time.Second).Should(Equal(made))
	})

	t.Run("When a kubeconfig can't be parsed, it should say what is wrong with it", func(t *testing.T) {
		g := NewWithT(t)
		_, err := clusters.NewScope(ctx, "broken")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(management.Create(ctx, kubeconfig(g, "broken", func(string) string { return "nonsense" }))).To(Succeed())
		g.Eventually(message("broken")).Should(Equal("Unreachable: kubeconfig Secret clusters-broken/broken-kubeconfig can't be used: it is no kubeconfig"))
	})

	t.Run("When a Secret isn't the operator's business, its content should not be kept", func(t *testing.T) {
		g := NewWithT(t)
		for name, kept := range map[string]bool{"blue-ca": false, "machine-1": false, v1beta1.GuestAccessSecret: true} {
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "blue"}},
				Data:       map[string][]byte{"key": []byte("secret")},
			}
			g.Expect(management.Create(ctx, secret)).To(Succeed())
			read := &corev1.Secret{}
			g.Eventually(func() error {
				return connections.Secrets().Get(ctx, client.ObjectKeyFromObject(secret), read)
			}).Should(Succeed())
			g.Expect(len(read.Data) > 0).To(Equal(kept), name)
		}
	})
}

// counter returns what a counter counts that the program serves, of all HostedClusters together.
func counter(g Gomega, name string) float64 {
	families, err := crmetrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() == name {
			sum := 0.0
			for _, metric := range family.GetMetric() {
				sum += metric.GetCounter().GetValue()
			}
			return sum
		}
	}
	g.Expect(name).To(BeEmpty(), "it isn't served")
	return 0
}

func (p *parent) spec(name string) *v1beta1.AutoNode {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.last[types.NamespacedName{Namespace: "clusters", Name: name}]; s != nil {
		return s.HostedCluster.Spec.AutoNode
	}
	return scopetest.AutoNode()
}

// kubeconfig is the Secret that Cluster API's contract demands.
func kubeconfig(g Gomega, cluster string, change func(string) string) *corev1.Secret {
	user, err := clusters.Guest.Environment.AddUser(envtest.User{Name: "operator", Groups: []string{"system:masters"}}, clusters.Guest.Config)
	g.Expect(err).NotTo(HaveOccurred())
	data, err := user.KubeConfig()
	g.Expect(err).NotTo(HaveOccurred())
	if change != nil {
		data = []byte(change(string(data)))
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "clusters-" + cluster, Name: cluster + "-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: cluster},
		},
		Type: clusterv1.ClusterSecretType,
		Data: map[string][]byte{"value": data},
	}
}

func hostOf(host string) string { return strings.TrimSuffix(strings.TrimPrefix(host, "https://"), "/") }
