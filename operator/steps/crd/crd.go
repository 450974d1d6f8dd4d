// SPDX-License-Identifier: Apache-2.0

// Package crd keeps the CustomResourceDefinitions of Karpenter and of its node class in guest clusters: those that the
// payload ships, else those embedded in the operator.
package crd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	apiversion "k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

// CreatedAnnotation is on the definitions that the operator created. One that was there before is kept up to date, but not
// removed with the HostedCluster: its objects aren't ours.
const CreatedAnnotation = v1beta1.Group + "/created"

// recheck is the interval between checks whether a kind is served, which can't be watched.
const recheck = 200 * time.Millisecond

// Config is the input of New.
type Config struct {
	Apply *apply.Applier
}

// Definitions is the step that applies the definitions and waits until they are established.
type Definitions struct {
	apply   *apply.Applier
	settled lru.Cache[types.UID, settled] // by the HostedCluster
}

// settled is a guest in which everything was as desired. As long as it still is, nothing is rendered or compared: definitions
// are large, and a guest's nodes reconcile its HostedCluster often.
type settled struct {
	release          string            // the payload's digest
	component        string            // of the payload, which differs from platform to platform
	gated            string            // the definitions of kinds that feature gates need
	resourceVersions map[string]string // by the definition's name
}

var _ scope.Step = (*Definitions)(nil)

// New returns the step.
func New(config Config) *Definitions {
	return &Definitions{apply: config.Apply, settled: lru.New[types.UID, settled](1 << 14)}
}

// Name implements scope.Step.
func (d *Definitions) Name() string { return "crd" }

// Reconcile applies the CRDs of the payload and the operator. It leaves a newer release's CRD, which stores versions
// unknown to this one, unchanged, and steps that need it wait. The release step rejects such a payload, but the CRD
// may have changed since.
func (d *Definitions) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	switch still, err := d.isSettled(ctx, s); {
	case err != nil:
		return scope.Result{}, err
	case still:
		return served(s), nil
	}
	if s.FeatureGates == nil {
		return scope.Result{Wait: true, Message: "the feature gates aren't known"}, nil
	}
	desired, gated, err := desiredFor(s.Profile, s.Karpenter.CRDs)
	if err != nil {
		return scope.Result{}, err
	}
	desired = slices.DeleteFunc(desired, func(d *apiextensionsv1.CustomResourceDefinition) bool {
		return gated.Has(d.Name) && !s.FeatureGates.Definitions.Has(d.Name)
	})
	var waits, establishing []string
	now := settled{release: s.Release.Digest, component: s.Karpenter.Name, gated: gatedOf(s), resourceVersions: map[string]string{}}
	for _, definition := range desired {
		live, wait, err := d.reconcile(ctx, s.Guest, definition, gated.Has(definition.Name))
		switch {
		case err != nil:
			return scope.Result{}, err
		case wait != "":
			waits = append(waits, wait)
		case !IsEstablished(live):
			establishing = append(establishing, definition.Name)
		default:
			now.resourceVersions[live.Name] = live.ResourceVersion
		}
	}
	if len(establishing) > 0 { // the watch on definitions ends the wait
		waits = append(waits, "the guest is to establish "+strings.Join(establishing, ", "))
	}
	if len(waits) > 0 {
		return scope.Result{Wait: true, Message: strings.Join(waits, "; ")}, nil
	}
	d.settled.Add(s.HostedCluster.UID, now)
	return served(s), nil
}

// served waits until established CRDs are served: an API server takes a moment.
func served(s *scope.Scope) scope.Result {
	if s.Guest.Complete {
		return scope.Result{}
	}
	return scope.Result{Wait: true, Message: "waiting for the guest to serve Karpenter's kinds", RequeueAfter: recheck}
}

func (d *Definitions) isSettled(ctx context.Context, s *scope.Scope) (bool, error) {
	before, ok := d.settled.Get(s.HostedCluster.UID)
	if !ok || s.FeatureGates == nil || before.release != s.Release.Digest || before.component != s.Karpenter.Name ||
		before.gated != gatedOf(s) {
		return false, nil
	}
	for name, resourceVersion := range before.resourceVersions {
		live := &apiextensionsv1.CustomResourceDefinition{}
		if err := s.Guest.Cached.Get(ctx, client.ObjectKey{Name: name}, live); err != nil {
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			return false, fmt.Errorf("reading CustomResourceDefinition %s in the guest: %w", name, err)
		}
		if live.ResourceVersion != resourceVersion {
			return false, nil
		}
	}
	return true, nil
}

// gatedOf names the definitions of kinds that feature gates need.
func gatedOf(s *scope.Scope) string { return strings.Join(sets.List(s.FeatureGates.Definitions), ",") }

// reconcile returns the previous CRD, nil if there was none, and the user's remedy if one is needed. A gated definition may be another's.
func (d *Definitions) reconcile(ctx context.Context, guest *scope.Guest, desired *apiextensionsv1.CustomResourceDefinition, gated bool,
) (*apiextensionsv1.CustomResourceDefinition, string, error) {
	live, err := Read(ctx, guest, desired.Name)
	if err != nil {
		return nil, "", err
	}
	switch {
	case live == nil:
		desired.Annotations[CreatedAnnotation] = "true"
	case gated && live.Annotations[CreatedAnnotation] == "":
		return live, "", nil // it came after the feature gates were decided
	case !live.DeletionTimestamp.IsZero():
		// An apply now would go with it, and might delay that: the watch on CRDs reports when it is gone.
		return live, "", nil
	default:
		if live.Annotations[CreatedAnnotation] != "" {
			desired.Annotations[CreatedAnnotation] = "true"
		}
		if why := storedBeyond(live, desired); why != "" {
			return live, why, nil
		}
		keepStorage(live, desired)
	}
	if err := d.apply.Objects(ctx, guest.Cached, nil, desired); err != nil {
		return live, "", fmt.Errorf("in the guest: %w", err)
	}
	return live, refused(live), nil
}

