// SPDX-License-Identifier: Apache-2.0

// Package release resolves a HostedCluster's payload, or the operator's default release where it names none. It pulls each
// digest once, looks a tag up only when spec.release changes or an annotation requests it, and keeps the last resolved
// payload if the wanted one can't be resolved.
package release

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/release/pullsecret"
	"github.com/autonode-io/autonode/payload"
)

// PullSecrets returns the pull secret of a HostedCluster, nil if it names none. See pullsecret.Secrets.
type PullSecrets interface {
	Get(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (*corev1.Secret, error)
}

// Config is the input of New.
type Config struct {
	PullSecrets PullSecrets
	// Versions has the guests' API servers' versions.
	Versions *guest.Versions
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Options of every pull: the transport and the limits.
	Options payload.Options
	// Default is the release of HostedClusters that name no payload.
	Default DefaultRelease
	// Nodes lists nodes of the management cluster; nil if their platforms don't matter.
	Nodes client.Reader
}

// Resolver is the step that resolves payloads. It sets ReleaseResolved and status.version.desired, and fills Scope.Release and
// Scope.Karpenter.
type Resolver struct {
	pullSecrets PullSecrets
	// skew checks payloads against s.Guest, if that is reachable.
	skew interface {
		check(ctx context.Context, s *scope.Scope, release *payload.Release, component payload.Component) error
	}
	options   payload.Options
	puller    *puller
	byDefault DefaultRelease
	follower  *follower
	// refused remembers a tag's digest whose payload the guest refused, so that it isn't looked up with each
	// reconciliation.
	refused lru.Cache[types.UID, refusal] // by the HostedCluster
}

type refusal struct{ requested, request, image string }

var _ scope.Step = (*Resolver)(nil)

// New returns a Resolver without payloads.
func New(config Config) *Resolver {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Resolver{
		pullSecrets: config.PullSecrets, skew: newSkew(config.Versions, config.Clock), options: config.Options,
		puller: newPuller(config.Clock, config.Nodes), refused: lru.New[types.UID, refusal](refusals),
		byDefault: config.Default, follower: newFollower(config.Versions, config.Clock),
	}
}

// Source emits a HostedCluster when a pull that it waits for completes. Use it in exactly one controller.
func (r *Resolver) Source() source.Source {
	return &r.puller.queue
}

// Name implements scope.Step.
func (r *Resolver) Name() string { return "release" }

// Reconcile implements scope.Step. A failed pull isn't an error of the step: ReleaseResolved reports it, and it is
// retried with back-off or when an input changes.
func (r *Resolver) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	hostedCluster := s.HostedCluster
	wanted := hostedCluster.Spec.Release.Image
	if hostedCluster.Status.Version == nil {
		hostedCluster.Status.Version = &v1beta1.VersionStatus{}
	}
	desired := hostedCluster.Status.Version.Desired
	image, asked := wanted, resolveRequest(hostedCluster)
	if desired != nil && wanted != "" && desired.Requested == wanted && desired.ResolveRequest == asked {
		image = desired.Image // the tag was looked up already
	} else if known, ok := r.refused.Get(hostedCluster.UID); ok && wanted != "" && known.requested == wanted && known.request == asked {
		image = known.image
	}

	found, err := r.wanted(ctx, s, image)
	var failed *failedError
	if err == nil && found != nil {
		if err = r.fits(ctx, s, found); errors.As(err, &failed) && !found.byDefault {
			r.refused.Add(hostedCluster.UID, refusal{requested: wanted, request: asked, image: found.release.Image})
		}
	}
	switch {
	case errors.As(err, &failed):
		status := metav1.ConditionFalse
		if failed.reason == v1beta1.FitUnknownReason {
			status = metav1.ConditionUnknown
		}
		set(hostedCluster, status, failed.reason, failed.message)
	case err != nil:
		return scope.Result{}, err
	case found == nil:
		message := fmt.Sprintf("pulling release image %s", image)
		if meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.ReleaseResolved) == nil {
			set(hostedCluster, metav1.ConditionUnknown, v1beta1.AutoNodeProgressingReason, message)
		}
		return scope.Result{Wait: true, Message: message}, nil
	default:
		use(s, found)
		if desired == nil || desired.Image != found.release.Image || desired.Version != found.release.Version {
			log.FromContext(ctx).Info("Resolved release", "image", found.release.Image, "version", found.release.Version, "servedBy",
				found.release.ServedBy)
		}
		hostedCluster.Status.Version.Desired = &v1beta1.DesiredVersion{
			Version: found.release.Version, NodeVersion: found.component.Versions[payload.KubernetesVersion],
			Image: found.release.Image, Source: found.source(), Requested: wanted, ResolveRequest: asked,
		}
		return report(hostedCluster, found), nil
	}

	result := scope.Result{Wait: true, Message: failed.message, RequeueAfter: failed.retryAfter}
	if found != nil && runs(s.Component, found.release) {
		// It fitted when it was rolled out, and stays: the guest has changed since.
		use(s, found)
		result.Wait = false
		return result, nil
	}
	sameSource := found != nil && found.byDefault && desired != nil && desired.Source == v1beta1.ReleaseSourceDefault
	if desired == nil || desired.Image == image || sameSource {
		return result, nil
	}
	// Keep the running payload in use if it is still readable.
	last, err := r.last(ctx, s, desired)
	switch {
	case errors.As(err, &failed), err == nil && last == nil:
		return result, nil
	case err != nil:
		return result, err
	}
	use(s, last)
	result.Wait = false
	return result, nil
}

