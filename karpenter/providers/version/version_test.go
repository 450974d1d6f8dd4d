// SPDX-License-Identifier: Apache-2.0

package version

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/blang/semver/v4"
	. "github.com/onsi/gomega"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestResolve(t *testing.T) {
	for _, tc := range []struct {
		name                                                              string
		spec, deployment, image, payload, current, server, want, contains string
		outcome                                                           Outcome
	}{
		{name: "When the payload's version is older, it should be that",
			payload: "1.36.2", current: "1.36.1", server: "1.36.3", want: "1.36.2", outcome: Desired},
		{name: "When versions have a leading v, it should drop it",
			payload: "v1.36.2", server: "1.36.2", want: "1.36.2", outcome: Desired},
		{name: "When the payload is ahead of the API server, it should keep what nodes have",
			payload: "1.36.3", current: "1.36.1", server: "1.36.2", want: "1.36.1", outcome: HeldBack, contains: "nodes stay at 1.36.1 until the API server, now at 1.36.2, has been upgraded to 1.36.3"},
		{name: "When the payload is ahead and what nodes have is too, it should be the API server's",
			payload: "1.37.0", current: "1.36.3", server: "1.36.2", want: "1.36.2", outcome: HeldBack},
		{name: "When the node class requests more than the API server has, it should keep what nodes have and say so",
			spec: "1.37.0", payload: "1.36.2", current: "1.36.2", server: "1.36.2", want: "1.36.2", outcome: TooNew, contains: "spec.version 1.37.0 exceeds the API server's version 1.36.2"},
		{name: "When the node class requests more than the payload has, it should keep what nodes have and say so",
			spec: "1.36.3", payload: "1.36.2", current: "1.36.1", server: "1.36.4", want: "1.36.1", outcome: TooNew, contains: "spec.version 1.36.3 exceeds the release's node version 1.36.2"},
		{name: "When what nodes have is said to be beyond the skew, it should not be kept",
			payload: "1.36.3", current: "1.20.0", server: "1.36.2", want: "1.36.2", outcome: HeldBack},
		{name: "When the node class requests what is just within the skew, it should be that",
			spec: "1.33.9", server: "1.36.2", want: "1.33.9", outcome: Desired},
		{name: "When the node class requests what is beyond the skew, it should say so",
			spec: "1.32.0", server: "1.36.2", want: "1.32.0", outcome: TooOld, contains: "more than 3 minor versions behind"},
		{name: "When the MachineDeployment has a version, it should be that and not the payload's",
			deployment: "v1.36.1", payload: "1.36.2", server: "1.36.2", want: "1.36.1", outcome: Desired},
		{name: "When the node class requests a version, it should be that and not the MachineDeployment's",
			spec: "1.35.1", deployment: "v1.36.1", payload: "1.36.2", server: "1.36.2", want: "1.35.1", outcome: Desired},
		{name: "When the MachineDeployment is ahead of the API server, it should keep what nodes have",
			deployment: "v1.37.0", payload: "1.36.2", current: "1.36.2", server: "1.36.2", want: "1.36.2", outcome: HeldBack, contains: "until the API server, now at 1.36.2, has been upgraded to 1.37.0"},
		{name: "When the MachineDeployment is beyond the skew, it should say so",
			deployment: "v1.32.0", payload: "1.36.2", server: "1.36.2", want: "1.32.0", outcome: TooOld, contains: "the MachineDeployment's version 1.32.0 is more than 3 minor versions behind"},
		{name: "When the payload is beyond the skew, it should still be that: the platform decides what it supports",
			payload: "1.32.0", server: "1.36.2", want: "1.32.0", outcome: Desired},
		{name: "When the node class requests another major version, it should say so",
			spec: "0.36.2", server: "1.36.2", want: "0.36.2", outcome: TooOld, contains: "more than 3 minor versions behind"},
		{name: "When the node class requests what looks like a version and is none, it should say so",
			spec: "1.36.2-a_b", payload: "1.36.2", current: "1.36.1", server: "1.36.2", want: "1.36.1", outcome: Malformed, contains: `spec.version "1.36.2-a_b" is not a version`},
		{name: "When the API server hasn't reported its version, it should keep what nodes have",
			payload: "1.36.3", current: "1.36.2", want: "1.36.2", outcome: Unknown},
		{name: "When no version is requested, it should follow the API server",
			current: "1.36.1", server: "1.36.2", want: "1.36.2", outcome: Desired},
		{name: "When a distribution writes its build after the version, it should not take it for a pre-release",
			payload: "1.36.2", server: "1.36.2-eks-abc123", want: "1.36.2", outcome: Desired},
		{name: "When the payload's version has a build, it should keep it",
			payload: "1.36.2+k3s1", server: "1.36.2+k3s1", want: "1.36.2+k3s1", outcome: Desired},
		{name: "When the payload's version is none, it should keep what nodes have",
			payload: "latest", current: "1.36.1", server: "1.36.2", want: "1.36.1", outcome: Malformed, contains: `"latest" is not a version`},
		{name: "When what nodes have is none, it should not be kept",
			payload: "1.36.3", current: "what", server: "1.36.2", want: "1.36.2", outcome: HeldBack},
		{name: "When the image is older than the payload, it should be the image's, because a node gets no other",
			image: "1.36.2", payload: "1.36.3", server: "1.36.3", want: "1.36.2", outcome: Desired},
		{name: "When the image is newer than the payload, it should wait for that",
			image: "1.36.3", payload: "1.36.2", server: "1.36.3", want: "1.36.3", outcome: ImageTooNew, contains: "its image has 1.36.3, and nodes get 1.36.2"},
		{name: "When image and payload are ahead of the API server, it should wait for that",
			image: "1.36.3", payload: "1.36.3", current: "1.36.2", server: "1.36.2", want: "1.36.3", outcome: ImageTooNew, contains: "its image has 1.36.3, and nodes get 1.36.2"},
		{name: "When the payload is ahead of the API server and the image isn't, it should be the image's until nodes follow",
			image: "1.36.2", payload: "1.36.3", current: "1.36.2", server: "1.36.2", want: "1.36.2", outcome: HeldBack, contains: "nodes stay at 1.36.2"},
		{name: "When the image is newer than what the node class requests, it should wait",
			spec: "1.36.1", image: "1.36.2", payload: "1.36.2", server: "1.36.2", want: "1.36.2", outcome: ImageTooNew, contains: "nodes get 1.36.1"},
		{name: "When the image is beyond the skew, it should say so",
			image: "1.32.9", payload: "1.36.2", server: "1.36.2", want: "1.32.9", outcome: ImageTooOld, contains: "more than 3 minor versions behind the API server's version 1.36.2"},
		{name: "When the MachineDeployment has a version, it should be that and not the image's",
			deployment: "1.36.1", image: "1.36.0", payload: "1.36.2", server: "1.36.2", want: "1.36.1", outcome: Desired},
		{name: "When the API server hasn't reported its version, it should know nothing of the image's either",
			image: "1.36.2", payload: "1.36.2", current: "1.36.1", want: "1.36.1", outcome: Unknown},
		{name: "When the image's version is none, it should be the payload's",
			image: "latest", payload: "1.36.2", server: "1.36.2", want: "1.36.2", outcome: Desired},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := Input{Spec: tc.spec, MachineDeployment: tc.deployment, Image: tc.image, Payload: tc.payload, Current: tc.current}
			if tc.server != "" {
				v := semver.MustParse(tc.server)
				in.Server = &v
			}
			got := Resolve(in)
			if !strings.Contains(got.Message, tc.contains) || (got.Message == "") != (got.Outcome == Desired) {
				t.Errorf("message %q", got.Message)
			}
			got.Message = ""
			NewWithT(t).Expect(got).To(BeComparableTo(Result{Version: tc.want, Outcome: tc.outcome}))
		})
	}
}

