// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
)

// points is how many values a line of a panel has at most.
const points = 120

// Drawing is a dashboard with what was recorded.
type Drawing struct {
	Title     string
	Variables map[string]string
	Panels    []Drawn
}

// Drawn is a panel with what was recorded.
type Drawn struct {
	Panel
	Title string
	Lines []Line
	// From and To are the recording's ends.
	From, To time.Time
	// At is when the rows of a table, or a single value, were last there.
	At time.Time
}

// Line is what an expression gives for one set of labels.
type Line struct {
	Name   string
	Labels map[string]string
	Points []promql.FPoint
}

// Empty reports whether a panel that ought to show something shows nothing.
func (d Drawn) Empty() bool { return d.Type != "row" && len(d.Lines) == 0 }

// Empty returns the titles of the panels that ought to show something and show nothing.
func (d Drawing) Empty() []string {
	var titles []string
	for _, panel := range d.Panels {
		if panel.Empty() {
			titles = append(titles, panel.Title)
		}
	}
	return titles
}

// Draw evaluates the panels of a dashboard over the whole recording. A variable that isn't given has the first value that Grafana would offer.
func (r *Recording) Draw(ctx context.Context, board Dashboard, variables map[string]string) (Drawing, error) {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 5e7, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
	defer func() { _ = engine.Close() }() // it has no log of queries that could fail
	drawing := Drawing{Title: board.Title, Variables: maps.Clone(variables)}
	if drawing.Variables == nil {
		drawing.Variables = map[string]string{}
	}
	recorded := evaluation{engine: engine}
	recorded.series, recorded.from, recorded.to = r.read()
	var failures []error
	for _, variable := range board.Templating.List {
		if _, given := drawing.Variables[variable.Name]; given || variable.Type != "query" {
			continue
		}
		metric, label, ok := variable.LabelValues()
		if !ok {
			return Drawing{}, fmt.Errorf("the values of variable %s aren't a label's: %v", variable.Name, variable.Query)
		}
		lines, err := recorded.evaluate(ctx, Query{Expr: "group by (" + label + ") (" + fill(metric, drawing.Variables) + ")"})
		if err != nil {
			failures = append(failures, fmt.Errorf("variable %s: %w", variable.Name, err))
		}
		if len(lines) > 0 {
			drawing.Variables[variable.Name] = lines[0].Labels[label]
		}
	}
	for _, panel := range board.Panels {
		drawn := Drawn{Panel: panel, Title: fill(panel.Title, drawing.Variables), From: recorded.from, To: recorded.to}
		for _, query := range panel.Targets {
			query.Expr = fill(Queryable(query.Expr), drawing.Variables)
			lines, err := recorded.evaluate(ctx, query)
			if err != nil {
				failures = append(failures, fmt.Errorf("panel %s: %w", panel.Title, err))
			}
			drawn.Lines = append(drawn.Lines, lines...)
		}
		if panel.Type == "table" || panel.Type == "stat" {
			drawn.lastOnly()
		}
		drawing.Panels = append(drawing.Panels, drawn)
	}
	return drawing, errors.Join(failures...)
}

// lastOnly keeps the lines that were there when anything was there for the last time.
func (d *Drawn) lastOnly() {
	var last int64
	for _, line := range d.Lines {
		last = max(last, line.Points[len(line.Points)-1].T)
	}
	d.At = time.UnixMilli(last)
	d.Lines = slices.DeleteFunc(d.Lines, func(line Line) bool { return line.Points[len(line.Points)-1].T != last })
}

// evaluation of queries over a whole recording.
type evaluation struct {
	engine   *promql.Engine
	series   Series
	from, to time.Time
}

func (e evaluation) evaluate(ctx context.Context, query Query) ([]Line, error) {
	prepared, err := e.engine.NewRangeQuery(ctx, e.series, nil, query.Expr, e.from, e.to, step(e.from, e.to))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", query.Expr, err)
	}
	defer prepared.Close()
	matrix, err := prepared.Exec(ctx).Matrix()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", query.Expr, err)
	}
	var lines []Line
	for _, series := range matrix {
		line := Line{Name: legend(query.LegendFormat, series.Metric), Labels: series.Metric.Map()}
		for _, point := range series.Floats {
			if !math.IsNaN(point.F) {
				line.Points = append(line.Points, point)
			}
		}
		if len(line.Points) > 0 {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

// step is the time between two values of a line.
func step(from, to time.Time) time.Duration { return max(time.Second, to.Sub(from)/points) }

// legend is a line's name, as Grafana forms it.
func legend(format string, metric labels.Labels) string {
	if format == "" {
		parts := []string{}
		metric.Range(func(l labels.Label) {
			if l.Name != model.MetricNameLabel {
				parts = append(parts, l.Value)
			}
		})
		return strings.Join(parts, ", ")
	}
	metric.Range(func(l labels.Label) { format = strings.ReplaceAll(format, "{{"+l.Name+"}}", l.Value) })
	return format
}

// colors of lines, one after the other.
var colors = []string{"#3274d9", "#56a64b", "#e0b400", "#e02f44", "#8f3bb8", "#ff780a", "#37872d", "#1f60c4", "#c4162a", "#a352cc"}

// Size of a chart, in the units of its picture.
const (
	chartWidth, chartHeight = 600.0, 150.0
)

// Color of the line of an index.
func (d Drawn) Color(i int) string { return colors[i%len(colors)] }

// Most is the largest value of all lines, and at least a little more than zero.
func (d Drawn) Most() float64 {
	most := 0.0
	for _, line := range d.Lines {
		for _, point := range line.Points {
			most = max(most, point.F)
		}
	}
	if most == 0 {
		return 1
	}
	return most
}

// Path is a line as the points of an SVG path. A pause in what is recorded is a pause in the line.
func (d Drawn) Path(line Line) string {
	span := max(1, float64(d.To.UnixMilli()-d.From.UnixMilli()))
	pause := 3 * step(d.From, d.To).Milliseconds()
	var path strings.Builder
	for i, point := range line.Points {
		command := "L"
		if i == 0 || point.T-line.Points[i-1].T > pause {
			command = "M"
		}
		x, y := float64(point.T-d.From.UnixMilli())/span*chartWidth, chartHeight-max(0, point.F)/d.Most()*chartHeight
		fmt.Fprintf(&path, "%s%.1f %.1f h.1", command, x, y)
	}
	return path.String()
}

// Last is a line's last value, in the panel's unit.
func (d Drawn) Last(line Line) string { return d.Value(line.Points[len(line.Points)-1].F) }

// Value is a number in the panel's unit.
func (d Drawn) Value(number float64) string {
	short := strconv.FormatFloat(number, 'g', 4, 64)
	switch d.FieldConfig.Defaults.Unit {
	case "currencyUSD":
		return "$" + short
	case "percent":
		return short + " %"
	case "percentunit":
		return strconv.FormatFloat(100*number, 'g', 4, 64) + " %"
	case "s":
		return short + " s"
	case "ops":
		return short + "/s"
	}
	return short
}

// Names of the labels that a table's rows have.
func (d Drawn) Names() []string {
	names := map[string]bool{}
	for _, line := range d.Lines {
		for name := range line.Labels {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

//go:embed page.html
var page string

// Lines of a grid are counted from one in CSS.
var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"line": func(n int) int { return n + 1 }}).Parse(page))

// Write writes a page with the panels where Grafana has them. It needs no other file.
func (d Drawing) Write(w io.Writer) error {
	if err := pageTemplate.Execute(w, d); err != nil {
		return fmt.Errorf("writing dashboard %s: %w", d.Title, err)
	}
	return nil
}
