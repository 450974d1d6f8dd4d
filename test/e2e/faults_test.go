// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/fault"
	"github.com/autonode-io/autonode/test/world/pki"
	"github.com/autonode-io/autonode/test/world/process"
)

// faults are tests of faults that hit everybody in a world, or that take an operator of their own: they have a world to
// themselves, and take turns in it. Each finds no node, and leaves none.
type faults struct {
	*cluster
	// guestProxy is where everybody but the tests finds the guest, and managementProxy where a test's own operator finds its cluster.
	guestProxy, managementProxy *fault.Proxy
	// on and off are what is there when AutoNode was turned on and off and nothing went wrong.
	on, off inventory
}

func TestFaults(t *testing.T) {
	t.Parallel()
	f := newFaults(t)
	f.play(t, "GuestRefuses", f.guestRefuses)
	f.play(t, "ManagementAway", f.managementAway) // which leaves AutoNode on, for leavesNoTrace
}

// TestOperatorFaults: the tests run operators of their own, which find the management cluster behind a proxy.
func TestOperatorFaults(t *testing.T) {
	t.Parallel()
	f := newFaults(t)
	f.managementProxy = startProxy(t, f.world.Management())
	f.removeOperator(t)
	f.play(t, "RegistryAway", f.registryAway) // before any other upgrade: the node keeps images
	f.play(t, "EveryStep", f.everyStep)
	f.play(t, "Takeover", f.takeover)
}

// newFaults starts a world, and takes its inventory.
func newFaults(t *testing.T) *faults {
	t.Helper()
	g := NewWithT(t)
	f := &faults{cluster: ownWorld(t, blue)[0]}
	f.guestProxy = f.proxyGuest(t)

	f.enable(t, initialRelease)
	f.on = f.takeInventory(g, t.Context())
	f.disable(t, t.Context())
	f.off = f.takeInventory(g, t.Context())
	f.leavesNoTrace(t) // when the subtests are over, and before the world ends
	return f
}

// play runs the test of a fault, which ends its fault itself, and removes what is left of its nodes.
func (f *faults) play(t *testing.T, name string, run func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Cleanup(func() { f.clear(t) })
		run(t)
	})
}

// proxyGuest puts a proxy before the guest: its kubeconfig Secret, which Cluster API's contract has, leads to it until the test ends.
// AutoNode has to be off, because Karpenter would look for the guest where it was.
func (c *cluster) proxyGuest(t *testing.T) *fault.Proxy {
	t.Helper()
	guest := c.world.Guest(c.name)
	proxy := startProxy(t, guest)
	secret := &corev1.Secret{}
	NewWithT(t).Expect(c.management.Get(t.Context(), c.kubeconfigKey(), secret)).To(Succeed())
	was := secret.Data["value"]
	t.Cleanup(func() { c.setKubeconfig(t, context.WithoutCancel(t.Context()), was) })
	c.writeKubeconfig(t, proxy.URL, guest.CA)
	return proxy
}

// startProxy starts a proxy before an API server, until the test's end. What its clients ask for is audited as theirs.
func startProxy(t *testing.T, apiServer *controlplane.Cluster) *fault.Proxy {
	t.Helper()
	g := NewWithT(t)
	upstream, err := apiServer.RESTConfigFor(localworld.FaultProxy, "system:masters")
	g.Expect(err).NotTo(HaveOccurred())
	proxy, err := fault.Start(t.Context(), fault.Config{Upstream: upstream, CA: apiServer.CA})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(proxy.Close()).To(Succeed()) })
	return proxy
}

// writeKubeconfig writes the guest's kubeconfig Secret, with credentials of one authority, which it trusts, and others that it trusts.
func (c *cluster) writeKubeconfig(t *testing.T, url string, ca *pki.Authority, others ...*pki.Authority) {
	t.Helper()
	g := NewWithT(t)
	pair, err := ca.Client("cluster-api", "system:masters")
	g.Expect(err).NotTo(HaveOccurred())
	trusted := ca.Certificate
	for _, other := range others {
		trusted = slices.Concat(trusted, other.Certificate)
	}
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{c.name: {Server: url, CertificateAuthorityData: trusted}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{c.name: {ClientCertificateData: pair.Certificate, ClientKeyData: pair.Key}},
		Contexts:       map[string]*clientcmdapi.Context{c.name: {Cluster: c.name, AuthInfo: c.name}},
		CurrentContext: c.name,
	})
	g.Expect(err).NotTo(HaveOccurred())
	c.setKubeconfig(t, t.Context(), kubeconfig)
}

func (c *cluster) kubeconfigKey() client.ObjectKey {
	return client.ObjectKey{Namespace: c.namespace(), Name: c.name + "-kubeconfig"}
}

func (c *cluster) setKubeconfig(t *testing.T, ctx context.Context, kubeconfig []byte) {
	t.Helper()
	g, secret := NewWithT(t), &corev1.Secret{}
	g.Expect(c.management.Get(ctx, c.kubeconfigKey(), secret)).To(Succeed())
	original := secret.DeepCopy()
	secret.Data["value"] = kubeconfig
	g.Expect(c.management.Patch(ctx, secret, client.MergeFrom(original))).To(Succeed())
}

