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

// allocatableKnown reports whether nodes are known to allocate what Karpenter plans with. Ready doesn't depend on it.
type allocatableKnown struct{ Config }

func (s allocatableKnown) reconcile(_ context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet, in *instancetype.Listing) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionAllocatableKnown
	if in.ClusterErr != nil {
		return reconcile.Result{}, nil //nolint:nilerr // The last known state stays.
	}
	var unread []error
	var diskless []string
	doubtful := 0
	for i := range in.Templates {
		tmpl := &in.Templates[i]
		if _, ok := tmpl.Capacity[corev1.ResourceEphemeralStorage]; !ok {
			diskless = append(diskless, tmpl.Source.String())
		}
		if len(tmpl.Bootstrap.Kubelet.Unread) == 0 || s.InstanceTypes.Reported(nodeClass, tmpl) {
			continue
		}
		doubtful++
		for _, place := range tmpl.Bootstrap.Kubelet.Unread {
			if !slices.ContainsFunc(unread, func(err error) bool { return err.Error() == place }) {
				unread = append(unread, errors.New(place))
			}
		}
	}
	var messages []string
	if doubtful > 0 {
		messages = append(messages, fmt.Sprintf("nodes of %d of %s may allocate less than Karpenter plans with, until the first ones report: %s",
			doubtful, english.Plural(len(in.Templates), "template", "templates"), summary(unread)))
	}
	if len(diskless) > 0 {
		messages = append(messages, fmt.Sprintf("no capacity of ephemeral-storage is known of %s, so no pod that requests some gets a node of it; set annotation capacity.cluster-autoscaler.kubernetes.io/ephemeral-disk",
			english.OxfordWordSeries(shortened(diskless), "and")))
	}
	switch {
	case doubtful > 0:
		conditions.SetFalse(condition, v1alpha1.KubeletSettingsUnknownReason, strings.Join(messages, "; "))
	case len(diskless) > 0:
		conditions.SetFalse(condition, v1alpha1.EphemeralStorageUnknownReason, strings.Join(messages, "; "))
	default:
		conditions.SetTrue(condition)
	}
	return reconcile.Result{}, nil
}

// shortened names the first few.
func shortened(names []string) []string {
	if more := len(names) - maxProblems; more > 0 {
		return append(slices.Clone(names[:maxProblems]), fmt.Sprintf("%d more", more))
	}
	return names
}