func TestResolver(t *testing.T) {
	tracker := NewTracker(answer(func() (*apiversion.Info, error) { return &apiversion.Info{GitVersion: "v1.36.2"}, nil }), before(""))
	r := Resolver{Tracker: tracker, Payload: "1.36.2"}
	t.Run("When the API server's version isn't known, no version should be too old", func(t *testing.T) {
		NewWithT(t).Expect(r.TooOld("1.20.0")).To(BeFalse())
	})
	_, err := reconcile(t, tracker, 1)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for payload, want := range map[string]string{"": "1.36.2", "1.36.1": "1.36.1"} {
		t.Run("When another payload's version is "+payload+", it should resolve that, or its own for none", func(t *testing.T) {
			got, _ := r.ResolveFor(payload, &v1alpha1.ClusterAPINodeClass{}, nil)
			NewWithT(t).Expect(got.Version).To(Equal(want))
			NewWithT(t).Expect(r.Payload).To(Equal("1.36.2"))
		})
	}
	for payload, want := range map[string]bool{"1.32.9": true, "v1.33.0": false, "1.37.0": false, "latest": false, "": false} {
		t.Run("When a payload has "+payload+", it should be too old only beyond the skew", func(t *testing.T) {
			NewWithT(t).Expect(r.TooOld(payload)).To(Equal(want))
		})
	}
}

