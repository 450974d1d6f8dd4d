// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
)

// allocatableKnown reports whether nodes are known to have the allocatable resources that Karpenter plans with. Ready doesn't depend on it.
type allocatableKnown struct{ Config }

func (s allocatableKnown) reconcile(_ context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet,
	in *instancetype.Listing,
) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionAllocatableKnown
	if in.ClusterErr != nil {
		return reconcile.Result{}, nil //nolint:nilerr // The last known state stays.
	}
	var unread, unplanned []error
	var diskless []string
	doubtful, fuller := 0, 0
	for i := range in.Templates {
		tmpl := &in.Templates[i]
		if _, ok := tmpl.Capacity[corev1.ResourceEphemeralStorage]; !ok {
			diskless = append(diskless, tmpl.Source.String())
		}
		if places := tmpl.Bootstrap.Kubelet.Unplanned; len(places) > 0 {
			fuller++
			unplanned = withPlaces(unplanned, places)
		}
		if len(tmpl.Bootstrap.Kubelet.Unread) == 0 || s.InstanceTypes.Reported(nodeClass, tmpl) {
			continue
		}
		doubtful++
		unread = withPlaces(unread, tmpl.Bootstrap.Kubelet.Unread)
	}
	var messages []string
	if doubtful > 0 {
		messages = append(messages, fmt.Sprintf("nodes of %d of %s may allocate less than Karpenter plans with, until the first ones report: %s",
			doubtful, english.Plural(len(in.Templates), "template", "templates"), summary(unread)))
	}
	if len(diskless) > 0 {
		messages = append(messages, fmt.Sprintf("no capacity of ephemeral-storage is known of %s, so no pod that requests some gets a "+
			"node of it; set annotation capacity.cluster-autoscaler.kubernetes.io/ephemeral-disk, or ephemeral-storage in a catalog's capacity",
			english.OxfordWordSeries(shortened(diskless), "and")))
	}
	if fuller > 0 {
		messages = append(messages, fmt.Sprintf("nodes of %d of %s may hold fewer pods than Karpenter plans with: %s",
			fuller, english.Plural(len(in.Templates), "template", "templates"), summary(unplanned)))
	}
	switch {
	case doubtful > 0:
		conditions.SetFalse(condition, v1alpha1.KubeletSettingsUnknownReason, strings.Join(messages, "; "))
	case len(diskless) > 0:
		conditions.SetFalse(condition, v1alpha1.EphemeralStorageUnknownReason, strings.Join(messages, "; "))
	case fuller > 0:
		conditions.SetTrueWithReason(condition, v1alpha1.PodsMayNotFitReason, strings.Join(messages, "; "))
	default:
		conditions.SetTrue(condition)
	}
	return reconcile.Result{}, nil
}

// withPlaces adds those that aren't there yet.
func withPlaces(all []error, places []string) []error {
	for _, place := range places {
		if !slices.ContainsFunc(all, func(err error) bool { return err.Error() == place }) {
			all = append(all, errors.New(place))
		}
	}
	return all
}

// shortened names the first few.
func shortened(names []string) []string {
	if more := len(names) - maxProblems; more > 0 {
		return append(slices.Clone(names[:maxProblems]), fmt.Sprintf("%d more", more))
	}
	return names
}
