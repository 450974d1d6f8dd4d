// SPDX-License-Identifier: Apache-2.0

package release

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/payload"
)

const (
	// oldestMinor and newestMinor are the Kubernetes versions, 1.x, that the default release supports: from the first one that serves the
	// operator's objects in guests to the newest one that was tested.
	oldestMinor, newestMinor = 31, 37
	// followAfter is the interval between requests for the version of an API server that nodes follow.
	followAfter = 2 * time.Minute
	// olderFor is how long the API server has to report an older version until nodes follow it: while a control plane with several API servers
	// is upgraded or rolled back, each request may be answered by another one.
	olderFor = 10 * time.Minute
)

// DefaultRelease is the release of HostedClusters that name no payload: the operator's own. It has the CustomResourceDefinitions that the
// operator has, and nodes run the version of the guest's API server.
type DefaultRelease struct {
	// Component is the name of the only component.
	Component string
	// Image is its image, by digest; empty for an operator without a default release.
	Image string
	// Version is the operator's, without build metadata.
	Version string
}

// NewDefaultRelease returns the default release with an image of Karpenter, which may be empty.
func NewDefaultRelease(component, image, version string) (DefaultRelease, error) {
	if image != "" {
		if err := payload.CheckPinned(image); err != nil {
			return DefaultRelease{}, err
		}
	}
	version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), "+")
	return DefaultRelease{Component: component, Image: image, Version: cmp.Or(version, "dev")}, nil
}

// resolve returns the release for nodes of a version.
func (d DefaultRelease) resolve(nodes string) *resolved {
	_, digest, _ := strings.Cut(d.Image, "@")
	separator := "+"
	if strings.Contains(nodes, "+") { // the nodes' own build
		separator = "."
	}
	component := payload.Component{Name: d.Component, Image: d.Image, Versions: map[string]string{payload.KubernetesVersion: nodes}}
	return &resolved{component: component, byDefault: true, release: &payload.Release{
		Version: nodes + separator + "autonode." + d.Version, Image: d.Image, Digest: digest,
		Components: map[string]payload.Component{d.Component: component}, Names: []string{d.Component},
	}}
}

// check returns a *failedError for a HostedCluster that can't have the default release.
func (d DefaultRelease) check(s *scope.Scope) error {
	switch {
	case d.Image == "":
		return &failedError{reason: v1beta1.ReleaseMissingReason, message: "spec.release isn't set, and this operator has no default release: " +
			"it was started without --karpenter-image; name a payload in spec.release.image"}
	case d.Component != s.Profile.Component:
		return &failedError{reason: v1beta1.ComponentMissingReason, message: fmt.Sprintf(
			"spec.release isn't set, and the operator's default release has %s only; name a payload that has %s in spec.release.image", d.Component,
			s.Profile.Component)}
	}
	return nil
}

// follower decides which version nodes of the default release get.
type follower struct {
	versions *guest.Versions
	clock    clock.PassiveClock
	// older is since when an API server reports an older version than the one that nodes get, by the HostedCluster.
	older lru.Cache[types.UID, time.Time]
}

func newFollower(versions *guest.Versions, clock clock.PassiveClock) *follower {
	return &follower{versions: versions, clock: clock, older: lru.New[types.UID, time.Time](1 << 14)}
}

// version returns the version of the guest's API server, with its build where nodes need that. While that is unknown, or older for a while,
// it is the version that nodes get already; empty for none.
func (f *follower) version(ctx context.Context, s *scope.Scope, current string) (string, error) {
	if s.Guest == nil {
		if current == "" {
			return "", &failedError{reason: v1beta1.FitUnknownReason,
				message: "the operator's default release gives nodes the version of the guest's API server, which doesn't answer"}
		}
		return current, nil
	}
	reported, err := f.versions.Server(ctx, s, func(_ string, age time.Duration) bool { return age >= recheck })
	if err != nil {
		if current == "" {
			return "", err
		}
		log.FromContext(ctx).V(1).Info("Reading the API server's version", "error", err.Error())
		return current, nil // what can't be asked is no news
	}
	server, err := utilversion.ParseGeneric(reported)
	if err != nil {
		return "", &failedError{reason: v1beta1.VersionSkewReason, retryAfter: recheck,
			message: fmt.Sprintf("the guest's API server reports version %q, which isn't one; name a payload in spec.release.image", reported)}
	}
	if server.Major() != 1 || server.Minor() < oldestMinor || server.Minor() > newestMinor {
		remedy := "upgrade the operator, or name a payload for it in spec.release.image"
		if server.Major() == 1 && server.Minor() < oldestMinor {
			remedy = "upgrade the control plane"
		}
		return "", &failedError{reason: v1beta1.VersionSkewReason, retryAfter: followAfter, message: fmt.Sprintf(
			"the operator's default release supports Kubernetes 1.%d to 1.%d, and the guest's API server runs %s; %s", oldestMinor, newestMinor,
			plain(server), remedy)}
	}
	uid, nodes := s.HostedCluster.UID, plain(server)+installedBuild(s, reported)
	if current == "" ||
		cmp.Or(guest.CompareVersions(nodes, current), cmp.Compare(len(nodes), len(current)), strings.Compare(nodes, current)) >= 0 {
		f.older.Remove(uid)
		return nodes, nil
	}
	since, ok := f.older.Get(uid)
	if !ok {
		since = f.clock.Now()
		f.older.Add(uid, since)
	}
	if f.clock.Since(since) < olderFor {
		return current, nil
	}
	return nodes, nil
}

// installable are the builds of distributions whose bootstrap providers install the Machine's version by its whole name.
var installable = regexp.MustCompile(`\+(rke2r|k3s)[0-9]{1,4}$`)

// installedBuild returns the build of an API server's version, with its +, if nodes need it; empty for none. Kubeadm's images have none.
func installedBuild(s *scope.Scope, version string) string {
	if a := s.HostedCluster.Spec.AutoNode; a != nil && a.ProvisionerConfig.Karpenter != nil &&
		a.ProvisionerConfig.Karpenter.ClusterAPI != nil {
		if b := a.ProvisionerConfig.Karpenter.ClusterAPI.Bootstrap; b != nil && b.ConfigTemplateRef != nil &&
			!strings.HasPrefix(b.ConfigTemplateRef.Kind, "RKE2") && !strings.HasPrefix(b.ConfigTemplateRef.Kind, "KThrees") {
			return ""
		}
	}
	return installable.FindString(version)
}

// defaultRelease returns the default release for a HostedCluster that names no payload.
func (r *Resolver) defaultRelease(ctx context.Context, s *scope.Scope) (*resolved, error) {
	if err := r.byDefault.check(s); err != nil {
		return nil, err
	}
	current := ""
	if desired := s.HostedCluster.Status.Version.Desired; desired != nil && desired.Source == v1beta1.ReleaseSourceDefault {
		current = desired.NodeVersion
	}
	nodes, err := r.follower.version(ctx, s, current)
	if err != nil {
		return nil, err
	}
	return r.byDefault.resolve(nodes), nil
}

// last returns the release that was resolved before; nil if it isn't known any more.
func (r *Resolver) last(ctx context.Context, s *scope.Scope, desired *v1beta1.DesiredVersion) (*resolved, error) {
	if desired.Source != v1beta1.ReleaseSourceDefault {
		return r.resolve(ctx, s, desired.Image)
	}
	if err := r.byDefault.check(s); err != nil {
		return nil, err
	}
	return r.byDefault.resolve(desired.NodeVersion), nil
}
