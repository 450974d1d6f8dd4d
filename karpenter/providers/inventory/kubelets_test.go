// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestKubelets(t *testing.T) {
	hardware := Revision{Source: "source", ContentHash: "1"}
	for name, tc := range map[string]struct {
		// runs are what the nodes a, b and c report.
		runs []string
		want string
	}{
		"When no node has reported, it should know nothing":                     {nil, ""},
		"When a node has reported, it should be that":                           {[]string{"v1.36.3"}, "1.36.3"},
		"When one of three has another version, it should be the others'":       {[]string{"v1.37.1", "v1.36.3", "v1.36.3"}, "1.36.3"},
		"When as many have one version as another, it should be the newer":      {[]string{"v1.36.10", "v1.36.9"}, "1.36.10"},
		"When nodes run a distribution's build, it should have the build":       {[]string{"v1.36.3+k3s1"}, "1.36.3+k3s1"},
		"When what a Node reports is no version, it should not count":           {[]string{"latest", "v1.36.3"}, "1.36.3"},
		"When a Node reports a version that has no end, it should not count it": {[]string{"v1.36.3+" + strings.Repeat("a", 100)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			i, notified := New(Config{Clock: clocktesting.NewFakeClock(time.Now())}), 0
			i.kubelets.changed = func() { notified++ }
			for n, version := range tc.runs {
				id := string(rune('a' + n))
				i.ObserveMachine(types.UID(id), Machine{Origin: origin("c4"), ContentHash: "1", BootstrapHash: "2", NodeClassHash: id, ProviderID: "cloud://" + id})
				i.ObserveNode(id, Node{ProviderID: "cloud://" + id, Capacity: Amounts{Memory: gib}, Kubelet: version})
			}
			if got, known := i.Kubelet(Revision{Source: "source", ContentHash: "1", NodeClassHash: "another"}); got != tc.want || known != (tc.want != "") {
				t.Errorf("got %q, %t", got, known)
			}
			if tc.want != "" && notified == 0 {
				t.Error("no observer was notified")
			}
			for n := range tc.runs {
				i.ForgetNode(string(rune('a' + n)))
			}
			if got, known := i.kubelets.Version(hardware); known || len(i.kubelets.byNode)+len(i.kubelets.byRevision) != 0 {
				t.Errorf("%q is left of nodes that are gone", got)
			}
		})
	}
}
