// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/autonode-io/autonode/test/world/progress"
)

// pollInterval is how often the demo looks whether what it waits for has happened.
const pollInterval = 100 * time.Millisecond

// narrator shows a person what happens: headings, the commands that a person would type with what they print, and what is
// being waited for.
type narrator struct {
	printer *progress.Printer
	// kubectl is the program; kubeconfig lists the files that hold all contexts; dir is where the manifests are.
	kubectl, kubeconfig, dir string
	act                      int
}

// heading begins an act.
func (n *narrator) heading(title string) {
	n.act++
	n.printer.Println(fmt.Sprintf("\n%d  %s", n.act, title))
}

// say prints lines of text, indented as all that an act prints.
func (n *narrator) say(text string) {
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		n.printer.Println("   " + strings.TrimRight(line, "\n"))
	}
}

// run shows a kubectl command, runs it and shows what it prints.
func (n *narrator) run(ctx context.Context, args ...string) error {
	shown := make([]string, len(args))
	for i, arg := range args {
		if shown[i] = arg; strings.ContainsAny(arg, " {}\"") {
			shown[i] = "'" + arg + "'"
		}
	}
	n.say("$ kubectl " + strings.Join(shown, " "))
	command := exec.CommandContext(ctx, n.kubectl, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+n.kubeconfig)
	command.Dir = n.dir
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	n.say(out.String())
	if err != nil {
		return fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// expectation is one thing that has to happen. Its check reports whether it has, and what can be seen meanwhile.
type expectation struct {
	name  string
	check func(ctx context.Context) (done bool, seen string, err error)
}

// await waits for things that happen one after the other, and shows how long each took.
func (n *narrator) await(ctx context.Context, title string, timeout time.Duration, expectations ...expectation) (time.Duration, error) {
	task := n.printer.Task("   "+title, "")
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, e := range expectations {
		var seen string
		var last error
		err := task.Run("   "+e.name, func() error {
			return wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (done bool, _ error) {
				done, seen, last = e.check(ctx)
				return done && last == nil, nil
			})
		})
		if err != nil {
			task.Fail()
			if last != nil {
				seen = last.Error()
			}
			return 0, fmt.Errorf("waiting for %q (%s): %w; last seen: %s", e.name, timeout, err, seen)
		}
	}
	elapsed := task.Elapsed()
	task.End(progress.Duration(elapsed))
	return elapsed, nil
}

// unpack writes the manifests beside the kubeconfigs, for the commands to name and a person to play with.
func (n *narrator) unpack() error {
	entries, err := manifests.ReadDir("manifests")
	if err != nil {
		return fmt.Errorf("reading the demo's manifests: %w", err)
	}
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		return fmt.Errorf("making the demo's folder: %w", err)
	}
	for _, entry := range entries {
		content, err := manifests.ReadFile("manifests/" + entry.Name())
		if err != nil {
			return fmt.Errorf("reading the demo's manifests: %w", err)
		}
		if err := os.WriteFile(filepath.Join(n.dir, entry.Name()), content, 0o644); err != nil {
			return fmt.Errorf("writing the demo's manifests: %w", err)
		}
	}
	return nil
}
