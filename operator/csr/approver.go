// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

// Guests reaches guests.
type Guests interface {
	// Of returns the guest of a HostedCluster; nil while it isn't connected.
	Of(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (*scope.Guest, error)
}

var _ Guests = (*guest.Connections)(nil)

// Config is what New needs.
type Config struct {
	// Management reads HostedClusters, and Machines as MachineCache keeps them, from the cache.
	Management client.Client
	// Live reads from the management cluster's API server.
	Live client.Reader
	// Recorder writes events on HostedClusters.
	Recorder events.EventRecorder
	// Profiles say whose nodes' requests are decided on.
	Profiles provider.Profiles
	// Clock tells the time; nil is the real one.
	Clock clock.PassiveClock
}

// Approver decides on the certificate requests of all guests.
type Approver struct {
	Config
	guests Guests
	ledger *ledger
	// groups of the node classes whose NodeClaims are looked at.
	groups sets.Set[string]
}

var _ reconcile.TypedReconciler[Key] = (*Approver)(nil)

// New returns an Approver; SetUp lets it work.
func New(config Config) *Approver {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	groups := sets.New[string]()
	for _, profile := range config.Profiles {
		if profile.ApprovesCertificates {
			groups.Insert(profile.NodeClass.Group)
		}
	}
	return &Approver{Config: config, ledger: newLedger(), groups: groups}
}

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=get;list;watch
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=kubeadmconfigs,verbs=get

// SetUp adds the controller to the manager.
func (a *Approver) SetUp(ctx context.Context, mgr manager.Manager, guests Guests) error {
	a.guests = guests
	if err := mgr.GetFieldIndexer().IndexField(ctx, &clusterv1.Machine{}, nodeNameIndex, nodeNames); err != nil {
		return fmt.Errorf("indexing Machines by the names of their nodes: %w", err)
	}
	c, err := controller.NewTyped("certificatesigningrequest", mgr, controller.TypedOptions[Key]{
		Reconciler:              a,
		MaxConcurrentReconciles: 20, // they mostly wait for answers
	})
	if err != nil {
		return fmt.Errorf("setting up the controller of certificate requests: %w", err)
	}
	for _, from := range []source.TypedSource[Key]{
		source.TypedFunc[Key](func(_ context.Context, queue workqueue.TypedRateLimitingInterface[Key]) error {
			a.ledger.start(queue)
			return nil
		}),
		source.TypedKind(mgr.GetCache(), &clusterv1.Machine{}, a.onMachine()),
		source.TypedKind(mgr.GetCache(), &v1beta1.HostedCluster{}, a.onHostedCluster()),
		source.TypedKind(mgr.GetCache(), &clusterv1.Cluster{}, a.onCluster()),
	} {
		if err := c.Watch(from); err != nil {
			return fmt.Errorf("setting up the controller of certificate requests: %w", err)
		}
	}
	return nil
}

// Watch is what the guests' connections are to watch.
func (a *Approver) Watch() guest.Watch {
	return guest.Watch{
		Object:    &certificatesv1.CertificateSigningRequest{},
		Transform: shrinkRequest,
		Index:     firstCertificateIndex,
		Extract:   firstCertificate,
		For:       func(s *scope.Scope) bool { return s.Profile.ApprovesCertificates },
		Handle: func(hostedCluster types.NamespacedName) toolscache.ResourceEventHandler {
			changed := func(object any) {
				if tombstone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
					object = tombstone.Obj
				}
				if request, ok := object.(*certificatesv1.CertificateSigningRequest); ok && kubelets(request.Spec.SignerName) {
					a.ledger.enqueue(Key{hostedCluster, request.Name})
				}
			}
			return toolscache.ResourceEventHandlerFuncs{
				AddFunc:    changed,
				UpdateFunc: func(_, after any) { changed(after) },
				DeleteFunc: changed,
			}
		},
	}
}

// firstCertificateIndex indexes requests by the node that got its first certificate by them.
const firstCertificateIndex = "autonode.io/first-certificate"

func firstCertificate(object client.Object) []string {
	csr, ok := object.(*certificatesv1.CertificateSigningRequest)
	if !ok || !hasCondition(csr, certificatesv1.CertificateApproved) || hasCondition(csr, certificatesv1.CertificateFailed) {
		return nil
	}
	r := newRequest(csr)
	if node, ok := r.subject(); ok && r.bootstraps() {
		return []string{node}
	}
	return nil
}

