// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"fmt"
	"io"

	"github.com/dustin/go-humanize/english"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/cli/printer"
)

// Result of a check.
type Result string

// Results.
const (
	OK Result = "OK"
	// Warning: it may be intended, or couldn't be checked.
	Warning Result = "Warning"
	// Wrong: AutoNode can't work with it.
	Wrong Result = "Wrong"
)

var marks = map[Result]string{OK: "✓", Warning: "!", Wrong: "✗"}

// Check is what was checked of one subject. Scripts may rely on its JSON.
type Check struct {
	// Subject is an object, as its kind and name, or a capability such as "Kubernetes".
	Subject string `json:"subject"`
	Result  Result `json:"result"`
	// Message reports what is, and why that is wrong.
	Message string `json:"message"`
	// Fix reports what to do. It is set unless the result is OK.
	Fix string `json:"fix,omitempty"`
}

// Report is what was checked, causes first. Scripts may rely on its JSON.
type Report struct {
	Checks   []Check `json:"checks"`
	Wrong    int     `json:"wrong"`
	Warnings int     `json:"warnings"`
}

func (r *Report) add(check Check) {
	switch check.Result {
	case Wrong:
		r.Wrong++
	case Warning:
		r.Warnings++
	}
	r.Checks = append(r.Checks, check)
}

func (r *Report) ok(subject, format string, args ...any) {
	r.add(Check{Subject: subject, Result: OK, Message: fmt.Sprintf(format, args...)})
}

func (r *Report) warn(subject, fix, format string, args ...any) {
	r.add(Check{Subject: subject, Result: Warning, Message: fmt.Sprintf(format, args...), Fix: fix})
}

func (r *Report) wrong(subject, fix, format string, args ...any) {
	r.add(Check{Subject: subject, Result: Wrong, Message: fmt.Sprintf(format, args...), Fix: fix})
}

// condition adds a condition of an object.
func (r *Report) condition(result Result, subject, fix string, c *metav1.Condition) {
	r.add(Check{Subject: subject, Result: result, Message: fmt.Sprintf("%s (%s): %s", c.Type, c.Reason, c.Message), Fix: fix})
}

// found reads an object, and adds why if it can't.
func (r *Report) found(
	ctx context.Context, from client.Reader, key client.ObjectKey, object client.Object, subject, fix, missing string,
) bool {
	err := from.Get(ctx, key, object)
	switch {
	case apierrors.IsNotFound(err):
		r.wrong(subject, fix, "%s", missing)
	case err != nil:
		r.Unread(subject, err)
	}
	return err == nil
}

// Unread adds that something couldn't be read, which proves nothing about it.
func (r *Report) Unread(subject string, err error) {
	if apierrors.IsForbidden(err) {
		r.warn(subject, "run the check as a user who may read it, or ask for that permission", "not checked: %s", err)
		return
	}
	if meta.IsNoMatchError(err) {
		r.wrong(subject, installFix, "the cluster doesn't serve them")
		return
	}
	r.wrong(subject, "try again; if it persists, check the management cluster's API server", "couldn't be read: %s", err)
}

// err is the program's error if something is wrong.
func (r *Report) err() error {
	if r.Wrong == 0 {
		return nil
	}
	return fmt.Errorf("%d of %s failed; fix the failures above, in order", r.Wrong, english.Plural(len(r.Checks), "check", ""))
}

func (r *Report) subjects() (subjects []string) {
	for i := range r.Checks {
		subjects = append(subjects, r.Checks[i].Subject)
	}
	return subjects
}

func (r *Report) print(to io.Writer) error {
	for i := range r.Checks {
		check := &r.Checks[i]
		printer.Printf(to, "%s %s: %s\n", marks[check.Result], check.Subject, check.Message)
		if check.Result != OK {
			printer.Printf(to, "    %s\n", check.Fix)
		}
	}
	if r.Wrong == 0 {
		fmt.Fprintf(to, "%s: no failures", english.Plural(len(r.Checks), "check", ""))
		if r.Warnings > 0 {
			fmt.Fprintf(to, ", %s", english.Plural(r.Warnings, "warning", ""))
		}
		fmt.Fprintln(to)
	}
	return nil
}
