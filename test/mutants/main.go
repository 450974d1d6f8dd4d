// SPDX-License-Identifier: Apache-2.0

// Mutants breaks the code as the files beside it say, each time in a copy of the repository, and runs the tests that each
// mutant names. They mostly wait for timeouts, so several run at once. A mutant survives if no test fails: then the tests
// wouldn't find the same mistake of a person either, and the program fails.
//
//	make mutants
//	make mutants ARGS='-run certificate'
//
// A file has the mutants of the top folder that it is called after. docs/internals/testing.md shows one.
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

// timeout of the tests of one mutant. One that hangs dies, too.
const timeout = 8 * time.Minute

// wait is how long a test of a mutant waits for what must happen, with the mutant and without. The tests' own ten minutes are for machines of any
// speed; with a mutant, much never happens. Where two minutes are too few without one, the mutant counts as not noticed.
const wait = 2 * time.Minute

func main() {
	run := flag.String("run", "", "regular expression that chooses mutants by name")
	list := flag.Bool("list", false, "list the mutants, and do nothing")
	parallel := flag.Int("parallel", 6, "how many run at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := mutate(ctx, os.Stdout, *run, *list, *parallel)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// sound is what the tests of mutants say without any.
type sound struct {
	done chan struct{}
	err  error
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

	var mu sync.Mutex
	var survivors []string
	sounds := map[string]*sound{}
	runs, ctx := errgroup.WithContext(ctx)
	trees := make(chan string, parallel)
	for i := range parallel {
		tree := filepath.Join(folder, strconv.Itoa(i))
		if err := copyTree(ctx, root, tree); err != nil {
			return fmt.Errorf("copying the repository: %w", err)
		}
		trees <- tree
	}
	start := func(run func(tree string) error) {
		tree := <-trees
		runs.Go(func() error {
			defer func() { trees <- tree }()
			return run(tree)
		})
	}
	for _, m := range mutants {
		key := m.Package + " " + m.Run
		without, tried := sounds[key]
		if !tried {
			without = &sound{done: make(chan struct{})}
			sounds[key] = without
			start(func(tree string) error {
				defer close(without.done)
				_, without.err = test(ctx, tree, m)
				return nil
			})
		}
		start(func(tree string) error {
			began := time.Now()
			outcome, err := try(ctx, tree, m)
			if err != nil {
				return err
			}
			<-without.done // began before this one did
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if without.err != nil {
				outcome = "fails without it, too"
			}
			mu.Lock()
			defer mu.Unlock()
			if outcome != dies {
				survivors = append(survivors, m.Name)
			}
			fmt.Fprintf(out, "%-24s %-36s %-44s %s\n", outcome, m.Name, key, time.Since(began).Round(time.Second))
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

const dies = "dies"

// try makes a mutant's edits, runs its tests, and takes the edits back.
func try(ctx context.Context, tree string, m mutant.Mutant) (outcome string, err error) {
	back, err := m.Break(tree)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, back()) }()
	said, failed := test(ctx, tree, m)
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

func test(ctx context.Context, tree string, m mutant.Mutant) (said []byte, err error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-count=1", "-failfast", "-timeout="+timeout.String(), "-run="+m.Run, ".")
	cmd.Dir = filepath.Join(tree, m.Package) // whose module is any of ours
	cmd.Env = append(os.Environ(), "GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT="+wait.String(), "GOMEGA_ENFORCE_DEFAULT_TIMEOUTS_WHEN_USING_CONTEXTS=true")
	said, err = cmd.CombinedOutput()
	end(tree)
	if err == nil && bytes.Contains(said, []byte("no tests to run")) {
		return said, fmt.Errorf("%s has no test %s", m.Package, m.Run)
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
