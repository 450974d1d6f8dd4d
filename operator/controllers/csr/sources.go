// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"bytes"
	"context"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/guest/watch"
	"github.com/autonode-io/autonode/operator/scope"
)

// Watch returns the kind that the guests' connections watch.
func (a *Approver) Watch() watch.Kind {
	return watch.Kind{
		Object:    &certificatesv1.CertificateSigningRequest{},
		Transform: shrinkRequest,
		Index:     requestIndex,
		Extract:   indexRequest,
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

// requestIndex indexes requests by keys that a node may have only one of: its first certificate, for approved requests,
// and one request per signer of its own, for those neither denied nor failed.
const requestIndex = "autonode.io/request"

func indexRequest(object client.Object) []string {
	csr, ok := object.(*certificatesv1.CertificateSigningRequest)
	if !ok || !kubelets(csr.Spec.SignerName) ||
		hasCondition(csr, certificatesv1.CertificateDenied) || hasCondition(csr, certificatesv1.CertificateFailed) {
		return nil
	}
	if node, byNode := (request{CertificateSigningRequest: csr}).requester(); byNode {
		return []string{ownRequest(csr.Spec.SignerName, node)}
	}
	if !hasCondition(csr, certificatesv1.CertificateApproved) {
		return nil
	}
	r := unverified(csr) // an API server has verified what is approved, and this is the watch's goroutine
	if node, ok := r.subject(); ok && r.bootstraps() {
		return []string{firstCertificate(node)}
	}
	return nil
}

func firstCertificate(node string) string   { return "first/" + node }
func ownRequest(signer, node string) string { return signer + "/" + node }

// Limits of one request in the cache, beside its content. API servers limit none of these.
const (
	maxUserBytes     = 512
	maxGroups        = 16
	maxUsages        = 16
	maxMetadataBytes = 4 << 10
)

// shrinkRequest drops fields that no rule reads: issued certificates, the requester's metadata and extra fields, and
// everything but the name of a request to another signer. So the cache holds a limited number of bytes per request. A
// field selector can't do this: it selects one signer, and a cache has one selector per kind.
func shrinkRequest(object any) (any, error) {
	request, ok := object.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return object, nil
	}
	spec := request.Spec
	if !kubelets(spec.SignerName) {
		return &certificatesv1.CertificateSigningRequest{
			TypeMeta:   request.TypeMeta,
			ObjectMeta: metav1.ObjectMeta{Name: request.Name, UID: request.UID, ResourceVersion: request.ResourceVersion},
		}, nil
	}
	request.ManagedFields = nil
	if size := metadataBytes(request.Labels) + metadataBytes(request.Annotations); size > maxMetadataBytes {
		request.Labels, request.Annotations = nil, nil
	}
	if len(request.OwnerReferences)+len(request.Finalizers) > maxGroups {
		request.OwnerReferences, request.Finalizers = nil, nil
	}
	request.Spec = certificatesv1.CertificateSigningRequestSpec{
		// One byte above the limit shows decode that the request was longer.
		Request: bytes.Clone(spec.Request[:min(len(spec.Request), maxRequestBytes+1)]), SignerName: spec.SignerName,
		Username: strings.Clone(spec.Username[:min(len(spec.Username), maxUserBytes)]), // no node's name is as long
	}
	// Part of a longer list could pass where the whole doesn't.
	if len(spec.Groups) <= maxGroups && !slices.ContainsFunc(spec.Groups, func(group string) bool { return len(group) > maxUserBytes }) {
		request.Spec.Groups = spec.Groups
	}
	if len(spec.Usages) <= maxUsages {
		request.Spec.Usages = spec.Usages
	}
	if len(request.Status.Certificate) > 0 {
		request.Status.Certificate = []byte{0} // that it is there is what counts
	}
	if decided(request) {
		shrinkConditions(request)
	}
	return request, nil
}

// shrinkConditions keeps one condition of each type, and of an approval the reason.
func shrinkConditions(request *certificatesv1.CertificateSigningRequest) {
	var retained []certificatesv1.CertificateSigningRequestCondition
	for _, kind := range []certificatesv1.RequestConditionType{
		certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed,
	} {
		if hasCondition(request, kind) {
			condition := certificatesv1.CertificateSigningRequestCondition{Type: kind}
			if kind == certificatesv1.CertificateApproved {
				reason, _ := approvedFor(request)
				condition.Reason = strings.Clone(reason[:min(len(reason), maxReason)])
			}
			retained = append(retained, condition)
		}
	}
	if len(retained) == 0 && len(request.Status.Conditions) > 0 {
		retained = append(retained, certificatesv1.CertificateSigningRequestCondition{Type: "Other"})
	}
	request.Status.Conditions = retained
}

// maxReason limits the reason of an approval, in bytes.
const maxReason = 64

func metadataBytes(metadata map[string]string) (size int) {
	for key, value := range metadata {
		size += len(key) + len(value)
	}
	return size
}

// onMachine enqueues the undecided requests that name the Machine's node when an input changes.
func (a *Approver) onMachine() handler.TypedEventHandler[*clusterv1.Machine, Key] {
	nodeNames := nodeNames(a.Infrastructure)
	enqueue := func(machines ...*clusterv1.Machine) {
		for _, machine := range machines {
			nodes := nodeNames(machine)
			for _, token := range tokens(machine) {
				nodes = append(nodes, bootstrapTokenPrefix+token)
			}
			if len(nodes) > 0 {
				a.ledger.enqueueUndecided(client.ObjectKey{Namespace: machine.Namespace, Name: machine.Labels[clusterv1.ClusterNameLabel]}, nodes...)
			}
		}
	}
	type queue = workqueue.TypedRateLimitingInterface[Key]
	return handler.TypedFuncs[*clusterv1.Machine, Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*clusterv1.Machine], _ queue) { enqueue(e.Object) },
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*clusterv1.Machine], _ queue) { enqueue(e.Object) },
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*clusterv1.Machine], _ queue) {
			if !equality.Semantic.DeepEqual(e.ObjectOld.Status, e.ObjectNew.Status) ||
				!equality.Semantic.DeepEqual(e.ObjectOld.Labels, e.ObjectNew.Labels) {
				enqueue(e.ObjectOld, e.ObjectNew)
			}
		},
	}
}

