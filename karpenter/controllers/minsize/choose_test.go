// SPDX-License-Identifier: Apache-2.0

package minsize

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestChoose(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	// a is the oldest, b and c came at the same time.
	node := func(name string, m mark, changes ...func(*member)) member {
		result := member{nodeClaim: name, created: start, mark: m}
		if name > "a" {
			result.created = start.Add(time.Minute)
		}
		if name > "c" {
			result.created = start.Add(time.Hour)
		}
		for _, change := range changes {
			change(&result)
		}
		return result
	}
	leaving, drifted := func(m *member) { m.leaving = true }, func(m *member) { m.drifted = true }
	names := func(members []member) string {
		var all []string
		for _, m := range members {
			all = append(all, m.nodeClaim)
		}
		return strings.Join(all, " ")
	}
	for _, tc := range []struct {
		name          string
		members       []member
		minimum       int
		unknown       bool
		keep, release string
	}{
		{name: "When there is no minimum, it should leave all", members: []member{node("a", unmarked), node("b", foreign)}},
		{name: "When there are fewer nodes than the minimum, it should keep all", members: []member{node("a", unmarked), node("b", ours)}, minimum: 3, keep: "a"},
		{name: "When there are more, it should keep the oldest, by name where they are as old",
			members: []member{node("d", unmarked), node("c", unmarked), node("b", unmarked), node("a", unmarked)}, minimum: 2, keep: "a b"},
		{name: "When those are kept, it should have nothing to do", members: []member{node("a", ours), node("b", ours), node("c", unmarked)}, minimum: 2},
		{name: "When the minimum is lowered, it should release the youngest", members: []member{node("a", ours), node("b", ours), node("d", ours)}, minimum: 1, release: "b d"},
		{name: "When an older node comes late, it should keep it before it releases the younger one",
			members: []member{node("a", unmarked), node("d", ours)}, minimum: 1, keep: "a"},
		{name: "When the older node is kept, it should release the younger one", members: []member{node("a", ours), node("d", ours)}, minimum: 1, release: "d"},
		{name: "When a kept node drifts, it should keep another one first", members: []member{node("a", ours, drifted), node("b", unmarked), node("c", unmarked)}, minimum: 1, keep: "b"},
		{name: "When another one is kept, it should release the drifted one", members: []member{node("a", ours, drifted), node("b", ours), node("c", unmarked)}, minimum: 1, release: "a"},
		{name: "When there is no other one, it should release the drifted one all the same", members: []member{node("a", ours, drifted)}, minimum: 1, release: "a"},
		{name: "When a node leaves, it should keep another one, and waste no write on the first",
			members: []member{node("a", ours, leaving), node("b", unmarked), node("c", unmarked, leaving), node("d", unmarked)}, minimum: 2, keep: "b d"},
		{name: "When a node leaves without a mark, it should give it none", members: []member{node("a", unmarked, leaving)}, minimum: 1},
		{name: "When another annotation of do-not-disrupt holds a node, it should count, drifted or not",
			members: []member{node("a", unmarked), node("b", unmarked), node("c", foreign, drifted), node("d", foreign)}, minimum: 3, keep: "a"},
		{name: "When others hold more than the minimum, it should release its own", members: []member{node("a", ours), node("b", foreign), node("c", foreign)}, minimum: 1, release: "a"},
		{name: "When a node that others hold leaves, it shouldn't count", members: []member{node("a", foreign, leaving), node("b", unmarked)}, minimum: 1, keep: "b"},
		{name: "When a person has damaged a mark that is needed, it should set it again", members: []member{node("a", damaged)}, minimum: 1, keep: "a"},
		{name: "When a person has damaged a mark that isn't needed, it should remove what is left", members: []member{node("a", damaged)}, release: "a"},
		{name: "When it isn't known whether there is a minimum, it should release none",
			members: []member{node("a", ours, drifted), node("b", ours)}, unknown: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keep, release := choose(tc.members, tc.minimum, !tc.unknown)
			if names(keep) != tc.keep || names(release) != tc.release {
				t.Errorf("it keeps %q and releases %q, want %q and %q", names(keep), names(release), tc.keep, tc.release)
			}
		})
	}
}

func TestMark(t *testing.T) {
	const source = "MachineDeployment.cluster.x-k8s.io/workers"
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		want        mark
	}{
		{"When a node has no annotation, it should be unmarked", nil, unmarked},
		{"When a node has both, for its source, it should be ours", map[string]string{karpv1.DoNotDisruptAnnotationKey: "true", v1alpha1.KeptForMinimumAnnotation: source}, ours},
		{"When a node has only Karpenter's, it should be another owner's", map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}, foreign},
		{"When Karpenter's annotation is false, it should be unmarked", map[string]string{karpv1.DoNotDisruptAnnotationKey: "false"}, unmarked},
		{"When a node has only ours, it should be damaged", map[string]string{v1alpha1.KeptForMinimumAnnotation: source}, damaged},
		{"When Karpenter's was turned off, it should be damaged",
			map[string]string{karpv1.DoNotDisruptAnnotationKey: "false", v1alpha1.KeptForMinimumAnnotation: source}, damaged},
		{"When ours names another source, it should be damaged",
			map[string]string{karpv1.DoNotDisruptAnnotationKey: "true", v1alpha1.KeptForMinimumAnnotation: ""}, damaged},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := markOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: tc.annotations}}, source); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}
