// SPDX-License-Identifier: Apache-2.0

package environment

import (
	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/karpenter/providers/inventory"
)

// NoMachines is an inventory that has counted the machines, of which there are none.
func NoMachines() *inventory.Inventory {
	return inventory.New(inventory.Config{Counted: func() bool { return true }, Clock: clock.RealClock{}})
}
