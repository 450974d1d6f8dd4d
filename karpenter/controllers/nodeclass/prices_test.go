// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestPriceFile(t *testing.T) {
	t.Run("When the price file comes, is malformed and goes, it should follow, and say what is wrong with it", func(t *testing.T) {
		f := start(t, "")
		annotations := sized("2", "4Gi", "0.021")
		annotations[v1alpha1.InfrastructurePatchesAnnotation] = spotPatches
		f.template("c2-small-priced", annotations)
		f.nodeClass(nil)
		f.ready()
		prices := func() (string, error) {
			nodeClass, err := f.get()
			if err != nil || len(nodeClass.Status.Templates) != 1 {
				return "", err
			}
			return nodeClass.Status.Templates[0].Price + " " + nodeClass.Status.Templates[0].SpotPrice, nil
		}
		f.Eventually(prices).Should(Equal("0.021 "))

		f.write(f.prices, "- {instanceType: c2-small-priced, price: 0.5}\n- {instanceType: c2-small-priced, capacityType: spot, price: 0.007}")
		f.Eventually(prices).Should(Equal("0.5 0.007"))

		f.write(f.prices, "- {instanceType: c2-small-priced, price: much}")
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.PricesUnreadableReason, And(
			HavePrefix("price file "+f.prices), HaveSuffix("the prices read before stay in use")))
		f.Expect(prices()).To(Equal("0.5 0.007"))

		f.Expect(os.Remove(f.prices)).To(Succeed())
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.ConditionTemplatesReady)
		f.Eventually(prices).Should(Equal("0.021 "))
	})
}
