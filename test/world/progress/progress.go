// SPDX-License-Identifier: Apache-2.0

// Package progress shows what is being waited for and for how long. On a terminal the running items
// share one line that is redrawn; elsewhere every item is a plain line of its own, so that a build log reads
// well too.
package progress

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/autonode-io/autonode/internal/message"
)

const redrawInterval = 100 * time.Millisecond

// Printer writes progress to one writer. Its methods may be called from any goroutine.
type Printer struct {
	out   io.Writer
	live  bool
	width func() int

	mu   sync.Mutex
	line string
}

// New returns a Printer for out. It redraws when out is a terminal.
func New(out io.Writer) *Printer {
	if out == nil {
		out = io.Discard
	}
	p := &Printer{out: out, width: func() int { return 80 }}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		p.live = true
		p.width = func() int {
			if w, _, err := term.GetSize(int(file.Fd())); err == nil && w > 20 {
				return w
			}
			return 80
		}
	}
	return p
}

// NewLive returns a Printer that redraws although out is no terminal itself: the far end of out is one, and it is
// width columns wide.
func NewLive(out io.Writer, width int) *Printer {
	return &Printer{out: out, live: true, width: func() int { return width }}
}

// Live reports whether the Printer redraws, and the width of its terminal in columns.
func (p *Printer) Live() (live bool, width int) { return p.live, p.width() }

// Println prints a line above whatever is being redrawn. It shows what a cluster has without doing anything to the terminal.
func (p *Printer) Println(a ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	fmt.Fprint(p.out, message.Visible(fmt.Sprintln(a...)))
}

func (p *Printer) erase() {
	if p.line != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.line = ""
	}
}

func (p *Printer) draw(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line = message.Line(line)
	if width := p.width() - 1; utf8.RuneCountInString(line) > width {
		line = string([]rune(line)[:width-1]) + "…"
	}
	if line == p.line {
		return
	}
	p.erase()
	fmt.Fprint(p.out, line)
	p.line = line
}

// Task is a piece of work with a title, made of items that may overlap.
type Task struct {
	printer *Printer
	title   string
	started time.Time
	stop    chan struct{}
	stopped sync.WaitGroup

	mu    sync.Mutex
	items []*item
}

// item is one thing that a Task waits for.
type item struct {
	name    string
	started time.Time
}

// Task begins a task. The note is printed once, at the beginning. End or Fail must be called.
func (p *Printer) Task(title, note string) *Task {
	t := &Task{printer: p, title: title, started: time.Now(), stop: make(chan struct{})}
	if note != "" {
		p.Println(title + " (" + note + ")")
	} else if !p.live {
		p.Println(title)
	}
	if !p.live {
		return t
	}
	t.stopped.Go(func() {
		ticker := time.NewTicker(redrawInterval)
		defer ticker.Stop()
		for {
			p.draw(t.status())
			select {
			case <-t.stop:
				return
			case <-ticker.C:
			}
		}
	})
	return t
}

// Run runs f as an item of the task. An error of f is reported elsewhere.
func (t *Task) Run(name string, f func() error) error {
	running := &item{name: name, started: time.Now()}
	t.mu.Lock()
	t.items = append(t.items, running)
	t.mu.Unlock()
	err := f()
	t.mu.Lock()
	t.items = slices.DeleteFunc(t.items, func(i *item) bool { return i == running })
	t.mu.Unlock()
	if err == nil {
		t.printer.Println(fmt.Sprintf("  %-30s ✓ %s", name, Duration(time.Since(running.started))))
	}
	return err
}

// Elapsed is the time since the task began.
func (t *Task) Elapsed() time.Duration { return time.Since(t.started) }

// End closes the task: its title and the outcome, such as "ready in 18 s".
func (t *Task) End(outcome string) {
	t.close()
	t.printer.Println(fmt.Sprintf("%-70s %s", t.title, outcome))
}

// Fail closes the task after an error.
func (t *Task) Fail() {
	t.close()
	t.printer.Println(fmt.Sprintf("%-70s failed after %s", t.title, Duration(t.Elapsed())))
}

func (t *Task) close() {
	close(t.stop)
	t.stopped.Wait()
}

func (t *Task) status() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	running := make([]string, 0, len(t.items))
	for _, i := range t.items {
		running = append(running, fmt.Sprintf("%s %s", i.name, Duration(time.Since(i.started))))
	}
	return fmt.Sprintf("%s  %s  %s", t.title, Duration(t.Elapsed()), strings.Join(running, "   "))
}

// Duration prints d as people say it: 0.4 s, 18 s, 3:10.
func Duration(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	default:
		return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
	}
}
