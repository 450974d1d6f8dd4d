// SPDX-License-Identifier: Apache-2.0

package featuregate

import (
	"cmp"
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/crd"
)

// foreign returns the finding about a gate whose CustomResourceDefinition the operator didn't create: its owner may need it for another
// autoscaler. The zero value: there is none, or the operator created it.
func foreign(ctx context.Context, guest *scope.Guest, gate gate) (finding, error) {
	live, err := crd.Read(ctx, guest, gate.definition)
	if err != nil || live == nil || live.Annotations[crd.CreatedAnnotation] != "" {
		return finding{}, err
	}
	owned := fmt.Sprintf("CustomResourceDefinition %s in the guest belongs to %s", live.Name, ownerOf(live))
	if problem := unusable(live, gate.version); problem != "" {
		return finding{off: true, reason: v1beta1.FeatureGateUnsupportedReason, message: fmt.Sprintf(
			"%s is off: %s and %s; let its owner upgrade or delete it, and the operator tries again within %s", gate.name, owned,
			problem, recheck)}, nil
	}
	return finding{reason: v1beta1.DefinitionNotOwnedReason, message: fmt.Sprintf(
		"%s is on: %s; Karpenter uses it, and the operator neither changes nor removes it", gate.name, owned)}, nil
}

// unserved returns the finding about a gate whose kind the guest's API server doesn't serve. Karpenter's informers for it would never sync,
// and Karpenter would end.
func unserved(_ context.Context, guest *scope.Guest, gate gate) (finding, error) {
	_, err := guest.Live.RESTMapper().RESTMapping(gate.kind.GroupKind(), gate.kind.Version)
	switch {
	case err == nil:
		return finding{}, nil
	case !meta.IsNoMatchError(err):
		return finding{}, fmt.Errorf("looking for %s in the guest: %w", gate.kind.GroupVersion(), err)
	}
	return finding{off: true, reason: v1beta1.FeatureGateUnsupportedReason, message: fmt.Sprintf(
		"%s is off: the guest's API server doesn't serve %s; upgrade it, and the operator tries again within %s", gate.name,
		gate.kind.GroupVersion(), recheck)}, nil
}

// unusable returns why Karpenter can't work with a definition: its informers would never sync, and it would end.
func unusable(live *apiextensionsv1.CustomResourceDefinition, version string) string {
	if !live.DeletionTimestamp.IsZero() {
		return "is being deleted"
	}
	for i := range live.Spec.Versions {
		switch v := &live.Spec.Versions[i]; {
		case v.Name != version || !v.Served:
		case v.Subresources == nil || v.Subresources.Status == nil:
			return "has no subresource status in version " + version
		case !crd.IsEstablished(live):
			return "isn't established"
		default:
			return ""
		}
	}
	return "doesn't serve version " + version
}

// ownerOf returns who keeps a definition, as far as it is declared. Everything in it is written by the guest.
func ownerOf(live *apiextensionsv1.CustomResourceDefinition) string {
	const helm = "meta.helm.sh/release-"
	if release := live.Annotations[helm+"name"]; release != "" {
		return "Helm release " + message.Quote(cmp.Or(live.Annotations[helm+"namespace"], "default")+"/"+release)
	}
	if manager := live.Labels[v1beta1.ManagedByLabel]; manager != "" {
		return message.Quote(manager)
	}
	for _, fields := range live.ManagedFields {
		if fields.Subresource == "" && fields.Manager != "" {
			return "field manager " + message.Quote(fields.Manager)
		}
	}
	return "an unknown owner"
}
