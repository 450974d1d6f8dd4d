// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"regexp"
	"slices"
	"strings"
)

// selector is a metric in an expression, and the labels that are matched.
type selector struct {
	metric string
	labels []string
}

var (
	promStrings   = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	promSelectors = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?`)
	promLabels    = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)\s*(?:=~|!~|!=|=)`)
	promGroupings = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	promDurations = regexp.MustCompile(`\[[^\]]*\]|\boffset\s+\w+`)
	promWords     = []string{"and", "or", "unless", "bool", "by", "without", "on", "ignoring", "group_left", "group_right", "inf", "nan"}
)

// selectors finds the metrics of a PromQL expression. It isn't a parser: it knows what no expression here may be without, and Prometheus'
// own parser would bring hundreds of modules along.
func selectors(expression string) []selector {
	expression = promStrings.ReplaceAllString(expression, `""`)
	expression = promDurations.ReplaceAllString(expression, "")
	expression = promGroupings.ReplaceAllString(expression, "")
	var found []selector
	for _, match := range promSelectors.FindAllStringSubmatchIndex(expression, -1) {
		name, rest := expression[match[2]:match[3]], strings.TrimSpace(expression[match[1]:])
		matched := match[4] >= 0
		isFunction := !matched && strings.HasPrefix(rest, "(")
		isNumber := match[2] > 0 && strings.ContainsAny(expression[match[2]-1:match[2]], "0123456789.$")
		if isFunction || isNumber || slices.Contains(promWords, strings.ToLower(name)) {
			continue
		}
		s := selector{metric: name}
		if matched {
			for _, label := range promLabels.FindAllStringSubmatch(expression[match[4]:match[5]], -1) {
				s.labels = append(s.labels, label[1])
			}
		}
		found = append(found, s)
	}
	return found
}

// groupings are the labels by which an expression aggregates and matches.
func groupings(expression string) []string {
	var labels []string
	for _, match := range promGroupings.FindAllStringSubmatch(promStrings.ReplaceAllString(expression, `""`), -1) {
		for label := range strings.SplitSeq(match[2], ",") {
			if label = strings.TrimSpace(label); label != "" {
				labels = append(labels, label)
			}
		}
	}
	return labels
}
