// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/internal/message"
)

const (
	// quotaInterval is how often an object that a quota names is read: infrastructures change quotas on request of a person.
	quotaInterval = time.Minute
	// quotaTimeout is how long that may take for all of an account.
	quotaTimeout = 5 * time.Second
)

// readQuotas returns the account's spec with the limits that objects have, and those that can't be read. The last limit of these stays.
func (r *reconciliation) readQuotas(ctx context.Context) (*autonodev1alpha1.CapacityAccountSpec, []autonodev1alpha1.UnusableEntry) {
	ctx, cancel := context.WithTimeout(ctx, quotaTimeout)
	defer cancel()
	var unread []autonodev1alpha1.UnusableEntry
	spec, used := r.found.Spec.DeepCopy(), map[autonodev1alpha1.CapacityLimitSource]bool{}
	for i := range spec.Quotas {
		quota := &spec.Quotas[i]
		unread = append(unread, r.keepLimits(quota)...)
		for _, source := range quota.LimitsFrom {
			used[source] = true
			read := readAgain(r, r.quotas, source, func() (string, error) { return r.readQuota(ctx, &source) })
			pool := autonodev1alpha1.QuotaPool(quota.Name, source.Resource)
			if read.value == "" {
				read.value = limitOf(r.before.Pools, pool)
			}
			if read.value != "" {
				if quota.Limits == nil {
					quota.Limits = autonodev1alpha1.CapacityAmounts{}
				}
				quota.Limits[source.Resource] = scalar.Text(read.value)
			}
			if read.err != nil {
				limit := "it limits nothing"
				if value, ok := quota.Limits[source.Resource]; ok {
					limit = "its limit stays " + message.Cut(value.String(), maxQuantity)
				}
				unread = append(unread, autonodev1alpha1.UnusableEntry{
					Field:   fmt.Sprintf("quotas[%s].limitsFrom[%s]", quota.Name, source.Resource),
					Message: message.Cut(limit+": "+read.err.Error(), maxMessage),
				})
			}
		}
	}
	maps.DeleteFunc(r.quotas, func(source autonodev1alpha1.CapacityLimitSource, _ reading[string]) bool { return !used[source] })
	return spec, unread
}

// keepLimits replaces limits that can't be read by those that were in force last, as the status has them.
func (r *reconciliation) keepLimits(quota *autonodev1alpha1.CapacityQuota) (unread []autonodev1alpha1.UnusableEntry) {
	for key, limit := range ordered(quota.Limits) {
		_, err := parse(key, limit)
		last := limitOf(r.before.Pools, autonodev1alpha1.QuotaPool(quota.Name, key))
		if err == nil || last == "" {
			continue
		}
		quota.Limits[key] = scalar.Text(last)
		r.keptLimits = true
		unread = append(unread, autonodev1alpha1.UnusableEntry{
			Field:   fmt.Sprintf("quotas[%s].limits.%s", quota.Name, key),
			Message: message.Cut("its limit stays "+last+": "+err.Error(), maxMessage),
		})
	}
	return unread
}

// limitOf is the limit that the status has of a pool: that of an operator that has ended.
func limitOf(pools []autonodev1alpha1.CapacityPoolStatus, name string) string {
	for i := range pools {
		if pools[i].Name == name {
			return pools[i].Limit
		}
	}
	return ""
}

// readQuota reads a limit from the API server.
func (r *reconciliation) readQuota(ctx context.Context, source *autonodev1alpha1.CapacityLimitSource) (string, error) {
	path, err := infrastructure.ParsePath(source.Path)
	if err != nil {
		return "", fmt.Errorf("path %q %w", message.Cut(source.Path, maxQuantity), err)
	}
	version, err := schema.ParseGroupVersion(source.APIVersion)
	if err != nil {
		return "", fmt.Errorf("apiVersion %q is none", message.Cut(source.APIVersion, maxQuantity))
	}
	if version.Group == "" && source.Kind == "Secret" {
		return "", errors.New("a limit isn't read from a Secret")
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(version.WithKind(source.Kind))
	name := source.Kind + " " + client.ObjectKey{Namespace: source.Namespace, Name: source.Name}.String()
	switch err := r.Live.Get(ctx, client.ObjectKey{Namespace: source.Namespace, Name: source.Name}, object); {
	case meta.IsNoMatchError(err):
		return "", fmt.Errorf("the management cluster has no kind %s of %s", source.Kind, source.APIVersion)
	case apierrors.IsForbidden(err):
		return "", fmt.Errorf("the operator may not get %s; give its ServiceAccount a role", name)
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("there is no %s", name)
	case err != nil:
		return "", fmt.Errorf("reading %s: %w", name, err)
	}
	text, ok := path.Text(object.Object)
	if !ok {
		return "", fmt.Errorf("%s has no %s", name, source.Path)
	}
	if _, err := parse(source.Resource, scalar.Text(text)); err != nil {
		return "", fmt.Errorf("%s of %s: %w", source.Path, name, err)
	}
	return text, nil
}