// Read returns a CRD of the guest: from the cache, which holds the operator's CRDs, else from the API server; nil for none.
func Read(ctx context.Context, guest *scope.Guest, name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	for _, reader := range []client.Reader{guest.Cached, guest.Live} {
		live := &apiextensionsv1.CustomResourceDefinition{}
		err := reader.Get(ctx, client.ObjectKey{Name: name}, live)
		if err == nil {
			return live, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading CustomResourceDefinition %s in the guest: %w", name, err)
		}
	}
	return nil, nil
}

// refused returns why the guest can't serve a CRD.
func refused(live *apiextensionsv1.CustomResourceDefinition) string {
	if live == nil || !apihelpers.IsCRDConditionFalse(live, apiextensionsv1.NamesAccepted) {
		return ""
	}
	why := apihelpers.FindCRDCondition(live, apiextensionsv1.NamesAccepted).Message
	if why == "" {
		return ""
	}
	return fmt.Sprintf("CustomResourceDefinition %s in the guest: %s", live.Name, message.Quote(why))
}

// IsEstablished reports whether the guest serves a CRD. One that is being deleted, or nil, is not established.
func IsEstablished(live *apiextensionsv1.CustomResourceDefinition) bool {
	return live != nil && live.DeletionTimestamp.IsZero() && apihelpers.IsCRDConditionTrue(live, apiextensionsv1.Established)
}

// StoredBeyond returns, for each definition, in which versions the guest has stored objects that neither the payload nor the operator
// defines; nothing if there are none, and the payload can be used.
func StoredBeyond(ctx context.Context, s *scope.Scope, payload []*apiextensionsv1.CustomResourceDefinition) ([]string, error) {
	desired, gated, err := desiredFor(s.Profile, payload)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, definition := range desired {
		live, err := Read(ctx, s.Guest, definition.Name)
		if err != nil {
			return nil, err
		}
		if live == nil || gated.Has(live.Name) && live.Annotations[CreatedAnnotation] == "" {
			continue
		}
		if why := storedBeyond(live, definition); why != "" {
			all = append(all, why)
		}
	}
	return all, nil
}

// storedBeyond returns in which versions the guest's etcd may hold objects that desired doesn't have. Without them those objects could
// be neither read nor deleted.
func storedBeyond(live, desired *apiextensionsv1.CustomResourceDefinition) string {
	unknown := sets.New(live.Status.StoredVersions...).Difference(versionNames(desired))
	if len(unknown) == 0 {
		return ""
	}
	return fmt.Sprintf("CustomResourceDefinition %s in the guest stores %s, which the release doesn't define; choose one that does",
		desired.Name, message.Quote(strings.Join(sets.List(unknown), ", ")))
}

func versionNames(definition *apiextensionsv1.CustomResourceDefinition) sets.Set[string] {
	names := sets.New[string]()
	for i := range definition.Spec.Versions {
		names.Insert(definition.Spec.Versions[i].Name)
	}
	return names
}

// keepStorage goes on storing objects in the newest version that is stored already, where an older payload would store them in one
// before it: fields that only the newer version has would be lost as they are written.
func keepStorage(live, desired *apiextensionsv1.CustomResourceDefinition) {
	storage := ""
	for i := range desired.Spec.Versions {
		if desired.Spec.Versions[i].Storage {
			storage = desired.Spec.Versions[i].Name
		}
	}
	newest := storage
	for _, stored := range live.Status.StoredVersions {
		if apiversion.CompareKubeAwareVersionStrings(stored, newest) > 0 {
			newest = stored
		}
	}
	if newest == storage || !versionNames(desired).Has(newest) {
		return
	}
	for i := range desired.Spec.Versions {
		desired.Spec.Versions[i].Storage = desired.Spec.Versions[i].Name == newest
	}
}

// desiredFor returns the payload's definitions, and those of the profile that have other names, sorted by name. They are copies: a
// payload is shared by every cluster that runs it. Their schemas admit only values that Go can decode. Gated are the names of those that a
// guest has only while a feature gate needs them.
func desiredFor(profile *provider.Profile, payload []*apiextensionsv1.CustomResourceDefinition,
) (desired []*apiextensionsv1.CustomResourceDefinition, gated sets.Set[string], err error) {
	embedded, err := profile.Definitions()
	if err != nil {
		return nil, nil, err
	}
	optional, err := crds.Gated()
	if err != nil {
		return nil, nil, err
	}
	gated = sets.New[string]()
	for _, definition := range optional {
		gated.Insert(definition.Name)
	}
	byName := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, definition := range slices.Concat(embedded, optional, payload) {
		definition = definition.DeepCopy()
		definition.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
		if definition.Annotations == nil {
			definition.Annotations = map[string]string{}
		}
		for i := range definition.Spec.Versions {
			if schema := definition.Spec.Versions[i].Schema; schema != nil && schema.OpenAPIV3Schema != nil {
				decodable(schema.OpenAPIV3Schema)
			}
		}
		byName[definition.Name] = definition
	}
	for _, definition := range byName {
		desired = append(desired, definition)
	}
	slices.SortFunc(desired, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return strings.Compare(a.Name, b.Name) })
	return desired, gated, nil
}
