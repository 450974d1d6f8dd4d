// SPDX-License-Identifier: Apache-2.0

package component

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpenterassets "github.com/autonode-io/autonode/assets/karpenter"
	"github.com/autonode-io/autonode/internal/upgradeplan"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/steps/featuregate"
	"github.com/autonode-io/autonode/operator/steps/naming"
	"github.com/autonode-io/autonode/payload"
)

// Input of the adapt functions. They can read, and never write.
type Input struct {
	// Input of the provider's own functions.
	provider.Input
	// Profile of the provider.
	Profile *provider.Profile
	// Labels are put on every object.
	Labels map[string]string
	// Image is Karpenter's image by digest.
	Image string
	// GuestPort is that of the guest's API server.
	GuestPort int32
	// NodeImages are the payload's, for nodes of PayloadVersion: NodeVersion may be a former one.
	NodeImages     payload.NodeImages
	PayloadVersion string
	// ReleaseImage is the payload by digest, and Plan that of an upgrade to it that proves itself; nil for none.
	ReleaseImage string
	Plan         *upgradeplan.Plan
	// Size of Karpenter, nil for that of Settings. Asleep: it has no replica.
	Size   *Size
	Asleep bool
	// PullSecret is the HostedCluster's, nil if it has none.
	PullSecret *corev1.Secret
	// Monitoring: the management cluster serves PodMonitors.
	Monitoring bool
	// Settings of the platform.
	Settings Settings
	// FeatureGates to set; the others keep the Deployment's defaults.
	FeatureGates map[string]bool
}

// object is one that Karpenter may need in the control-plane namespace.
type object struct {
	needed bool
	render func() (client.Object, error)
}

// rendered returns an object: its manifest, its adapt function, and whether it is needed. Adapt is nil where nothing varies.
func rendered[T client.Object](manifest func() (T, error), adapt func(T) error, needed bool) object {
	return object{needed: needed, render: func() (client.Object, error) {
		obj, err := manifest()
		if err == nil && adapt != nil {
			err = adapt(obj)
		}
		return obj, err
	}}
}

// objects are all that make Karpenter up, in the order in which they are applied.
func (in Input) objects(ctx context.Context, nodeImages *corev1.ConfigMap) []object {
	const always = true
	role := func() (*rbacv1.Role, error) { return in.Profile.Role(ctx, in.Input) }
	return []object{
		rendered(karpenterassets.ServiceAccount, in.adaptServiceAccount, always),
		rendered(role, nil, in.Profile.Role != nil),
		rendered(karpenterassets.RoleBinding, in.adaptRoleBinding, in.Profile.Role != nil),
		rendered(in.pullSecret, nil, in.copiesPullSecret()),
		rendered(func() (*corev1.ConfigMap, error) { return nodeImages, nil }, nil, nodeImages != nil),
		rendered(karpenterassets.PodDisruptionBudget, nil, always),
		rendered(karpenterassets.NetworkPolicy, in.adaptNetworkPolicy, always),
		rendered(in.Profile.Deployment, func(d *appsv1.Deployment) error {
			if err := in.adaptDeployment(ctx, d); err != nil {
				return err
			}
			if in.Size.adapt(d); in.Asleep {
				d.Spec.Replicas = ptr.To[int32](0)
			}
			return nil
		}, always),
		rendered(karpenterassets.PodMonitor, nil, in.Monitoring),
	}
}

// render returns the objects that are needed.
func render(ctx context.Context, in Input) ([]client.Object, error) {
	nodeImages, err := in.nodeImages(ctx)
	if err != nil {
		return nil, err
	}
	var rendered []client.Object
	for _, object := range in.objects(ctx, nodeImages) {
		if !object.needed {
			continue
		}
		obj, err := object.render()
		if err != nil {
			return nil, err
		}
		if err := naming.Apply(in.Names, obj); err != nil {
			return nil, err
		}
		labels := map[string]string{}
		maps.Copy(labels, obj.GetLabels())
		maps.Copy(labels, in.Labels)
		obj.SetLabels(labels)
		obj.SetNamespace(in.Namespace)
		rendered = append(rendered, obj)
	}
	return rendered, nil
}

