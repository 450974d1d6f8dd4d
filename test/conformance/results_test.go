// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
)

func TestResults(t *testing.T) {
	t.Run("When a run has a focus, it should keep the other specs' last results, in the suite's order", func(t *testing.T) {
		g := NewWithT(t)
		dir := t.TempDir()
		results, err := readResults(dir, ClusterAPI)
		g.Expect(err).NotTo(HaveOccurred())
		order := []string{"a", "b", "c"}
		for _, spec := range []string{"c", "a", "b"} {
			results.record(order, Result{Spec: spec, Passed: true})
		}
		g.Expect(results.write(dir)).To(Succeed())

		again, err := readResults(dir, ClusterAPI)
		g.Expect(err).NotTo(HaveOccurred())
		again.record(order, Result{Spec: "b", Failure: "why"})
		want := []Result{{Spec: "a", Passed: true}, {Spec: "b", Failure: "why"}, {Spec: "c", Passed: true}}
		if diff := cmp.Diff(want, again.Specs); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
	})

	t.Run("When a run had a focus, the table should say which results are older", func(t *testing.T) {
		g := NewWithT(t)
		var out bytes.Buffer
		began := time.Date(2026, 1, 2, 3, 0, 0, 0, time.Local)
		ours := Results{
			Provider: ClusterAPI, Guests: 4, CPUs: 2, Began: began, Finished: began.Add(time.Hour),
			Specs: []Result{{Spec: "new", Passed: true, Seconds: 75, Finished: began.Add(time.Hour)}, {Spec: "old", Passed: true, Seconds: 3, Finished: began.Add(-24 * time.Hour)}},
		}
		g.Expect(printTable(&out, []string{"new", "old"}, []Results{ours})).To(Succeed())
		want := `
SPEC     clusterapi
new      pass 1:15
old      pass 3.0 s (2026-01-01 03:00:00)
2 specs  2 pass
clusterapi: finished 2026-01-02 04:00:00, on 4 guests and 2 CPUs
clusterapi: 1 results, with their date, are of earlier runs
`
		if diff := cmp.Diff(want, trimLines(out.String())); diff != "" {
			t.Errorf("table (-want +got):\n%s", diff)
		}
	})

	t.Run("When one provider has no results yet, it should print the other's beside nothing", func(t *testing.T) {
		g := NewWithT(t)
		var out bytes.Buffer
		ours := Results{
			Provider: ClusterAPI, Guests: 4, CPUs: 2, Finished: time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local),
			Specs: []Result{{Spec: "Drift works", Passed: true, Seconds: 75}, {Spec: "Chaos works", Seconds: 3}},
		}
		g.Expect(printTable(&out, []string{"Drift works", "Chaos works"}, []Results{ours, {Provider: Kwok}})).To(Succeed())
		want := `
SPEC         clusterapi  kwok
Drift works  pass 1:15   -
Chaos works  FAIL 3.0 s  -
2 specs      1 pass      0 pass
clusterapi: finished 2026-01-02 03:04:05, on 4 guests and 2 CPUs
kwok: no results yet
`
		if diff := cmp.Diff(want, trimLines(out.String())); diff != "" {
			t.Errorf("table (-want +got):\n%s", diff)
		}
	})
}

func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func TestDecision(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	// of a run now, unless a result has its time.
	of := func(provider string, specs ...Result) *Results {
		for i := range specs {
			if specs[i].Finished.IsZero() {
				specs[i].Finished = began
			}
		}
		return &Results{Provider: provider, Began: began, Specs: specs}
	}
	old := began.Add(-time.Hour)
	for _, tc := range []struct {
		name             string
		ours, bare, kwok *Results
		want             string
	}{
		{name: "When a spec fails that Karpenter's own provider passes, it should say so",
			ours: of(ClusterAPI, Result{Spec: "a"}, Result{Spec: "b", Passed: true}), kwok: of(Kwok, Result{Spec: "a", Passed: true}, Result{Spec: "b"}), want: "fails: a"},
		{name: "When a spec fails that Karpenter's own provider fails too, it should be content",
			ours: of(ClusterAPI, Result{Spec: "a", Passed: true}, Result{Spec: "b"}), kwok: of(Kwok, Result{Spec: "a", Passed: true}, Result{Spec: "b"})},
		{name: "When Karpenter's own provider failed it in an earlier run, that should excuse nothing",
			ours: of(ClusterAPI, Result{Spec: "a", Passed: true}, Result{Spec: "b"}), kwok: of(Kwok, Result{Spec: "b", Finished: old}), want: "fails: b"},
		{name: "When Karpenter's own provider wasn't run, it should excuse nothing",
			ours: of(ClusterAPI, Result{Spec: "a", Passed: true}, Result{Spec: "b"}), want: "fails: b"},
		{name: "When a spec passed in an earlier run and has no result of this one, it should fail",
			ours: of(ClusterAPI, Result{Spec: "a", Passed: true}, Result{Spec: "b", Passed: true, Finished: old}), want: "fails: b"},
		{name: "When only Karpenter's own provider was run, it should be content", kwok: of(Kwok, Result{Spec: "a"})},
		{name: "When our provider fails a spec without the operator, it should say so",
			bare: of(Bare, Result{Spec: "a"}, Result{Spec: "b", Passed: true}), want: "fails: a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := NewWithT(t)
			r := &run{chosen: specsOf(nil, "a", "b"), results: map[string]*Results{}, began: began}
			if tc.ours != nil {
				r.results[ClusterAPI] = tc.ours
			}
			if tc.bare != nil {
				r.results[Bare] = tc.bare
			}
			if tc.kwok != nil {
				r.results[Kwok] = tc.kwok
			}
			if err := r.check(); tc.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(tc.want))
			}
		})
	}

	t.Run("When a machine is left, it should name it", func(t *testing.T) {
		g := NewWithT(t)
		r := &run{cfg: Config{Results: t.TempDir()}, leftovers: []string{"Machine clusters-a/x"}}
		g.Expect(r.check()).To(MatchError("was left behind: Machine clusters-a/x"))
	})
}

