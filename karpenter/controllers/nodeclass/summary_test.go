// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestUntilRested(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	unavailable := offering.NewUnavailable(clk)
	templates := &environment.Templates{}
	templates.Offer("default", nil, template.Cluster{}, template.Gaps{})
	step := templatesReady{Config{InstanceTypes: instancetype.New(instancetype.Config{
		Templates: templates, Pricing: pricing.New(pricing.NewFile("")), Unavailable: unavailable, Inventory: environment.NoMachines(), Capacity: capacityprovider.Unlimited{},
	}), Prices: pricing.NewFile(""), Profiles: profile.Embedded(), Clock: clk}}
	look := func() time.Duration {
		nodeClass := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		listing, err := step.InstanceTypes.Refresh(t.Context(), nodeClass)
		if err != nil {
			t.Fatal(err)
		}
		result, err := step.reconcile(t.Context(), nodeClass, nodeClass.StatusConditions(), listing)
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
