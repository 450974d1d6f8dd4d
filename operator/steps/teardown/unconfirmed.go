// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=hostedclusters.autonode.io,verbs=get

// definition is the name of the CustomResourceDefinition of HostedClusters.
const definition = "hostedclusters." + v1beta1.Group

// unconfirmed returns why a drain may not start: the HostedCluster isn't deleted alone but together with its
// CustomResourceDefinition, which has not been confirmed. The API server deletes the objects without asking admission policies, so this is
// the last place that can distinguish an accident from a wish. It returns nothing for a drain that has started before, and if there are no
// nodes.
func (t *Teardown) unconfirmed(ctx context.Context, s *scope.Scope) (string, error) {
	status := s.HostedCluster.Status.AutoNode
	if s.HostedCluster.DeletionTimestamp.IsZero() || status != nil && status.DrainStartedTime != nil {
		return "", nil
	}
	nodes := "its nodes"
	if status != nil && status.NodeCount != nil {
		count := max(ptr.Deref(status.NodeClaimCount, 0), *status.NodeCount)
		if count == 0 {
			return "", nil
		}
		nodes = fmt.Sprintf("%d nodes", count)
	}
	// Live, because the cache may learn of the definition's deletion after that of its objects.
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	if err := t.Live.Get(ctx, client.ObjectKey{Name: definition}, live); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("reading CustomResourceDefinition %s: %w", definition, err)
	}
	if live.DeletionTimestamp.IsZero() || live.Annotations[v1beta1.ConfirmDeletionAnnotation] == "true" {
		return "", nil
	}
	return fmt.Sprintf("CustomResourceDefinition %s is being deleted; "+
		"%s keep running until you annotate it with %s=true, which drains them (docs/platform/maintain.md describes the way back)",
		definition, nodes, v1beta1.ConfirmDeletionAnnotation), nil
}

// withhold keeps Karpenter running meanwhile, as a drain does, unless its component is gone too.
func (t *Teardown) withhold(ctx context.Context, s *scope.Scope, message string) (scope.Result, error) {
	if s.Guest != nil && s.Component != nil && s.Upkeep != nil {
		if err := s.Upkeep(ctx); err != nil {
			return scope.Result{}, err
		}
	}
	return scope.Result{Wait: true, Message: message, Reason: v1beta1.AutoNodeDrainUnconfirmedReason, RequeueAfter: relistInterval}, nil
}