func TestReport(t *testing.T) {
	t.Run("When a spec has failed, it should report where and why", func(t *testing.T) {
		g := NewWithT(t)
		dir := t.TempDir()
		// A suite that writes what Ginkgo would.
		script := filepath.Join(dir, "suite")
		g.Expect(os.WriteFile(script, []byte(`#!/bin/sh
for arg; do case $arg in -ginkgo.json-report=*) report=${arg#*=};; esac; done
cat > "$report" <<EOF
[{"SuiteDescription":"Regression","SpecReports":[
 {"LeafNodeType":"BeforeSuite","State":"passed"},
 {"LeafNodeType":"It","ContainerHierarchyTexts":["Drift","Budgets"],"LeafNodeText":"should respect them","State":"failed","RunTime":1500000000,
  "Failure":{"Message":"expected 1","Location":{"FileName":"/m/drift_test.go","LineNumber":7}}}]}]
EOF
exit 1
`), 0o755)).To(Succeed())
		s := spec{suite: &suite{path: script, description: "Regression"}, text: "Drift Budgets should respect them"}
		result, err := s.run(t.Context(), nil, "kubeconfig", dir)
		g.Expect(err).NotTo(HaveOccurred())
		want := Result{
			Spec: s.text, Seconds: 1.5, Failure: "failed at drift_test.go:7: expected 1",
			Log: filepath.Join(dir, fileName(s.text)+".log"), Finished: result.Finished,
		}
		g.Expect(result.Finished).To(BeTemporally("~", time.Now(), time.Minute))
		if diff := cmp.Diff(want, result); diff != "" {
			t.Errorf("result (-want +got):\n%s", diff)
		}
	})

	t.Run("When a spec passes and the suite's process fails all the same, it should be a failure", func(t *testing.T) {
		g := NewWithT(t)
		dir := t.TempDir()
		script := filepath.Join(dir, "suite")
		g.Expect(os.WriteFile(script, []byte(`#!/bin/sh
for arg; do case $arg in -ginkgo.json-report=*) report=${arg#*=};; esac; done
echo '[{"SuiteDescription":"Regression","SpecReports":[{"LeafNodeType":"It","LeafNodeText":"Drift","State":"passed","RunTime":1500000000}]}]' > "$report"
exit 1
`), 0o755)).To(Succeed())
		s := spec{suite: &suite{path: script}, text: "Drift"}
		result, err := s.run(t.Context(), nil, "kubeconfig", dir)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.Passed).To(BeFalse())
		g.Expect(result.Failure).To(ContainSubstring("exit status 1"))
	})

	t.Run("When two specs differ in what no file name has, or in their ends, their reports should be two files", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(fileName("allows (node-restriction.kubernetes.io/x)")).NotTo(Equal(fileName("allows ([*].node-restriction.kubernetes.io/x)")))
		long := strings.Repeat("a very long name ", 20)
		g.Expect(fileName(long + "one")).NotTo(Equal(fileName(long + "two")))
		g.Expect(len(fileName(long))).To(BeNumerically("<", 200))
	})

	t.Run("When the suite ends without a report, it should be a failure", func(t *testing.T) {
		g := NewWithT(t)
		dir := t.TempDir()
		script := filepath.Join(dir, "suite")
		g.Expect(os.WriteFile(script, []byte("#!/bin/sh\nexit 3\n"), 0o755)).To(Succeed())
		s := spec{suite: &suite{path: script}, text: "Drift"}
		result, err := s.run(t.Context(), nil, "kubeconfig", dir)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.Passed).To(BeFalse())
		g.Expect(result.Failure).To(ContainSubstring("without a report"))
	})
}
