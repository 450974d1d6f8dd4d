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
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// offeringsAvailable reports whether an offering can be launched, or all of them have failed lately. Ready doesn't depend on it.
type offeringsAvailable struct{ Config }

func (s offeringsAvailable) reconcile(ctx context.Context, _ *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet, in *instancetype.Listing) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionOfferingsAvailable
	if in.ClusterErr != nil || s.InstanceTypes.Unavailable == nil {
		return reconcile.Result{}, nil //nolint:nilerr // The last known state stays.
	}
	choices := in.Snapshot.Choices()
	var failed []offering.Entry
	for i := range choices {
		if choices[i].Offering.Launchable() {
			conditions.SetTrue(condition)
			return reconcile.Result{}, nil
		}
		if entry, ok := s.InstanceTypes.Unavailable.Entry(choices[i].Key); ok {
			failed = append(failed, entry)
		}
	}
	if len(failed) == 0 {
		// There is nothing to launch for other reasons: the conditions and the templates of the node class have them.
		conditions.SetTrue(condition)
		return reconcile.Result{}, nil
	}
	message := describe(failed)
	if s.Pending != nil {
		pods, err := s.Pending(ctx)
		if err != nil {
			return reconcile.Result{}, fmt.Errorf("counting pending pods: %w", err)
		}
		message += fmt.Sprintf("; %s", english.Plural(pods, "pod waits", "pods wait"))
	}
	conditions.SetFalse(condition, reasonOf(failed), message)
	return reconcile.Result{RequeueAfter: s.AvailabilityDelay}, nil // for the number of pods, which triggers nothing
}

// reasonOf returns the reason of a node class whose offerings all failed.
func reasonOf(failed []offering.Entry) string {
	lacks := func(lack offering.Lack) bool {
		return !slices.ContainsFunc(failed, func(entry offering.Entry) bool { return entry.Lacks != lack })
	}
	switch {
	case lacks(offering.Quota):
		return v1alpha1.NoQuotaReason
	case lacks(offering.Capacity):
		return v1alpha1.NoCapacityReason
	default:
		return v1alpha1.LaunchesFailReason
	}
}

// describe names the reasons of events on NodeClaims, the most frequent first, and what is tried next.
func describe(failed []offering.Entry) string {
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
	next := slices.MinFunc(failed, func(a, b offering.Entry) int { return cmp.Or(a.Until.Compare(b.Until), a.Key.Compare(b.Key)) })
	return fmt.Sprintf("nothing can be launched: %s in back-off after failed launches: %s; the next try is %s at %s",
		english.Plural(len(failed), "offering is", "offerings are"), strings.Join(texts, ", "), next.Description(), next.Until.UTC().Format(time.TimeOnly+" MST"))
}
