// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestExplanations(t *testing.T) {
	e := explanations[0]
	racing := explanations[slices.IndexFunc(explanations, func(e explanation) bool { return e.passes })]
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	denied := Result{Spec: e.spec, Failure: "Timed out after 10s: " + e.failure + ": the Karpenter writes it", Finished: began}
	of := func(provider string, results ...Result) *Results {
		return &Results{Provider: provider, Began: began, Finished: began, Specs: results}
	}
	var all []string
	for _, known := range explanations {
		all = append(all, known.spec)
	}
	for _, tc := range []struct {
		name string
		ours *Results
		// specs of the suite, if not those with an explanation.
		specs []string
		want  string
	}{
		{name: "When a spec fails as explained, it should be content", ours: of(ClusterAPI, denied)},
		{name: "When it fails for another reason, it should say so",
			ours: of(ClusterAPI, Result{Spec: e.spec, Failure: "expected 1", Finished: began}), want: "fails: " + e.spec},
		{name: "When it fails as explained and no operator runs Karpenter, it should say so", ours: of(Bare, denied), want: "fails: " + e.spec},
		{name: "When it passes, it should ask to remove the explanation",
			ours: of(ClusterAPI, Result{Spec: e.spec, Passed: true, Finished: began}), want: "passes and needs no explanation: " + e.spec},
		{name: "When it passes because it was quicker than Karpenter, it should be content",
			ours: of(ClusterAPI, denied, Result{Spec: racing.spec, Passed: true, Finished: began})},
		{name: "When the suite no longer has it, it should ask to remove the explanation",
			ours: of(ClusterAPI, denied), specs: all[1:], want: "explains no spec of the suite: " + e.spec},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			r := &run{
				cfg: Config{Suites: []string{Regression, Disruption}}, all: all, chosen: specsOf(nil, e.spec), began: began,
				results: map[string]*Results{tc.ours.Provider: tc.ours},
			}
			if tc.specs != nil {
				r.all = tc.specs
			}
			if err := r.check(); tc.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(tc.want))
			}
		})
	}

	t.Run("When a suite isn't run, it should ask for nothing about its specs", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(outdated([]string{DRA}, nil, Results{})).To(BeEmpty())
	})

	t.Run("When a spec skips itself, it should be explained without the operator too", func(t *testing.T) {
		g := NewWithT(t)
		last := explanations[len(explanations)-1]
		result := Result{Spec: last.spec, Failure: "skipped at x_test.go:1: " + last.failure}
		for provider, want := range map[string]bool{ClusterAPI: true, Bare: true, Kwok: false} {
			_, got := explained(provider, result)
			g.Expect(got).To(Equal(want), provider)
		}
	})

	t.Run("When a spec is explained, the table should count it and say why", func(t *testing.T) {
		g := NewWithT(t)
		var out bytes.Buffer
		denied.Seconds = 12
		g.Expect(printTable(&out, []string{e.spec, "another"}, []Results{*of(ClusterAPI, denied, Result{Spec: "another", Passed: true, Finished: began})})).To(Succeed())
		g.Expect(out.String()).To(And(
			ContainSubstring("explained 12 s"), ContainSubstring("1 pass, 1 explained"), ContainSubstring("explained: "+e.spec+": "+e.why)))
	})

	t.Run("When explanations are read, each should be of another spec and say what fails and why", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(errors.Join(outdated([]string{Regression, Disruption}, all, Results{})...)).NotTo(HaveOccurred())
		seen := map[string]bool{}
		for _, known := range explanations {
			g.Expect(seen[known.spec]).To(BeFalse(), known.spec)
			seen[known.spec] = true
			g.Expect(known.failure).NotTo(BeEmpty(), known.spec)
			g.Expect(known.why).To(HaveSuffix("."), known.spec)
		}
	})
}