// shrinkRequest drops what isn't looked at: issued certificates, and the content of requests to other signers.
func shrinkRequest(object any) (any, error) {
	if request, ok := object.(*certificatesv1.CertificateSigningRequest); ok {
		request.ManagedFields = nil
		if len(request.Status.Certificate) > 0 {
			request.Status.Certificate = []byte{0} // that it is there is what counts
		}
		if !kubelets(request.Spec.SignerName) {
			request.Spec.Request, request.Status = nil, certificatesv1.CertificateSigningRequestStatus{}
		}
	}
	return object, nil
}

// onMachine has undecided requests looked at again when there is something new to judge them by.
func (a *Approver) onMachine() handler.TypedEventHandler[*clusterv1.Machine, Key] {
	wake := func(machine *clusterv1.Machine, queue workqueue.TypedRateLimitingInterface[Key]) {
		a.ledger.wake(client.ObjectKey{Namespace: machine.Namespace, Name: machine.Labels[clusterv1.ClusterNameLabel]}, queue)
	}
	type queue = workqueue.TypedRateLimitingInterface[Key]
	return handler.TypedFuncs[*clusterv1.Machine, Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*clusterv1.Machine], q queue) { wake(e.Object, q) },
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*clusterv1.Machine], q queue) { wake(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*clusterv1.Machine], q queue) {
			if !equality.Semantic.DeepEqual(e.ObjectOld.Status, e.ObjectNew.Status) || !equality.Semantic.DeepEqual(e.ObjectOld.Labels, e.ObjectNew.Labels) {
				wake(e.ObjectNew, q)
			}
		},
	}
}

// onHostedCluster has undecided requests looked at again when a pause ends.
func (a *Approver) onHostedCluster() handler.TypedEventHandler[*v1beta1.HostedCluster, Key] {
	return handler.TypedFuncs[*v1beta1.HostedCluster, Key]{
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*v1beta1.HostedCluster], q workqueue.TypedRateLimitingInterface[Key]) {
			if cluster, ok := guest.ClusterKey(e.ObjectNew); ok && statePaused(e.ObjectOld) && !statePaused(e.ObjectNew) {
				a.ledger.wake(cluster, q)
			}
		},
	}
}

// onCluster does the same for a pause of Cluster API's.
func (a *Approver) onCluster() handler.TypedEventHandler[*clusterv1.Cluster, Key] {
	type queue = workqueue.TypedRateLimitingInterface[Key]
	return handler.TypedFuncs[*clusterv1.Cluster, Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*clusterv1.Cluster], q queue) {
			a.ledger.wake(client.ObjectKeyFromObject(e.Object), q)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*clusterv1.Cluster], q queue) {
			if annotations.IsPaused(e.ObjectOld, e.ObjectOld) && !annotations.IsPaused(e.ObjectNew, e.ObjectNew) {
				a.ledger.wake(client.ObjectKeyFromObject(e.ObjectNew), q)
			}
		},
	}
}

func statePaused(hostedCluster *v1beta1.HostedCluster) bool {
	return hostedCluster.Status.AutoNode != nil && hostedCluster.Status.AutoNode.State == v1beta1.AutoNodeStatePaused
}

// paused is true while nothing is to be decided. In the middle of a clusterctl move, Machines are missing that are elsewhere already.
func (a *Approver) paused(ctx context.Context, hostedCluster *v1beta1.HostedCluster, key client.ObjectKey) (bool, error) {
	if statePaused(hostedCluster) {
		return true, nil
	}
	cluster := &clusterv1.Cluster{}
	switch err := a.Management.Get(ctx, key, cluster); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("reading the Cluster: %w", err)
	}
	return annotations.IsPaused(cluster, cluster), nil
}

