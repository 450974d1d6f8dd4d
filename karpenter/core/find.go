// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	"github.com/awslabs/operatorpkg/controller"
)

// Find returns the controller of a type among Karpenter core's, and its place among them.
//
// Upstream gap: controllers.NewControllers makes the provisioner and the NodeClaim lifecycle controller, and hands out neither
// (docs/upstream/provider-registration.md).
func Find[T controller.Controller](all []controller.Controller) (T, int, error) {
	for i, c := range all {
		if found, ok := c.(T); ok {
			return found, i, nil
		}
	}
	var none T
	return none, 0, fmt.Errorf("this version of Karpenter core has no %T", none)
}
