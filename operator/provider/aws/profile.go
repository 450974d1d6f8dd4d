// SPDX-License-Identifier: Apache-2.0

// Package aws is the profile of Karpenter's AWS provider. It has two things only: the guest, where it has NodePools, nodes and its
// Lease, and AWS, where it is the role that a HostedCluster names. It proves that by a token that the guest issues for AWS.
package aws

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/assets/manifest"
	"github.com/autonode-io/autonode/operator/provider"
)

// Audience is the audience of a token that AWS's security token service accepts.
const Audience = "sts.amazonaws.com"

var (
	//go:embed deployment.yaml
	deployment []byte
	//go:embed clusterrole.yaml
	clusterRole []byte
	//go:embed role.yaml
	role []byte
	//go:embed rolebinding.yaml
	roleBinding []byte
)

var nodeClass = schema.GroupVersionKind{Group: "karpenter.k8s.aws", Version: "v1", Kind: "EC2NodeClass"}

// New returns the profile. There is no default node class: an EC2NodeClass has to say with which AMI and which user data a machine
// boots and joins, and of that a HostedCluster declares nothing.
func New() *provider.Profile {
	regions := newRegions()
	return &provider.Profile{
		Platform:        v1beta1.PlatformAWS,
		Component:       "karpenter-aws",
		CheckSpec:       checkSpec,
		CheckCluster:    regions.checkCluster,
		Deployment:      func() (*appsv1.Deployment, error) { return manifest.Decode(deployment, &appsv1.Deployment{}) },
		AdaptDeployment: regions.adaptDeployment,
		NodeClass: provider.NodeClass{
			GroupVersionKind: nodeClass,
			Plural:           "ec2nodeclasses",
			New:              newNodeClass,
			NewList:          newNodeClassList,
			FromPayload:      true,
			Finalizer:        "karpenter.k8s.aws/termination",
			CleansUp:         true, // instance profiles and launch templates
		},
		Definitions:  crds.Karpenter,
		ClusterRole:  func() (*rbacv1.ClusterRole, error) { return manifest.Decode(clusterRole, &rbacv1.ClusterRole{}) },
		Roles:        roles,
		Tokens:       []provider.Token{{Key: "token"}, {Key: "aws-token", Audience: Audience}},
		LeaseInGuest: true,
		Unattended: func(cluster string) string {
			return fmt.Sprintf("EC2 instances, launch templates and instance profiles with the tag kubernetes.io/cluster/%s=owned and one that "+
				"begins with karpenter", cluster)
		},
	}
}

// newNodeClass returns metadata only: the operator reads nothing else of a node class, and needs no types of the
// provider.
func newNodeClass() client.Object {
	class := &metav1.PartialObjectMetadata{}
	class.SetGroupVersionKind(nodeClass)
	return class
}

func newNodeClassList() client.ObjectList {
	classes := &metav1.PartialObjectMetadataList{}
	classes.SetGroupVersionKind(nodeClass.GroupVersion().WithKind(nodeClass.Kind + "List"))
	return classes
}

func roles() ([]client.Object, error) {
	role, roleErr := manifest.Decode(role, &rbacv1.Role{})
	binding, bindingErr := manifest.Decode(roleBinding, &rbacv1.RoleBinding{})
	return []client.Object{role, binding}, errors.Join(roleErr, bindingErr)
}

// roleARN is the API's rule, for a HostedCluster that was written before there was one.
var roleARN = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/.+$`)

func checkSpec(config *v1beta1.Karpenter) error {
	switch {
	case config.AWS == nil:
		return errors.New("aws is required when platform is AWS")
	case !roleARN.MatchString(config.AWS.RoleARN):
		return fmt.Errorf("aws.roleARN: %q isn't the ARN of an IAM role, such as arn:aws:iam::123456789012:role/karpenter", config.AWS.RoleARN)
	}
	return nil
}

// adaptDeployment sets variables and no flags: Karpenter reads both, and those of AWS's SDK are variables in any case.
func (r *regions) adaptDeployment(ctx context.Context, in provider.Input, deployment *appsv1.Deployment) error {
	region, finding, err := r.resolve(ctx, in)
	if err != nil {
		return err
	}
	if finding.Reason != "" {
		return errors.New(finding.Message)
	}
	endpoint, err := endpoint(in)
	if err != nil {
		return err
	}
	container := &deployment.Spec.Template.Spec.Containers[0]
	set := func(name, value string) {
		// The kubelet expands variables in values, which must not happen in a user's values.
		container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: strings.ReplaceAll(value, "$", "$$")})
	}
	set("CLUSTER_NAME", in.ClusterName)
	set("CLUSTER_ENDPOINT", endpoint)
	if len(in.CA) > 0 {
		// The CA that nodes trust. Karpenter would read the kubeconfig's once; named here, another one rolls it.
		set("CLUSTER_CA_BUNDLE", base64.StdEncoding.EncodeToString(in.CA))
	}
	set("AWS_REGION", region)
	metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, regionAnnotation, region)
	set("AWS_ROLE_ARN", in.Config.AWS.RoleARN)
	if queue := in.Config.AWS.InterruptionQueue; queue != "" {
		set("INTERRUPTION_QUEUE", queue)
	}
	return nil
}

// endpoint is the URL that nodes join by: the Cluster's, which is for the world, else the one that the operator uses.
func endpoint(in provider.Input) (string, error) {
	if in.Cluster != nil && in.Cluster.Spec.ControlPlaneEndpoint.IsValid() {
		return "https://" + in.Cluster.Spec.ControlPlaneEndpoint.String(), nil
	}
	parsed, err := url.Parse(in.Endpoint)
	if err != nil || parsed.Scheme != "https" || parsed.Host == "" {
		return "", fmt.Errorf("the guest's endpoint %q isn't a URL that nodes could join by; set controlPlaneEndpoint of Cluster %s/%s",
			in.Endpoint, in.Namespace, in.ClusterName)
	}
	return in.Endpoint, nil
}
