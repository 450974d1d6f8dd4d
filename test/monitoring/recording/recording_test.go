// SPDX-License-Identifier: Apache-2.0

package recording_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/monitoring/recording"
)

const board = `{
	"title": "Machines",
	"templating": {"list": [{"name": "namespace", "type": "query", "query": "label_values(machines, namespace)"}]},
	"panels": [
		{"type": "row", "title": "In $namespace", "gridPos": {"h": 1, "w": 24, "x": 0, "y": 0}},
		{"type": "stat", "title": "Machines", "gridPos": {"h": 4, "w": 4, "x": 0, "y": 1},
			"fieldConfig": {"defaults": {"unit": "percent"}},
			"targets": [{"expr": "sum(machines{namespace=\"$namespace\"})"}]},
		{"type": "timeseries", "title": "By phase", "gridPos": {"h": 8, "w": 8, "x": 4, "y": 1},
			"targets": [{"expr": "sum by (phase) (machines{namespace=\"$namespace\"})", "legendFormat": "phase {{phase}}"}]},
		{"type": "table", "title": "Told by", "gridPos": {"h": 8, "w": 8, "x": 12, "y": 1},
			"targets": [{"expr": "max by (pod, exported_namespace) (machines)"}]},
		{"type": "table", "title": "Elsewhere", "gridPos": {"h": 8, "w": 4, "x": 20, "y": 1},
			"targets": [{"expr": "other"}]}
	]
}`

func TestDraw(t *testing.T) {
	var machines atomic.Int64
	var down atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "# TYPE machines gauge\nmachines{phase=\"Running\",namespace=\"own\"} %d\n", machines.Load())
	}))
	t.Cleanup(server.Close)
	targets := func(honor bool) []recording.Target {
		return []recording.Target{{URL: server.URL, Labels: map[string]string{"namespace": "blue", "pod": "karpenter-0"}, HonorLabels: honor}}
	}
	read, err := recording.ReadDashboard([]byte(board))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	panel := func(g Gomega, drawing recording.Drawing, title string) recording.Drawn {
		for _, drawn := range drawing.Panels {
			if drawn.Title == title {
				return drawn
			}
		}
		g.Expect(drawing.Panels).To(ContainElement(HaveField("Title", title)))
		return recording.Drawn{}
	}

	t.Run("When a program was scraped, a panel should show its values with the labels of the target", func(t *testing.T) {
		g := NewWithT(t)
		recorded := &recording.Recording{}
		machines.Store(3)
		g.Expect(recorded.Scrape(t.Context(), server.Client(), targets(false))).To(Succeed())
		drawing, err := recorded.Draw(t.Context(), read, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(drawing.Variables).To(HaveKeyWithValue("namespace", "blue"))
		g.Expect(drawing.Panels[0].Title).To(Equal("In blue"))
		stat := panel(g, drawing, "Machines")
		g.Expect(stat.Last(stat.Lines[0])).To(Equal("3 %"))
		g.Expect(panel(g, drawing, "By phase").Lines).To(ConsistOf(HaveField("Name", "phase Running")))
		g.Expect(panel(g, drawing, "Told by").Lines).To(ConsistOf(HaveField("Labels",
			Equal(map[string]string{"pod": "karpenter-0", "exported_namespace": "own"}))))
		g.Expect(drawing.Empty()).To(Equal([]string{"Elsewhere"}))

		var page bytes.Buffer
		g.Expect(drawing.Write(&page)).To(Succeed())
		g.Expect(page.String()).To(And(ContainSubstring(`style="grid-column: 5 / span 8; grid-row: 2 / span 8"`), ContainSubstring("No data"), ContainSubstring("3 %")))
	})
	t.Run("When a target honors labels, a series should keep its own", func(t *testing.T) {
		g := NewWithT(t)
		recorded := &recording.Recording{}
		g.Expect(recorded.Scrape(t.Context(), server.Client(), targets(true))).To(Succeed())
		drawing, err := recorded.Draw(t.Context(), read, nil)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(drawing.Variables).To(HaveKeyWithValue("namespace", "own"))
	})
	t.Run("When a program can't be read any more, its series should end, and what was last should stay in a single value", func(t *testing.T) {
		g := NewWithT(t)
		now := time.Unix(1_000_000, 0)
		recorded := &recording.Recording{Now: func() time.Time { return now }}
		machines.Store(5)
		g.Expect(recorded.Scrape(t.Context(), server.Client(), targets(false))).To(Succeed())
		down.Store(true)
		t.Cleanup(func() { down.Store(false) })
		now = now.Add(time.Minute)
		g.Expect(recorded.Scrape(t.Context(), server.Client(), targets(false))).To(MatchError(ContainSubstring("503")))
		drawing, err := recorded.Draw(t.Context(), read, nil)
		g.Expect(err).NotTo(HaveOccurred())
		stat := panel(g, drawing, "Machines")
		g.Expect(stat.Last(stat.Lines[0])).To(Equal("5 %"))
		g.Expect(stat.At).To(BeTemporally("~", now.Add(-time.Second), 2*time.Second), "until the scrape that failed")
	})
	t.Run("When a dashboard isn't JSON, reading it should say so", func(t *testing.T) {
		_, err := recording.ReadDashboard([]byte("{"))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("reading a dashboard")))
	})
}