// copiesPullSecret is false where pods can use the HostedCluster's own.
func (in Input) copiesPullSecret() bool {
	return in.PullSecret != nil && in.PullSecret.Namespace != in.Namespace
}

func (in Input) pullSecret() (*corev1.Secret, error) {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: in.Names.PullSecret},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: in.PullSecret.Data[corev1.DockerConfigJsonKey]},
	}, nil
}

func (in Input) imagePullSecrets() []corev1.LocalObjectReference {
	switch {
	case in.PullSecret == nil:
		return nil
	case in.copiesPullSecret():
		return []corev1.LocalObjectReference{{Name: in.Names.PullSecret}}
	default:
		return []corev1.LocalObjectReference{{Name: in.PullSecret.Name}}
	}
}

func (in Input) adaptServiceAccount(sa *corev1.ServiceAccount) error {
	sa.ImagePullSecrets = in.imagePullSecrets()
	return nil
}

func (in Input) adaptRoleBinding(binding *rbacv1.RoleBinding) error {
	for i := range binding.Subjects {
		binding.Subjects[i].Namespace = in.Namespace
	}
	return nil
}

func (in Input) adaptDeployment(ctx context.Context, deployment *appsv1.Deployment) error {
	for key, value := range in.Labels {
		metav1.SetMetaDataLabel(&deployment.Spec.Template.ObjectMeta, key, value)
	}
	pod := &deployment.Spec.Template.Spec
	if len(pod.Containers) != 1 {
		return fmt.Errorf("the Deployment asset has %d containers, not one", len(pod.Containers))
	}
	pod.Containers[0].Image = in.Image
	pod.ImagePullSecrets = in.imagePullSecrets()
	in.Settings.adapt(deployment)
	featuregate.Write(&pod.Containers[0], in.FeatureGates)
	if err := in.Profile.AdaptDeployment(ctx, in.Input, deployment); err != nil {
		return err
	}
	if in.Profile.NodeClass.RolloutAnnotation == "" {
		return nil
	}
	content, err := json.Marshal(deployment.Spec.Template)
	if err != nil {
		return fmt.Errorf("hashing the pod template: %w", err)
	}
	container := &pod.Containers[0]
	container.Env = append(container.Env, corev1.EnvVar{Name: provider.RolloutVariable, Value: fmt.Sprintf("%x", sha256.Sum256(content))[:16]})
	return nil
}

// rolloutOf returns the rollout that a Deployment's pods are of; empty where they don't know.
func rolloutOf(deployment *appsv1.Deployment) string {
	for _, variable := range deployment.Spec.Template.Spec.Containers[0].Env {
		if variable.Name == provider.RolloutVariable {
			return variable.Value
		}
	}
	return ""
}

// adaptNetworkPolicy lets Karpenter reach the guest's API server, whose port the asset has only if it is a usual one.
func (in Input) adaptNetworkPolicy(policy *networkingv1.NetworkPolicy) error {
	if len(policy.Spec.Egress) == 0 {
		return errors.New("the NetworkPolicy asset has no egress rule")
	}
	ports := &policy.Spec.Egress[len(policy.Spec.Egress)-1].Ports
	guest := intstr.FromInt32(in.GuestPort)
	if in.GuestPort == 0 ||
		slices.ContainsFunc(*ports, func(p networkingv1.NetworkPolicyPort) bool { return p.Port != nil && *p.Port == guest }) {
		return nil
	}
	protocol := corev1.ProtocolTCP
	*ports = append(*ports, networkingv1.NetworkPolicyPort{Port: &guest, Protocol: &protocol})
	return nil
}
