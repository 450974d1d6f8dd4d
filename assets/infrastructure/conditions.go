// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Meaning of a condition or a state of an infrastructure machine.
type Meaning string

// Meanings.
const (
	// NoCapacity: the infrastructure has no such machine now.
	NoCapacity Meaning = "InsufficientCapacity"
	// NoQuota: the account may not have another such machine.
	NoQuota Meaning = "QuotaExceeded"
	// Throttled: the infrastructure's API limits the rate of requests. The provider retries; the machine hasn't failed.
	Throttled Meaning = "Throttled"
	// Misconfigured: no machine of the template can be made until the template or an object that it names is corrected.
	Misconfigured Meaning = "Misconfigured"
	// Failed: this machine has failed for good; another one may succeed.
	Failed Meaning = "Failed"
	// Interrupted: the infrastructure is about to take the machine back.
	Interrupted Meaning = "Interrupted"
	// Terminated: the machine doesn't run any more and won't again.
	Terminated Meaning = "Terminated"
	// Ignored: not a failure.
	Ignored Meaning = "Ignored"
)

var (
	meanings = []string{
		string(NoCapacity), string(NoQuota), string(Throttled), string(Misconfigured),
		string(Failed), string(Interrupted), string(Terminated), string(Ignored),
	}
	statuses = []string{string(metav1.ConditionFalse), string(metav1.ConditionTrue), string(metav1.ConditionUnknown)}
)

// rule gives conditions a meaning. It matches if any of reasons, words and messages does; without all three, any condition
// of the type and status.
type rule struct {
	means Meaning
	// kind is the condition's type; empty for any.
	kind   string
	status metav1.ConditionStatus
	// reasons equal the condition's reason, in any case.
	reasons []string
	// words equal the reason, or stand in the message as a whole word or phrase, in any case.
	words []string
	// messages match the message.
	messages []*regexp.Regexp
}

// state gives values of a field of the machine a meaning.
type state struct {
	means  Meaning
	path   Path
	values []string
}

// Question narrows the meanings of a condition.
type Question struct {
	// Exists: the machine has come into being, so meanings about its launch don't count.
	Exists bool
	// Without are words that don't count; nil for none.
	Without func(word string) bool
}

// launches are the meanings that concern the launch of a machine only.
var launches = []Meaning{NoCapacity, NoQuota, Throttled, Misconfigured}

// Means returns the meaning of a condition by the first rule that matches; false if none does.
func (p *Profile) Means(condition metav1.Condition, q Question) (Meaning, bool) {
	for i := range p.conditions {
		r := &p.conditions[i]
		if (!q.Exists || !slices.Contains(launches, r.means)) && r.matches(condition, q.Without) {
			return r.means, true
		}
	}
	return Ignored, false
}

func (r *rule) matches(condition metav1.Condition, without func(string) bool) bool {
	if r.status != condition.Status || r.kind != "" && r.kind != condition.Type {
		return false
	}
	if len(r.reasons)+len(r.words)+len(r.messages) == 0 {
		return true
	}
	isReason := func(word string) bool { return strings.EqualFold(word, condition.Reason) && !excluded(without, word) }
	isWord := func(word string) bool {
		return isReason(word) || ContainsWord(condition.Message, word) && !excluded(without, word)
	}
	return slices.ContainsFunc(r.reasons, isReason) || slices.ContainsFunc(r.words, isWord) ||
		slices.ContainsFunc(r.messages, func(e *regexp.Regexp) bool { return e.MatchString(condition.Message) })
}

func excluded(without func(string) bool, word string) bool { return without != nil && without(word) }

// States returns one condition for each known state of the machine, with the field as its type and the content as its
// reason, and its meaning.
func (p *Profile) States(machine map[string]any) (conditions []metav1.Condition, means []Meaning) {
	for _, s := range p.states {
		found, ok := s.path.find(machine)
		if !ok {
			continue
		}
		text, _ := scalar(found)
		if slices.Contains(s.values, text) {
			conditions = append(conditions, metav1.Condition{Type: s.path.String(), Status: metav1.ConditionFalse, Reason: text})
			means = append(means, s.means)
		}
	}
	return conditions, means
}

// ContainsWord reports whether text has the word or phrase, not as part of a longer word and in any case.
func ContainsWord(text, word string) bool {
	text, word = strings.ToLower(text), strings.ToLower(word)
	for from := 0; word != ""; {
		at := strings.Index(text[from:], word)
		if at < 0 {
			return false
		}
		start, end := from+at, from+at+len(word)
		before, _ := utf8.DecodeLastRuneInString(text[:start])
		after, _ := utf8.DecodeRuneInString(text[end:])
		if !inWord(before) && !inWord(after) {
			return true
		}
		from = start + 1
	}
	return false
}

func inWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }
