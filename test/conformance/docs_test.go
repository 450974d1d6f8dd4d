// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
)

var update = flag.Bool("update", false, "take the results of the last whole run, and write the table of docs/conformance.md")

const (
	docs      = "../../docs/conformance.md"
	committed = "testdata"
	lastRun   = "../../bin/conformance"
	tableFrom = "<!-- results -->\n"
	tableTo   = "<!-- end -->\n"
)

// markdown is the table of all specs that our results have.
func markdown(ours, kwok Results) string {
	var table strings.Builder
	fmt.Fprintf(&table, "| spec | %s | %s |\n| --- | --- | --- |\n", ours.Provider, kwok.Provider)
	var specs []string
	for _, result := range ours.Specs {
		specs = append(specs, result.Spec)
		fmt.Fprintf(&table, "| %s | %s | %s |\n", result.Spec, cell(ours, result.Spec), cell(kwok, result.Spec))
	}
	fmt.Fprintf(&table, "| **%d specs** | **%d pass** | **%d pass** |\n", len(specs), ours.passed(specs), kwok.passed(specs))
	return table.String()
}

// whole tells whether results are of one run, of as many specs as those before.
func whole(results, before Results) bool {
	for _, result := range results.Specs {
		if results.isOlder(result) {
			return false
		}
	}
	return len(results.Specs) >= len(before.Specs) && !results.Began.IsZero()
}

func TestDocs(t *testing.T) {
	g := NewWithT(t)
	all := map[string]Results{}
	for _, provider := range []string{ClusterAPI, Kwok} {
		results, err := readResults(committed, provider)
		g.Expect(err).NotTo(HaveOccurred())
		all[provider] = results
	}
	if *update {
		fresh := map[string]Results{}
		complete := true
		for provider, before := range all {
			results, err := readResults(lastRun, provider)
			g.Expect(err).NotTo(HaveOccurred())
			for i := range results.Specs {
				results.Specs[i].Log = "" // is of that machine
			}
			fresh[provider], complete = results, complete && whole(results, before)
		}
		if complete {
			for _, results := range fresh {
				g.Expect(results.write(committed)).To(Succeed())
			}
			all = fresh
		}
	}

	t.Run("When results are committed, docs/conformance.md should have their table", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(all[ClusterAPI].Specs).NotTo(BeEmpty())
		text, err := os.ReadFile(docs)
		g.Expect(err).NotTo(HaveOccurred())
		before, rest, found := strings.Cut(string(text), tableFrom)
		g.Expect(found).To(BeTrue(), tableFrom)
		table, after, found := strings.Cut(rest, tableTo)
		g.Expect(found).To(BeTrue(), tableTo)
		want := markdown(all[ClusterAPI], all[Kwok])
		if *update {
			g.Expect(os.WriteFile(docs, []byte(before+tableFrom+want+tableTo+after), 0o644)).To(Succeed())
		} else if diff := cmp.Diff(want, table); diff != "" {
			t.Errorf("the table isn't that of %s; run go test ./test/conformance -run TestDocs -update (-want +got):\n%s", committed, diff)
		}
	})

	t.Run("When a spec failed with our provider, it should not be committed without a word", func(t *testing.T) {
		g := NewWithT(t)
		for _, result := range all[ClusterAPI].Specs {
			g.Expect(result.Passed).To(BeTrue(), "%s: %s", result.Spec, result.Failure)
		}
	})
}
