// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/dump"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/internal/message"
)

const (
	// quotaInterval is how often an object that a quota names is read: infrastructures change quotas on request of a person.
	quotaInterval = time.Minute
	// quotaTimeout is how long that may take for all of an account.
	quotaTimeout = 5 * time.Second
	// maxObjects is how many objects a limit may count, and pageObjects how many a request lists.
	maxObjects, pageObjects = 5000, 500
)

// limitReading is a limit, or the number of spare objects with the names of the others' consumers, by namespace.
type limitReading struct {
	text      string
	consumers map[string][]string
}

// readQuotas returns the account's spec with the limits that objects have, and those that can't be read. The last limit of these stays.
func (r *reconciliation) readQuotas(ctx context.Context) (*autonodev1alpha1.CapacityAccountSpec, []autonodev1alpha1.UnusableEntry) {
	ctx, cancel := context.WithTimeout(ctx, quotaTimeout)
	defer cancel()
	var unread []autonodev1alpha1.UnusableEntry
	spec, used := r.found.Spec.DeepCopy(), map[string]bool{}
	for i := range spec.Quotas {
		quota := &spec.Quotas[i]
		unread = append(unread, r.keepLimits(quota)...)
		for _, source := range quota.LimitsFrom {
			key := dump.ForHash(source)
			used[key] = true
			read := readAgain(r, r.quotas, key, func() (limitReading, error) { return r.readQuota(ctx, &source) })
			pool := autonodev1alpha1.QuotaPool(quota.Name, source.Resource)
			if r.consumers[pool] = read.value.consumers; read.err != nil {
				read.value.text, r.consumers[pool] = cmp.Or(limitOf(r.before.Pools, pool), read.value.text), nil
			}
			if read.value.text != "" {
				if quota.Limits == nil {
					quota.Limits = autonodev1alpha1.CapacityAmounts{}
				}
				quota.Limits[source.Resource] = scalar.Text(read.value.text)
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
	maps.DeleteFunc(r.quotas, func(key string, _ reading[limitReading]) bool { return !used[key] })
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
func (r *reconciliation) readQuota(ctx context.Context, source *autonodev1alpha1.CapacityLimitSource) (limitReading, error) {
	field := source.Path
	if source.Where != nil {
		field = source.Where.Path
	}
	path, err := infrastructure.ParsePath(field)
	if err != nil {
		return limitReading{}, fmt.Errorf("path %q %w", message.Cut(field, maxQuantity), err)
	}
	version, err := schema.ParseGroupVersion(source.APIVersion)
	if err != nil {
		return limitReading{}, fmt.Errorf("apiVersion %q is none", message.Cut(source.APIVersion, maxQuantity))
	}
	if version.Group == "" && source.Kind == "Secret" {
		return limitReading{}, errors.New("a limit isn't read from a Secret")
	}
	read, verb, name := limitReading{}, "get", source.Kind+" "+client.ObjectKey{Namespace: source.Namespace, Name: source.Name}.String()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(version.WithKind(source.Kind))
	if source.Where == nil {
		err = r.Live.Get(ctx, client.ObjectKey{Namespace: source.Namespace, Name: source.Name}, object)
	} else {
		verb, name = "list", source.Kind+" in namespace "+cmp.Or(source.Namespace, "*")
		read, err = r.countObjects(ctx, source, path)
	}
	switch {
	case meta.IsNoMatchError(err):
		return limitReading{}, fmt.Errorf("the management cluster has no kind %s of %s", source.Kind, source.APIVersion)
	case apierrors.IsForbidden(err):
		return limitReading{}, fmt.Errorf("the operator may not %s %s; give its ServiceAccount a role", verb, name)
	case apierrors.IsNotFound(err):
		return limitReading{}, fmt.Errorf("there is no %s", name)
	case err != nil:
		return limitReading{}, fmt.Errorf("reading %s: %w", name, err)
	case source.Where != nil:
		return read, nil
	}
	text, ok := path.Text(object.Object)
	if !ok {
		return limitReading{}, fmt.Errorf("%s has no %s", name, source.Path)
	}
	if _, err := parse(source.Resource, scalar.Text(text)); err != nil {
		return limitReading{}, fmt.Errorf("%s of %s: %w", source.Path, name, err)
	}
	return limitReading{text: text}, nil
}

// countObjects counts the spare objects of a source, and returns the consumers of the others.
func (r *reconciliation) countObjects(
	ctx context.Context, source *autonodev1alpha1.CapacityLimitSource, path infrastructure.Path,
) (limitReading, error) {
	selector, err := metav1.LabelSelectorAsSelector(source.Selector)
	if err != nil {
		return limitReading{}, fmt.Errorf("selector: %w", err)
	}
	options := client.ListOptions{Namespace: source.Namespace, LabelSelector: selector, Limit: pageObjects}
	consumers, selected, spare := map[string][]string{}, 0, 0
	for more := true; more; more = options.Continue != "" {
		page := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": source.APIVersion, "kind": source.Kind + "List"}}
		if err := r.Live.List(ctx, page, &options); err != nil {
			return limitReading{}, err
		}
		if selected += len(page.Items); selected > maxObjects {
			return limitReading{}, fmt.Errorf("the selector matches more than %d", maxObjects)
		}
		for _, object := range page.Items {
			if consumer, _, _ := unstructured.NestedFieldNoCopy(object.Object, "spec", "consumerRef"); consumer != nil {
				fields, _ := consumer.(map[string]any)
				name, _ := fields["name"].(string)
				namespace, _ := fields["namespace"].(string)
				namespace = cmp.Or(namespace, object.GetNamespace())
				consumers[namespace] = append(consumers[namespace], name)
			} else if text, _ := path.Text(object.Object); object.GetDeletionTimestamp() == nil && slices.Contains(source.Where.Values, text) {
				spare++
			}
		}
		options.Continue = page.GetContinue()
	}
	return limitReading{strconv.Itoa(spare), consumers}, nil
}

// countConsumers adds the objects that Machines of the clusters have to the limits that count objects.
func (r *reconciliation) countConsumers() {
	r.counter.mu.Lock()
	defer r.counter.mu.Unlock()
	rules := conversion.Rules(r.account.pools)
	for pool, consumers := range r.consumers {
		for _, c := range r.clusters {
			consumed := int64(0)
			for _, name := range consumers[c.namespace] {
				m, ok := r.counter.machines[client.ObjectKey{Namespace: c.namespace, Name: name}]
				if ok && (c.home.cluster == "" || c.home == m.home) && division.Charges(rules, m.Machine)[pool] > 0 {
					consumed++
				}
			}
			if consumed = min(consumed, c.used[pool]); consumed > 0 {
				r.account.limits[pool] += consumed
			}
		}
	}
}
