// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// cloud launches machines of an infrastructure whose quotas are exhausted but for some instance types.
type cloud struct {
	*testing.T
	*Provider
	unavailable *offering.Unavailable
	clk         *clocktesting.FakeClock
	kind        infrastructure.Kind
	// message of a machine that exceeds a quota, and whether one of an offering does.
	message string
	exceeds func(offering.Key, *template.Template) bool
	// attempts are the offerings that were launched, in vain but for the last.
	attempts []offering.Key
}

func newCloud(t *testing.T, kind, message string, templates []template.Template) *cloud {
	t.Helper()
	profiles, err := infrastructure.Embedded()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	clk := clocktesting.NewFakeClock(time.Now())
	c := &cloud{T: t, unavailable: offering.NewUnavailable(clk), clk: clk, message: message, kind: profiles.For(schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: kind})}
	c.Provider = newProvider(Config{Unavailable: c.unavailable})
	for i := range templates {
		templates[i].Kind = c.kind
		templates[i].Infrastructure = &unstructured.Unstructured{Object: map[string]any{"kind": kind + "Template"}}
	}
	set(c.Provider, nodeClass(1), templates, manyZones())
	return c
}

// launch launches what a NodeClaim with requests gets, until a machine comes into being or nothing is available.
func (c *cloud) launch(vCPUs int64) (launched bool) {
	c.Helper()
	requests := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(vCPUs, resource.DecimalSI)}
	for range 300 {
		snapshot := cached(c.T, c.Provider)
		name, tried := fmt.Sprintf("nodeclaim-%d", len(c.attempts)), false
		for candidate := range snapshot.Cheapest(snapshot.InstanceTypes, nil, requests, name) {
			choice, ok := snapshot.ResolveKey(candidate.Key())
			if !ok {
				continue
			}
			tried = true
			c.attempts = append(c.attempts, choice.Key)
			if !c.exceeds(choice.Key, choice.Template) {
				return true
			}
			quota, left := c.Exceeded("default", choice.Template.Source.Annotation(), "", c.kind, choice.Key, capacityprovider.MachineOf(choice.Key, choice.Template), c.message)
			c.unavailable.MarkExceeded(choice.Key, quota, left, "QuotaExceeded")
			break
		}
		if !tried {
			return false
		}
	}
	c.Fatal("it tries for ever")
	return false
}

// sizedType is an instance type with so many vCPUs.
func sizedType(name string, vCPUs int64, price float64) template.Template {
	return newTemplate(name, 2, price, func(s *template.Template) {
		s.Capacity = corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewQuantity(vCPUs, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(vCPUs<<32, resource.BinarySI),
			corev1.ResourcePods: *resource.NewQuantity(110, resource.DecimalSI),
		}
		s.Price = ptr.To(price)
	})
}

var sizes = map[string]int64{"large": 2, "xlarge": 4, "2xlarge": 8, "4xlarge": 16, "8xlarge": 32, "12xlarge": 48, "16xlarge": 64, "24xlarge": 96}

// exhausted are 200 instance types of 25 families of EC2's Standard group, and one of another group that is dearer. With inverse, larger ones
// are cheaper, as spot prices may be.
func exhausted(inverse bool, rename func(*template.Template)) []template.Template {
	var templates []template.Template
	for family := range 25 {
		for size, vCPUs := range sizes {
			price := 0.05*float64(vCPUs) + 0.001*float64(family)
			if inverse {
				price = 10/float64(vCPUs) + 0.001*float64(family)
			}
			templates = append(templates, sizedType(fmt.Sprintf("%c%d.%s", "acdhimrtz"[family%9], family, size), vCPUs, price))
		}
	}
	templates = append(templates, sizedType("x2gd.large", 2, 50))
	for i := range templates {
		rename(&templates[i])
	}
	return templates
}

const limited = "VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit of 32 allows for the instance bucket that the specified instance type belongs to."

