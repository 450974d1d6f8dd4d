// SPDX-License-Identifier: Apache-2.0

package wiring_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/manifest"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter"
	"github.com/autonode-io/autonode/karpenter/controllers/garbagecollection"
	"github.com/autonode-io/autonode/karpenter/core/leadership"
	"github.com/autonode-io/autonode/karpenter/core/methods"
	"github.com/autonode-io/autonode/karpenter/providers/version"
	"github.com/autonode-io/autonode/test/workload"
	"github.com/autonode-io/autonode/test/world/fault"
	"github.com/autonode-io/autonode/test/world/pki"
	"github.com/autonode-io/autonode/test/world/port"
)

// logFile is where Karpenter logs.
var logFile string

// TestMain sets the logger first of all: controller-runtime discards what is logged, for good, once there has been none for 30 seconds, which
// API servers may take to start.
func TestMain(m *testing.M) {
	file, err := os.CreateTemp("", "wiring-*.log")
	if err == nil {
		logFile, err = file.Name(), file.Close()
	}
	if err == nil {
		file, err = os.OpenFile(logFile, os.O_APPEND|os.O_WRONLY, 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "making a log file:", err)
		os.Exit(1)
	}
	ctrl.SetLogger(zap.New(zap.WriteTo(file)))
	code := environment.Main(m)
	_ = os.Remove(logFile)
	os.Exit(code)
}

const (
	// poolName is the NodePool's that the environment's NodeClaims are of.
	poolName = "general"
	poll     = 100 * time.Millisecond
	// tempted is how long a Karpenter that decides nothing is watched. The same change makes one that decides act within that time.
	tempted = 20 * time.Second
)

// kubeconfig writes one for a test's program.
func kubeconfig(t *testing.T, name string, cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters[name], config.AuthInfos[name] = cluster, user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	path := filepath.Join(t.TempDir(), name)
	NewWithT(t).Expect(clientcmd.WriteToFile(*config, path)).To(Succeed())
	return path
}

// world is an environment with a whole Karpenter in it. The management cluster is behind a proxy.
type world struct {
	*environment.Environment
	management *fault.Proxy
	nodeClass  *v1alpha1.ClusterAPINodeClass
	// log is the file that Karpenter logs into.
	log string
}

// logged returns what Karpenter has logged so far, by lines.
func (w *world) logged(g Gomega) []string {
	content, err := os.ReadFile(w.log)
	g.Expect(err).NotTo(HaveOccurred())
	return strings.Split(strings.TrimSpace(string(content)), "\n")
}

