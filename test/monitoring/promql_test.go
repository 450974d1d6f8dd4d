// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// query is a PromQL expression as Prometheus understands it.
type query struct{ parser.Expr }

func parse(expression string) (query, error) {
	parsed, err := parser.ParseExpr(expression)
	return query{parsed}, err
}

// selectors are the metrics of an expression, with what is matched.
func (q query) selectors() []*parser.VectorSelector {
	var found []*parser.VectorSelector
	parser.Inspect(q.Expr, func(node parser.Node, _ []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok {
			found = append(found, s)
		}
		return nil
	})
	return found
}

// groupings are the labels by which an expression aggregates and matches.
func (q query) groupings() []string {
	var names []string
	parser.Inspect(q.Expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.AggregateExpr:
			names = append(names, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				names = append(names, n.VectorMatching.MatchingLabels...)
				names = append(names, n.VectorMatching.Include...)
			}
		}
		return nil
	})
	return names
}

// kept are the labels that the result of an expression has, as far as it aggregates by name; nil where it doesn't.
func (q query) kept() []string {
	switch n := q.Expr.(type) {
	case *parser.AggregateExpr:
		if !n.Without {
			return n.Grouping
		}
	case *parser.BinaryExpr: // of both sides, or of the left one
		if left := (query{n.LHS}).kept(); left != nil || n.Op.IsSetOperator() {
			return left
		}
		return query{n.RHS}.kept()
	case *parser.ParenExpr:
		return query{n.Expr}.kept()
	}
	return nil
}

// unknown returns which values that a matcher names no series can have.
func unknown(matcher *labels.Matcher, values []string) error {
	wanted := []string{matcher.Value}
	if matcher.Type == labels.MatchRegexp || matcher.Type == labels.MatchNotRegexp {
		wanted = strings.Split(matcher.Value, "|")
	}
	for _, want := range wanted {
		pattern := "^(?:" + want + ")$"
		if matcher.Type == labels.MatchEqual || matcher.Type == labels.MatchNotEqual {
			pattern = "^" + regexp.QuoteMeta(want) + "$"
		}
		if !slices.ContainsFunc(values, regexp.MustCompile(pattern).MatchString) {
			return fmt.Errorf("%s is never %q; it is one of %s", matcher.Name, want, strings.Join(values, ", "))
		}
	}
	return nil
}
