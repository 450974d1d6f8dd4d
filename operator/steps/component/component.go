// SPDX-License-Identifier: Apache-2.0

// Package component runs Karpenter in the control-plane namespace and reports on it in a ControlPlaneComponent, which
// owns all objects created there.
package component

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/featuregate"
	"github.com/autonode-io/autonode/operator/steps/release/pullsecret"
	"github.com/autonode-io/autonode/payload"
)

// podMonitorCRD exists if the management cluster serves PodMonitors.
const podMonitorCRD = "podmonitors.monitoring.coreos.com"

// PullSecrets reads the pull secret of a HostedCluster, nil if it names none. See pullsecret.Secrets.
type PullSecrets interface {
	Get(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (*corev1.Secret, error)
}

// Config is the input of New.
type Config struct {
	// Management reads from the cache and writes.
	Management client.Client
	Applier    *apply.Applier
	Recorder   events.EventRecorder
	// PullSecrets are the credentials for Karpenter's image.
	PullSecrets PullSecrets
	// Settings of every Karpenter.
	Settings Settings
	// Templates has the references to Secrets that machines may have.
	Templates provider.Templates
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// SignedOnly rejects images that a payload doesn't name, because only payloads are signed.
	SignedOnly bool
}

// Component is the step that runs Karpenter.
type Component struct {
	Config
	// smaller is since when a smaller size has sufficed, by HostedCluster.
	smaller lru.Cache[types.UID, time.Time]
}

var _ scope.Step = (*Component)(nil)

// New returns the step.
func New(config Config) *Component {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Component{Config: config, smaller: lru.New[types.UID, time.Time](1 << 14)}
}

// Name implements scope.Step.
func (c *Component) Name() string { return "component" }

// +kubebuilder:rbac:groups=autonode.io,resources=controlplanecomponents/status,verbs=patch
//
// The objects are watched in every namespace, because control planes come and go:
// +kubebuilder:rbac:groups="",resources=configmaps;serviceaccounts;secrets,verbs=list;watch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=list;watch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=list;watch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=list;watch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles;rolebindings,verbs=list;watch
// +kubebuilder:rbac:groups=monitoring.coreos.com,resources=podmonitors,verbs=list;watch
//
// And it is written under these names only. Server-side apply names the object that it makes, so that names restrict
// create too:
// +kubebuilder:rbac:groups="",resources=serviceaccounts,resourceNames=karpenter,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=configmaps,resourceNames=karpenter-node-images,verbs=create;patch;delete
// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=karpenter-pull-secret,verbs=create;patch;delete
// +kubebuilder:rbac:groups=apps,resources=deployments,resourceNames=karpenter,verbs=create;patch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,resourceNames=karpenter,verbs=create;patch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,resourceNames=karpenter,verbs=create;patch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=rolebindings,resourceNames=karpenter,verbs=create;patch;delete
// +kubebuilder:rbac:groups=monitoring.coreos.com,resources=podmonitors,resourceNames=karpenter,verbs=create;patch;delete
//
// Karpenter's Role names kinds of providers that aren't known in advance. To hold them all would be a wildcard; to
// grant, under this one name, permissions that it doesn't hold takes these two verbs:
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=roles,resourceNames=karpenter,verbs=create;patch;escalate;bind

// Reconcile implements scope.Step. While AutoNode is being removed it only reports.
func (c *Component) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	if s.Mode == scope.Upkeep {
		return scope.Result{}, c.Observe(ctx, s)
	}
	if s.Release == nil || s.Component == nil {
		return scope.Result{Wait: true, Message: "the release isn't resolved"}, c.Observe(ctx, s)
	}
	if s.Guest == nil {
		return scope.Result{Wait: true, Message: "the guest can't be reached"}, c.Observe(ctx, s)
	}
	secret, err := c.PullSecrets.Get(ctx, s.HostedCluster)
	if invalid := pullsecret.IsInvalid(err); invalid != nil {
		return scope.Result{Wait: true, Message: invalid.Message}, c.Observe(ctx, s)
	} else if err != nil {
		return scope.Result{}, err
	}
	monitoring, err := c.monitoring(ctx)
	if err != nil {
		return scope.Result{}, err
	}
	if s.FeatureGates == nil {
		return scope.Result{Wait: true, Message: "the feature gates aren't known"}, c.Observe(ctx, s)
	}
	size, resize, err := c.size(ctx, s)
	if err != nil {
		return scope.Result{}, err
	}
	image := overrideImage(s, c.SignedOnly)
	objects, err := render(ctx, Input{
		Input: provider.Input{
			Namespace:   s.ControlPlaneNamespace,
			ClusterName: s.ClusterKey().Name,
			Names:       s.Names(),
			Cluster:     s.Cluster,
			Config:      s.HostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter,
			NodeVersion: s.NodeUpgrade.Version,
			Upgrades:    s.NodeUpgrade.Upgrades,
			Endpoint:    s.Guest.Config.Host,
			CA:          s.Guest.Config.CAData,
			Reader:      c.Management,
			Mapper:      c.Management.RESTMapper(),
			Templates:   c.Templates,

			SharedCatalogNamespace: c.Settings.SharedCatalogNamespace,
		},
		Profile:        s.Profile,
		Labels:         labelsFor(s.HostedCluster),
		GuestPort:      guestPort(s.Guest),
		Image:          image,
		NodeImages:     s.Release.NodeImages,
		PayloadVersion: s.Karpenter.Versions[payload.KubernetesVersion],
		ReleaseImage:   s.Release.Image,
		Plan:           s.NodeUpgrade.Plan,
		Size:           size,
		Asleep:         s.Sleep.Asleep,
		PullSecret:     secret,
		Monitoring:     monitoring,
		Settings:       c.Settings,
		FeatureGates:   s.FeatureGates.Set,
	})
	if err != nil {
		return scope.Result{}, fmt.Errorf("rendering Karpenter: %w", err)
	}
	if err := c.Applier.Objects(ctx, c.Management, s.Component, objects...); err != nil {
		return scope.Result{}, err
	}
	resources, err := c.resources(objects)
	if err != nil {
		return scope.Result{}, err
	}
	if err := c.prune(ctx, s.Component, resources); err != nil {
		return scope.Result{}, err
	}
	return scope.Result{RequeueAfter: resize}, c.report(ctx, s, objects, resources)
}

