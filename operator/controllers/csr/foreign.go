// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/controllerqueue"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/message"
)

const (
	// foreignFor is how long an approval by another approver counts: as long as kube-controller-manager keeps an approved request.
	foreignFor = time.Hour
	// foreignKnown is how many guests with such approvals are remembered.
	foreignKnown = 1 << 14
)

// foreign remembers the guests in which another approver has approved the first certificate of a machine of ours: nothing compared that
// request with the Machine. After a restart the requests that guests still have say it again.
type foreign struct {
	clock clock.PassiveClock

	queue controllerqueue.Queue[reconcile.Request] // of HostedClusters

	mu   sync.Mutex
	last map[types.NamespacedName]approval
}

// approval is the newest one of a guest by another approver, or an awaited one.
type approval struct {
	reason, message string
	until           time.Time
}

func newForeign(clk clock.PassiveClock) *foreign {
	return &foreign{clock: clk, last: map[types.NamespacedName]approval{}}
}

// note records an approval, and reports whether it is the first that counts now.
func (f *foreign) note(hostedCluster types.NamespacedName, found approval) (first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Now()
	before, known := f.last[hostedCluster]
	known = known && now.Before(before.until)
	if !now.Before(found.until) || known && !found.until.After(before.until) {
		return false
	}
	if len(f.last) >= foreignKnown {
		for key, each := range f.last {
			if !now.Before(each.until) {
				delete(f.last, key)
			}
		}
	}
	if _, replaces := f.last[hostedCluster]; !replaces && len(f.last) >= foreignKnown {
		return false
	}
	f.last[hostedCluster] = found
	f.queue.Add(reconcile.Request{NamespacedName: hostedCluster})
	return !known
}

func (f *foreign) find(hostedCluster types.NamespacedName) (approval, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	found, ok := f.last[hostedCluster]
	if ok && !f.clock.Now().Before(found.until) {
		delete(f.last, hostedCluster)
		return approval{}, false
	}
	return found, ok
}

// Source enqueues the HostedClusters in whose guests another approver has approved a certificate.
func (a *Approver) Source() source.Source { return &a.foreign.queue }

// ApprovedByOthers returns the reason and the message of NodeIdentityEnforced: which request of a guest another approver has approved
// lately, or has to approve, and until when that counts; false for none.
func (a *Approver) ApprovedByOthers(hostedCluster *v1beta1.HostedCluster) (reason, text string, until time.Time, ok bool) {
	found, ok := a.foreign.find(client.ObjectKeyFromObject(hostedCluster))
	if cluster, known := guest.ClusterKey(hostedCluster); !ok && known {
		found, ok = a.ledger.awaited(cluster, a.Clock.Now())
	}
	return found.reason, found.message, found.until, ok
}

// await reports that a request waits for another approver, as long as a kubelet waits for it.
func (a *Approver) await(key Key, j *evaluation, v decision) {
	found := &approval{
		reason:  v1beta1.ApprovalPendingReason,
		message: fmt.Sprintf("certificate request %s waits for another approver: %s", key.Name, v.message),
		until:   j.request.CreationTimestamp.Add(maxAge),
	}
	if !v.pending {
		found = nil
	}
	if a.ledger.await(j.cluster, key, found) && v.pending {
		a.foreign.queue.Add(reconcile.Request{NamespacedName: key.HostedCluster})
		a.Recorder.Eventf(j.hostedCluster, nil, corev1.EventTypeWarning, found.reason, "ApproveCertificate", "%s", found.message)
	}
}

// noteForeign records that another approver has approved the first certificate of a machine of ours.
func (a *Approver) noteForeign(
	ctx context.Context, hostedCluster *v1beta1.HostedCluster, cluster client.ObjectKey, object *certificatesv1.CertificateSigningRequest,
) error {
	reason, approved := approvedFor(object)
	if !approved || reason == v1beta1.NodeIdentityConfirmedReason ||
		object.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	r := unverified(object)
	node, named := r.subject()
	if !r.bootstraps() || !named {
		return nil
	}
	if !r.minted() {
		machines, err := a.machines(ctx, cluster, node)
		if err != nil || !slices.ContainsFunc(called(machines, node), karpenters) {
			return err
		}
	}
	found := approval{
		reason: v1beta1.ApprovedByAnotherReason,
		message: fmt.Sprintf("certificate request %s of node %s was approved by another approver (reason %s), which compares it with no Machine",
			message.Quote(object.Name), message.Quote(node), message.Quote(reason)),
		until: object.CreationTimestamp.Add(foreignFor),
	}
	if a.foreign.note(client.ObjectKeyFromObject(hostedCluster), found) {
		log.FromContext(ctx).Info("Another approver approves certificate requests", "HostedCluster", klog.KObj(hostedCluster), "reason", reason)
		a.Recorder.Eventf(hostedCluster, nil, corev1.EventTypeWarning, v1beta1.ApprovedByAnotherReason, "ApproveCertificate", "%s", found.message)
	}
	return nil
}

// approvedFor returns the reason of a request's approval.
func approvedFor(object *certificatesv1.CertificateSigningRequest) (reason string, approved bool) {
	for i := range object.Status.Conditions {
		if c := &object.Status.Conditions[i]; c.Type == certificatesv1.CertificateApproved {
			return c.Reason, true
		}
	}
	return "", false
}
