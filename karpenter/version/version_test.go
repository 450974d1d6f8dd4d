// SPDX-License-Identifier: Apache-2.0

package version

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/blang/semver/v4"
	"github.com/google/go-cmp/cmp"
	apiversion "k8s.io/apimachinery/pkg/version"
)

func TestResolve(t *testing.T) {
	for _, tc := range []struct {
		name                                                  string
		spec, shape, payload, current, server, want, contains string
		outcome                                               Outcome
	}{
		{name: "When the payload's version is the API server's, it should be that",
			payload: "1.36.2", server: "1.36.2", want: "1.36.2", outcome: Desired},
		{name: "When the payload's version is older, it should be that",
			payload: "1.36.2", current: "1.36.1", server: "1.36.3", want: "1.36.2", outcome: Desired},
		{name: "When versions have a leading v, it should drop it",
			payload: "v1.36.2", server: "1.36.2", want: "1.36.2", outcome: Desired},
		{name: "When the payload is ahead of the API server, it should keep what nodes have",
			payload: "1.36.3", current: "1.36.1", server: "1.36.2", want: "1.36.1", outcome: HeldBack, contains: "nodes stay at 1.36.1 until the API server, now at 1.36.2, has been upgraded to 1.36.3"},
		{name: "When the payload is ahead and there are no nodes yet, it should be the API server's",
			payload: "1.36.3", server: "1.36.2", want: "1.36.2", outcome: HeldBack},
		{name: "When the payload is ahead and what nodes have is too, it should be the API server's",
			payload: "1.37.0", current: "1.36.3", server: "1.36.2", want: "1.36.2", outcome: HeldBack},
		{name: "When the API server has caught up, it should be the payload's",
			payload: "1.36.3", current: "1.36.2", server: "1.36.3", want: "1.36.3", outcome: Desired},
		{name: "When the node class asks for less than the payload, it should be the node class's",
			spec: "1.35.1", payload: "1.36.2", server: "1.36.2", want: "1.35.1", outcome: Desired},
		{name: "When the node class asks for more than the API server has, it should keep what nodes have and say so",
			spec: "1.37.0", payload: "1.36.2", current: "1.36.2", server: "1.36.2", want: "1.36.2", outcome: TooNew, contains: "spec.version 1.37.0 exceeds the API server's version 1.36.2"},
		{name: "When the node class asks for what is just within the skew, it should be that",
			spec: "1.33.9", server: "1.36.2", want: "1.33.9", outcome: Desired},
		{name: "When the node class asks for what is beyond the skew, it should say so",
			spec: "1.32.0", server: "1.36.2", want: "1.32.0", outcome: TooOld, contains: "more than 3 minor versions behind"},
		{name: "When the MachineDeployment has a version, it should be that and not the payload's",
			shape: "v1.36.1", payload: "1.36.2", server: "1.36.2", want: "1.36.1", outcome: Desired},
		{name: "When the node class asks for a version, it should be that and not the MachineDeployment's",
			spec: "1.35.1", shape: "v1.36.1", payload: "1.36.2", server: "1.36.2", want: "1.35.1", outcome: Desired},
		{name: "When the MachineDeployment is ahead of the API server, it should keep what nodes have",
			shape: "v1.37.0", payload: "1.36.2", current: "1.36.2", server: "1.36.2", want: "1.36.2", outcome: HeldBack, contains: "until the API server, now at 1.36.2, has been upgraded to 1.37.0"},
		{name: "When the MachineDeployment is beyond the skew, it should say so",
			shape: "v1.32.0", payload: "1.36.2", server: "1.36.2", want: "1.32.0", outcome: TooOld, contains: "the MachineDeployment's version 1.32.0 is more than 3 minor versions behind"},
		{name: "When the payload is beyond the skew, it should still be that: the platform says what it supports",
			payload: "1.32.0", server: "1.36.2", want: "1.32.0", outcome: Desired},
		{name: "When the node class asks for another major version, it should say so",
			spec: "0.36.2", server: "1.36.2", want: "0.36.2", outcome: TooOld, contains: "more than 3 minor versions behind"},
		{name: "When the node class asks for what looks like a version and is none, it should say so",
			spec: "1.36.2-a_b", payload: "1.36.2", current: "1.36.1", server: "1.36.2", want: "1.36.1", outcome: Malformed, contains: `spec.version "1.36.2-a_b" is not a version`},
		{name: "When the API server hasn't told its version, it should keep what nodes have",
			payload: "1.36.3", current: "1.36.2", want: "1.36.2", outcome: Unknown},
		{name: "When the API server hasn't told its version and there are no nodes, it should know nothing",
			payload: "1.36.3", outcome: Unknown},
		{name: "When nobody asks for anything, it should follow the API server",
			current: "1.36.1", server: "1.36.2", want: "1.36.2", outcome: Desired},
		{name: "When a distribution writes its build after the version, it should not take it for a pre-release",
			payload: "1.36.2", server: "1.36.2-eks-abc123", want: "1.36.2", outcome: Desired},
		{name: "When the payload's version has a build, it should keep it",
			payload: "1.36.2+k3s1", server: "1.36.2+k3s1", want: "1.36.2+k3s1", outcome: Desired},
		{name: "When the payload's version is none, it should keep what nodes have",
			payload: "latest", current: "1.36.1", server: "1.36.2", want: "1.36.1", outcome: Malformed, contains: `"latest" is not a version`},
		{name: "When what nodes have is none, it should not be kept",
			payload: "1.36.3", current: "what", server: "1.36.2", want: "1.36.2", outcome: HeldBack},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := Input{Spec: tc.spec, Shape: tc.shape, Payload: tc.payload, Current: tc.current}
			if tc.server != "" {
				v := semver.MustParse(tc.server)
				in.Server = &v
			}
			got := Resolve(in)
			if !strings.Contains(got.Message, tc.contains) || (got.Message == "") != (got.Outcome == Desired) {
				t.Errorf("message %q", got.Message)
			}
			got.Message = ""
			if diff := cmp.Diff(Result{Version: tc.want, Outcome: tc.outcome}, got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

type answer func() (*apiversion.Info, error)

func (a answer) ServerVersion() (*apiversion.Info, error) { return a() }

func TestTracker(t *testing.T) {
	var info *apiversion.Info
	var fault error
	tracker := NewTracker(answer(func() (*apiversion.Info, error) { return info, fault }))
	changes := 0
	tracker.OnChange(func() { changes++ })
	for _, tc := range []struct {
		name      string
		version   string
		fault     error
		want      string
		reachable bool
		changed   bool
	}{
		{"When the API server has never answered, it should know nothing", "", errors.New("connection refused"), "", false, false},
		{"When the API server answers, it should know its version", "v1.36.2", nil, "1.36.2", true, true},
		{"When nothing has changed, it should tell nobody", "v1.36.2", nil, "1.36.2", true, false},
		{"When the API server is away, it should keep the version and mark it", "", errors.New("connection refused"), "1.36.2", false, true},
		{"When the API server is still away, it should tell nobody again", "", errors.New("connection refused"), "1.36.2", false, false},
		{"When the API server is back and upgraded, it should know the new version", "v1.36.3+build", nil, "1.36.3", true, true},
		{"When the API server answers nonsense, it should keep the version and mark it", "main", nil, "1.36.3", false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			info, fault = &apiversion.Info{GitVersion: tc.version}, tc.fault
			before := changes
			result, err := tracker.Reconcile(context.Background())
			if err != nil || result.RequeueAfter != Interval {
				t.Errorf("result %v, %v", result, err)
			}
			server, reachable := tracker.Server()
			got := ""
			if server != nil {
				got = server.String()
			}
			if got != tc.want || reachable != tc.reachable || (changes > before) != tc.changed {
				t.Errorf("got %q, reachable %t, changed %t; want %q, %t, %t", got, reachable, changes > before, tc.want, tc.reachable, tc.changed)
			}
		})
	}
}
