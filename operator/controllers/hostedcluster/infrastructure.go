// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// maxHeld limits the text about a Machine's deletion, in bytes.
const maxHeld = 300

// infrastructure returns the problem that keeps the infrastructure from making and deleting machines: its own state, which no machine
// reports before the provider has a session, and Machines whose deletion hangs. It changes no state: Karpenter keeps running. after is when
// another deletion begins to hang; zero for none.
func (r *Reconciler) infrastructure(ctx context.Context, s *scope.Scope) (problem string, after time.Duration, err error) {
	if s.Cluster == nil || s.Profile == nil || s.Profile.Unattended != nil {
		return "", 0, nil // nodes aren't Machines
	}
	list := &clusterv1.MachineList{}
	key := s.ClusterKey()
	if err := r.management.List(ctx, list, client.InNamespace(key.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: key.Name},
		client.HasLabels{v1alpha1.NodeClaimUIDLabel}, client.UnsafeDisableDeepCopy); err != nil {
		return "", 0, fmt.Errorf("listing the Machines of Cluster %s: %w", key, err)
	}
	now, hanging := r.clock.Now(), 0
	var first *clusterv1.Machine
	for i := range list.Items {
		m := &list.Items[i]
		from, deleting := clusterstatus.HangsFrom(m)
		switch {
		case !deleting:
		case now.Before(from):
			if wait := from.Sub(now); after == 0 || wait < after {
				after = wait
			}
		default:
			if hanging++; first == nil || m.Name < first.Name {
				first = m
			}
		}
	}
	var texts []string
	if n := len(list.Items); n > 0 && clusterstatus.ControlPlaneAsleep(s.Cluster) {
		texts = append(texts, fmt.Sprintf("the control plane is to have no replicas, but %s %s", english.Plural(n, "Machine", ""),
			english.PluralWord(n, "runs and costs", "run and cost")))
	}
	if notReady := clusterstatus.NotReady(s.Cluster); notReady != "" {
		texts = append(texts, notReady)
	}
	if hanging > 0 {
		text := fmt.Sprintf("%d %s in deletion, such as %s", hanging, english.PluralWord(hanging, "Machine hangs", "Machines hang"), first.Name)
		if holds := strings.Join(strings.Fields(clusterstatus.Holds(first)), " "); holds != "" {
			text += " (" + message.Cut(holds, maxHeld) + ")"
		}
		texts = append(texts, text+"; no other is launched of their offerings")
	}
	return strings.Join(texts, "; "), after, nil
}
