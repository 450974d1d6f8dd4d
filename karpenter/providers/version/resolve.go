// SPDX-License-Identifier: Apache-2.0

// Package version resolves the Kubernetes version of nodes: the node class's, else that of the
// MachineDeployment, else the release payload's, else the API server's. It never exceeds the version of the guest
// cluster's API server.
package version

import (
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
	// Payload is the release payload's node version; empty without a payload: nodes follow the API server.
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
// possible, so that nodes aren't replaced twice.
func Resolve(in Input) Result {
	asked, field := in.Spec, "spec.version"
	if asked == "" {
		asked, field = in.MachineDeployment, "the MachineDeployment's version"
	}
	// The author of a version gets an error about it. The payload's version is the platform's responsibility.
	written := asked != ""
	if !written {
		asked, field = in.Payload, "the release payload's node version"
	}
	if in.Server == nil {
		return Result{Version: trim(in.Current), Outcome: Unknown, Message: "the API server's version isn't known yet; nothing is launched until it is"}
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

// tooOld reports whether nodes of a version are too old for an API server.
func tooOld(v, server semver.Version) bool {
	return v.Major != server.Major || v.Minor+MaxSkew < server.Minor
}

// exceeds reports whether a version is newer than the payload's, if there is a payload.
func exceeds(v semver.Version, payload string) bool {
	most, err := parse(payload)
	return err == nil && v.GT(most)
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
