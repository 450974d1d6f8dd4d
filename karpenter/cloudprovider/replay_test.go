// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	"github.com/autonode-io/autonode/karpenter/providers/bootstraptoken"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestCreateReplay(t *testing.T) {
	f := newFixture(t)
	for _, tc := range []struct {
		name   string
		prices []float64 // of c2-small, attempt by attempt
	}{
		{"stay", []float64{0.02}},
		{"change with every attempt", []float64{0.02, 9}},
	} {
		for _, lost := range []bool{false, true} {
			what := map[bool]string{false: "fails", true: "takes place and its answer is lost"}[lost]
			t.Run(fmt.Sprintf("When any call of an attempt %s and prices %s, it should end with one Machine, and return it to Karpenter", what, tc.name), func(t *testing.T) {
				g := NewWithT(t)
				price := func(i int) {
					f.offer(func(templates []template.Template) {
						templates[0].Price, templates[0].Source.ResourceVersions = ptr.To(tc.prices[i%len(tc.prices)]), fmt.Sprintf("%s-%d", tc.name, i)
					})
				}
				ended := 0
				for failAt := int64(1); ; failAt++ {
					nodeClaim := f.claim(fmt.Sprintf("replay-%d-%t-%d", len(tc.prices), lost, failAt), nil)
					calls := &environment.Calls{FailAt: failAt, Lost: lost}
					config := f.provider.Config
					config.Guest, config.Management = calls.Client(config.Guest), calls.Client(config.Management)
					config.Machines = machine.New(machine.Config{
						Management: calls.Client(f.Management.GetClient()), Live: calls.Client(f.Admin),
						Namespace: f.Namespace, ClusterName: f.Cluster.Name, ChildKinds: environment.ChildKinds,
						Tokens: bootstraptoken.Minter{Guest: calls.Client(f.Admin), Clock: clock.RealClock{}},
					})
					price(0)
					_, err := cloudprovider.New(config).Create(f.ctx, nodeClaim)
					if calls.Count() < failAt {
						g.Expect(err).NotTo(HaveOccurred())
						g.Expect(ended).To(BeNumerically(">", 5), "attempts that a call ended")
						return
					}
					if err != nil { // else the attempt made the call again
						ended++
					}

					attempt := 0
					var created *karpv1.NodeClaim
					g.Eventually(func() error {
						attempt++
						price(attempt)
						created, err = f.provider.Create(f.ctx, nodeClaim)
						return err
					}).Should(Succeed(), "after call %d", failAt)
					for _, kind := range append(environment.ChildKinds(t.Context()), clusterv1.GroupVersion.WithKind("Machine")) {
						ours := slices.DeleteFunc(f.Objects(t.Context(), kind), func(name string) bool { return name != f.MachineName(nodeClaim.Name) })
						g.Expect(ours).To(HaveLen(1), "%s after call %d", kind.Kind, failAt)
					}
					m := f.machine(nodeClaim.Name)
					for _, key := range []string{corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone, karpv1.CapacityTypeLabelKey} {
						g.Expect(created.Labels[key]).To(Equal(m.Labels[key]), "%s after call %d", key, failAt)
					}
				}
			})
		}
	}
}
