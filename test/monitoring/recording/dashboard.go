// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// Dashboard is the part of a Grafana dashboard that is drawn or checked.
type Dashboard struct {
	UID    string  `json:"uid"`
	Title  string  `json:"title"`
	Panels []Panel `json:"panels"`
	Links  []struct {
		URL string `json:"url"`
	} `json:"links"`
	Templating struct {
		List []Variable `json:"list"`
	} `json:"templating"`
}

// Variable of a dashboard.
type Variable struct {
	Name string `json:"name"`
	// Type is "query" for a variable whose values are a label's.
	Type  string `json:"type"`
	Query any    `json:"query"`
}

// Panel of a dashboard. A row is one too.
type Panel struct {
	ID          int      `json:"id"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	Type        string   `json:"type"`
	Datasource  any      `json:"datasource"`
	GridPos     Position `json:"gridPos"`
	Targets     []Query  `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// Position of a panel in Grafana's grid of 24 columns.
type Position struct{ H, W, X, Y int }

// Query of a panel.
type Query struct {
	Expr         string `json:"expr"`
	RefID        string `json:"refId"`
	LegendFormat string `json:"legendFormat"`
}

// ReadDashboard reads a dashboard's JSON.
func ReadDashboard(data []byte) (Dashboard, error) {
	board := Dashboard{}
	if err := json.Unmarshal(data, &board); err != nil {
		return Dashboard{}, fmt.Errorf("reading a dashboard: %w", err)
	}
	return board, nil
}

var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

// LabelValues returns the metric and the label that a variable's values are from.
func (v Variable) LabelValues() (metric, label string, ok bool) {
	query, _ := v.Query.(string)
	match := labelValues.FindStringSubmatch(query)
	if match == nil {
		return "", "", false
	}
	return match[1], match[2], true
}

// Queryable replaces what Grafana fills in by itself, and PromQL has no words for.
func Queryable(expression string) string {
	return strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h").Replace(expression)
}

var usedVariable = regexp.MustCompile(`\$(?:\{\w+\}|\w+)`)

// fill replaces a dashboard's variables that have values.
func fill(text string, variables map[string]string) string {
	return usedVariable.ReplaceAllStringFunc(text, func(used string) string {
		if content, ok := variables[strings.Trim(used, "${}")]; ok {
			return content
		}
		return used
	})
}
