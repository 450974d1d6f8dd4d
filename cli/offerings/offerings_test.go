// SPDX-License-Identifier: Apache-2.0

package offerings

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/cli/clitest"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/printer/printertest"
)

func classOf(name string, more int32, conditions []status.Condition, templates ...v1alpha1.TemplateStatus) v1alpha1.ClusterAPINodeClass {
	return v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.ClusterAPINodeClassStatus{
		TemplateCount: ptr.To(int32(len(templates)) + more), Conditions: conditions, Templates: templates,
	}}
}

func TestOfferings(t *testing.T) {
	small := v1alpha1.TemplateStatus{
		InstanceType: "c2-small", Source: "KwokMachineTemplate/small", Architecture: "amd64", CPU: scalar.Text("2"), Memory: scalar.Text("4Gi"), Pods: 110,
		Price: "0.021", SpotPrice: "0.007", Zones: []string{"a", "b"},
	}
	gpu := v1alpha1.TemplateStatus{
		InstanceType: "g8", Source: "KwokMachineTemplate/gpu", CPU: scalar.Text("8"), Memory: scalar.Text("32Gi"), Pods: 110,
		GPU: map[string]scalar.Quantity{"nvidia.com/gpu": scalar.Text("2")}, Price: "1.2", Unavailable: v1alpha1.TemplateBackOff,
	}
	later := v1alpha1.TemplateStatus{InstanceType: "x", Source: "KwokMachineTemplate/x", Unavailable: "OfALaterVersion"}
	failed := status.Condition{Type: v1alpha1.ConditionOfferingsAvailable, Status: metav1.ConditionFalse, Reason: "InsufficientCapacity", Message: "no capacity for g8 in zone a"}
	exhausted := gpu
	exhausted.Unavailable = v1alpha1.TemplateQuota
	quota := status.Condition{
		Type: v1alpha1.ConditionOfferingsAvailable, Status: metav1.ConditionTrue, Reason: v1alpha1.QuotaExhaustedReason,
		Message: `quota "on-demand G and VT vCPUs" is exhausted, until 12:03:00 UTC (2 offerings)`,
	}
	for _, test := range []struct {
		name, nodeClass, output, want, problem string
		classes                                []v1alpha1.ClusterAPINodeClass
	}{
		{
			name: "When node classes offer templates, it should show each, and why some can't be launched",
			classes: []v1alpha1.ClusterAPINodeClass{
				classOf("second", 0, nil, later), classOf("default", 3, []status.Condition{failed, {Type: status.ConditionReady, Status: metav1.ConditionFalse}}, small, gpu),
			},
			want: `
NODECLASS  TYPE      ARCH   CPU  MEMORY  PODS  GPU               PRICE/H  SPOT/H  ZONES  SOURCE                     AVAILABLE
default    c2-small  amd64  2    4Gi     110   -                 $0.021   $0.007  a,b    KwokMachineTemplate/small  yes
default    g8        -      8    32Gi    110   2 nvidia.com/gpu  $1.2     -       any    KwokMachineTemplate/gpu    no, all its offerings failed recently (BackOff)
second     x         -      0    0       0     -                 -        -       any    KwokMachineTemplate/x      no (OfALaterVersion)
3 templates
default: the status leaves out 3 that cost more
default: OfferingsAvailable is False (InsufficientCapacity): no capacity for g8 in zone a
`,
		}, {
			name:    "When a quota is exhausted, it should say which, though others can be launched",
			classes: []v1alpha1.ClusterAPINodeClass{classOf("default", 0, []status.Condition{quota}, small, exhausted)},
			want: `
NODECLASS  TYPE      ARCH   CPU  MEMORY  PODS  GPU               PRICE/H  SPOT/H  ZONES  SOURCE                     AVAILABLE
default    c2-small  amd64  2    4Gi     110   -                 $0.021   $0.007  a,b    KwokMachineTemplate/small  yes
default    g8        -      8    32Gi    110   2 nvidia.com/gpu  $1.2     -       any    KwokMachineTemplate/gpu    no, a quota of the infrastructure is exhausted (Quota)
2 templates
default: OfferingsAvailable is True (QuotaExhausted): quota "on-demand G and VT vCPUs" is exhausted, until 12:03:00 UTC (2 offerings)
`,
		}, {
			name: "When one node class is named, it should show that one alone", nodeClass: "second", output: "name",
			classes: []v1alpha1.ClusterAPINodeClass{classOf("second", 0, nil, later), classOf("default", 0, nil, small)}, want: "\nx\n",
		}, {
			name: "When a script needs it, it should get the status", output: "yaml", classes: []v1alpha1.ClusterAPINodeClass{classOf("default", 0, nil, later)},
			want: `
nodeClasses:
- name: default
  templateCount: 1
  templates:
  - cpu: 0
    instanceType: x
    memory: 0
    source: KwokMachineTemplate/x
    unavailable: OfALaterVersion
`,
		}, {
			name: "When there is no such node class, it should say which there are", nodeClass: "absent",
			classes: []v1alpha1.ClusterAPINodeClass{classOf("default", 0, nil, small)}, problem: `there is no ClusterAPINodeClass "absent"; there are default`, want: "\n",
		}, {
			name: "When nothing is offered, it should say where to look", classes: []v1alpha1.ClusterAPINodeClass{classOf("default", 0, nil)},
			problem: "the platform offers nothing", want: "\nNODECLASS  TYPE  ARCH  CPU  MEMORY  PODS  GPU  PRICE/H  SPOT/H  ZONES  SOURCE  AVAILABLE\n0 templates\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			o := Options{NodeClass: test.nodeClass, Output: test.output}
			var out bytes.Buffer
			err := o.print(&out, test.classes)
			if test.problem == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(test.problem)))
			}
			if diff := cmp.Diff(test.want, "\n"+out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPage(t *testing.T) {
	t.Run("When the documentation shows offerings, it should show what the command prints", func(t *testing.T) {
		template := func(size, cpu, memory, price, spot string, zones []string, unavailable string) v1alpha1.TemplateStatus {
			_, name, _ := strings.Cut(size, "-")
			return v1alpha1.TemplateStatus{
				InstanceType: size, Source: "VSphereMachineTemplate/" + name, Architecture: "amd64", CPU: scalar.Text(cpu), Memory: scalar.Text(memory), Pods: 110,
				Price: price, SpotPrice: spot, Zones: zones, Unavailable: unavailable,
			}
		}
		class := classOf("default", 0, []status.Condition{{
			Type: v1alpha1.ConditionOfferingsAvailable, Status: metav1.ConditionFalse, Reason: "InsufficientCapacity", Message: "no capacity for c4-large in zone a",
		}}, template("c2-small", "2", "4Gi", "0.021", "0.007", []string{"a", "b"}, ""), template("c4-large", "4", "8Gi", "0.051", "", []string{"a"}, v1alpha1.TemplateBackOff))
		var out bytes.Buffer
		NewWithT(t).Expect((&Options{Output: "table"}).print(&out, []v1alpha1.ClusterAPINodeClass{class})).To(Succeed())
		clitest.Shown(t, "docs/reference/cli/nodes.md", "autonode offerings", out.String())
	})
}

func TestHostileOutput(t *testing.T) {
	const hostile = printertest.Hostile
	class := classOf("default", 0, []status.Condition{{Type: "X", Status: metav1.ConditionFalse, Reason: "Y", Message: hostile}}, v1alpha1.TemplateStatus{
		InstanceType: hostile, Source: hostile, Architecture: hostile, Zones: []string{hostile}, Price: hostile, SpotPrice: hostile, Unavailable: hostile,
		CPU: scalar.Text(hostile), GPU: map[string]scalar.Quantity{hostile: scalar.Text(hostile)},
	})
	for _, output := range append(printer.Formats, "") {
		printertest.Harmless(t, strings.TrimSpace("offerings -o "+output), func(to io.Writer) error {
			return (&Options{Output: output}).print(to, []v1alpha1.ClusterAPINodeClass{class})
		})
	}
}