// removeOperator leaves the world without an operator, for tests that run their own.
func (f *faults) removeOperator(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: localworld.OperatorNamespace, Name: "autonode-operator"}}
	none := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":0}}`))
	g.Expect(f.management.Patch(t.Context(), deployment, none)).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		pods := &corev1.PodList{}
		g.Expect(f.management.List(ctx, pods, client.InNamespace(deployment.Namespace))).To(Succeed())
		g.Expect(pods.Items).To(BeEmpty())
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// startOperator starts an operator behind the proxy, until the test's end. It elects no leader, so that the next one needn't wait.
func (f *faults) startOperator(t *testing.T) *process.Process {
	t.Helper()
	operator, err := f.world.StartOperator(localworld.OperatorConfig{
		Name: "operator", Management: f.managementProxy.URL, Args: []string{"--leader-elect=false"},
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return operator
}

// ofOperator distinguishes the operator's requests from Karpenter's and Cluster API's.
func ofOperator(request *http.Request) bool {
	return strings.HasPrefix(request.UserAgent(), v1beta1.ManagedByOperator)
}

// requestsToken are the operator's requests for the token that Karpenter has in the guest, before it can run.
func requestsToken(request *http.Request) bool {
	return ofOperator(request) && request.Method == http.MethodPost && strings.HasSuffix(request.URL.Path, "/token")
}

// writesDeployment are the operator's requests that say how Karpenter is to run.
func writesDeployment(request *http.Request) bool {
	return ofOperator(request) && request.Method == http.MethodPatch && strings.Contains(request.URL.Path, "/deployments/")
}

// upgradesDeployment are those of the upgraded payload. A reconciliation that began before the upgrade may still apply the old one: an operator
// applies every object once after it has started.
func upgradesDeployment(request *http.Request) bool {
	if !writesDeployment(request) {
		return false
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return false // the operator ended; what is left of the request fails
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	return bytes.Contains(body, []byte("--node-version="+upgradedRelease))
}

// upgradeTo requests a payload.
func (c *cluster) upgradeTo(t *testing.T, release string) {
	t.Helper()
	image := c.world.Release(release)
	c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.Release.Image = image })
}

// runWeb makes the NodePool and a workload with a node for each pod, and waits until it runs.
func (c *cluster) runWeb(t *testing.T, pods int32) {
	t.Helper()
	c.nodePool(t, testPool)
	c.workload(t, "web", pods, "100m", apart)
	c.waitRunning(t, "web")
}

// expectUndisturbed ends a watch of disruptions that must have seen none.
func expectUndisturbed(t *testing.T, disrupted func() (int, []string)) {
	t.Helper()
	most, ever := disrupted()
	g := NewWithT(t)
	g.Expect(ever).To(BeEmpty(), "nodes that were disrupted")
	g.Expect(most).To(BeZero())
}

// registryAway is an upgrade whose payload is known, and whose image can't be pulled.
func (f *faults) registryAway(t *testing.T) {
	g := NewWithT(t)
	operator := f.startOperator(t)
	t.Cleanup(func() { operator.Kill() })
	f.endsSettled(t, initialRelease, f.on)
	f.enable(t, initialRelease)
	f.runWeb(t, 2)
	disrupted := f.watchDisruptions(t)
	karpenter := f.karpenterContainers(g, t.Context())
	registry := f.world.Registry()
	t.Cleanup(func() { registry.SetOutage(false) })

	t.Run("When the registry goes away in the middle of an upgrade, it should say what can't be pulled, and what runs should go on", func(t *testing.T) {
		g := NewWithT(t)
		hold := fault.NewHold(upgradesDeployment)
		f.managementProxy.Use(hold.Fault)
		defer f.managementProxy.Use(nil)
		f.upgradeTo(t, upgradedRelease)
		g.Eventually(hold.Arrived()).WithTimeout(eventually).Should(BeClosed())
		registry.SetOutage(true)
		g.Expect(hold.Release(t.Context())).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(f.condition(g, ctx, v1beta1.AutoNodeEnabled)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.AutoNodeUpgradingReason),
				HaveField("Message", And(ContainSubstring("ImagePull"), ContainSubstring(f.world.Registry().Host()))),
			))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		f.scale(t, "web", 3)
		f.waitRunning(t, "web")
		now := f.karpenterContainers(g, t.Context())
		for name, restarts := range karpenter {
			g.Expect(now).To(HaveKeyWithValue(name, restarts))
		}
	})

	t.Run("When the operator restarts meanwhile, it should say that the registry doesn't answer, and what runs should go on", func(t *testing.T) {
		g := NewWithT(t)
		operator.Kill()
		operator = f.startOperator(t)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(f.condition(g, ctx, v1beta1.ReleaseResolved)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.RegistryUnreachableReason)))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		now := f.karpenterContainers(g, t.Context())
		for name, restarts := range karpenter {
			g.Expect(now).To(HaveKeyWithValue(name, restarts))
		}
	})

	t.Run("When the registry is back, it should complete the upgrade", func(t *testing.T) {
		NewWithT(t).Expect(registry.SetOutage(false)).To(BeNumerically(">=", 2), "requests that the registry refused: of the image, and of the payload")
		f.waitSettled(t, upgradedRelease, f.on)
	})
	expectUndisturbed(t, disrupted)
	f.upgradeTo(t, initialRelease)
}
