// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/autonode-io/autonode/test/world/progress"
)

// Result of one spec.
type Result struct {
	Spec   string `json:"spec"`
	Passed bool   `json:"passed"`
	// Finished is the end of its run.
	Finished time.Time `json:"finished,omitzero"`
	// Seconds of the spec, with its cleanup.
	Seconds float64 `json:"seconds"`
	// Failure is where and why it failed.
	Failure string `json:"failure,omitempty"`
	// Log is the file with the suite's output.
	Log string `json:"log,omitempty"`
}

// Results of a provider's last run. A run with a focus only replaces those in focus.
type Results struct {
	Provider string `json:"provider"`
	// Began is the start of that run.
	Began    time.Time `json:"began,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	// Guests and CPUs of the run.
	Guests int      `json:"guests"`
	CPUs   int      `json:"cpus"`
	Specs  []Result `json:"specs"`
}

// isOlder reports whether a result is older than the provider's last run.
func (r Results) isOlder(result Result) bool { return result.Finished.Before(r.Began) }

func resultsFile(dir, provider string) string { return filepath.Join(dir, provider+".json") }

// readResults returns a provider's last results, or empty ones.
func readResults(dir, provider string) (Results, error) {
	data, err := os.ReadFile(resultsFile(dir, provider))
	if errors.Is(err, fs.ErrNotExist) {
		return Results{Provider: provider}, nil
	}
	if err != nil {
		return Results{}, fmt.Errorf("reading the last results: %w", err)
	}
	var results Results
	if err := json.Unmarshal(data, &results); err != nil {
		return Results{}, fmt.Errorf("reading the last results: %w", err)
	}
	return results, nil
}

//go:embed testdata/clusterapi.json testdata/kwok.json
var committedResults embed.FS

// readCommitted returns the results of the committed run, or empty ones. Bare has those of the same provider.
func readCommitted(provider string) (Results, error) {
	if provider == Bare {
		provider = ClusterAPI
	}
	data, err := committedResults.ReadFile("testdata/" + provider + ".json")
	if err != nil {
		return Results{Provider: provider}, nil //nolint:nilerr // a provider without a committed run
	}
	var results Results
	if err := json.Unmarshal(data, &results); err != nil {
		return Results{}, fmt.Errorf("reading the committed results: %w", err)
	}
	return results, nil
}

func (r Results) write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	if err := os.WriteFile(resultsFile(dir, r.Provider), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	return nil
}

func (r Results) find(spec string) (Result, bool) {
	for _, result := range r.Specs {
		if result.Spec == spec {
			return result, true
		}
	}
	return Result{}, false
}

// record replaces a spec's result. The specs keep the order of the suite.
func (r *Results) record(order []string, result Result) {
	var specs []Result
	for _, spec := range order {
		if spec == result.Spec {
			specs = append(specs, result)
		} else if known, ok := r.find(spec); ok {
			specs = append(specs, known)
		}
	}
	for _, known := range r.Specs { // of another suite
		if !slices.Contains(order, known.Spec) {
			specs = append(specs, known)
		}
	}
	r.Specs = specs
}

// passed returns the number of specs that passed.
func (r Results) passed(specs []string) int {
	n := 0
	for _, spec := range specs {
		if result, ok := r.find(spec); ok && result.Passed {
			n++
		}
	}
	return n
}

// explained returns the explanations of the specs that didn't pass.
func (r Results) explained(specs []string) []explanation {
	var all []explanation
	for _, spec := range specs {
		result, _ := r.find(spec)
		if e, ok := explained(r.Provider, result); ok {
			all = append(all, e)
		}
	}
	return all
}

// printTable prints all providers' results side by side.
func printTable(out io.Writer, specs []string, all []Results) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nSPEC")
	for _, results := range all {
		fmt.Fprintf(table, "\t%s", results.Provider)
	}
	fmt.Fprintln(table)
	for _, spec := range specs {
		fmt.Fprint(table, spec)
		for _, results := range all {
			fmt.Fprintf(table, "\t%s", cell(results, spec))
		}
		fmt.Fprintln(table)
	}
	fmt.Fprintf(table, "%d specs", len(specs))
	for _, results := range all {
		fmt.Fprintf(table, "\t%d pass", results.passed(specs))
		if n := len(results.explained(specs)); n > 0 {
			fmt.Fprintf(table, ", %d explained", n)
		}
	}
	fmt.Fprintln(table)
	if err := table.Flush(); err != nil {
		return fmt.Errorf("printing the table: %w", err)
	}
	for _, results := range all {
		for _, e := range results.explained(specs) {
			fmt.Fprintf(out, "explained: %s: %s\n", e.spec, e.why)
		}
		if results.Finished.IsZero() {
			fmt.Fprintf(out, "%s: no results yet\n", results.Provider)
			continue
		}
		fmt.Fprintf(out, "%s: finished %s, on %d guests and %d CPUs\n",
			results.Provider, results.Finished.Local().Format(time.DateTime), results.Guests, results.CPUs)
		if n := results.older(specs); n > 0 {
			fmt.Fprintf(out, "%s: %d results, with their date, are of earlier runs\n", results.Provider, n)
		}
	}
	return nil
}

// older returns the number of specs with results of earlier runs.
func (r Results) older(specs []string) int {
	n := 0
	for _, spec := range specs {
		if result, ok := r.find(spec); ok && r.isOlder(result) {
			n++
		}
	}
	return n
}

func cell(results Results, spec string) string {
	result, ok := results.find(spec)
	if !ok {
		return "-"
	}
	mark := "FAIL"
	if result.Passed {
		mark = "pass"
	} else if _, ok := explained(results.Provider, result); ok {
		mark = "explained"
	}
	text := mark + " " + progress.Duration(time.Duration(result.Seconds*float64(time.Second)))
	switch {
	case !results.isOlder(result):
	case result.Finished.IsZero():
		text += " (earlier)"
	default:
		text += " (" + result.Finished.Local().Format(time.DateTime) + ")"
	}
	return text
}
