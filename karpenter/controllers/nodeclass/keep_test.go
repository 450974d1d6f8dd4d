// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestKeep(t *testing.T) {
	known := func(kind, name string) template.Template {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta1", Kind: kind})
		return template.Template{
			Source:       template.Source{GroupKind: object.GroupVersionKind().GroupKind(), Name: name},
			Template:     object,
			InstanceType: name, Arch: "amd64", OS: "linux",
			Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		}
	}
	unreadable := func(kind string) error {
		return &informer.UnreadableError{GroupKind: schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: kind}, Err: errors.New("forbidden")}
	}
	for _, tc := range []struct {
		name  string
		found *template.Found
		want  []string
	}{
		{"When everything can be read, it should forget what is gone", &template.Found{Shapes: []template.Template{known("A", "a1")}}, []string{"a1"}},
		{"When a kind can't be read any more, it should keep what was known of it, and nothing else", &template.Found{
			Shapes: []template.Template{known("A", "a1")}, Unreadable: []error{unreadable("B")}}, []string{"a1", "b1", "b2"}},
		{"When a source is malformed by now, it should keep what was known of it, and launch nothing from that", &template.Found{
			Shapes: []template.Template{known("A", "a1"), known("B", "b1")}, Invalid: []*template.InvalidError{{Source: known("B", "b2").Source}}}, []string{"a1", "b1", "b2 held"}},
		{"When a kind can't be read that was never known, it should keep nothing", &template.Found{
			Shapes: []template.Template{known("A", "a1")}, Unreadable: []error{unreadable("C")}}, []string{"a1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store := instancetype.NewStore(instancetype.Config{Pricing: pricing.Default()})
			nodeClass := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
			store.Set(nodeClass, []template.Template{known("A", "a1"), known("A", "a2"), known("B", "b1"), known("B", "b2")}, template.Cluster{})
			var got []string
			for _, sh := range (shapesReady{Config{Store: store}}).keep("default", tc.found) {
				name := sh.Source.Name
				if sh.Held {
					name += " held"
				}
				got = append(got, name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("shapes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUntilRested(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	unavailable := offering.NewUnavailable(clk)
	step := shapesReady{Config{Store: instancetype.NewStore(instancetype.Config{Pricing: pricing.Default(), Unavailable: unavailable}), Clock: clk}}
	look := func() time.Duration {
		nodeClass := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		result, err := step.reconcile(t.Context(), nodeClass, nodeClass.StatusConditions(), &input{found: &template.Found{}})
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	t.Run("When every offering is available, it should look again only when something changes", func(t *testing.T) {
		if after := look(); after != 0 {
			t.Errorf("after %s", after)
		}
	})
	first := unavailable.Mark(offering.Key{InstanceType: "c4", Zone: "a", CapacityType: "spot"}, "NoHosts")
	clk.Step(time.Minute)
	unavailable.Mark(offering.Key{InstanceType: "c4", Zone: "b", CapacityType: "spot"}, "NoHosts")
	t.Run("When offerings rest, it should look again when the first may be tried again", func(t *testing.T) {
		if after, want := look(), offering.BaseTTL-time.Minute; after != want {
			t.Errorf("after %s, want %s", after, want)
		}
	})
	t.Run("When that time has come, it should wait for the next", func(t *testing.T) {
		clk.SetTime(first)
		if after := look(); after != time.Minute {
			t.Errorf("after %s", after)
		}
	})
}

func TestSummary(t *testing.T) {
	problems := make([]error, 12)
	for i := range problems {
		problems[i] = fmt.Errorf("problem %d", i)
	}
	t.Run("When there are many problems, it should name ten and count the others", func(t *testing.T) {
		got := summary(problems)
		if !strings.Contains(got, "problem 9; and 2 more") || strings.Contains(got, "problem 10") {
			t.Errorf("got %s", got)
		}
	})
	t.Run("When a problem repeats a long value, it should cut it between two characters", func(t *testing.T) {
		got := summary([]error{errors.New("a" + strings.Repeat("ü", maxProblem))})
		if len(got) > maxProblem+len("…") || !utf8.ValidString(got) || !strings.HasSuffix(got, "ü…") {
			t.Errorf("got %d bytes: %s", len(got), got)
		}
	})
}
