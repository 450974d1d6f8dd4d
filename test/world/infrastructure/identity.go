// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"net"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/infrastructure/bootstrap"
	"github.com/autonode-io/autonode/test/world/infrastructure/node"
)

const (
	nodeUserPrefix = "system:node:"
	nodesGroup     = "system:nodes"
)

// identity is the key and the certificate that a machine's kubelet keeps on its disk.
type identity struct {
	node   string
	server string
	ca     []byte
	key    *ecdsa.PrivateKey
	keyPEM []byte
	// digest of the key.
	digest string
	// client is the request for the client certificate, and certificate what it brought, nil until it was issued.
	client      application
	certificate []byte
	// serving is the request for the serving certificate.
	serving application
	// served: the serving certificate was issued, or none is needed.
	served bool
}

// application is a kubelet's request for a certificate.
type application struct {
	// name of the certificate request, empty while there is none.
	name string
	// asked is when it was made, or was read last without the watch, and seen reports that the watch has brought it.
	asked time.Time
	seen  bool
	backOff
}

// newKey makes a new machine of it: a kubelet starts again after a denied request.
func (d *identity) newKey() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making a key: %w", err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encoding a key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encoding a key: %w", err)
	}
	digest := sha256.Sum256(public)
	d.key, d.keyPEM, d.digest, d.client.name, d.certificate = key, keyPEM, hex.EncodeToString(digest[:]), "", nil
	return nil
}

func (d *identity) subject() *pkix.Name {
	return &pkix.Name{CommonName: nodeUserPrefix + d.node, Organization: []string{nodesGroup}}
}

// identities are the disks of all machines. They are lost when the provider ends: then a machine that hasn't joined never will.
type identities struct {
	mutex     sync.Mutex
	ofMachine map[types.UID]*identity
	// awaited are the machines that wait for what becomes of a certificate request, by its guest and name.
	awaited map[requestKey]types.NamespacedName
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until the controller starts
}

type requestKey struct {
	guest types.NamespacedName
	name  string
}

func newIdentities() *identities {
	return &identities{ofMachine: map[types.UID]*identity{}, awaited: map[requestKey]types.NamespacedName{}}
}

// Start takes the queue of the controller that reconciles machines.
func (d *identities) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.queue = queue
	return nil
}

// await has a machine reconciled when something becomes of a request.
func (d *identities) await(guest types.NamespacedName, request string, machine types.NamespacedName) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.awaited[requestKey{guest, request}] = machine
}

// wake is called for every change of a request in a guest.
func (d *identities) wake(guest types.NamespacedName, request string) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if machine, ok := d.awaited[requestKey{guest, request}]; ok && d.queue != nil {
		d.queue.Add(reconcile.Request{NamespacedName: machine})
	}
}

// get returns a machine's identity, nil where it has none. Only one reconciliation of a machine runs at a time, so that it needs no lock.
func (d *identities) get(machine types.UID) *identity {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.ofMachine[machine]
}

func (d *identities) set(machine types.UID, identity *identity) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.ofMachine[machine] = identity
}

// drop forgets a machine that is being deleted.
func (d *identities) drop(machine types.UID, name types.NamespacedName) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	delete(d.ofMachine, machine)
	for request, waits := range d.awaited {
		if waits == name {
			delete(d.awaited, request)
		}
	}
}

// connection is a client with credentials of its own. No connection to the guest outlives close.
type connection struct {
	kubernetes.Interface
	close func()
}

// dial returns a client that authenticates by a certificate or a token, whichever is given.
func dial(server string, ca []byte, certificate, key []byte, token string) (*connection, error) {
	config := &rest.Config{
		Host: server, BearerToken: token, UserAgent: "kubelet", QPS: -1, Timeout: guestTimeout,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca, CertData: certificate, KeyData: key},
	}
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", server, err)
	}
	client, err := kubernetes.NewForConfigAndClient(config, transport)
	if err != nil {
		return nil, fmt.Errorf("building a client of %s: %w", server, err)
	}
	return &connection{client, func() { utilnet.CloseIdleConnectionsFor(transport.Transport) }}, nil
}

// obstacle is the reason why a machine can't join now.
type obstacle struct {
	reason, message string
	retry           time.Duration
	// unreachable: the guest didn't answer.
	unreachable error
}

func refused(format string, args ...any) *obstacle {
	return &obstacle{reason: infrav1.ReasonRegistrationFailed, message: fmt.Sprintf(format, args...), retry: refusalRetry}
}

