// SPDX-License-Identifier: Apache-2.0

package targets_test

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// linked lists the packages that a program links.
func linked(t *testing.T, program string) []string {
	t.Helper()
	return strings.Fields(output(t, "go", "list", "-deps", "./cmd/"+program))
}

func TestPrograms(t *testing.T) {
	const window = "github.com/autonode-io/autonode/api/v1beta1"
	for _, program := range []string{"autonode-operator", "karpenter-clusterapi"} {
		t.Run("When "+program+" reads maintenance windows, it should bring the time zones that its image lacks", func(t *testing.T) {
			g := NewWithT(t)
			packages := linked(t, program)
			g.Expect(slices.Contains(packages, window)).To(BeTrue(), "it links %s", window)
			g.Expect(slices.Contains(packages, "time/tzdata")).To(BeTrue(), "it links time/tzdata")
		})
	}
}