// wanted returns the payload of an image, or the default release if there is no image.
func (r *Resolver) wanted(ctx context.Context, s *scope.Scope, image string) (*resolved, error) {
	if image == "" {
		return r.defaultRelease(ctx, s)
	}
	return r.resolve(ctx, s, image)
}

// report sets ReleaseResolved for a release that is used.
func report(hostedCluster *v1beta1.HostedCluster, found *resolved) scope.Result {
	release := found.release
	if found.byDefault {
		set(hostedCluster, metav1.ConditionTrue, v1beta1.DefaultReleaseReason, fmt.Sprintf(
			"spec.release isn't set: release %s is the operator's default, %s for nodes with Kubernetes %s",
			release.Version, release.Image, found.component.Versions[payload.KubernetesVersion]))
		return scope.Result{RequeueAfter: followAfter}
	}
	message := fmt.Sprintf("payload %s is %s", release.Version, release.Image)
	switch release.Unverified {
	case "":
		set(hostedCluster, metav1.ConditionTrue, v1beta1.AsExpectedReason, message)
		return scope.Result{}
	case payload.ReasonPayloadUnsigned:
		set(hostedCluster, metav1.ConditionTrue, v1beta1.PayloadUnsignedReason,
			message+"; it has no signature by a key that the platform trusts; sign it")
	default:
		set(hostedCluster, metav1.ConditionTrue, v1beta1.SignatureUnknownReason, fmt.Sprintf(
			"%s; the operator couldn't read its signatures (%s) and retries", message, reasons[release.Unverified]))
	}
	return scope.Result{RequeueAfter: verifyInterval}
}

// fits returns a *failedError for a payload that the guest can't use. While the guest is unreachable its version is
// unknown: a refused payload stays refused, and no payload replaces the installed one, because the guest may refuse
// it.
func (r *Resolver) fits(ctx context.Context, s *scope.Scope, found *resolved) error {
	if s.Guest == nil {
		known := meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.ReleaseResolved)
		if known != nil && known.ObservedGeneration == s.HostedCluster.Generation &&
			(known.Reason == v1beta1.VersionSkewReason || known.Reason == v1beta1.StoredVersionMissingReason) {
			return &failedError{reason: known.Reason, message: known.Message}
		}
		desired := s.HostedCluster.Status.Version.Desired
		if installed := s.Component != nil && len(s.Component.Status.Conditions) > 0; installed && desired != nil &&
			desired.Image != found.release.Image {
			return &failedError{reason: v1beta1.FitUnknownReason, message: fmt.Sprintf(
				"release %s (%s) waits until the guest's API server answers, because the guest may reject it; release %s stays until then",
				found.release.Version, found.release.Image, desired.Version)}
		}
		return nil // the guest's return brings us back
	}
	return r.skew.check(ctx, s, found.release, found.component)
}