// refusal reports whether an error is a rejection, and not an outage.
func refusal(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// errand is one visit of a machine to its guest.
type errand struct {
	now   time.Time
	guest *guest
	// await has the machine come again when something becomes of a certificate request.
	await func(request string)
}

func (r *machineReconciler) errand(i *instance, guest *guest) errand {
	return errand{i.now, guest, func(request string) {
		r.identities.await(i.guest, request, types.NamespacedName{Namespace: i.Namespace, Name: i.Name})
	}}
}

// authenticate returns a connection as the machine's node. Until there is a certificate for that, it reports what is waited for; what
// becomes of the request brings the machine here again.
func (r *machineReconciler) authenticate(ctx context.Context, i *instance, guest *guest, kubelet *bootstrap.Kubelet) (*connection, *obstacle) {
	own := r.identities.get(i.UID)
	if own == nil {
		var problem *obstacle
		if own, problem = newIdentity(guest, kubelet); problem != nil {
			return nil, problem
		}
		r.identities.set(i.UID, own)
	}
	return own.connect(ctx, r.errand(i, guest), kubelet.Discovery.Token)
}

// newIdentity makes the key of a machine that has discovered its guest.
func newIdentity(guest *guest, kubelet *bootstrap.Kubelet) (*identity, *obstacle) {
	if err := kubelet.Discovery.Trusts(guest.config.CAData); err != nil {
		return nil, refused("%v", err)
	}
	own := &identity{node: kubelet.NodeName, server: kubelet.Discovery.Server, ca: guest.config.CAData, served: !kubelet.ServingCertificate,
		client: application{backOff: newBackOff()}, serving: application{backOff: newBackOff()}}
	if err := own.newKey(); err != nil {
		return nil, refused("%v", err)
	}
	return own, nil
}

// connect returns a connection as the machine's node, or reports what is waited for.
func (d *identity) connect(ctx context.Context, e errand, token string) (*connection, *obstacle) {
	if d.certificate == nil {
		if problem := d.certify(ctx, e, token); problem != nil {
			return nil, problem
		}
	}
	connected, err := dial(d.server, d.ca, d.certificate, d.keyPEM, "")
	if err != nil {
		return nil, refused("%v", err)
	}
	return connected, nil
}

// certify requests the client certificate with the bootstrap token, once, and takes it when it was issued. A kubelet that was refused
// waits, longer each time, independent of what happens meanwhile.
func (d *identity) certify(ctx context.Context, e errand, token string) *obstacle {
	request := &d.client
	refuse := func(why string) *obstacle {
		request.name = ""
		return &obstacle{reason: infrav1.ReasonRegistrationFailed, message: why, retry: request.refused(e.now, why)}
	}
	if request.name == "" {
		if left := request.left(e.now); left > 0 {
			return &obstacle{reason: infrav1.ReasonRegistrationFailed, message: request.why, retry: left}
		}
		bootstrapper, err := dial(d.server, d.ca, nil, nil, token)
		if err != nil {
			return refuse(err.Error())
		}
		defer bootstrapper.close()
		name := "node-csr-" + d.digest // the same each time, as a kubelet's
		e.await(name)
		if err := d.ask(ctx, e.now, bootstrapper, request, name, certificatesv1.KubeAPIServerClientKubeletSignerName,
			certificatesv1.UsageClientAuth, nil, nil); err != nil {
			const doing = "asking for the kubelet's client certificate by its bootstrap token"
			if refusal(err) {
				return refuse(fmt.Sprintf("%s: %v", doing, err))
			}
			return &obstacle{unreachable: fmt.Errorf("%s: %w", doing, err)}
		}
	}
	certificate, denied, err := e.guest.certificate(ctx, e.now, request)
	switch {
	case apierrors.IsNotFound(err): // deleted; a kubelet tries again
		return refuse(fmt.Sprintf("certificate request %s was deleted", request.name))
	case err != nil:
		return &obstacle{unreachable: fmt.Errorf("reading certificate request %s: %w", request.name, err)}
	case denied != "":
		why := fmt.Sprintf("certificate request %s: %s", request.name, denied)
		if err := d.newKey(); err != nil {
			why = err.Error()
		}
		return refuse(why)
	case certificate == nil:
		return &obstacle{reason: infrav1.ReasonWaitingForCertificate, retry: request.look(e.now),
			message: fmt.Sprintf("certificate request %s of the kubelet isn't approved and signed yet", request.name)}
	}
	d.certificate = certificate
	return nil
}

// ask makes a certificate request.
func (d *identity) ask(
	ctx context.Context, now time.Time, as kubernetes.Interface, request *application, name, signer string, usage certificatesv1.KeyUsage, dnsNames []string, ips []net.IP,
) error {
	content, err := certutil.MakeCSR(d.key, d.subject(), dnsNames, ips)
	if err != nil {
		return fmt.Errorf("encoding a certificate request: %w", err)
	}
	name, _, err = csr.RequestCertificateWithContext(ctx, as, content, name, signer, nil,
		[]certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage}, d.key)
	if err != nil {
		return err
	}
	request.name, request.asked, request.seen = name, now, false
	return nil
}

