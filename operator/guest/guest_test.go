// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/v1beta1"
	autonodemanager "github.com/autonode-io/autonode/internal/manager"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/guest/watch"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/crd"
	"github.com/autonode-io/autonode/operator/steps/featuregate"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

// parent reconciles HostedClusters by the guest step and the one that applies definitions, and remembers what came of it.
type parent struct {
	management client.Client
	steps      []scope.Step
	payload    *scope.Scope // of which every HostedCluster has the release

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
	s.Release, s.Karpenter, s.Profile = p.payload.Release, p.payload.Karpenter, p.payload.Profile
	var result scope.Result
	var err error
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

// reachable returns the step's GuestReachable of a HostedCluster, and the guest.
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

// connection is the parent with what another controller is informed of about its guests.
type connection struct {
	*parent
	connections *guest.Connections
	seen        chan string
}

func (p *parent) status(name string) func() metav1.ConditionStatus {
	return func() metav1.ConditionStatus { c, _ := p.reachable(name); return c.Status }
}

func (p *parent) message(name string) func() string {
	return func() string { c, _ := p.reachable(name); return c.Reason + ": " + c.Message }
}

// start runs the steps until the test ends.
func start(t *testing.T) *connection {
	t.Helper()
	g := NewWithT(t)
	ctx := t.Context()
	scheme, err := scopetest.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	mgr, err := autonodemanager.New(clusters.Management.Config, manager.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	g.Expect(err).NotTo(HaveOccurred())
	seen := make(chan string, 10)
	loopback, err := egress.NewPolicy("127.0.0.0/8")
	g.Expect(err).NotTo(HaveOccurred())
	connections, err := guest.New(ctx, guest.Config{Manager: mgr, Egress: loopback, ConnectRetry: 200 * time.Millisecond, Watches: []watch.Kind{{
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
		payload: clusters.NewScope(t, "payload"), management: mgr.GetClient(), last: map[types.NamespacedName]*scope.Scope{}, count: map[types.NamespacedName]int{},
		steps: []scope.Step{
			connections, featuregate.New(featuregate.Config{Management: mgr.GetClient(), Clock: clock.RealClock{}}), crd.New(crd.Config{Apply: apply.New()}),
		},
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
	return &connection{parent: p, connections: connections, seen: seen}
}

// TestConnections goes through the life of connections; each step has what the one before has left.
func TestConnections(t *testing.T) {
	c := start(t)
	t.Run("When there is no kubeconfig yet, it should say so, and connect once there is one", c.connects)
	t.Run("When the definitions are established, it should reconcile for what happens to NodeClaims and Nodes, and not for heartbeats", c.reconcilesForGuest)
	t.Run("When another controller watches a kind, it should be informed of it for the guests that it chooses, and read it by its index", c.watches)
	t.Run("When AutoNode is off, it should not connect, until it is turned on", c.turnsOn)
	t.Run("When the kubeconfig leads nowhere, it should say so, and recover when it is corrected", c.recovers)
	t.Run("When the kubeconfig is renewed, it should reconnect, and an equal one should change nothing", c.renewsCertificate)
	t.Run("When a token is renewed, the connection that stands should use it, independent of other Secrets of the Cluster", c.renewsToken)
	t.Run("When a kubeconfig can't be parsed, it should say what is wrong with it", c.reportsMalformed)
	t.Run("When a kubeconfig Secret has no label, or the guest refuses its credentials, it should name the label, and distinguish a refusal from an unreachable server", c.reportsRefused)
	t.Run("When a Secret isn't the operator's business, its content should not be kept", c.dropsSecrets)
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