// resolveRequest returns the annotation's value. Without the annotation it is the last value: removing the annotation
// requests nothing.
func resolveRequest(hostedCluster *v1beta1.HostedCluster) string {
	const limit = 64
	request := hostedCluster.Annotations[v1beta1.ResolveReleaseAnnotation]
	switch desired := hostedCluster.Status.Version.Desired; {
	case request == "" && desired != nil:
		return desired.ResolveRequest
	case len(request) > limit:
		return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(request)))
	default:
		return request
	}
}

// runs reports whether a payload is the last one that was rolled out completely. Another build may have the same
// version.
func runs(component *v1beta1.ControlPlaneComponent, release *payload.Release) bool {
	return component != nil && component.Status.ReleaseImage == release.Image
}

func use(s *scope.Scope, r *resolved) {
	s.Release, s.Karpenter = r.release, r.component
}

type resolved struct {
	release   *payload.Release
	component payload.Component
	// byDefault: it is the operator's default release, and no payload.
	byDefault bool
}

func (r *resolved) source() v1beta1.ReleaseSource {
	if r.byDefault {
		return v1beta1.ReleaseSourceDefault
	}
	return v1beta1.ReleaseSourcePayload
}

// failedError is why a payload can't be used.
type failedError struct {
	reason, message string
	retryAfter      time.Duration
}

func (e *failedError) Error() string { return e.message }

// resolve returns a payload and its Karpenter; nil while it is being pulled. ReleaseResolved reports a *failedError.
func (r *Resolver) resolve(ctx context.Context, s *scope.Scope, image string) (*resolved, error) {
	hostedCluster, component := s.HostedCluster, s.Profile.Component
	key := client.ObjectKeyFromObject(hostedCluster)
	lookups.For(key).Inc()
	found := r.puller.cached(image, component)
	if found != nil {
		cacheHits.For(key).Inc()
		r.verifyAgain(ctx, hostedCluster, found, component)
	} else {
		req, err := r.request(ctx, hostedCluster, image, component)
		if err != nil {
			return nil, err
		}
		var retryAfter time.Duration
		found, retryAfter, err = r.puller.get(ctx, reconcile.Request{NamespacedName: key}, req)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, explain(hostedCluster, err, retryAfter)
		}
		if found == nil {
			return nil, nil
		}
	}
	karpenter, err := componentOf(found, component)
	if err != nil {
		return nil, explain(hostedCluster, err, 0)
	}
	if class := s.Profile.NodeClass; class.FromPayload && !defines(karpenter, class.Definition()) {
		return nil, &failedError{reason: v1beta1.DefinitionMissingReason, message: fmt.Sprintf(
			"release %s ships no CustomResourceDefinition %s for its component %s; choose a payload that does", found.Version,
			class.Definition(), component)}
	}
	return &resolved{release: found, component: karpenter}, nil
}

// componentOf returns a component that states its Kubernetes version.
func componentOf(release *payload.Release, name string) (payload.Component, error) {
	component, err := release.Component(name)
	if err != nil {
		return payload.Component{}, err
	}
	_, err = component.NodeVersion()
	return component, err
}

func defines(component payload.Component, name string) bool {
	return slices.ContainsFunc(component.CRDs, func(crd *apiextensionsv1.CustomResourceDefinition) bool { return crd.Name == name })
}

// verifyAgain verifies an unverified payload in the background: it may have been signed since.
func (r *Resolver) verifyAgain(ctx context.Context, hostedCluster *v1beta1.HostedCluster, release *payload.Release, component string) {
	if release.Unverified == "" || !r.puller.dueAgain(release, component) {
		return
	}
	req, err := r.request(ctx, hostedCluster, release.Image, component)
	if err != nil {
		return // the payload is in use without its pull secret
	}
	r.puller.verifyAgain(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(hostedCluster)}, req)
}