func newWorld(t *testing.T) *world {
	t.Helper()
	g := NewWithT(t)
	w := &world{Environment: environment.New(t)}
	w.InfrastructureTemplate.SetAnnotations(map[string]string{
		"capacity.cluster-autoscaler.kubernetes.io/cpu": "4", "capacity.cluster-autoscaler.kubernetes.io/memory": "8Gi", v1alpha1.PriceAnnotation: "0.1",
	})
	g.Expect(w.Admin.Update(t.Context(), w.InfrastructureTemplate)).To(Succeed())
	w.Cluster.Status.FailureDomains = []clusterv1.FailureDomain{{Name: "a"}}
	g.Expect(w.Admin.Status().Update(t.Context(), w.Cluster)).To(Succeed())
	w.nodeClass = &v1alpha1.ClusterAPINodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: w.Namespace},
		Spec: v1alpha1.ClusterAPINodeClassSpec{
			TemplateSelectors: v1alpha1.TemplateSelectors{InfrastructureTemplateSelectors: []v1alpha1.InfrastructureTemplateSelector{{
				APIGroup: environment.TestMachine.Group, Kind: "TestMachineTemplate",
			}}},
			Bootstrap: &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
				APIGroup: environment.KubeadmConfig.Group, Kind: "KubeadmConfigTemplate", Name: w.BootstrapTemplate.GetName(),
			}},
		},
	}
	g.Expect(w.Admin.Create(t.Context(), w.nodeClass)).To(Succeed())
	// Ready, as of a Karpenter that ran before.
	for _, condition := range v1alpha1.ReadyConditions() {
		w.nodeClass.StatusConditions().SetTrue(condition)
	}
	g.Expect(w.Admin.Status().Update(t.Context(), w.nodeClass)).To(Succeed())
	pool := w.nodePool(poolName)
	pool.Spec.Template.Labels = map[string]string{"example.com/of": "pool"} // which the environment's NodeClaims haven't
	g.Expect(w.Admin.Create(t.Context(), pool)).To(Succeed())

	ca, err := pki.NewAuthority("management")
	g.Expect(err).NotTo(HaveOccurred())
	w.management, err = fault.Start(t.Context(), fault.Config{Upstream: w.Management.GetConfig(), CA: ca})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(w.management.Close()).To(Succeed()) })
	pair, err := ca.Client("karpenter", "system:masters")
	g.Expect(err).NotTo(HaveOccurred())
	guest := rest.CopyConfig(w.Guest.GetConfig())
	g.Expect(rest.LoadTLSFiles(guest)).To(Succeed())
	ports := port.New()
	t.Cleanup(ports.Close)
	for _, variable := range []string{"METRICS_PORT", "HEALTH_PROBE_PORT"} {
		number, err := ports.Next()
		g.Expect(err).NotTo(HaveOccurred())
		t.Setenv(variable, strconv.Itoa(number))
	}
	t.Setenv("KUBECONFIG", "") // Karpenter sets it
	t.Setenv("LEADER_ELECTION_NAMESPACE", w.Namespace)
	t.Setenv("LEADER_ELECTION_NAME", "karpenter-leader-election")
	w.log = logFile
	t.Setenv("LOG_OUTPUT_PATHS", w.log)
	t.Setenv("FEATURE_GATES", "NodeOverlay=true,NodeRepair=true,StaticCapacity=true,CapacityBuffer=true")
	buffers, err := manifest.Decode(apis.CapacityBufferCRD, &apiextensionsv1.CustomResourceDefinition{})
	g.Expect(err).NotTo(HaveOccurred())
	err = apiserver.InstallCRDs(w.Guest.GetConfig(), envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{buffers}})
	g.Expect(err).NotTo(HaveOccurred())
	args := os.Args
	t.Cleanup(func() { os.Args = args })
	os.Args = []string{
		"karpenter-clusterapi", "--cluster-name=" + w.Cluster.Name, "--namespace=" + w.Namespace, "--node-upgrade-window=" + version.Never,
		"--management-kubeconfig=" + kubeconfig(t, "management", &clientcmdapi.Cluster{Server: w.management.URL, CertificateAuthorityData: ca.Certificate},
			&clientcmdapi.AuthInfo{ClientCertificateData: pair.Certificate, ClientKeyData: pair.Key}),
		"--guest-kubeconfig=" + kubeconfig(t, "guest", &clientcmdapi.Cluster{Server: guest.Host, CertificateAuthorityData: guest.CAData},
			&clientcmdapi.AuthInfo{ClientCertificateData: guest.CertData, ClientKeyData: guest.KeyData, Token: guest.BearerToken}),
	}
	return w
}

// run runs Karpenter until the test ends. It can be run once in a process.
func (w *world) run(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- karpenter.Run(ctx, "test") }()
	t.Cleanup(func() {
		w.management.Use(nil)
		stop()
		if err := <-done; err != nil {
			t.Errorf("Karpenter: %v", err)
		}
	})
}

// nodePool returns a NodePool of the world's node class whose nodes stay.
func (w *world) nodePool(name string) *karpv1.NodePool {
	pool := workload.NodePool(name)
	pool.Spec.Template.Spec.NodeClassRef.Name = w.nodeClass.Name
	pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("Never")
	return pool
}

// pod makes a pod for the nodes with a label that no node has room for: two don't fit on one.
func (w *world) pod(t *testing.T, name, label, value string) {
	t.Helper()
	g := NewWithT(t)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name, Labels: map[string]string{label: value}},
		Spec: corev1.PodSpec{NodeSelector: map[string]string{label: value}, Containers: []corev1.Container{{
			Name: "web", Image: "registry.example/web:1",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}},
		}}},
	}
	g.Expect(w.Admin.Create(t.Context(), pod)).To(Succeed())
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	g.Expect(w.Admin.Status().Update(t.Context(), pod)).To(Succeed())
}

