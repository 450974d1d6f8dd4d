// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// findings are the lines of a drain's record, one per object.
type findings struct{ machines, claims, guest []string }

// record writes the ConfigMap before anything is abandoned, or adds to the record of the same drain. It has no owner,
// so that it outlives the HostedCluster, and is in the namespace of the Machines. The first record of Machines and
// NodeClaims publishes an event, and so does the first of the guest's leftovers.
func (t *Teardown) record(ctx context.Context, s *scope.Scope, why string, found findings) error {
	key := client.ObjectKey{Namespace: s.ControlPlaneNamespace, Name: s.Names().Abandoned}
	started := t.begun(s).UTC().Format(time.RFC3339)
	existing := &corev1.ConfigMap{}
	if err := t.Live.Get(ctx, key, existing); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	known := existing.Data["hostedClusterUID"] == string(s.HostedCluster.UID) && existing.Data["drainStarted"] == started
	if !known {
		existing.Data = map[string]string{"time": t.Clock.Now().UTC().Format(time.RFC3339), "reason": why}
	}
	record := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace,
			Name:      key.Name,
			Labels: map[string]string{
				v1beta1.HostedClusterLabel:          s.HostedCluster.Name,
				v1beta1.HostedClusterNamespaceLabel: s.HostedCluster.Namespace,
			},
		},
		Data: map[string]string{
			"hostedCluster":    s.HostedCluster.Namespace + "/" + s.HostedCluster.Name,
			"hostedClusterUID": string(s.HostedCluster.UID),
			"drainStarted":     started,
			"time":             existing.Data["time"],
			"reason":           existing.Data["reason"],
			"machines":         union(existing.Data["machines"], found.machines),
			"nodeClaims":       union(existing.Data["nodeClaims"], found.claims),
		},
	}
	if guest := union(existing.Data["leftInGuest"], found.guest); guest != "" {
		record.Data["leftInGuest"] = guest
	}
	if s.Profile.Unattended != nil {
		record.Data["unattended"] = s.Profile.Unattended(s.ClusterKey().Name) + "\n"
	}
	if known && maps.Equal(record.Data, existing.Data) {
		return nil
	}
	// A namespace that is being deleted rejects the record. It deletes the Machines too, which Cluster API handles as
	// usual.
	if err := t.Apply.Objects(ctx, t.Management, nil, record); err != nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return err
	}
	tell := func(what string) {
		note := fmt.Sprintf("; %s: see ConfigMap %s", what, key)
		t.Recorder.Eventf(s.HostedCluster, nil, corev1.EventTypeWarning, v1beta1.AbandonedReason, "Drain", "%s%s",
			why[:min(len(why), maxNote-len(note))], note)
	}
	switch n := len(found.machines); {
	case known || n == 0 && len(found.guest) > 0 && s.Profile.Unattended == nil:
	case s.Profile.Unattended != nil:
		tell("machines may be left that no controller removes")
	default:
		tell(fmt.Sprintf("%d %s deleted without a drain", n, english.PluralWord(n, "Machine is", "Machines are")))
	}
	if !known {
		log.FromContext(ctx).Info("Gave up waiting for nodes to drain", "ConfigMap", key, "machines", len(found.machines))
	}
	if len(found.guest) > 0 && existing.Data["leftInGuest"] == "" {
		tell("objects are left in the guest, which refuses their removal")
	}
	return nil
}

// maxNote is the API's limit of an event's note, in bytes.
const maxNote = 1024

// maxRecorded limits each list of the record, in bytes: a ConfigMap is limited to a megabyte.
const maxRecorded = 250 << 10

// union adds lines to a record's, up to the limit.
func union(text string, lines []string) string {
	const cut = "... and more\n"
	if strings.HasSuffix(text, cut) {
		return text
	}
	known := sets.New(strings.Split(text, "\n")...)
	var b strings.Builder
	b.WriteString(text)
	for _, line := range lines {
		if known.Has(line) {
			continue
		}
		if b.Len()+len(line) > maxRecorded {
			b.WriteString(cut)
			break
		}
		known.Insert(line)
		b.WriteString(line + "\n")
	}
	return b.String()
}

// recorded returns a name or a provider ID unchanged, and anything else quoted: the guest's admin controls a guest's
// status. Provider IDs may be longer than the limit of quotes in messages.
func recorded(text string) string { return message.QuoteUpTo(text, 2*message.QuoteLimit) }

// describeMachines returns a line per Machine: its name, its NodeClaim, its provider ID.
func describeMachines(machines []clusterv1.Machine) []string {
	lines := make([]string, 0, len(machines))
	for i := range machines {
		m := &machines[i]
		lines = append(lines,
			fmt.Sprintf("%s nodeClaim=%s providerID=%s", m.Name, m.Labels[v1alpha1.NodeClaimLabel], recorded(m.Spec.ProviderID)))
	}
	return lines
}

func describeClaims(claims []karpv1.NodeClaim) []string {
	lines := make([]string, 0, len(claims))
	for i := range claims {
		line := fmt.Sprintf("%s node=%s", claims[i].Name, recorded(claims[i].Status.NodeName))
		if id := claims[i].Status.ProviderID; id != "" {
			line += " providerID=" + recorded(id)
		}
		lines = append(lines, line)
	}
	return lines
}
