// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"unicode"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/message"
)

// written audits each condition and event that the operators in this package's tests write, from the first test to the last.
var written audit

type audit struct {
	once sync.Once

	mu         sync.Mutex
	conditions map[string]int // by type and reason
	events     map[string]int // by reason
	violations []string
}

// start watches all that is written, including what no test asserts.
func (a *audit) start(config *rest.Config) error {
	var failed error
	a.once.Do(func() {
		a.conditions, a.events = map[string]int{}, map[string]int{}
		scheme, err := scopetest.Scheme()
		if err != nil {
			failed = err
			return
		}
		watched, err := cache.New(config, cache.Options{Scheme: scheme})
		if err != nil {
			failed = err
			return
		}
		for _, object := range []client.Object{&v1beta1.HostedCluster{}, &v1beta1.ControlPlaneComponent{}, &eventsv1.Event{}} {
			informer, err := watched.GetInformer(context.Background(), object, cache.BlockUntilSynced(false))
			if err != nil {
				failed = err
				return
			}
			if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: a.see, UpdateFunc: func(_, after any) { a.see(after) }}); err != nil {
				failed = err
				return
			}
		}
		go func() { _ = watched.Start(context.Background()) }() // until the process ends
	})
	return failed
}

func (a *audit) see(object any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var conditions []metav1.Condition
	switch o := object.(type) {
	case *v1beta1.HostedCluster:
		conditions = o.Status.Conditions
		if o.Status.AutoNode != nil {
			a.check("status.autoNode.message", o.Status.AutoNode.Message)
		}
	case *v1beta1.ControlPlaneComponent:
		conditions = o.Status.Conditions
	case *eventsv1.Event:
		a.events[o.Reason]++
		a.check("event "+o.Reason, o.Note)
	}
	for _, c := range conditions {
		a.conditions[c.Type+"/"+c.Reason]++
		a.check(c.Type+"/"+c.Reason, c.Message)
	}
}

// flooded is the word that attackers in these tests repeat where the length is theirs to choose.
const flooded = "flood "

func (a *audit) check(what, text string) {
	switch {
	case len(text) > message.Limit:
		a.violations = append(a.violations, fmt.Sprintf("%s has %d bytes", what, len(text)))
	case strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		a.violations = append(a.violations, fmt.Sprintf("%s isn't one printable line: %q", what, text))
	case strings.Count(text, flooded) > message.QuoteLimit/len(flooded)+1:
		a.violations = append(a.violations, fmt.Sprintf("%s repeats an attacker: %q", what, text))
	}
}

// report prints what was seen, and returns the code for TestMain.
func (a *audit) report(code int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	fmt.Fprintf(os.Stderr, "audited %d kinds of conditions and %d of events\n", len(a.conditions), len(a.events))
	for _, violation := range a.violations {
		fmt.Fprintln(os.Stderr, "unbounded:", violation)
		code = 1
	}
	return code
}