// onHostedCluster enqueues undecided requests when a pause ends or the settings change, and drops them when the HostedCluster is gone.
func (a *Approver) onHostedCluster() handler.TypedEventHandler[*v1beta1.HostedCluster, Key] {
	type queue = workqueue.TypedRateLimitingInterface[Key]
	return handler.TypedFuncs[*v1beta1.HostedCluster, Key]{
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*v1beta1.HostedCluster], _ queue) {
			if cluster, ok := guest.ClusterKey(e.ObjectNew); ok && (statePaused(e.ObjectOld) && !statePaused(e.ObjectNew) ||
				!equality.Semantic.DeepEqual(settingsOf(e.ObjectOld), settingsOf(e.ObjectNew))) {
				a.ledger.enqueueUndecided(cluster)
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*v1beta1.HostedCluster], _ queue) {
			if cluster, ok := guest.ClusterKey(e.Object); ok {
				a.ledger.enqueueUndecided(cluster)
			}
			a.limiter.drop(client.ObjectKeyFromObject(e.Object))
		},
	}
}

// onCluster does the same for Cluster API's pause.
func (a *Approver) onCluster() handler.TypedEventHandler[*clusterv1.Cluster, Key] {
	type queue = workqueue.TypedRateLimitingInterface[Key]
	return handler.TypedFuncs[*clusterv1.Cluster, Key]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*clusterv1.Cluster], _ queue) {
			a.ledger.enqueueUndecided(client.ObjectKeyFromObject(e.Object))
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*clusterv1.Cluster], _ queue) {
			if annotations.IsPaused(e.ObjectOld, e.ObjectOld) && !annotations.IsPaused(e.ObjectNew, e.ObjectNew) {
				a.ledger.enqueueUndecided(client.ObjectKeyFromObject(e.ObjectNew))
			}
		},
	}
}