// request returns a *failedError if the pull secret is invalid.
func (r *Resolver) request(ctx context.Context, hostedCluster *v1beta1.HostedCluster, image, component string) (request, error) {
	secret, err := r.pullSecrets.Get(ctx, hostedCluster)
	if invalid := pullsecret.IsInvalid(err); invalid != nil {
		return request{}, &failedError{reason: v1beta1.PullSecretInvalidReason, message: invalid.Message, retryAfter: maxBackoff}
	} else if err != nil {
		return request{}, err
	}
	options := r.options
	options.Components = []string{component}
	options.UserAgent = v1beta1.ManagedByOperator
	options.Discreet = true
	for _, source := range hostedCluster.Spec.ImageContentSources {
		options.ImageContentSources = append(options.ImageContentSources,
			payload.ImageContentSource{Source: source.Source, Mirrors: source.Mirrors})
	}
	var config []byte
	if secret != nil {
		config = secret.Data[corev1.DockerConfigJsonKey]
		keychain, err := payload.KeychainFromDockerConfig(config)
		if err != nil {
			return request{}, &failedError{reason: v1beta1.PullSecretInvalidReason, retryAfter: maxBackoff,
				message: fmt.Sprintf("spec.pullSecret: Secret %s/%s: %v", secret.Namespace, secret.Name, err)}
		}
		options.Keychain = keychain
	}
	mirrors, err := json.Marshal(options.ImageContentSources)
	if err != nil {
		return request{}, fmt.Errorf("hashing the mirrors: %w", err)
	}
	sum := sha256.New()
	sum.Write(mirrors)
	sum.Write(config)
	sum.Write([]byte(hostedCluster.Annotations[v1beta1.ResolveReleaseAnnotation])) // whoever annotates doesn't want to wait
	return request{image: image, component: component, namespace: hostedCluster.Namespace, options: options, inputs: string(sum.Sum(nil))}, nil
}

// reasons maps payload's reasons to the API's.
var reasons = map[payload.Reason]string{
	payload.ReasonInvalidReference:      v1beta1.ImageReferenceInvalidReason,
	payload.ReasonImagePullUnauthorized: v1beta1.ImagePullUnauthorizedReason,
	payload.ReasonImageNotFound:         v1beta1.ImageNotFoundReason,
	payload.ReasonRegistryUnreachable:   v1beta1.RegistryUnreachableReason,
	payload.ReasonPayloadMalformed:      v1beta1.PayloadMalformedReason,
	payload.ReasonPayloadTooLarge:       v1beta1.PayloadTooLargeReason,
	payload.ReasonComponentMissing:      v1beta1.ComponentMissingReason,
	payload.ReasonPlatformMissing:       v1beta1.PlatformMissingReason,
	payload.ReasonPayloadUnsigned:       v1beta1.PayloadUnsignedReason,
}

// explain adds the remedy to an error.
func explain(hostedCluster *v1beta1.HostedCluster, err error, retryAfter time.Duration) error {
	var e *payload.Error
	if !errors.As(err, &e) {
		return err
	}
	failed := &failedError{reason: cmp.Or(reasons[e.Reason], v1beta1.PayloadMalformedReason), message: e.Error(), retryAfter: retryAfter}
	if e.Reason == payload.ReasonImagePullUnauthorized {
		failed.message += "; " + credentials(hostedCluster, e)
	}
	return failed
}

func credentials(hostedCluster *v1beta1.HostedCluster, e *payload.Error) string {
	secret := hostedCluster.Spec.PullSecret
	switch {
	case secret == nil:
		return "spec.pullSecret isn't set"
	case e.Anonymous:
		return fmt.Sprintf("spec.pullSecret %s/%s has no entry for %s", hostedCluster.Namespace, secret.Name, e.Registry)
	default:
		return fmt.Sprintf("check the entry for %s in spec.pullSecret %s/%s", e.Registry, hostedCluster.Namespace, secret.Name)
	}
}

func set(hostedCluster *v1beta1.HostedCluster, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&hostedCluster.Status.Conditions, metav1.Condition{
		Type: v1beta1.ReleaseResolved, Status: status, Reason: reason, Message: message, ObservedGeneration: hostedCluster.Generation,
	})
}