func TestAttempts(t *testing.T) {
	const most = 3
	as := func(*template.Template) {}
	for name, tc := range map[string]struct {
		kind, message string
		inverse       bool
		rename        func(*template.Template)
		exceeds       func(offering.Key, *template.Template) bool
	}{
		"When EC2's group of 200 instance types is exhausted": {"AWSMachine", limited, false, as, func(key offering.Key, _ *template.Template) bool { return key.InstanceType != "x2gd.large" }},
		"When larger ones are cheaper":                        {"AWSMachine", limited, true, as, func(key offering.Key, _ *template.Template) bool { return key.InstanceType != "x2gd.large" }},
		"When the platform has names of its own, and declares the families": {"AWSMachine", limited, false, func(s *template.Template) {
			family, size, _ := strings.Cut(s.InstanceType, ".")
			s.Labels = map[string]string{v1alpha1.InstanceFamilyLabel: family}
			s.InstanceType = "general-" + family[1:] + "-" + size
		}, func(_ offering.Key, s *template.Template) bool {
			return s.Labels[v1alpha1.InstanceFamilyLabel] != "x2gd"
		}},
		"When Azure's cores of the region are used up but for two": {"AzureMachine", "exceeding approved Total Regional Cores quota. Current Limit: 10, Current Usage: 8", true, as,
			func(_ offering.Key, s *template.Template) bool { return s.Capacity.Cpu().Value() > 2 }},
	} {
		t.Run(name+", it should launch what is left after three attempts at most", func(t *testing.T) {
			c := newCloud(t, tc.kind, tc.message, exhausted(tc.inverse, tc.rename))
			c.exceeds = tc.exceeds
			if launched := c.launch(1); !launched || len(c.attempts) > most {
				t.Errorf("launched: %t, after %d attempts: %v", launched, len(c.attempts), c.attempts)
			}
			t.Logf("%d attempts: %v", len(c.attempts), c.attempts)
		})
	}
	t.Run("When smaller machines fit into what is left, they should be launched at once", func(t *testing.T) {
		c := newCloud(t, "AWSMachine", limited, exhausted(false, as)[:200])
		c.exceeds = func(_ offering.Key, s *template.Template) bool { return s.Capacity.Cpu().Value() > 4 }
		NewWithT(t).Expect(c.launch(5)).To(BeFalse(), "a large one was launched")
		if !c.launch(3) || len(c.attempts) != 2 {
			t.Errorf("attempts: %v", c.attempts)
		}
	})
}

func TestExceededSource(t *testing.T) {
	t.Run("When what a machine was made from is gone, its labels should say which quota counts it", func(t *testing.T) {
		c := newCloud(t, "AWSMachine", limited, nil)
		key := offering.Key{InstanceType: "gpu-large", Zone: "a", CapacityType: karpv1.CapacityTypeOnDemand}
		if got, _ := c.Exceeded("none", "gone", "p5", c.kind, key, capacityprovider.MachineOf(key, ptr.To(sizedType("gpu-large", 96, 1))), limited); got.Name != "on-demand P vCPUs" || got.Amount != 96000 {
			t.Errorf("it exceeds %v", got)
		}
	})
	t.Run("When the region is known, it should be part of the quota's name", func(t *testing.T) {
		c := newCloud(t, "AWSMachine", limited, []template.Template{sizedType("m5.large", 2, 1)})
		set(c.Provider, nodeClass(1), []template.Template{sizedType("m5.large", 2, 1)}, template.Cluster{FailureDomains: []string{"a"}, Region: "eu-west-1"})
		key := offering.Key{InstanceType: "m5.large", Zone: "a", CapacityType: karpv1.CapacityTypeOnDemand}
		if got, _ := c.Exceeded("default", "gone", "", c.kind, key, capacityprovider.MachineOf(key, ptr.To(sizedType("m5.large", 2, 1))), limited); got.Name != "on-demand Standard vCPUs in eu-west-1" {
			t.Errorf("it exceeds %v", got)
		}
	})
}