func TestIsMade(t *testing.T) {
	for name, tc := range map[string]struct {
		image, given string
		want         bool
	}{
		"When the versions are equal, it should be made":                     {"v1.36.2", "1.36.2", true},
		"When the image is older, it should not be made":                     {"1.36.2", "1.36.3", false},
		"When the image names a build and the payload none, it should be":    {"1.36.2+k3s1", "1.36.2", true},
		"When the payload names a build and the image none, it should be":    {"1.36.2", "1.36.2+k3s1", true},
		"When both name another build, it should not be made":                {"1.36.2+k3s1", "1.36.2+k3s2", false},
		"When nothing is known of the nodes' version, it should not be made": {"1.36.2", "", false},
		"When the image's version isn't known, it should be taken for it":    {"", "1.36.2", true},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(IsMade(tc.image, tc.given)).To(Equal(tc.want))
		})
	}
}

func TestCompare(t *testing.T) {
	for name, tc := range map[string]struct {
		a, b string
		want int
	}{
		"When a minor version has two digits, it should be the newer one": {"1.9.0", "1.10.0", -1},
		"When only builds differ, there should be no order":               {"1.36.2+k3s1", "v1.36.2+k3s2", 0},
		"When one is no version, there should be no order":                {"latest", "1.36.2", 0},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(Compare(tc.a, tc.b)).To(Equal(tc.want))
		})
	}
}

type answer func() (*apiversion.Info, error)

func (a answer) ServerVersion() (*apiversion.Info, error) { return a() }

// before is what was resolved before the process; empty for nothing.
func before(version string) Resolved {
	return func(context.Context) (*semver.Version, error) {
		if version == "" {
			return nil, nil
		}
		parsed, err := parse(version)
		return &parsed, err
	}
}

// reconcile has the tracker request the version so many times, and returns the last result.
func reconcile(t *testing.T, tracker *Tracker, times int) (result reconciler.Result, err error) {
	for range times {
		result, err = tracker.Reconcile(t.Context())
	}
	return result, err
}

