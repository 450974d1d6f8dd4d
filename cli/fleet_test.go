// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestWrongCosts(t *testing.T) {
	testWrong(t, "testdata/wrong-cost.golden", []string{
		"cost a", "cost --by zone", "cost -o table", "cost --watch -o json", "cost --watch=perhaps", "cost",
	})
	t.Run("When help is requested, it should list the command in its group", func(t *testing.T) {
		out, err := run(t, "autonode", "--help")
		NewWithT(t).Expect(out, err).To(MatchRegexp(`Inspect clusters:\n  check .*\n  cost .*\n  describe `))
	})
}