// Reconcile decides on one request.
func (a *Approver) Reconcile(ctx context.Context, key Key) (reconcile.Result, error) {
	hostedCluster := &v1beta1.HostedCluster{}
	if err := a.Management.Get(ctx, key.HostedCluster, hostedCluster); err != nil {
		if apierrors.IsNotFound(err) {
			a.ledger.forget(key)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	cluster, ok := guest.ClusterKey(hostedCluster)
	if !ok {
		return reconcile.Result{}, nil
	}
	g, err := a.guests.Of(ctx, hostedCluster)
	if err != nil || g == nil {
		return reconcile.Result{}, err // the next connection lists all requests
	}
	object := &certificatesv1.CertificateSigningRequest{}
	if err := g.Cached.Get(ctx, client.ObjectKey{Name: key.Name}, object); err != nil {
		if apierrors.IsNotFound(err) {
			a.ledger.forget(key)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if decided(object) {
		a.ledger.forget(key)
		return reconcile.Result{}, nil
	}
	if paused, err := a.paused(ctx, hostedCluster, cluster); paused || err != nil {
		a.ledger.keep(cluster, key)
		return reconcile.Result{}, err
	}
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues(
		"HostedCluster", klog.KObj(hostedCluster), "CertificateSigningRequest", klog.KObj(object), "signer", object.Spec.SignerName))
	return reconcile.Result{}, a.decide(ctx, key, &judged{hostedCluster: hostedCluster, cluster: cluster, guest: g, request: newRequest(object)})
}

// judged is one request with what its judgement needs.
type judged struct {
	hostedCluster *v1beta1.HostedCluster
	cluster       client.ObjectKey
	guest         *scope.Guest
	request       request
}

func (a *Approver) decide(ctx context.Context, key Key, j *judged) error {
	verdict, err := a.judge(ctx, j)
	if err != nil {
		return err
	}
	switch verdict.decision {
	case ignored, waiting:
		if a.ledger.keep(j.cluster, key) {
			a.count(j, verdict)
			if verdict.decision == waiting {
				log.FromContext(ctx).Info("Waiting with a certificate request", "reason", verdict.reason, "message", verdict.message)
			}
		}
		return nil
	case approved:
		return a.approve(ctx, key, j, verdict)
	default:
		return a.write(ctx, j, certificatesv1.CertificateDenied, verdict)
	}
}

// judge takes the evidence from the caches, but turns nobody away by a reading that may be old.
func (a *Approver) judge(ctx context.Context, j *judged) (verdict, error) {
	e, err := a.gather(ctx, j, false)
	if err != nil {
		return verdict{}, err
	}
	v := judge(j.request, e, a.Clock.Now())
	if v.decision != denied {
		return v, nil
	}
	if e, err = a.gather(ctx, j, true); err != nil {
		return verdict{}, err
	}
	return judge(j.request, e, a.Clock.Now()), nil
}

// approve lets one request at a time have a node's first certificate: the cache may not show yet what was approved just now.
func (a *Approver) approve(ctx context.Context, key Key, j *judged, v verdict) error {
	if !j.request.bootstraps() {
		return a.write(ctx, j, certificatesv1.CertificateApproved, v)
	}
	name, _ := j.request.subject()
	node := grantKey{key.HostedCluster, name}
	if rival := a.ledger.grant(node, key.Name, j.request.UID, a.Clock.Now()); rival != "" {
		return a.write(ctx, j, certificatesv1.CertificateDenied, *alreadyRequested(rival))
	}
	// A write that failed may have been done all the same, so the grant stays.
	return a.write(ctx, j, certificatesv1.CertificateApproved, v)
}

// write writes the decision into the request.
func (a *Approver) write(ctx context.Context, j *judged, condition certificatesv1.RequestConditionType, v verdict) error {
	object := j.request.DeepCopy()
	now := metav1.NewTime(a.Clock.Now())
	object.Status.Conditions = append(object.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: condition, Status: corev1.ConditionTrue, Reason: v.reason, Message: v.message, LastUpdateTime: now, LastTransitionTime: now,
	})
	if err := j.guest.Live.SubResource("approval").Update(ctx, object); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil // it has changed, and comes here again
		}
		return fmt.Errorf("writing the decision on certificate request %s: %w", object.Name, err)
	}
	a.count(j, v)
	if v.decision == approved {
		log.FromContext(ctx).Info("Approved a certificate request", "subject", j.request.content.Subject.CommonName)
		return nil
	}
	log.FromContext(ctx).Info("Denied a certificate request", "reason", v.reason, "message", v.message)
	a.Recorder.Eventf(j.hostedCluster, nil, corev1.EventTypeWarning, v.reason, "DenyCertificate",
		"denied certificate request %s in the guest: %s", object.Name, v.message)
	return nil
}

func (a *Approver) count(j *judged, v verdict) {
	decisions.WithLabelValues(j.request.Spec.SignerName, string(v.decision), v.reason).Inc()
}