func TestTracker(t *testing.T) {
	var info *apiversion.Info
	var fault error
	tracker := NewTracker(answer(func() (*apiversion.Info, error) { return info, fault }), before(""))
	changes := 0
	tracker.OnChange(func() { changes++ })
	refused := errors.New("connection refused")
	for _, tc := range []struct {
		name string
		// answers in a row, if more than one.
		answers   int
		version   string
		fault     error
		want      string
		reachable bool
		changed   bool
		settling  bool
	}{
		{name: "When the API server has never answered, it should know nothing", fault: refused},
		{name: "When the API server answers for the first time, it should know its version at once", version: "v1.36.2", want: "1.36.2", reachable: true, changed: true},
		{name: "When nothing has changed, it should notify no subscriber", version: "v1.36.2", want: "1.36.2", reachable: true},
		{name: "When the API server is away, it should keep the version and mark it", fault: refused, want: "1.36.2", changed: true},
		{name: "When the API server is still away, it should notify no subscriber again", fault: refused, want: "1.36.2"},
		{name: "When the API server is back and upgraded, it should wait whether an old one is left", version: "v1.36.3+build", want: "1.36.2", reachable: true, changed: true, settling: true},
		{name: "When an old one answers, it should know that the upgrade isn't over", version: "v1.36.2", want: "1.36.2", reachable: true},
		{name: "When a new one answers again, it should restart the wait", version: "v1.36.3", want: "1.36.2", reachable: true, settling: true},
		{name: "When only new ones have answered, but not often, it should wait", answers: SettlingAnswers - 2, version: "v1.36.3", want: "1.36.2", reachable: true, settling: true},
		{name: "When one of a third version answers, it should wait for that one", version: "v1.36.4", want: "1.36.2", reachable: true, settling: true},
		{name: "When the version before it answers, it should wait for that one again", version: "v1.36.3", want: "1.36.2", reachable: true, settling: true},
		{name: "When only new ones have answered for a while, it should know the new version", answers: SettlingAnswers - 1, version: "v1.36.3", want: "1.36.3", reachable: true, changed: true},
		{name: "When an old one answers after all, it should go back at once", version: "v1.36.2", want: "1.36.2", reachable: true, changed: true},
		{name: "When the API server answers nonsense, it should keep the version and mark it", version: "main", want: "1.36.2", changed: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			info, fault = &apiversion.Info{GitVersion: tc.version}, tc.fault
			before := changes
			result, err := reconcile(t, tracker, max(tc.answers, 1))
			interval := Interval
			if tc.settling {
				interval = SettlingInterval
			}
			if err != nil || result.RequeueAfter != interval {
				t.Errorf("result %v, %v; want a look after %s", result, err, interval)
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

func TestNewLeader(t *testing.T) {
	type look struct {
		answers    int
		answer     string
		want       string
		isSettling bool
	}
	for _, tc := range []struct {
		name   string
		before string
		looks  []look
	}{
		{name: "When a newer API server answers a new leader first, it should wait as long as without a restart", before: "1.36.2", looks: []look{
			{1, "v1.36.3", "1.36.2", true}, {SettlingAnswers - 2, "v1.36.3", "1.36.2", true}, {1, "v1.36.3", "1.36.3", false},
		}},
		{name: "When an older API server still answers a new leader, it should begin to wait again", before: "1.36.2", looks: []look{
			{SettlingAnswers - 1, "v1.36.3", "1.36.2", true}, {1, "v1.36.2", "1.36.2", false}, {1, "v1.36.3", "1.36.2", true}, {SettlingAnswers - 1, "v1.36.3", "1.36.3", false},
		}},
		{name: "When the API server doesn't answer a new leader at first, it should wait once it does", before: "1.36.2", looks: []look{
			{1, "", "", false}, {1, "v1.36.3", "1.36.2", true}, {SettlingAnswers - 1, "v1.36.3", "1.36.3", false},
		}},
		{name: "When the API server has what nodes were resolved to, a new leader should know it at once", before: "1.36.2", looks: []look{
			{1, "v1.36.2", "1.36.2", false},
		}},
		{name: "When the API server is older than what nodes were resolved to, a new leader should follow at once", before: "1.36.3", looks: []look{
			{1, "v1.36.2", "1.36.2", false},
		}},
		{name: "When no version was resolved before, the first leader should take the first answer, so that a new cluster gets nodes at once", looks: []look{
			{1, "v1.36.3", "1.36.3", false},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := ""
			tracker := NewTracker(answer(func() (*apiversion.Info, error) { return &apiversion.Info{GitVersion: now}, nil }), before(tc.before))
			for i, l := range tc.looks {
				now = l.answer
				result, err := reconcile(t, tracker, l.answers)
				if err != nil || (result.RequeueAfter == SettlingInterval) != l.isSettling {
					t.Errorf("look %d: %v, %v; want settling %t", i, result, err, l.isSettling)
				}
				server, _ := tracker.Server()
				got := ""
				if server != nil {
					got = server.String()
				}
				NewWithT(t).Expect(got).To(Equal(l.want))
			}
		})
	}

	t.Run("When what was resolved before can't be read, a new leader should know nothing and look again", func(t *testing.T) {
		fault := errors.New("connection refused")
		tracker := NewTracker(answer(func() (*apiversion.Info, error) { return &apiversion.Info{GitVersion: "v1.36.3"}, nil }),
			func(context.Context) (*semver.Version, error) { return nil, fault })
		if _, err := tracker.Reconcile(t.Context()); !errors.Is(err, fault) {
			t.Errorf("got %v", err)
		}
		if server, _ := tracker.Server(); server != nil {
			t.Errorf("the version is %s", server)
		}
	})
}

func TestDiscovery(t *testing.T) {
	t.Run("When the version is requested again, it should be over another connection, so that another API server can answer", func(t *testing.T) {
		var mu sync.Mutex
		connections := map[string]bool{}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			connections[r.RemoteAddr] = true
			_, _ = w.Write([]byte(`{"gitVersion": "v1.36.2"}`))
		}))
		// As API servers do, which answer many questions at once on one connection.
		server.EnableHTTP2 = true
		server.StartTLS()
		defer server.Close()
		ask, err := NewDiscovery(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		seen := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(connections)
		}
		// A connection may still be busy with the end of the last answer when the next question comes as fast as this.
		for asked := 0; asked < 100 && seen() < 3; asked++ {
			if info, err := ask.ServerVersion(); err != nil || info.GitVersion != "v1.36.2" {
				t.Fatalf("got %v, %v", info, err)
			}
		}
		if n := seen(); n < 3 {
			t.Errorf("%d connections", n)
		}
	})
}
