// SPDX-License-Identifier: Apache-2.0

// Package recording remembers what a program prints, and when, and draws it as a picture of a terminal that plays it again: an SVG without scripts
// and without anything from elsewhere.
package recording

import (
	"bytes"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Line is one that was printed.
type Line struct {
	// At is the time since the recording began.
	At   time.Duration
	Text string
}

// Recorder remembers the lines that are written to it. Its methods may be called from any goroutine.
type Recorder struct {
	now   func() time.Time
	began time.Time

	mu    sync.Mutex
	lines []Line
	begun []byte // a line without its end
}

// New begins a recording. now is the clock.
func New(now func() time.Time) *Recorder {
	return &Recorder{now: now, began: now()}
}

// Write never fails.
func (r *Recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun = append(r.begun, p...)
	for {
		line, rest, ended := bytes.Cut(r.begun, []byte("\n"))
		if !ended {
			return len(p), nil
		}
		r.lines = append(r.lines, Line{At: r.now().Sub(r.began), Text: seen(string(line))})
		r.begun = bytes.Clone(rest)
	}
}

// Lines are those that have ended.
func (r *Recorder) Lines() []Line {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Line(nil), r.lines...)
}

// control is a control sequence of terminals.
var control = regexp.MustCompile("\x1b\\[[0-9;?]*[a-zA-Z]")

// seen is what a terminal shows of a line in the end: without what was drawn before a carriage return, and without control sequences.
func seen(line string) string {
	line = strings.TrimSuffix(line, "\r")
	line = line[strings.LastIndex(line, "\r")+1:]
	return strings.TrimRight(control.ReplaceAllString(line, ""), " ")
}
