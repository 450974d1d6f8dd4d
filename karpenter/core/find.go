// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	"github.com/awslabs/operatorpkg/controller"
)

// Find returns the controller of type T from Karpenter core's list, and its index.
//
// Upstream gap: controllers.NewControllers creates the provisioner and the NodeClaim lifecycle controller, and
// returns neither (docs/upstream/provider-registration.md).
func Find[T controller.Controller](all []controller.Controller) (T, int, error) {
	for i, c := range all {
		if found, ok := c.(T); ok {
			return found, i, nil
		}
	}
	var none T
	return none, 0, fmt.Errorf("this version of Karpenter core has no %T", none)
}
