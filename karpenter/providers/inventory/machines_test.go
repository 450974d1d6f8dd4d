// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

func form(instanceType string) Form {
	return Form{Source: "source", Key: offering.Key{InstanceType: instanceType, Zone: "a", CapacityType: "spot"}, Price: 0.1}
}

func TestMachines(t *testing.T) {
	machines := New(func() bool { return true })
	for _, step := range []struct {
		name    string
		do      func()
		want    []Form
		changed bool
	}{
		{"When a machine comes, it should know its form", func() { machines.Observe("1", form("c4")) }, []Form{form("c4")}, true},
		{"When it is seen again, it should tell no change", func() { machines.Observe("1", form("c4")) }, []Form{form("c4")}, false},
		{"When another of the form comes, it should tell no change", func() { machines.Observe("2", form("c4")) }, []Form{form("c4")}, false},
		{"When one of another form comes, it should know both, in order", func() { machines.Observe("3", form("c2")) }, []Form{form("c2"), form("c4")}, true},
		{"When one of two goes, it should still know the form", func() { machines.Forget("1") }, []Form{form("c2"), form("c4")}, false},
		{"When the last one goes, it should forget the form", func() { machines.Forget("2") }, []Form{form("c2")}, true},
		{"When one goes that was never seen, it should tell no change", func() { machines.Forget("9") }, []Form{form("c2")}, false},
		{"When one says something else by now, it should follow", func() { machines.Observe("3", form("c8")) }, []Form{form("c8")}, true},
	} {
		t.Run(step.name, func(t *testing.T) {
			before := machines.Sequence()
			step.do()
			if diff := cmp.Diff(step.want, machines.Forms()); diff != "" {
				t.Errorf("forms (-want +got):\n%s", diff)
			}
			if changed := machines.Sequence() != before; changed != step.changed {
				t.Errorf("changed %t, want %t", changed, step.changed)
			}
		})
	}
}

func TestCounted(t *testing.T) {
	t.Run("When the machines have been counted, it should remember that without asking again", func(t *testing.T) {
		counted, asked := false, 0
		machines := New(func() bool { asked++; return counted })
		if machines.Counted() {
			t.Error("it was counted before it was")
		}
		counted = true
		for range 2 {
			if !machines.Counted() {
				t.Error("it isn't counted after it was")
			}
		}
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}
	})
}

func TestFormOf(t *testing.T) {
	for name, tc := range map[string]struct {
		price string
		want  float64
	}{
		"When a Machine tells its price, it should take it":                     {"0.1", 0.1},
		"When a Machine tells no price, it should take none":                    {"", 0},
		"When the price is none that equals itself, it should take none":        {"NaN", 0},
		"When the price is more than can be computed with, it should ignore it": {"Inf", 0},
		"When the price is less than nothing, it should ignore it":              {"-1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := FormOf(&clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{
					corev1.LabelInstanceTypeStable: "c4", corev1.LabelTopologyZone: "a", karpv1.CapacityTypeLabelKey: "spot",
				},
				Annotations: map[string]string{v1alpha1.ShapeSourceAnnotation: "source", v1alpha1.PriceAnnotation: tc.price},
			}})
			want := form("c4")
			want.Price = tc.want
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("form (-want +got):\n%s", diff)
			}
		})
	}
}
