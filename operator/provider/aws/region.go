// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/operator/provider"
)

const (
	infrastructureGroup = "infrastructure.cluster.x-k8s.io"
	regionField         = "spec.autoNode.provisionerConfig.karpenter.aws.region"
	// regionAnnotation is on Karpenter's Deployment: where its instances are.
	regionAnnotation = v1beta1.Group + "/aws-region"
)

// infrastructures are the kinds of Cluster API's AWS provider whose clusters are in AWS.
var infrastructures = sets.New("AWSCluster", "AWSManagedCluster", "ROSACluster")

// regions looks up in which region clusters are. Their infrastructure is read once for each Cluster: its region is immutable.
type regions struct {
	known lru.Cache[knownKey, string]
}

type knownKey struct {
	cluster        types.UID
	infrastructure clusterv1.ContractVersionedObjectReference
}

func newRegions() *regions { return &regions{known: lru.New[knownKey, string](1 << 12)} }

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=awsclusters,verbs=get

// checkCluster rejects a Cluster that isn't in AWS, or whose region is unknown.
func (r *regions) checkCluster(ctx context.Context, in provider.Input) (provider.Finding, error) {
	if ref := in.Cluster.Spec.InfrastructureRef; ref.APIGroup != infrastructureGroup || !infrastructures.Has(ref.Kind) {
		is := fmt.Sprintf("Cluster %s/%s has no infrastructureRef", in.Namespace, in.ClusterName)
		if ref.IsDefined() {
			is = fmt.Sprintf("the infrastructure of Cluster %s/%s is a %s.%s and no AWSCluster", in.Namespace, in.ClusterName,
				ref.Kind, ref.APIGroup)
		}
		return provider.Finding{
			Reason: v1beta1.InfrastructureMismatchReason,
			Message: fmt.Sprintf("spec.autoNode.provisionerConfig.karpenter.platform: AWS makes EC2 instances, but %s; use platform ClusterAPI, "+
				"or correct spec.infraID", is),
		}, nil
	}
	region, finding, err := r.resolve(ctx, in)
	if err != nil || finding.Reason != "" {
		return finding, err
	}
	return r.moved(ctx, in, region)
}

// moved finds a Karpenter that makes instances in another region: it wouldn't find them any more. Admission can't say so of a region that
// is added or removed, because the earlier region depends on the Cluster, nor of an AutoNode that is on again before its drain has ended.
func (*regions) moved(ctx context.Context, in provider.Input, region string) (provider.Finding, error) {
	deployment := &appsv1.Deployment{}
	err := in.Reader.Get(ctx, client.ObjectKey{Namespace: in.Namespace, Name: in.Names.Karpenter}, deployment)
	if client.IgnoreNotFound(err) != nil {
		return provider.Finding{}, fmt.Errorf("reading the Deployment: %w", err)
	}
	is := deployment.Annotations[regionAnnotation]
	if is == "" || is == region {
		return provider.Finding{}, nil
	}
	return provider.Finding{
		Reason: v1beta1.InvalidSpecReason,
		Message: fmt.Sprintf("%s: Karpenter makes instances in %s, and wouldn't find them from %s; set it to %s, or remove spec.autoNode, wait "+
			"until its nodes are gone, and set it again",
			regionField, is, region, is),
	}, nil
}

// resolve returns the region that the spec names, else the one of the Cluster's infrastructure.
func (r *regions) resolve(ctx context.Context, in provider.Input) (string, provider.Finding, error) {
	if region := in.Config.AWS.Region; region != "" {
		return region, provider.Finding{}, nil
	}
	if in.Cluster == nil {
		return "", provider.Finding{}, fmt.Errorf("there is no Cluster %s/%s", in.Namespace, in.ClusterName)
	}
	key := knownKey{cluster: in.Cluster.UID, infrastructure: in.Cluster.Spec.InfrastructureRef}
	if region, ok := r.known.Get(key); ok {
		return region, provider.Finding{}, nil
	}
	ref := key.infrastructure
	if ref.Kind != "AWSCluster" {
		return "", unknown("%s is required: the infrastructure of Cluster %s/%s is of kind %s, which declares no region", regionField,
			in.Namespace, in.ClusterName, ref.Kind), nil
	}
	mapping, err := in.Mapper.RESTMapping(ref.GroupKind())
	if meta.IsNoMatchError(err) {
		return "", provider.Finding{
			Reason: v1beta1.KindNotFoundReason,
			Message: fmt.Sprintf("the management cluster doesn't serve %s, which has the region; install its provider, or set %s",
				ref.GroupKind(), regionField),
		}, nil
	}
	if err != nil {
		return "", provider.Finding{}, fmt.Errorf("looking up kind %s: %w", ref.GroupKind(), err)
	}
	infrastructure := &unstructured.Unstructured{}
	infrastructure.SetGroupVersionKind(mapping.GroupVersionKind)
	err = in.Reader.Get(ctx, client.ObjectKey{Namespace: in.Namespace, Name: ref.Name}, infrastructure)
	if apierrors.IsNotFound(err) {
		return "", unknown("there is no %s %s/%s, which would declare the region; create it, or set %s", ref.Kind, in.Namespace,
			ref.Name, regionField), nil
	}
	if err != nil {
		return "", provider.Finding{}, fmt.Errorf("reading %s %s/%s: %w", ref.Kind, in.Namespace, ref.Name, err)
	}
	region, _, err := unstructured.NestedString(infrastructure.Object, "spec", "region")
	if err != nil || region == "" {
		//nolint:nilerr // a field of another type is as good as none
		return "", unknown("spec.region of %s %s/%s names no region; set %s", ref.Kind, in.Namespace, ref.Name, regionField), nil
	}
	r.known.Add(key, region)
	return region, provider.Finding{}, nil
}

func unknown(format string, args ...any) provider.Finding {
	return provider.Finding{Reason: v1beta1.InvalidSpecReason, Message: fmt.Sprintf(format, args...)}
}
