// SPDX-License-Identifier: Apache-2.0

// Package undecodable keeps Karpenter core from acting on what it can't read of a NodePool or a NodeClaim.
//
// Upstream gap: core's manager takes no options for its caches, and core reads NodePools and NodeClaims typed. One of them that the API
// server admits and Go can't decode, such as a limit of "1e1.5", stops Karpenter for all NodePools, and ends it at the next start
// (docs/upstream/undecodable-objects.md).
package undecodable

import (
	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// Metric counts the objects of both clusters that can't be decoded, by kind.
const Metric = "karpenter_clusterapi_undecodable_objects"

// Adjust returns what becomes of objects whose text can't be decoded whole.
func Adjust() map[schema.GroupKind]func(map[string]any) {
	return map[schema.GroupKind]func(map[string]any){
		{Group: apis.Group, Kind: "NodePool"}:  nodePool,
		{Group: apis.Group, Kind: "NodeClaim"}: nodeClaim,
	}
}

// nodePool launches nothing and loses nothing: a limit or a budget that can't be read would be taken for none.
func nodePool(object map[string]any) {
	spec := member(object, "spec")
	disruption := member(spec, "disruption")
	disruption["consolidateAfter"] = karpv1.Never
	disruption["budgets"] = []any{map[string]any{"nodes": "0"}}
	member(object, "status")["conditions"] = []any{map[string]any{
		"type": status.ConditionReady, "status": string(metav1.ConditionFalse), "reason": v1beta1.UndecodableReason, "message": "",
		"lastTransitionTime": member(object, "metadata")["creationTimestamp"],
	}}
}

// nodeClaim isn't replaced to save costs, or because it differs from what its NodePool declares.
func nodeClaim(object map[string]any) {
	member(member(object, "metadata"), "annotations")[karpv1.DoNotDisruptAnnotationKey] = "true"
}

// member returns an object's object, and makes it if there is none.
func member(object map[string]any, name string) map[string]any {
	found, ok := object[name].(map[string]any)
	if !ok {
		found = map[string]any{}
		object[name] = found
	}
	return found
}