// stir changes a pod: an event that wakes Karpenter core's controllers.
func (w *world) stir(g Gomega, ctx context.Context, name string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name}}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/at":%q}}}`, time.Now())
	g.Expect(w.Admin.Patch(ctx, pod, client.RawPatch("application/merge-patch+json", patch))).To(Succeed())
}

// expired makes a NodeClaim whose time is over as soon as it is there.
func (w *world) expired(t *testing.T) *karpv1.NodeClaim {
	t.Helper()
	like := w.NodeClaim(t.Context(), "like")
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace + "-expired", Labels: like.Labels}, Spec: like.Spec}
	claim.Spec.ExpireAfter = karpv1.MustParseNillableDuration("1s")
	NewWithT(t).Expect(w.Admin.Create(t.Context(), claim)).To(Succeed())
	t.Cleanup(func() { _ = w.Admin.Delete(context.WithoutCancel(t.Context()), claim) })
	return claim
}

// claims are those that Karpenter made.
func (w *world) claims(g Gomega, ctx context.Context) []karpv1.NodeClaim {
	list := &karpv1.NodeClaimList{}
	g.Expect(w.Admin.List(ctx, list)).To(Succeed())
	return slices.DeleteFunc(list.Items, func(claim karpv1.NodeClaim) bool { return !strings.HasPrefix(claim.Name, poolName+"-") })
}

// series returns the label and value of each series of a metric.
func series(g Gomega, metric, label string) map[string]float64 {
	values := map[string]float64{}
	for _, one := range gathered(g, metric) {
		values[labelOf(one, label)] = one.GetGauge().GetValue()
	}
	return values
}

// reconciliations counts those with one result, by controller.
func reconciliations(g Gomega, result string) map[string]float64 {
	counts := map[string]float64{}
	for _, one := range gathered(g, "controller_runtime_reconcile_total") {
		if labelOf(one, "result") == result {
			counts[labelOf(one, "controller")] = one.GetCounter().GetValue()
		}
	}
	return counts
}

// gathered are the series of a metric.
func gathered(g Gomega, metric string) []*dto.Metric {
	families, err := crmetrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() == metric {
			return family.GetMetric()
		}
	}
	return nil
}

