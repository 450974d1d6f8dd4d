// SPDX-License-Identifier: Apache-2.0

package leadership

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/fleet/division"
)

func TestFenceOfFleet(t *testing.T) {
	t.Run("When the next leader begins to launch, nothing that this one has sent should still come", func(t *testing.T) {
		const serverTimeout = 34 * time.Second // requestTimeoutUpperBound in k8s.io/apiserver
		NewWithT(t).Expect(RenewDeadline + SendTimeout + serverTimeout).To(BeNumerically("<", LeaseDuration+division.InFlight))
	})
}
