// SPDX-License-Identifier: Apache-2.0

// Package version decides which Kubernetes version nodes get: that of the node class, else that of the MachineDeployment
// which a shape comes from, else the release payload's, else the API server's; and never more than the guest cluster's API
// server has.
package version

import (
	"fmt"
	"strings"

	"github.com/blang/semver/v4"
)

// Outcome tells why a version was resolved as it was.
type Outcome string

const (
	// Desired: nodes get what was asked for.
	Desired Outcome = "Desired"
	// HeldBack: nodes get less than the payload or the MachineDeployment asks for, until the API server has caught up.
	HeldBack Outcome = "HeldBack"
	// TooNew: the node class asks for more than the API server has, or than the platform gives.
	TooNew Outcome = "TooNew"
	// TooOld: the node class or the MachineDeployment asks for a version that the API server no longer supports nodes of.
	TooOld Outcome = "TooOld"
	// Unknown: the API server hasn't told its version yet.
	Unknown Outcome = "Unknown"
	// Malformed: what was asked for isn't a version.
	Malformed Outcome = "Malformed"
)

// MaxSkew is how many minor versions a kubelet may be behind its API server.
// https://kubernetes.io/releases/version-skew-policy/#kubelet
const MaxSkew = 3

// Input of Resolve. Versions may have a leading v.
type Input struct {
	// Spec is the node class's spec.version; empty to follow the shape.
	Spec string
	// Shape is the version of the MachineDeployment that the shape comes from; empty to follow the payload.
	Shape string
	// Payload is the release payload's node version; empty without a payload: nodes follow the API server.
	Payload string
	// Current is what was resolved last: the node class's status.version, which the guest's admin can write.
	Current string
	// Server is what the guest's API server last said; nil if it never did.
	Server *semver.Version
}

// Result of Resolve.
type Result struct {
	// Version that nodes get, without a leading v; empty if none can be told.
	Version string
	Outcome Outcome
	// Message says what is, why, and what to do; empty for Desired.
	Message string
}

// Ready tells whether nodes may be launched.
func (r Result) Ready() bool { return r.Outcome == Desired || r.Outcome == HeldBack }

// Resolve decides. Where what is asked for isn't possible, the current version stays as long as it is possible, so that no
// node is replaced just to be replaced again.
func Resolve(in Input) Result {
	asked, field := in.Spec, "spec.version"
	if asked == "" {
		asked, field = in.Shape, "the MachineDeployment's version"
	}
	// Who writes a version is told what is wrong with it; the payload's is the platform's own affair.
	written := asked != ""
	if !written {
		asked, field = in.Payload, "the release payload's node version"
	}
	if in.Server == nil {
		return Result{Version: trim(in.Current), Outcome: Unknown, Message: "the API server hasn't told its version yet; nothing is launched until it has"}
	}
	server := core(*in.Server)
	possible := server.String()
	// What nodes have is in the guest, where its admin can write it: it is no way to a version that can't be asked for.
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
			"spec.version %s exceeds the release payload's node version %s, which the platform decides; lower it", trim(asked), trim(in.Payload))}
	case desired.GT(server):
		return Result{Version: possible, Outcome: HeldBack, Message: fmt.Sprintf(
			"nodes stay at %s until the API server, now at %s, has been upgraded to %s", possible, server, trim(asked))}
	case written && tooOld(desired, server):
		return Result{Version: trim(asked), Outcome: TooOld, Message: fmt.Sprintf(
			"%s %s is more than %d minor versions behind the API server's version %s; raise it", field, trim(asked), MaxSkew, server)}
	}
	return Result{Version: trim(asked), Outcome: Desired}
}

// tooOld says that an API server no longer supports nodes of a version.
func tooOld(v, server semver.Version) bool {
	return v.Major != server.Major || v.Minor+MaxSkew < server.Minor
}

// exceeds says that a version is newer than the payload's, if there is one.
func exceeds(v semver.Version, payload string) bool {
	most, err := parse(payload)
	return err == nil && v.GT(most)
}

// parse reads a version and drops what follows the patch number: distributions write their own builds there, in a form that
// semver would take for a pre-release and order below the release itself.
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
