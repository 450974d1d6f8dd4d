// SPDX-License-Identifier: Apache-2.0

// Package version resolves the Kubernetes version of nodes: the node class's, else that of the
// MachineDeployment, else the release payload's, else the API server's. It never exceeds the version of the guest
// cluster's API server. A template whose image has a version of its own makes nodes of that version, or none.
package version

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/blang/semver/v4"
)

// Outcome is why a version was resolved as it was.
type Outcome string

const (
	// Desired: nodes get the requested version.
	Desired Outcome = "Desired"
	// HeldBack: nodes get an older version than the payload or the MachineDeployment requests, until the API server
	// is upgraded.
	HeldBack Outcome = "HeldBack"
	// TooNew: the node class requests a newer version than the API server's, or than the platform allows.
	TooNew Outcome = "TooNew"
	// TooOld: the node class or the MachineDeployment requests a version that is too old for the API server.
	TooOld Outcome = "TooOld"
	// Unknown: the API server's version isn't known yet.
	Unknown Outcome = "Unknown"
	// Malformed: the requested value isn't a version.
	Malformed Outcome = "Malformed"
	// ImageTooNew: the template's image has a newer version than nodes get now.
	ImageTooNew Outcome = "ImageTooNew"
	// ImageTooOld: the template's image has a version that is too old for the API server.
	ImageTooOld Outcome = "ImageTooOld"
)

// MaxSkew is how many minor versions a kubelet may be older than its API server.
// https://kubernetes.io/releases/version-skew-policy/#kubelet
const MaxSkew = 3

// Input of Resolve. Versions may have a leading v.
type Input struct {
	// Spec is the node class's spec.version; empty to follow the MachineDeployment.
	Spec string
	// MachineDeployment is the version of the MachineDeployment; empty to follow the payload.
	MachineDeployment string
	// Image is the version that a template's image states; empty if it states none.
	Image string
	// Payload is the release's node version; empty without a payload: nodes follow the API server.
	Payload string
	// Current is the last resolved version: the node class's status.version, which the guest's admin can write.
	Current string
	// Server is the last known version of the guest's API server; nil if unknown.
	Server *semver.Version
}

// Result of Resolve.
type Result struct {
	// Version of nodes, without a leading v; empty if unknown.
	Version string
	Outcome Outcome
	// Message is the condition's message; empty for Desired.
	Message string
}

// Ready reports whether nodes may be launched.
func (r Result) Ready() bool { return r.Outcome == Desired || r.Outcome == HeldBack }

// Resolve resolves the version. If the requested version isn't possible, the current one stays as long as it is
// possible, so that nodes aren't replaced twice. An image's version isn't requested but a fact: it is the result if nodes may
// have it.
func Resolve(in Input) Result {
	requested := request(in)
	image, err := parse(in.Image)
	if err != nil || in.MachineDeployment != "" || !requested.Ready() {
		return requested
	}
	result := Result{Version: trim(in.Image), Outcome: requested.Outcome, Message: requested.Message}
	given, err := parse(requested.Version)
	switch {
	case err == nil && image.GT(given):
		result.Outcome = ImageTooNew
		result.Message = fmt.Sprintf("its image has %s, and nodes get %s; nothing is launched from it until they get its version",
			result.Version, requested.Version)
	case in.Server != nil && tooOld(image, core(*in.Server)):
		result.Outcome = ImageTooOld
		result.Message = fmt.Sprintf("its image's version %s is more than %d minor versions behind the API server's version %s; replace it by "+
			"a template with a newer image",
			result.Version, MaxSkew, core(*in.Server))
	}
	return result
}

// request resolves the requested version.
func request(in Input) Result {
	asked, field := in.Spec, "spec.version"
	if asked == "" {
		asked, field = in.MachineDeployment, "the MachineDeployment's version"
	}
	// The author of a version gets an error about it. The payload's version is the platform's responsibility.
	written := asked != ""
	if !written {
		asked, field = in.Payload, "the release's node version"
	}
	if in.Server == nil {
		return Result{
			Version: trim(in.Current), Outcome: Unknown, Message: "the API server's version isn't known yet; nothing is launched until it is",
		}
	}
	server := core(*in.Server)
	possible := server.String()
	// The guest's admin can write status.version, so it must not allow a version that spec.version couldn't request.
	if current, err := parse(in.Current); err == nil && current.LTE(server) && !tooOld(current, server) {
		possible = trim(in.Current)
	}
	if asked == "" {
		return Result{Version: server.String(), Outcome: Desired}
	}
	desired, err := parse(asked)
	switch {
	case err != nil:
		return Result{Version: possible, Outcome: Malformed, Message: fmt.Sprintf("%s %q is not a version, such as 1.36.3", field, asked)}
	case desired.GT(server) && in.Spec != "":
		return Result{Version: possible, Outcome: TooNew, Message: fmt.Sprintf(
			"spec.version %s exceeds the API server's version %s; lower it, or upgrade the control plane first", trim(asked), server)}
	case in.Spec != "" && exceeds(desired, in.Payload):
		return Result{Version: possible, Outcome: TooNew, Message: fmt.Sprintf(
			"spec.version %s exceeds the release's node version %s, which the platform decides; lower it", trim(asked), trim(in.Payload))}
	case desired.GT(server):
		return Result{Version: possible, Outcome: HeldBack, Message: fmt.Sprintf(
			"nodes stay at %s until the API server, now at %s, has been upgraded to %s", possible, server, trim(asked))}
	case written && tooOld(desired, server):
		return Result{Version: trim(asked), Outcome: TooOld, Message: fmt.Sprintf(
			"%s %s is more than %d minor versions behind the API server's version %s; raise it", field, trim(asked), MaxSkew, server)}
	}
	return Result{Version: trim(asked), Outcome: Desired}
}

// Compare orders versions, the older one first. Builds of one version have no order, and a version that can't be parsed is as old as
// any other.
func Compare(a, b string) int {
	x, errX := parse(a)
	y, errY := parse(b)
	if errX != nil || errY != nil {
		return 0
	}
	return x.Compare(y)
}

// IsMade reports whether nodes of an image's version have the version that nodes get. If one of the two names no build, any build
// of the version does.
func IsMade(image, given string) bool {
	x, errX := parse(image)
	y, errY := parse(given)
	if errX != nil || errY != nil {
		return cmp.Or(trim(image), trim(given)) == trim(given)
	}
	built, wanted := strings.TrimPrefix(trim(image), x.String()), strings.TrimPrefix(trim(given), y.String())
	return x.EQ(y) && (built == "" || wanted == "" || built == wanted)
}

// tooOld reports whether nodes of a version are too old for an API server.
func tooOld(v, server semver.Version) bool {
	return v.Major != server.Major || v.Minor+MaxSkew < server.Minor
}

// exceeds reports whether a version is newer than the payload's, if there is a payload.
func exceeds(v semver.Version, payload string) bool {
	limit, err := parse(payload)
	return err == nil && v.GT(limit)
}

// parse parses a version and drops everything after the patch number: distributions put their build there, which
// semver would order as a pre-release, below the release.
func parse(v string) (semver.Version, error) {
	parsed, err := semver.Parse(trim(v))
	if err != nil {
		return semver.Version{}, err
	}
	return core(parsed), nil
}

func core(v semver.Version) semver.Version {
	return semver.Version{Major: v.Major, Minor: v.Minor, Patch: v.Patch}
}

func trim(v string) string { return strings.TrimPrefix(v, "v") }
