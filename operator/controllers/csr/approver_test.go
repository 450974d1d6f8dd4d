// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	autonodemanager "github.com/autonode-io/autonode/internal/manager"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/scope"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

// oneGuest is the guest of every HostedCluster.
type oneGuest struct{ guest *scope.Guest }

func (o oneGuest) Guest(context.Context, *v1beta1.HostedCluster) (*scope.Guest, time.Duration, error) {
	return o.guest, 0, nil
}

var profiles = provider.NewProfiles(clusterapi.New(clusterapi.DefaultGroups))

// start runs an Approver for the HostedCluster clusters/blue.
func start(t *testing.T) *Approver {
	t.Helper()
	g := NewWithT(t)
	ctx, s := t.Context(), clusters.NewScope(t, "blue")
	g.Expect(clusters.InstallDefinitions()).To(Succeed())
	// Everybody may ask; who may not is another part's to say.
	g.Expect(clusters.Guest.Client.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "everybody"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: authenticatedGroup}},
	})).To(Succeed())

	scheme, err := scopetest.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	mgr, err := autonodemanager.New(clusters.Management.Config, manager.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Controller: ctrlconfig.Controller{SkipNameValidation: ptr.To(true)},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{&clusterv1.Machine{}: MachineCache(nil)}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	approver := New(Config{Management: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("test"), Profiles: profiles})
	watch := approver.Watch()
	g.Expect(watch.For(s)).To(BeTrue())
	blue, err := cluster.New(clusters.Guest.Config, func(o *cluster.Options) {
		o.Scheme = scheme
		o.Cache.ByObject = map[client.Object]cache.ByObject{watch.Object: {Transform: watch.Transform}}
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(blue.GetFieldIndexer().IndexField(ctx, watch.Object, watch.Index, watch.Extract)).To(Succeed())
	g.Expect(mgr.Add(blue)).To(Succeed())
	g.Expect(approver.SetUp(ctx, mgr, oneGuest{&scope.Guest{Cached: blue.GetClient(), Live: clusters.Guest.Client, Config: clusters.Guest.Config}})).To(Succeed())

	running, stop := context.WithCancel(ctx)
	var stopped sync.WaitGroup
	stopped.Go(func() { g.Expect(mgr.Start(running)).To(Succeed()) })
	t.Cleanup(func() {
		stop()
		stopped.Wait()
	})
	g.Expect(blue.GetCache().WaitForCacheSync(ctx)).To(BeTrue())
	for _, kind := range []client.Object{&karpv1.NodeClaim{}, watch.Object} {
		informer, err := blue.GetCache().GetInformer(ctx, kind)
		g.Expect(err).NotTo(HaveOccurred())
		if kind == watch.Object {
			_, err = informer.AddEventHandler(watch.Handle(client.ObjectKeyFromObject(s.HostedCluster)))
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	return approver
}

// newClaim makes a NodeClaim.
func newClaim(t *testing.T, name string) *karpv1.NodeClaim {
	t.Helper()
	claim := scopetest.NodeClaim(name)
	NewWithT(t).Expect(clusters.Guest.Client.Create(t.Context(), claim)).To(Succeed())
	return claim
}

// newMachine makes the Machine of a NodeClaim, with the token that it is to join with.
func newMachine(t *testing.T, claim *karpv1.NodeClaim, tokenID string, addresses ...clusterv1.MachineAddress) *clusterv1.Machine {
	t.Helper()
	g := NewWithT(t)
	machine := machineOf(claim.Name)
	machine.Labels[v1alpha1.NodeClaimUIDLabel] = string(claim.UID)
	machine.Annotations = map[string]string{v1alpha1.BootstrapTokenIDAnnotation: tokenID}
	g.Expect(clusters.Management.Client.Create(t.Context(), &machine)).To(Succeed())
	setAddresses(t, &machine, addresses...)
	return &machine
}

func setAddresses(t *testing.T, machine *clusterv1.Machine, addresses ...clusterv1.MachineAddress) {
	t.Helper()
	if len(addresses) > 0 {
		machine.Status.Addresses = addresses
		NewWithT(t).Expect(clusters.Management.Client.Status().Update(t.Context(), machine)).To(Succeed())
	}
}

// send makes the request as its user.
func send(t *testing.T, name string, a ask) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	g := NewWithT(t)
	as := rest.CopyConfig(clusters.Guest.Config)
	as.Impersonate = rest.ImpersonationConfig{UserName: a.user, Groups: a.groups}
	user, err := client.New(as, client.Options{Scheme: clusters.Guest.Client.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	object := a.object(t)
	object.ObjectMeta = metav1.ObjectMeta{Name: name}
	g.Expect(user.Create(t.Context(), object)).To(Succeed())
	return object
}

// outcome waits for the decision on a request.
func outcome(t *testing.T, request *certificatesv1.CertificateSigningRequest) certificatesv1.CertificateSigningRequestCondition {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func(g Gomega) {
		g.Expect(clusters.Guest.Client.Get(t.Context(), client.ObjectKeyFromObject(request), request)).To(Succeed())
		g.Expect(request.Status.Conditions).To(HaveLen(1))
	}).Should(Succeed())
	return request.Status.Conditions[0]
}

// issue does what the signer does.
func issue(t *testing.T, request *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	g := NewWithT(t)
	certificate, _, err := certutil.GenerateSelfSignedCertKey("any", nil, nil)
	g.Expect(err).NotTo(HaveOccurred())
	request.Status.Certificate = certificate
	g.Expect(clusters.Guest.Client.Status().Update(t.Context(), request)).To(Succeed())
}

func expect(t *testing.T, request *certificatesv1.CertificateSigningRequest, action certificatesv1.RequestConditionType, reason string) {
	t.Helper()
	got := outcome(t, request)
	NewWithT(t).Expect(got).To(And(HaveField("Type", action), HaveField("Reason", reason)), "%s", got.Message)
}

// undecided looks at a request for a while. The one that is sent after it and decided shows that its turn was over.
func undecided(t *testing.T, request *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	NewWithT(t).Consistently(func(g Gomega) {
		g.Expect(clusters.Guest.Client.Get(t.Context(), client.ObjectKeyFromObject(request), request)).To(Succeed())
		g.Expect(request.Status.Conditions).To(BeEmpty())
	}, 500*time.Millisecond).Should(Succeed())
}

// expectWarning waits for the warning of a RequesterMismatch on an object.
func expectWarning(t *testing.T, cluster client.Client, namespace, kind, name, note string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		events := &eventsv1.EventList{}
		g.Expect(cluster.List(t.Context(), events, client.InNamespace(namespace))).To(Succeed())
		g.Expect(events.Items).To(ContainElement(And(
			HaveField("Reason", v1beta1.RequesterMismatchReason), HaveField("Type", corev1.EventTypeWarning),
			HaveField("Regarding.Kind", kind), HaveField("Regarding.Name", name), HaveField("Note", ContainSubstring(note)),
		)))
	}).Should(Succeed())
}

// noticesOthers has kube-controller-manager's approver approve the first certificate of a machine, while the operator may not.
func noticesOthers(t *testing.T, approver *Approver, node string) {
	t.Helper()
	g := NewWithT(t)
	byOthers := func() string {
		blue := scopetest.Get(t.Context(), g, clusters.Management.Client, "clusters", "blue", &v1beta1.HostedCluster{})
		_, text, _, _ := approver.ApprovedByOthers(blue)
		return text
	}
	g.Expect(byOthers()).To(BeEmpty())
	approve := func(request *certificatesv1.CertificateSigningRequest) {
		request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
			{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved"},
		}
		g.Expect(clusters.Guest.Client.SubResource("approval").Update(t.Context(), request)).To(Succeed())
	}
	approve(send(t, "strange-first", first("strange"))) // isn't a machine of ours
	approve(send(t, node+"-first", first(node)))
	g.Eventually(byOthers).Should(Equal("certificate request " + node + "-first of node " + node +
		" was approved by another approver (reason AutoApproved), which compares it with no Machine"))
}

func TestApprover(t *testing.T) {
	approver := start(t)
	address := clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"}
	const yes, no = certificatesv1.CertificateApproved, certificatesv1.CertificateDenied

	t.Run("When a machine joins, its first and its serving certificate should be approved, and no second first one", func(t *testing.T) {
		g := NewWithT(t)
		newMachine(t, newClaim(t, "web-1"), "abcdef", address)
		counted := func() float64 {
			return testutil.ToFloat64(decisions.WithLabelValues(clientSigner, string(approved), v1beta1.NodeIdentityConfirmedReason))
		}
		before := counted()
		expect(t, send(t, "web-1-first", first("web-1")), yes, v1beta1.NodeIdentityConfirmedReason)
		g.Eventually(counted).Should(Equal(before+1), "it counts once the decision is written, which may be seen before")
		expect(t, send(t, "web-1-again", first("web-1")), no, v1beta1.AlreadyRequestedReason)
		g.Expect(clusters.Guest.Client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "web-1"}})).To(Succeed())
		expect(t, send(t, "web-1-serving", servingOf("web-1", "web-1", "10.0.0.1")), yes, v1beta1.NodeIdentityConfirmedReason)
		undecided(t, send(t, "web-1-renewal", renewal("web-1")))
		expect(t, send(t, "web-1-replay", first("web-1")), no, v1beta1.AlreadyJoinedReason)
	})

	t.Run("When a request is forged, it should be denied, with events on the HostedCluster, and on the Machine and the NodeClaim of the token", func(t *testing.T) {
		newMachine(t, newClaim(t, "web-2"), "zyxwvu", address)
		request := send(t, "web-2-forged", first("web-2")) // by the token of web-1
		expect(t, request, no, v1beta1.RequesterMismatchReason)
		const asker = "it is that of Machine web-1, which requests another's name"
		expectWarning(t, clusters.Management.Client, "clusters", "HostedCluster", "blue", "web-2-forged")
		expectWarning(t, clusters.Management.Client, "clusters-blue", "Machine", "web-1", asker)
		expectWarning(t, clusters.Guest.Client, metav1.NamespaceDefault, "NodeClaim", "web-1", asker)
		expect(t, send(t, "web-2-address", servingOf("web-2", "127.0.0.1")), no, v1beta1.AddressMismatchReason)
	})

	t.Run("When many requests for one machine come at once, one should be approved", func(t *testing.T) {
		g := NewWithT(t)
		newMachine(t, newClaim(t, "web-3"), "abcdef", address)
		var requests []*certificatesv1.CertificateSigningRequest
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			requests = append(requests, send(t, "web-3-"+name, first("web-3")))
		}
		count := map[certificatesv1.RequestConditionType]int{}
		for _, request := range requests {
			count[outcome(t, request).Type]++
		}
		g.Expect(count).To(Equal(map[certificatesv1.RequestConditionType]int{yes: 1, no: 7}))
	})

	t.Run("When the Machine's addresses aren't known yet, the request should wait for them", func(t *testing.T) {
		machine := newMachine(t, newClaim(t, "web-6"), "abcdef")
		request := send(t, "web-6-serving", servingOf("web-6", "10.0.0.6"))
		undecided(t, request)
		setAddresses(t, machine, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: "10.0.0.6"})
		expect(t, request, yes, v1beta1.NodeIdentityConfirmedReason)
	})

	t.Run("When the cluster is paused, requests should wait, however forged, until the pause ends", func(t *testing.T) {
		g := NewWithT(t)
		management := clusters.Management.Client
		newMachine(t, newClaim(t, "web-7"), "abcdef", address)
		newClaim(t, "web-8")
		state := func(state v1beta1.AutoNodeState) {
			blue := scopetest.Get(t.Context(), g, management, "clusters", "blue", &v1beta1.HostedCluster{})
			blue.Status.AutoNode = &v1beta1.AutoNodeStatus{State: state}
			g.Expect(management.Status().Update(t.Context(), blue)).To(Succeed())
		}
		pause := func(paused bool) {
			blue := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue"}}
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"paused":%t}}`, paused))
			g.Expect(management.Patch(t.Context(), blue, patch)).To(Succeed())
		}
		pause(true)
		state(v1beta1.AutoNodeStatePaused)
		good, bad := send(t, "web-7-first", first("web-7")), send(t, "web-8-first", first("web-8"))
		undecided(t, good)
		undecided(t, bad)

		newMachine(t, newClaim(t, "web-13"), "abcdef", address)
		noticesOthers(t, approver, "web-13")
		pause(false)
		state(v1beta1.AutoNodeStateEnabled)
		expect(t, good, yes, v1beta1.NodeIdentityConfirmedReason)
		expect(t, bad, no, v1beta1.MachineMissingReason)
	})

	t.Run("When a node tries again while its request is approved, it should wait until that one's certificate is issued", func(t *testing.T) {
		newMachine(t, newClaim(t, "web-9"), "abcdef", clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: "10.0.0.9"})
		one := send(t, "web-9-1", servingOf("web-9", "10.0.0.9"))
		expect(t, one, yes, v1beta1.NodeIdentityConfirmedReason)
		two, three := send(t, "web-9-2", servingOf("web-9", "10.0.0.9")), send(t, "web-9-3", servingOf("web-9", "10.0.0.9"))
		expect(t, two, no, v1beta1.RequestSupersededReason)
		undecided(t, three)
		issue(t, one)
		expect(t, three, yes, v1beta1.NodeIdentityConfirmedReason)
	})

	t.Run("When an earlier machine's node had the name, the next one should get its own first certificate, once", func(t *testing.T) {
		g := NewWithT(t)
		name := clusterv1.MachineAddress{Type: clusterv1.MachineInternalDNS, Address: "ip-10-0-0-11.internal"}
		claim := newClaim(t, "web-11")
		machine := newMachine(t, claim, "abcdef", name)
		expect(t, send(t, "web-11-first", first(name.Address)), yes, v1beta1.NodeIdentityConfirmedReason)
		g.Expect(clusters.Management.Client.Delete(t.Context(), machine)).To(Succeed())
		g.Expect(clusters.Guest.Client.Delete(t.Context(), claim)).To(Succeed())

		newMachine(t, newClaim(t, "web-12"), "fedcba", name)
		next := first(name.Address).but(func(a *ask) { a.user = bootstrapTokenPrefix + "fedcba" })
		expect(t, send(t, "web-12-first", next), yes, v1beta1.NodeIdentityConfirmedReason)
		expect(t, send(t, "web-12-again", next), no, v1beta1.AlreadyRequestedReason)
		expect(t, send(t, "web-12-forged", first(name.Address)), no, v1beta1.RequesterMismatchReason)
	})

	t.Run("When another signer is asked, the request should be left alone", func(t *testing.T) {
		undecided(t, send(t, "web-1-other", renewal("web-1").but(func(a *ask) { a.signer = "example.com/signer" })))
	})
}
