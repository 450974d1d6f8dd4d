// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/autonode-io/autonode/operator/message"
)

// conditionsField is the list in a status that several writers share, by the conditions' types.
const conditionsField = "conditions"

// StatusFields are the fields of a kind's status that the operator owns. All others belong to other controllers.
type StatusFields struct {
	// Names of fields directly below status, each owned whole. conditions can't be among them.
	Names []string
	// Conditions are the types of the conditions.
	Conditions []string
}

// Status applies the owned fields of obj's status, as FieldOwner, and forces their ownership. It removes owned fields
// that obj lacks, whoever wrote them: FieldOwner, an earlier operator that didn't apply, or a restored backup.
//
// A status also holds its writer's memory, such as start times. So obj needs the resource version that its status was
// computed from, and a newer one is a conflict: the caller reads the object again. Afterwards obj has the new
// resource version. Errors are those of the API server, wrapped with the object's kind and name. The caller decides
// whether anything changed.
func Status(ctx context.Context, cluster client.Client, obj client.Object, owned StatusFields) error {
	gvk, err := apiutil.GVKForObject(obj, cluster.Scheme())
	if err != nil {
		return fmt.Errorf("finding the kind of %T: %w", obj, err)
	}
	describe := func(doing string, err error) error {
		return fmt.Errorf("%s the status of %s %s: %w", doing, gvk.Kind, klog.KObj(obj), err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return describe("converting", err)
	}
	wanted := owned.pick(statusOf(content))
	pruneNulls(wanted)
	bound(wanted)

	applied := &unstructured.Unstructured{Object: map[string]any{"status": wanted}}
	applied.SetGroupVersionKind(gvk)
	applied.SetNamespace(obj.GetNamespace())
	applied.SetName(obj.GetName())
	applied.SetResourceVersion(obj.GetResourceVersion())
	if err := cluster.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner(FieldOwner),
		client.ForceOwnership); err != nil {
		return describe("applying", err)
	}
	// applied now has the API server's response. An apply removes only fields without another owner.
	clean := applied.DeepCopy()
	clean.Object["status"] = owned.without(statusOf(clean.Object), wanted)
	if !equality.Semantic.DeepEqual(statusOf(clean.Object), statusOf(applied.Object)) {
		patch := client.MergeFromWithOptions(applied, client.MergeFromWithOptimisticLock{})
		if err := cluster.Status().Patch(ctx, clean, patch, client.FieldOwner(FieldOwner)); err != nil {
			return describe("removing what is no longer in", err)
		}
	}
	obj.SetResourceVersion(clean.GetResourceVersion())
	return nil
}

func statusOf(object map[string]any) map[string]any {
	status, _ := object["status"].(map[string]any)
	return status
}

// pick returns the owned fields of a status.
func (f StatusFields) pick(status map[string]any) map[string]any {
	owned := map[string]any{}
	for _, name := range f.Names {
		if value, ok := status[name]; ok {
			owned[name] = value
		}
	}
	setConditions(owned, status, func(conditionType string) bool { return slices.Contains(f.Conditions, conditionType) })
	return owned
}

// without returns a status without the owned fields that aren't wanted.
func (f StatusFields) without(status, wanted map[string]any) map[string]any {
	clean := maps.Clone(status)
	if clean == nil {
		clean = map[string]any{}
	}
	for _, name := range f.Names {
		if value, ok := wanted[name]; ok {
			clean[name] = value
		} else {
			delete(clean, name)
		}
	}
	var types []string
	for _, condition := range conditionsOf(wanted) {
		types = append(types, typeOf(condition))
	}
	setConditions(clean, status, func(conditionType string) bool {
		return !slices.Contains(f.Conditions, conditionType) || slices.Contains(types, conditionType)
	})
	return clean
}

// setConditions gives a status those conditions of another that are to be kept, in their order.
func setConditions(status, source map[string]any, keep func(conditionType string) bool) {
	var retained []any
	for _, condition := range conditionsOf(source) {
		if keep(typeOf(condition)) {
			retained = append(retained, condition)
		}
	}
	if len(retained) == 0 {
		delete(status, conditionsField)
		return
	}
	status[conditionsField] = retained
}

// bound cuts the messages of conditions, which quote guests and registries. Every condition that the operator writes passes here.
func bound(status map[string]any) {
	for _, condition := range conditionsOf(status) {
		fields, _ := condition.(map[string]any)
		if text, ok := fields["message"].(string); ok {
			fields["message"] = message.Cut(text)
		}
	}
}

func conditionsOf(status map[string]any) []any {
	conditions, _ := status[conditionsField].([]any)
	return conditions
}

func typeOf(condition any) string {
	fields, _ := condition.(map[string]any)
	conditionType, _ := fields["type"].(string)
	return conditionType
}
