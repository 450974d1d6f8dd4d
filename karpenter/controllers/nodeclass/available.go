// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/dustin/go-humanize/english"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// offeringsAvailable reports whether an offering can be launched, or all of them have failed lately, or all recent launches did. Ready
// doesn't depend on it.
type offeringsAvailable struct{ Config }

func (s offeringsAvailable) reconcile(ctx context.Context, _ *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet,
	in *instancetype.Listing,
) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionOfferingsAvailable
	if in.ClusterErr != nil {
		return reconcile.Result{}, nil //nolint:nilerr // The last known state stays.
	}
	failed, quotas, launchable := s.closed(in.Snapshot)
	available := func() {
		if len(quotas) > 0 {
			conditions.SetTrueWithReason(condition, v1alpha1.QuotaExhaustedReason, strings.Join(quotas, "; "))
			return
		}
		conditions.SetTrue(condition)
	}
	if len(failed) == 0 && (launchable || len(quotas) == 0) {
		// There may be nothing to launch for other reasons: the conditions and the templates of the node class have them.
		available()
		return reconcile.Result{}, nil
	}
	pods, wait := 0, ""
	if s.Pending != nil {
		var err error
		if pods, err = s.Pending(ctx); err != nil {
			return reconcile.Result{}, fmt.Errorf("counting pending pods: %w", err)
		}
		if pods > 0 { // of the whole cluster, whatever its NodePools and node classes
			wait = "; " + english.Plural(pods, "pod", "") + " of the cluster " + english.PluralWord(pods, "waits", "wait")
		}
	}
	switch {
	case !launchable:
		conditions.SetFalse(condition, reasonOf(failed, len(quotas) > 0),
			"nothing can be launched: "+strings.Join(append(quotas, describe(failed)...), "; ")+wait)
	case pods > 0:
		conditions.SetTrueWithReason(condition, v1alpha1.LaunchesFailReason,
			"every launch fails: "+inBackOff(failed)+"; Karpenter tries other offerings"+wait)
	default:
		available()
	}
	return reconcile.Result{RequeueAfter: s.AvailabilityDelay}, nil // for the number of pods, which triggers nothing
}

// closed reports whether any offering can be launched. It returns the offerings in back-off, or only those that failed in a row if any can
// be launched, and a text for each exhausted quota that closes offerings.
func (s offeringsAvailable) closed(snapshot *instancetype.Snapshot) (failed []offering.Entry, quotas []string, launchable bool) {
	unavailable := s.InstanceTypes.Unavailable
	counted := unavailable.CountsQuotas()
	closed, exhausted := map[capacity.QuotaName]int{}, map[capacity.QuotaName]offering.ClosedQuota{}
	choices := snapshot.Choices()
	for i := range choices {
		if choices[i].Offering.Launchable() {
			launchable = true
			if !counted {
				break
			}
			continue
		}
		if counted {
			if quota, ok := unavailable.ClosedBy(choices[i].Key, snapshot.QuotasOf(&choices[i])); ok {
				exhausted[quota.QuotaName] = quota
				closed[quota.QuotaName]++
				continue
			}
		}
		if entry, ok := unavailable.Entry(choices[i].Key); ok {
			failed = append(failed, entry)
		}
	}
	for name, quota := range exhausted {
		quotas = append(quotas, fmt.Sprintf("%s (%s)", quota.Description(), english.Plural(closed[name], "offering", "offerings")))
	}
	slices.Sort(quotas)
	if launchable {
		failed = unavailable.Streak(func(yield func(offering.Key) bool) {
			for i := range choices {
				if !yield(choices[i].Key) {
					return
				}
			}
		})
	}
	return failed, quotas, launchable
}

// reasonOf returns the reason of a node class whose offerings all failed, or are closed by quotas.
func reasonOf(failed []offering.Entry, quotas bool) string {
	lacks := func(lack offering.Lack) bool {
		return !slices.ContainsFunc(failed, func(entry offering.Entry) bool { return entry.Lacks != lack })
	}
	switch {
	case lacks(offering.LackOfQuota):
		return v1alpha1.NoQuotaReason
	case lacks(offering.LackOfCapacity) && !quotas:
		return v1alpha1.NoCapacityReason
	default:
		return v1alpha1.LaunchesFailReason
	}
}

// describe names the failed offerings, and the next one to be tried; nothing if none failed.
func describe(failed []offering.Entry) []string {
	if len(failed) == 0 {
		return nil
	}
	next := slices.MinFunc(failed, func(a, b offering.Entry) int { return cmp.Or(a.Until.Compare(b.Until), a.Key.Compare(b.Key)) })
	return []string{fmt.Sprintf("%s; the next try is %s at %s", inBackOff(failed), next.Description(),
		next.Until.UTC().Format(time.TimeOnly+" MST"))}
}

// inBackOff names the reasons of events on NodeClaims, the most frequent first.
func inBackOff(failed []offering.Entry) string {
	reasons := map[string]int{}
	for _, entry := range failed {
		reasons[entry.Reason]++
	}
	names := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(reasons[b], reasons[a]), cmp.Compare(a, b))
	})
	texts := make([]string, 0, len(names))
	for _, name := range names {
		texts = append(texts, fmt.Sprintf("%s (%d)", name, reasons[name]))
	}
	last := slices.MaxFunc(failed, func(a, b offering.Entry) int { return cmp.Or(a.At.Compare(b.At), b.Key.Compare(a.Key)) })
	if last.Words != "" {
		texts[len(texts)-1] += fmt.Sprintf(", the last one of %s: %s", last.Description(),
			message.Cut(strings.Join(strings.Fields(last.Words), " "), 200))
	}
	return fmt.Sprintf("%s in back-off after failed launches: %s", english.Plural(len(failed), "offering is", "offerings are"),
		strings.Join(texts, ", "))
}
