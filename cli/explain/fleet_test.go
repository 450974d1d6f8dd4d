// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"

	"github.com/autonode-io/autonode/cli/explain"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/fleet/karpenter/reclaim"
	"github.com/autonode-io/autonode/karpenter/core/methods"
)

func TestNodeOfFleet(t *testing.T) {
	t.Run("When what a node takes has to be returned to another cluster, it should say by when", func(t *testing.T) {
		g := NewWithT(t)
		steps := []division.Reclaim{{For: []string{"green"}, By: noon.Add(time.Minute)}}
		returns := func(core methods.Core) disruption.Method {
			return reclaim.New(reclaim.Config{
				Core: core, Taken: func(string) division.Amounts { return division.Amounts{"hosts": 1} },
				Reclaims: func() (string, division.Reclaims) { return "production", division.Reclaims{"hosts": steps} },
			})
		}
		answer := func() *explain.NodeAnswer {
			objects := append(machine("n", "general", "medium", "8", nil), nodeClass(nil), nodePool("general", nil), pod("a", "6", func(p *corev1.Pod) {
				on("n")(p)
				p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
			}))
			answer, err := simulateWith(t, platform{methods: []func(methods.Core) disruption.Method{returns}}, objects...).Node(t.Context(), "n")
			g.Expect(err).NotTo(HaveOccurred())
			return answer
		}
		g.Expect(answer().Methods[0]).To(And(HaveField("Name", "reclaim"), HaveField("Disrupts", false),
			HaveField("Reason", HavePrefix("The node may be removed by force after 2030-01-01T12:01:00Z for green, which reclaims hosts of account production"))))
		steps[0].By = noon
		g.Expect(answer().Summary).To(HavePrefix("Node n can be disrupted now (reclaim): Removing the node for green, "))
	})
}
