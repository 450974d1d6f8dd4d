// SPDX-License-Identifier: Apache-2.0

// Mutants breaks the code as the files beside it say, each time in a copy of the repository, and runs the tests that each
// mutant names. They mostly wait for timeouts, so several run at once. A mutant survives if no test fails: then the tests
// wouldn't find the same mistake of a person either, and the program fails.
//
//	make mutants
//	make mutants ARGS='-run certificate'
//
// A file has the mutants of the top folder that it is called after. docs/testing.md shows one.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/autonode-io/autonode/test/mutants/mutant"
)

// timeout of the tests of one mutant, or of those of a package without any. One that hangs dies, too.
const timeout = 8 * time.Minute

// How long a test waits for what must happen. The tests' own ten minutes are for machines of any speed; with a mutant, much never happens. Without
// one it is longest, and a mutant counts as not noticed where that is too short. With one it is patience times as long as the whole test took
// without, between shortest and longest.
const (
	patience = 4
	shortest = 20 * time.Second
	longest  = 2 * time.Minute
)

func main() {
	run := flag.String("run", "", "regular expression that chooses mutants by name")
	list := flag.Bool("list", false, "list the mutants, and do nothing")
	parallel := flag.Int("parallel", 3, "how many run at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := mutate(ctx, os.Stdout, *run, *list, *parallel)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func mutate(ctx context.Context, out io.Writer, choose string, list bool, parallel int) error {
	if parallel < 1 {
		return fmt.Errorf("-parallel %d: at least one has to run", parallel)
	}
	chosen, err := regexp.Compile(choose)
	if err != nil {
		return fmt.Errorf("reading -run: %w", err)
	}
	root, err := git(ctx, ".", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	root = strings.TrimSpace(root)
	all, err := mutant.Read(filepath.Join(root, "test", "mutants"))
	if err != nil {
		return err
	}
	var mutants []mutant.Mutant
	for _, m := range all {
		if chosen.MatchString(m.Name) {
			mutants = append(mutants, m)
		}
	}
	if len(mutants) == 0 {
		return fmt.Errorf("none of %d mutants matches %q", len(all), choose)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer func() { _ = table.Flush() }()
	if list {
		for _, m := range mutants {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", m.Name, m.Breaks, m.Package, m.Run)
		}
		return nil
	}
	folder, err := os.MkdirTemp("", "autonode-mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()

	trees := make(chan string, parallel)
	for i := range parallel {
		tree := filepath.Join(folder, strconv.Itoa(i))
		if err := copyTree(ctx, root, tree); err != nil {
			return fmt.Errorf("copying the repository: %w", err)
		}
		trees <- tree
	}
	sounds, err := withoutMutants(ctx, trees, mutants)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var survivors []string
	runs, ctx := errgroup.WithContext(ctx)
	for _, m := range mutants {
		without := sounds[testOf(m)]
		tree := <-trees
		runs.Go(func() error {
			defer func() { trees <- tree }()
			began := time.Now()
			outcome := "fails without it, too"
			if without.err == nil {
				var err error
				if outcome, err = try(ctx, tree, m, min(max(patience*without.took, shortest), longest)); err != nil {
					return err
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if outcome != dies {
				survivors = append(survivors, m.Name)
			}
			fmt.Fprintf(out, "%-24s %-36s %-44s %s\n", outcome, m.Name, testOf(m), time.Since(began).Round(time.Second))
			return nil
		})
	}
	if err := runs.Wait(); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d of %d mutants die\n", len(mutants)-len(survivors), len(mutants))
	if len(survivors) > 0 {
		return fmt.Errorf("these don't: %s", strings.Join(survivors, ", "))
	}
	return nil
}

// testOf names the test of a mutant.
func testOf(m mutant.Mutant) string { return m.Package + " " + m.Run }

// sound is a test without any mutant.
type sound struct {
	took time.Duration
	err  error
}

// withoutMutants runs the tests of all mutants without any, those of a package at once. What they return is by testOf.
func withoutMutants(ctx context.Context, trees chan string, mutants []mutant.Mutant) (map[string]sound, error) {
	tests := map[string][]mutant.Mutant{} // by package, one for each test
	for _, m := range mutants {
		if !slices.ContainsFunc(tests[m.Package], func(other mutant.Mutant) bool { return other.Run == m.Run }) {
			tests[m.Package] = append(tests[m.Package], m)
		}
	}
	var mu sync.Mutex
	sounds := map[string]sound{}
	runs, ctx := errgroup.WithContext(ctx)
	for folder, of := range tests {
		tree := <-trees
		runs.Go(func() error {
			defer func() { trees <- tree }()
			var patterns []string
			for _, m := range of {
				patterns = append(patterns, m.Run)
			}
			said, failed := test(ctx, tree, folder, strings.Join(patterns, "|"), longest)
			for _, m := range of {
				without := sound{took: took(said, m.Run)}
				if failed != nil { // one of them is the cause
					began := time.Now()
					_, without.err = test(ctx, tree, folder, m.Run, longest)
					without.took = time.Since(began)
				}
				mu.Lock()
				sounds[testOf(m)] = without
				mu.Unlock()
			}
			return context.Cause(ctx)
		})
	}
	return sounds, runs.Wait()
}

var passed = regexp.MustCompile(`(?m)^--- PASS: (Test\S*) \((\S+s)\)$`)

// took adds up how long the tests that a pattern chooses took, by what go test -v has printed. It is longest where that says nothing of them.
func took(said []byte, run string) (all time.Duration) {
	tops := strings.Split(run, "|")
	for i := range tops {
		tops[i], _, _ = strings.Cut(tops[i], "/")
	}
	chosen, err := regexp.Compile(strings.Join(tops, "|"))
	if err != nil {
		return longest // go test has said so
	}
	var known bool
	for _, match := range passed.FindAllSubmatch(said, -1) {
		if one, err := time.ParseDuration(string(match[2])); err == nil && chosen.Match(match[1]) {
			all, known = all+one, true
		}
	}
	if !known {
		return longest
	}
	return all
}

const dies = "dies"

// try makes a mutant's edits, runs its tests, and takes the edits back.
func try(ctx context.Context, tree string, m mutant.Mutant, wait time.Duration) (outcome string, err error) {
	back, err := m.Break(tree)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, back()) }()
	said, failed := test(ctx, tree, m.Package, m.Run, wait)
	switch {
	case failed == nil:
		return "SURVIVES", nil
	case bytes.Contains(said, []byte("[build failed]")), bytes.Contains(said, []byte("[setup failed]")):
		return "doesn't compile", nil
	case bytes.Contains(said, []byte("--- FAIL")), bytes.Contains(said, []byte("panic: ")):
		return dies, nil
	default:
		return "", fmt.Errorf("testing %s: %w\n%s", m.Name, failed, said)
	}
}

// test runs the tests of a package that a pattern chooses. Wait is how long they wait for what must happen.
func test(ctx context.Context, tree, folder, run string, wait time.Duration) (said []byte, err error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-v", "-vet=off", "-count=1", "-failfast", "-timeout="+timeout.String(), "-run="+run, ".")
	cmd.Dir = filepath.Join(tree, folder) // whose module is any of ours
	cmd.Env = append(os.Environ(), "GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT="+wait.String(), "GOMEGA_ENFORCE_DEFAULT_TIMEOUTS_WHEN_USING_CONTEXTS=true")
	said, err = cmd.CombinedOutput()
	end(tree)
	if err == nil && bytes.Contains(said, []byte("no tests to run")) {
		return said, fmt.Errorf("%s has no test %s", folder, run)
	}
	return said, err
}

// end kills the programs that the tests of a mutant have left behind in a copy. One that panics doesn't stop its etcd and its API server, and
// one whose go command is interrupted goes on.
func end(tree string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // on Linux; the pattern is valid
	for _, link := range links {
		if dir, err := os.Readlink(link); err != nil || !strings.HasPrefix(dir, tree+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// copyTree copies what git tracks, and what it would if it were added.
func copyTree(ctx context.Context, from, to string) error {
	files, err := git(ctx, from, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	if err != nil {
		return err
	}
	for _, name := range slices.Compact(strings.Split(strings.Trim(files, "\x00"), "\x00")) {
		content, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, and not committed
		}
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), content, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// git returns what git prints. It mustn't find a repository around the copy.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return string(out), nil
}