// guestPort returns the port of the guest's API server, zero if unknown.
func guestPort(guest *scope.Guest) int32 {
	server, _, err := rest.DefaultServerUrlFor(guest.Config)
	if err != nil {
		return 0 // there would be no connection
	}
	port, err := strconv.ParseInt(cmp.Or(server.Port(), "443"), 10, 32)
	if err != nil {
		return 0
	}
	return int32(port)
}

// Observe reports Karpenter's state without changing it.
func (c *Component) Observe(ctx context.Context, s *scope.Scope) error {
	if s.Component == nil {
		return nil
	}
	return c.report(ctx, s, nil, s.Component.Status.Resources)
}

// monitoring checks for the CRD in the cache. The RESTMapper would call the API server each time.
func (c *Component) monitoring(ctx context.Context) (bool, error) {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	err := c.Management.Get(ctx, client.ObjectKey{Name: podMonitorCRD}, crd)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("looking for %s: %w", podMonitorCRD, err)
	}
	return err == nil, nil
}

func (c *Component) resources(objects []client.Object) ([]v1beta1.ComponentResource, error) {
	resources := make([]v1beta1.ComponentResource, 0, len(objects))
	for _, obj := range objects {
		gvk, err := apiutil.GVKForObject(obj, c.Management.Scheme())
		if err != nil {
			return nil, fmt.Errorf("finding the kind of %T: %w", obj, err)
		}
		resources = append(resources, v1beta1.ComponentResource{Group: gvk.Group, Kind: gvk.Kind, Name: obj.GetName()})
	}
	return resources, nil
}

