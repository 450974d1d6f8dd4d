// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// specTimeout is longer than the slowest spec, which waits 17 minutes for a registration timeout.
const specTimeout = 30 * time.Minute

// suite is a compiled test suite.
type suite struct {
	name string
	path string
	// description is Ginkgo's prefix of every spec's text.
	description string
	// needs returns the resource of this machine that a spec needs exclusively, such as fixed ports, or "".
	needs func(spec string) string
	// driver is a program that has to run in the guest beside a spec, or "".
	driver string
}

// spec of a suite. Texts are unique over all suites.
type spec struct {
	suite *suite
	text  string
}

func (s spec) needs() string { return s.suite.needs(s.text) }

// load reads a suite's specs from a dry run, which makes no request to a cluster.
func (s *suite) load(ctx context.Context) ([]spec, error) {
	file, err := os.CreateTemp("", "autonode-conformance-*.json")
	if err != nil {
		return nil, fmt.Errorf("listing the specs: %w", err)
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_ = file.Close()
	cmd := exec.CommandContext(ctx, s.path, "-ginkgo.dry-run", "-ginkgo.json-report="+file.Name())
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("listing the specs: %w\n%s", err, out)
	}
	found, err := readReport(file.Name())
	if err != nil {
		return nil, fmt.Errorf("listing the specs: %w", err)
	}
	s.description = found.SuiteDescription
	var specs []spec
	seen := map[string]bool{}
	for _, r := range found.SpecReports {
		if r.LeafNodeType != "It" {
			continue
		}
		text := r.text()
		if seen[text] {
			return nil, fmt.Errorf("listing the specs: two of them are called %q, and can't be distinguished", text)
		}
		seen[text] = true
		specs = append(specs, spec{suite: s, text: text})
	}
	return specs, nil
}

// report is the part of Ginkgo's JSON report that this package reads.
type report struct {
	SuiteDescription string
	SpecReports      []specReport
}

type specReport struct {
	LeafNodeType            string
	LeafNodeText            string
	ContainerHierarchyTexts []string
	State                   string
	RunTime                 time.Duration
	Failure                 struct {
		Message  string
		Location struct {
			FileName   string
			LineNumber int
		}
	}
}

func (r specReport) text() string {
	return strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
}

func readReport(path string) (report, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return report{}, err
	}
	var reports []report
	if err := json.Unmarshal(data, &reports); err != nil {
		return report{}, fmt.Errorf("decoding %s: %w", path, err)
	}
	if len(reports) != 1 {
		return report{}, fmt.Errorf("decoding %s: %d suites instead of one", path, len(reports))
	}
	return reports[0], nil
}

// run runs one spec in its own process, and writes the suite's output to a file in logDir. An error means that the spec
// couldn't run: a failed spec is a result.
func (s spec) run(ctx context.Context, args []string, kubeconfig, logDir string) (Result, error) {
	name := filepath.Join(logDir, fileName(s.text))
	log, err := os.Create(name + ".log")
	if err != nil {
		return Result{}, fmt.Errorf("opening a spec's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(ctx, s.suite.path, append([]string{
		"-ginkgo.v", "-ginkgo.no-color",
		"-ginkgo.focus=^" + regexp.QuoteMeta(s.suite.description+" "+s.text) + "$",
		"-ginkgo.json-report=" + name + ".json",
		"-ginkgo.timeout=" + specTimeout.String(),
		"-test.timeout=" + (specTimeout + 5*time.Minute).String(),
	}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to handle
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	_ = os.Remove(name + ".json")
	started := time.Now()
	err = cmd.Run()
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return Result{}, fmt.Errorf("running a spec: %w", err)
	}
	result := Result{Spec: s.text, Finished: time.Now().UTC().Truncate(time.Second), Seconds: time.Since(started).Seconds(), Log: name + ".log"}
	reports, reportErr := readReport(name + ".json")
	if reportErr != nil {
		result.Failure = fmt.Sprintf("the suite's process ended without a report: %v", err)
		return result, nil
	}
	for _, found := range reports.SpecReports {
		if found.LeafNodeType == "It" && found.text() == s.text {
			result.Passed = found.State == "passed"
			result.Seconds = found.RunTime.Seconds()
			if !result.Passed {
				result.Failure = fmt.Sprintf("%s at %s:%d: %s", found.State, filepath.Base(found.Failure.Location.FileName),
					found.Failure.Location.LineNumber, strings.TrimSpace(found.Failure.Message))
			} else if err != nil { // what comes after a spec has failed
				result.Passed, result.Failure = false, fmt.Sprintf("the spec passed, and the suite's process ended with %v", err)
			}
			return result, nil
		}
	}
	return Result{}, fmt.Errorf("running %q: the suite has no such spec", s.text)
}

var unfit = regexp.MustCompile(`[^A-Za-z0-9]+`)

// fileName turns a spec's text into a file name without extension. A hash at the end stands for omitted characters.
func fileName(spec string) string {
	name := strings.Trim(unfit.ReplaceAllString(spec, "-"), "-")
	return fmt.Sprintf("%s-%x", name[:min(len(name), 180)], sha256.Sum256([]byte(spec)))[:min(len(name), 180)+9]
}