func labelOf(metric *dto.Metric, name string) string {
	for _, pair := range metric.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// makesMachine are the requests by which a machine begins.
func makesMachine(request *http.Request) bool {
	return request.Method == http.MethodPost && strings.Contains(request.URL.Path, "/testmachines")
}

func deletesMachine(request *http.Request) bool {
	return request.Method == http.MethodDelete && strings.Contains(request.URL.Path, "/machines/")
}

// What karpenter/run.go lists, and what shows that it runs: the name of a controller, or a metric.
var (
	controllers = map[string]string{
		"versions.Tracker": "guest.version", "Upgrade": "nodeupgrade", "nodeclass.New": "nodeclass", "status.NewController": "operatorpkg.clusterapinodeclass.status",
		"nodeclaim.New": "nodeclaim.machine", "k.records": "noderecord", "registration.New": "node.registration",
		"unneeded.New": "nodeclaim.unneeded", "garbagecollection.New": "machine.garbagecollection",
		"wanted.New": "capacitylease.wanted", "nodepool.New": "nodepool.undeclared", "Vacancies": "nodepool.vacancies",
	}
)

// TestKarpenter runs all of Karpenter, with a management cluster that goes away in the middle. Mutants of karpenter/run.go die here: one that
// leaves a controller out, or the gate that decides nothing while the management cluster is away.
func TestKarpenter(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	// A NodeClaim of an hour ago whose Machine couldn't be made, and a Machine whose NodeClaim has gone.
	late := w.NodeClaim(t.Context(), "late")
	late.Finalizers = []string{karpv1.TerminationFinalizer}
	g.Expect(w.Admin.Update(t.Context(), late)).To(Succeed())
	ago := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered} {
		late.StatusConditions().SetUnknown(condition)
	}
	for i := range late.Status.Conditions {
		late.Status.Conditions[i].LastTransitionTime = ago
	}
	g.Expect(w.Admin.Status().Update(t.Context(), late)).To(Succeed())
	gone := w.NodeClaim(t.Context(), "gone")
	abandoned, err := w.Machines(nil).Create(t.Context(), w.Plan(gone))
	g.Expect(err).NotTo(HaveOccurred())
	abandoned.Finalizers = []string{audited} // so that the time of its deletion can be read afterwards
	g.Expect(w.Admin.Update(t.Context(), abandoned)).To(Succeed())
	g.Expect(w.Admin.Delete(t.Context(), gone)).To(Succeed())
	pool := &karpv1.NodePool{}
	g.Expect(w.Admin.Get(t.Context(), client.ObjectKey{Name: poolName}, pool)).To(Succeed())
	pool.StatusConditions().SetTrueWithReason(v1alpha1.TerminateFirstCondition, methods.TerminateFirstReason, "a Karpenter that ran before terminated a node")
	g.Expect(w.Admin.Status().Update(t.Context(), pool)).To(Succeed())
	w.management.Use(fault.Only(makesMachine, fault.Drop))
	undecodable := w.makeUndecodable(t)
	recent, old := w.record(t, 6), w.record(t, 8)
	w.run(t)
	began := time.Now()

	t.Run("When a controller of Karpenter's has work, its queue should be one that can be shut down", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func() map[string]float64 { return series(g, "workqueue_depth", "controller") }).WithContext(t.Context()).WithPolling(poll).
			Should(And(HaveKey("provisioner"), HaveKey("nodeclaim.machine")))
		g.Expect(series(g, "workqueue_depth", "priority")).To(And(HaveLen(1), HaveKey("")), "controller-runtime's own queue has a series for each priority")
	})

	t.Run("When Karpenter runs, all that its run.go lists should run", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega) {
			running := series(g, "controller_runtime_max_concurrent_reconciles", "controller")
			for source, name := range controllers {
				g.Expect(running).To(HaveKey(name), source)
			}
			g.Expect(series(g, "karpenter_clusterapi_machines", "phase")).NotTo(BeEmpty(), "metrics.New")
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(w.nodeClass), w.nodeClass)).To(Succeed())
			g.Expect(w.nodeClass.StatusConditions().Root().IsTrue()).To(BeTrue(), "%v", w.nodeClass.Status.Conditions)
			g.Expect(w.nodeClass.Status.Version).NotTo(BeEmpty())
			g.Expect(w.nodeClass.Status.Templates).NotTo(BeEmpty())
			g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(pool), pool)).To(Succeed())
			g.Expect(pool.StatusConditions().Get(v1alpha1.TerminateFirstCondition)).To(BeNil(), "Vacancies: there is none")
			g.Expect(apierrors.IsNotFound(w.Admin.Get(ctx, client.ObjectKeyFromObject(old), old))).To(BeTrue(), "k.records: it is eight days old")
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
		g.Expect(w.Admin.Get(t.Context(), client.ObjectKeyFromObject(recent), recent)).To(Succeed(), "Karpenter keeps it for seven days")
	})

	t.Run("When a NodeClaim has waited for longer than Karpenter lets it, while none ran, it should have its time from now on", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(late), late)).To(Succeed())
			g.Expect(late.StatusConditions().Get(karpv1.ConditionTypeLaunched).Reason).NotTo(Equal("AwaitingReconciliation"), "an attempt has failed")
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
		g.Expect(late.DeletionTimestamp).To(BeNil())
		w.management.Use(nil)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(late), late)).To(Succeed())
			g.Expect(late.StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue()).To(BeTrue())
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
		g.Expect(late.DeletionTimestamp).To(BeNil())
	})

	t.Run("When a pod fits nowhere, it should get a NodeClaim within the time that Karpenter is tempted for below", func(t *testing.T) {
		w.pod(t, "first", "example.com/of", "pool")
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(w.claims(g, ctx)).To(HaveLen(1))
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	})

	t.Run("When it has started beside a Machine that Go can't decode, it should report it and not lose it", func(t *testing.T) {
		w.holdsUndecodable(t, undecodable)
	})

	t.Run("When nodes may not be upgraded, one with another version than the platform's should stay, and go if its node class names the version", func(t *testing.T) {
		g := NewWithT(t)
		m := &clusterv1.Machine{}
		g.Eventually(func(g Gomega, ctx context.Context) {
			list := &clusterv1.MachineList{}
			g.Expect(w.Admin.List(ctx, list, client.InNamespace(w.Namespace), client.MatchingLabels{v1alpha1.NodeClaimUIDLabel: string(w.claims(g, ctx)[0].UID)})).To(Succeed())
			g.Expect(list.Items).To(HaveLen(1))
			m = &list.Items[0]
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
		g.Expect(w.Admin.Patch(t.Context(), m, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"version":"v1.34.0"}}`)))).To(Succeed())
		// Karpenter looks again whenever the NodeClaim changes.
		drifted := func(g Gomega, ctx context.Context) bool {
			claim := w.claims(g, ctx)[0]
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/at":%q}}}`, time.Now())
			g.Expect(w.Admin.Patch(ctx, &claim, client.RawPatch("application/merge-patch+json", patch))).To(Succeed())
			return claim.StatusConditions().IsTrue(karpv1.ConditionTypeDrifted)
		}
		g.Consistently(drifted).WithContext(t.Context()).WithTimeout(tempted / 2).WithPolling(10 * poll).Should(BeFalse())
		g.Expect(w.Admin.Get(t.Context(), client.ObjectKeyFromObject(w.nodeClass), w.nodeClass)).To(Succeed())
		named := fmt.Appendf(nil, `{"spec":{"version":%q}}`, w.nodeClass.Status.Version)
		g.Expect(w.Admin.Patch(t.Context(), w.nodeClass, client.RawPatch("application/merge-patch+json", named))).To(Succeed())
		g.Eventually(drifted).WithContext(t.Context()).WithPolling(10 * poll).Should(BeTrue())
		g.Expect(w.Admin.Patch(t.Context(), w.nodeClass, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"version":null}}`)))).To(Succeed())
	})

	t.Run("When the Lease may be lost in the middle of a launch, it should not create the Machine, and do so when it still holds the Lease", w.losesLease)
	t.Run("When an API server refuses a request, it should try again after seconds, and go on once that is admitted", w.isRefused)
	t.Run("When a NodePool has as many nodes as its limit allows, its pods should get no more, and be told why", w.isLimited)
	t.Run("When the management cluster is away and then back but slow, it should decide nothing, say so once, and go on without a restart", w.isAway)
	t.Run("When NodePools fail in any mixture, the pods of another should get their nodes as when it is alone", w.mixes)
	t.Run("When a Machine's NodeClaim has gone, it should be removed, and not before the grace period is over", func(t *testing.T) {
		g := NewWithT(t)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(abandoned), abandoned)).To(Succeed())
			g.Expect(abandoned.DeletionTimestamp).NotTo(BeNil())
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
		g.Expect(abandoned.DeletionTimestamp.Sub(began)).To(BeNumerically(">", garbagecollection.GracePeriod-time.Second)) // it has whole seconds
		abandoned.Finalizers = nil
		g.Expect(w.Admin.Update(t.Context(), abandoned)).To(Succeed())
	})
	t.Run("When the CapacityLease has no room for a pod's machine, it should request that, and launch it once it is granted", w.isLeased)
	t.Run("When a NodePool is deleted before its NodeClaims, it should follow them without an error", w.losesNodePool)
	t.Run("When a Cluster has a topology, it should take machines from its MachineDeployments", w.hasTopology)
}

// record makes the NodeRecord of a node that went days ago.
func (w *world) record(t *testing.T, days int) *v1alpha1.NodeRecord {
	t.Helper()
	day := time.Now().UTC().AddDate(0, 0, -days).Format(time.DateOnly)
	record := &v1alpha1.NodeRecord{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("went-%d", days), Labels: map[string]string{v1alpha1.RecordedDayLabel: day}},
		End:        &v1alpha1.NodeEnd{Reason: "Empty"},
	}
	NewWithT(t).Expect(w.Admin.Create(t.Context(), record)).To(Succeed())
	return record
}

// losesLease keeps a launch's first write on its way until the Lease may be another process's.
func (w *world) losesLease(t *testing.T) {
	g := NewWithT(t)
	slow := fault.NewHold(makesMachine)
	w.management.Use(slow.Fault)
	claim := w.NodeClaim(t.Context(), "slow")
	g.Eventually(slow.Arrived()).Should(BeClosed())
	var suspended atomic.Bool
	written := make(chan string, 100)
	w.management.Use(func(request *http.Request, next http.RoundTripper) (*http.Response, error) {
		switch {
		case strings.Contains(request.URL.Path, "/leases"):
			return fault.Drop(request, next)
		case request.Method != http.MethodGet && suspended.Load():
			written <- request.Method + " " + request.URL.Path
		}
		return next.RoundTrip(request)
	})
	g.Eventually(func(g Gomega) {
		g.Expect(series(g, "karpenter_clusterapi_suspended", "")).To(HaveKeyWithValue("", 1.0))
	}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	suspended.Store(true)
	g.Expect(slow.Release(t.Context())).To(Succeed())
	strict := g
	g.Eventually(func(g Gomega, ctx context.Context) {
		strict.Expect(written).To(BeEmpty(), "the first write has ended, and no other may begin")
		g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		g.Expect(claim.StatusConditions().Get(karpv1.ConditionTypeLaunched)).To(HaveField("Reason", leadership.ManagementUnreachableReason))
	}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	g.Expect(written).To(BeEmpty())
	w.management.Use(nil)
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		g.Expect(claim.StatusConditions().IsTrue(karpv1.ConditionTypeLaunched)).To(BeTrue())
	}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
}

// isRefused has an admission policy of the management cluster deny the deletion of a Machine.
func (w *world) isRefused(t *testing.T) {
	g := NewWithT(t)
	claim := w.NodeClaim(t.Context(), "refused")
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		g.Expect(claim.StatusConditions().IsTrue(karpv1.ConditionTypeLaunched)).To(BeTrue())
	}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	refusals := func() (all float64) {
		for _, one := range gathered(g, "karpenter_clusterapi_refused_reconciliations_total") {
			all += one.GetCounter().GetValue()
		}
		return all
	}
	before := refusals()
	w.management.Use(fault.Only(deletesMachine, status(http.StatusForbidden, metav1.StatusReasonForbidden, "ValidatingAdmissionPolicy 'mine' denied request")))
	g.Expect(w.Admin.Delete(t.Context(), claim)).To(Succeed())
	g.Eventually(refusals).WithContext(t.Context()).WithPolling(poll).Should(BeNumerically(">", before))
	w.management.Use(nil)
	g.Eventually(func(ctx context.Context) bool {
		return apierrors.IsNotFound(w.Admin.Get(ctx, client.ObjectKeyFromObject(claim), claim))
	}).WithContext(t.Context()).WithPolling(poll).Should(BeTrue())
}

// isLimited has more pods than nodes that their NodePool may have.
func (w *world) isLimited(t *testing.T) {
	g := NewWithT(t)
	const limited, label = "limited", "example.com/limited"
	pool := w.nodePool(limited)
	pool.Spec.Template.Labels = map[string]string{label: "yes"}
	pool.Spec.Limits = karpv1.Limits{"nodes": resource.MustParse("2")}
	for _, name := range []string{"limited-0", "limited-1", "limited-2", "limited-3", "limited-4"} {
		w.pod(t, name, label, "yes")
	}
	g.Expect(w.Admin.Create(t.Context(), pool)).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(w.launched(g, ctx, limited)).To(Equal(2))
		list := &corev1.EventList{}
		g.Expect(w.Admin.List(ctx, list, client.InNamespace(w.Namespace))).To(Succeed())
		g.Expect(list.Items).To(ContainElement(HaveField("Message", And(ContainSubstring("node limits have been exhausted"), ContainSubstring(limited)))))
	}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	g.Expect(made(g, limited)).To(Equal(2))
	g.Expect(w.Admin.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(w.Namespace), client.MatchingLabels{label: "yes"}, client.GracePeriodSeconds(0))).To(Succeed())
	g.Expect(w.Admin.Delete(t.Context(), pool)).To(Succeed())
}

// isAway takes the management cluster away, and gives it back slow.
func (w *world) isAway(t *testing.T) {
	g := NewWithT(t)
	before := w.claims(g, t.Context())
	w.management.Use(fault.Drop)
	w.management.Cut()
	g.Eventually(func(g Gomega) {
		g.Expect(series(g, "karpenter_clusterapi_suspended", "")).To(HaveKeyWithValue("", 1.0))
		// What was under way when the connection was cut may fail, and say so.
		g.Expect(series(g, "controller_runtime_active_workers", "controller")).To(HaveEach(BeZero()))
	}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	lines, failed := len(w.logged(g)), reconciliations(g, "error")
	w.pod(t, "second", "example.com/of", "pool")
	expired := w.expired(t)
	decidesNothing := func() {
		g.Consistently(func(g Gomega, ctx context.Context) {
			g.Expect(w.claims(g, ctx)).To(HaveLen(len(before)))
			w.stir(g, ctx, "second")
			g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(expired), expired)).To(Succeed())
			g.Expect(expired.DeletionTimestamp).To(BeNil(), "it expires by the clock alone")
		}).WithContext(t.Context()).WithTimeout(tempted).WithPolling(poll).Should(Succeed())
	}
	decidesNothing()
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(expired), expired)).To(Succeed())
		launched := expired.StatusConditions().Get(karpv1.ConditionTypeLaunched)
		g.Expect(launched.Reason).To(Equal(leadership.ManagementUnreachableReason))
		g.Expect(launched.Message).To(Equal(leadership.ErrSuspended.Error()), "its launch wasn't attempted")
	}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	w.management.Use(fault.Late(leadership.RenewDeadline/2 + time.Second)) // later than the elector waits for, which gives up within the time
	decidesNothing()
	all := w.logged(g)
	said := all[lines:]
	g.Expect(count(all, "suspending all decisions")).To(Equal(count(all, "answers again; resuming")+1), "how often it has said so; it may have had another outage before")
	t.Logf("%d lines in %s", len(said), 2*tempted)
	g.Expect(float64(len(said))).To(BeNumerically("<=", 10*(2*tempted).Minutes()), "ten lines a minute:\n%s", strings.Join(said, "\n"))
	g.Expect(reconciliations(g, "error")).To(Equal(failed), "reconciliations that failed, by controller:\n%s", strings.Join(said, "\n"))
	w.management.Use(nil)
	g.Eventually(func(g Gomega, ctx context.Context) {
		err := w.Admin.Get(ctx, client.ObjectKeyFromObject(expired), expired)
		g.Expect(apierrors.IsNotFound(err) || expired.DeletionTimestamp != nil).To(BeTrue(), "it may go now: %v", err)
	}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(len(w.claims(g, ctx))).To(BeNumerically(">", len(before)))
	}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
}

// count counts the lines with a text.
func count(lines []string, text string) (n int) {
	for _, line := range lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// losesNodePool deletes the NodePool.
func (w *world) losesNodePool(t *testing.T) {
	g := NewWithT(t)
	const following = "state.nodeclaim"
	ended := func() (all float64) {
		for _, result := range []string{"requeue_after", "success", "error"} {
			all += reconciliations(g, result)[following]
		}
		return all
	}
	failed := reconciliations(g, "error")[following]
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: poolName}}
	g.Expect(w.Admin.Delete(t.Context(), pool)).To(Succeed())
	g.Eventually(func(ctx context.Context) bool {
		return apierrors.IsNotFound(w.Admin.Get(ctx, client.ObjectKeyFromObject(pool), pool))
	}).WithContext(t.Context()).WithPolling(poll).Should(BeTrue())
	for range 5 {
		before := ended()
		for _, claim := range w.claims(g, t.Context()) {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/at":%q}}}`, time.Now())
			g.Expect(client.IgnoreNotFound(w.Admin.Patch(t.Context(), &claim, client.RawPatch("application/merge-patch+json", patch)))).To(Succeed())
		}
		g.Eventually(ended).WithPolling(poll).Should(BeNumerically(">", before))
	}
	g.Expect(reconciliations(g, "error")[following]).To(Equal(failed))
}