// prune deletes the component's objects that are no longer desired.
func (c *Component) prune(ctx context.Context, component *v1beta1.ControlPlaneComponent, resources []v1beta1.ComponentResource) error {
	for _, resource := range component.Status.Resources {
		if slices.Contains(resources, resource) {
			continue
		}
		mapping, err := c.Management.RESTMapper().RESTMapping(schema.GroupKind{Group: resource.Group, Kind: resource.Kind})
		if err != nil {
			continue // the kind is gone, and so is the object
		}
		obj := &metav1.PartialObjectMetadata{}
		obj.SetGroupVersionKind(mapping.GroupVersionKind)
		key := client.ObjectKey{Namespace: component.Namespace, Name: resource.Name}
		if err := c.Management.Get(ctx, key, obj); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return fmt.Errorf("reading %s %s: %w", resource.Kind, key, err)
		}
		if !metav1.IsControlledBy(obj, component) {
			continue
		}
		if err := c.Management.Delete(ctx, obj, client.Preconditions{UID: &obj.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %s %s: %w", resource.Kind, key, err)
		}
		log.FromContext(ctx).Info("Deleted object that is no longer needed", resource.Kind, klog.KRef(key.Namespace, key.Name))
	}
	return nil
}

// report writes the component's status if it changed. Objects are those just applied, nil if none were.
func (c *Component) report(ctx context.Context, s *scope.Scope, objects []client.Object, resources []v1beta1.ComponentResource) error {
	live := &appsv1.Deployment{}
	key := s.ComponentKey()
	if err := c.Management.Get(ctx, key, live); apierrors.IsNotFound(err) {
		live = nil
	} else if err != nil {
		return fmt.Errorf("reading the Deployment: %w", err)
	}
	var desired *appsv1.Deployment
	for _, obj := range objects {
		if deployment, ok := obj.(*appsv1.Deployment); ok {
			desired = deployment
		}
	}
	if live == nil && desired == nil && s.Component.Status.Conditions == nil {
		return nil // nothing was installed yet
	}

	pods, err := c.pods(ctx, s)
	if err != nil {
		return err
	}
	trouble := clusterstatus.TroubleAmong(pods)
	return c.applyStatus(ctx, s, func(component *v1beta1.ControlPlaneComponent) {
		component.Status.Resources = resources
		setRollout(component, live, desired, pods, trouble)
		setAvailable(component, live, trouble, s.Sleep)
		if desired == nil {
			return
		}
		component.Status.ImageOverride = ""
		if image := desired.Spec.Template.Spec.Containers[0].Image; image != s.Karpenter.Image {
			component.Status.ImageOverride = image
		}
		if rolledOut(component) {
			component.Status.Version, component.Status.ReleaseImage = s.Release.Version, s.Release.Image
			component.Status.FeatureGates = featuregate.Enabled(&desired.Spec.Template.Spec.Containers[0])
			s.Rollout = rolloutOf(desired)
			component.Status.Rollout = s.Rollout
		}
	})
}

// applyStatus writes the component's status if change changes it, and an event per condition.
func (c *Component) applyStatus(ctx context.Context, s *scope.Scope, change func(*v1beta1.ControlPlaneComponent)) error {
	before := s.Component
	after := before.DeepCopy()
	change(after)
	setReady(after)
	s.Component = after
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		return nil
	}
	if err := apply.Status(ctx, c.Management, after, statusFields); err != nil {
		return err
	}
	c.record(before, after)
	return nil
}

// statusFields is the operator's part of a component's status. Other conditions belong to other controllers.
var statusFields = apply.StatusFields{
	Names:      []string{"observedGeneration", "rollout", "version", "releaseImage", "imageOverride", "featureGates", "resources"},
	Conditions: []string{v1beta1.Ready, v1beta1.Available, v1beta1.RolloutComplete},
}
