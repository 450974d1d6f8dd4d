// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

func TestRepairable(t *testing.T) {
	for machines, want := range map[int]int{0: 0, 1: 1, 5: 1, 6: 2, 10: 2, 11: 3, 100: 20} {
		t.Run(fmt.Sprintf("When there are %d machines, it should repair %d at a time", machines, want), func(t *testing.T) {
			NewWithT(t).Expect(machine.Repairable(machines)).To(Equal(want))
		})
	}
}