// askServing requests the serving certificate, for the addresses that the Node has.
func (d *identity) askServing(ctx context.Context, e errand, as kubernetes.Interface, address string) error {
	if err := d.ask(ctx, e.now, as, &d.serving, "", certificatesv1.KubeletServingSignerName, certificatesv1.UsageServerAuth,
		[]string{d.node}, []net.IP{net.ParseIP(address)}); err != nil {
		return err
	}
	e.await(d.serving.name)
	return nil
}

// serve waits for the serving certificate of a joined machine. A Node works without one, as a real one does until its logs are requested.
func (r *machineReconciler) serve(ctx context.Context, i *instance, guest *guest) reconcile.Result {
	own := r.identities.get(i.UID)
	if own == nil || own.served {
		return reconcile.Result{}
	}
	why, retry := own.serve(ctx, r.errand(i, guest), node.Address(i.providerID()))
	switch {
	case why != "":
		setCondition(i, infrav1.ConditionServing, metav1.ConditionFalse, infrav1.ReasonCertificateRefused, why)
	case own.served && conditions.Has(i, infrav1.ConditionServing):
		setCondition(i, infrav1.ConditionServing, metav1.ConditionTrue, infrav1.ReasonReady, "")
	}
	return reconcile.Result{RequeueAfter: retry}
}

// serve brings the request for the serving certificate further. It returns why the kubelet was refused just now, and when it tries again.
func (d *identity) serve(ctx context.Context, e errand, address string) (why string, retry time.Duration) {
	request := &d.serving
	notServed := func(format string, args ...any) (string, time.Duration) {
		why := fmt.Sprintf(format, args...)
		request.name = ""
		return why, request.refused(e.now, why)
	}
	if request.name == "" {
		if left := request.left(e.now); left > 0 {
			return "", left
		}
		self, err := dial(d.server, d.ca, d.certificate, d.keyPEM, "")
		if err != nil {
			return notServed("%v", err)
		}
		defer self.close()
		if err := d.askServing(ctx, e, self, address); err != nil {
			return notServed("asking for the kubelet's serving certificate: %v", err)
		}
	}
	certificate, denied, err := e.guest.certificate(ctx, e.now, request)
	switch {
	case err != nil:
		return notServed("reading certificate request %s: %v", request.name, err)
	case denied != "":
		return notServed("certificate request %s: %s", request.name, denied)
	case certificate == nil:
		return "", request.look(e.now)
	}
	d.served = true
	return "", 0
}

// unseenGrace is the time for the watch to deliver a certificate request before it is read from the API server.
const unseenGrace = 10 * time.Second

// look is when to ask for a request that the watch hasn't brought; 0 where it has, and brings what becomes of it too.
func (a *application) look(now time.Time) time.Duration {
	if a.seen {
		return 0
	}
	return max(time.Second, a.asked.Add(unseenGrace).Sub(now))
}

// certificate returns the certificate that was issued by a request, nil while it isn't, or why it never will be. What the watch reports counts.
func (g *guest) certificate(ctx context.Context, now time.Time, asked *application) (certificate []byte, denied string, err error) {
	var request *certificatesv1.CertificateSigningRequest
	object, known, _ := g.requests.GetStore().GetByKey(asked.name) // never fails for a name
	switch {
	case known:
		request, asked.seen = object.(*certificatesv1.CertificateSigningRequest), true
	case !asked.seen && now.Before(asked.asked.Add(unseenGrace)):
		return nil, "", nil
	default:
		if request, err = g.client.CertificatesV1().CertificateSigningRequests().Get(ctx, asked.name, metav1.GetOptions{}); err != nil {
			return nil, "", err
		}
		asked.asked, asked.seen = now, false
	}
	for _, condition := range request.Status.Conditions {
		if condition.Type != certificatesv1.CertificateApproved && condition.Status == corev1.ConditionTrue {
			return nil, fmt.Sprintf("%s: %s: %s", condition.Type, condition.Reason, condition.Message), nil
		}
	}
	if len(request.Status.Certificate) > 0 {
		certificate = request.Status.Certificate
	}
	return certificate, "", nil
}
