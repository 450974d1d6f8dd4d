// SPDX-License-Identifier: Apache-2.0

// Package recording records what programs serve at /metrics, as Prometheus would, and draws dashboards from it.
//
// A panel whose expression is valid can still show nothing, or lines that say nothing. A recording of a run in which
// everything happens that a dashboard is about shows that, without Prometheus and Grafana.
package recording

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// Target is a program that serves metrics.
type Target struct {
	// URL of the metrics.
	URL string
	// Labels are added to each series, as a PodMonitor adds namespace and pod.
	Labels map[string]string
	// HonorLabels keeps a series' own label where it has one of Labels. Otherwise the series' own gets the prefix "exported_".
	HonorLabels bool
}

// Recording is what was scraped so far. Its zero value is empty. It may be used concurrently.
type Recording struct {
	// Now is the time of a scrape; time.Now if it isn't set.
	Now func() time.Time

	mu sync.RWMutex
	// series by all their labels.
	series map[string]*promql.Series
	// served are the series of a target's last scrape, by its URL.
	served      map[string]map[string]*promql.Series
	first, last time.Time
}

// Scrape reads the targets once. A target that can't be read ends its series, as in Prometheus; Scrape returns which.
func (r *Recording) Scrape(ctx context.Context, client *http.Client, targets []Target) error {
	now := time.Now()
	if r.Now != nil {
		now = r.Now()
	}
	read := make([]model.Vector, len(targets))
	failures := make([]error, len(targets))
	var scrapes sync.WaitGroup
	for i, target := range targets {
		scrapes.Go(func() {
			if read[i], failures[i] = fetch(ctx, client, target.URL, now); failures[i] != nil {
				failures[i] = fmt.Errorf("scraping %s: %w", target.URL, failures[i])
			}
		})
	}
	scrapes.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.served
	r.served = map[string]map[string]*promql.Series{}
	for i, target := range targets {
		r.served[target.URL] = r.add(target, read[i], now)
	}
	for url, former := range before {
		for key, series := range former {
			if _, ok := r.served[url][key]; !ok {
				series.Floats = append(series.Floats, promql.FPoint{T: now.UnixMilli(), F: math.Float64frombits(value.StaleNaN)})
			}
		}
	}
	if r.first.IsZero() {
		r.first = now
	}
	r.last = now
	for _, err := range failures {
		if err != nil {
			return err
		}
	}
	return nil
}

func fetch(ctx context.Context, client *http.Client, url string, now time.Time) (model.Vector, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answers %s", response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, err
	}
	return expfmt.ExtractSamples(&expfmt.DecodeOptions{Timestamp: model.TimeFromUnixNano(now.UnixNano())}, slices.Collect(maps.Values(families))...)
}

// add appends a scrape's samples and returns its series by their labels.
func (r *Recording) add(target Target, samples model.Vector, now time.Time) map[string]*promql.Series {
	served := map[string]*promql.Series{}
	for _, sample := range samples {
		all := map[string]string{}
		for name, content := range sample.Metric {
			all[string(name)] = string(content)
		}
		for name, content := range target.Labels {
			if own, ok := all[name]; ok {
				if target.HonorLabels {
					continue
				}
				all["exported_"+name] = own
			}
			all[name] = content
		}
		lset := labels.FromMap(all)
		key := lset.String()
		if r.series == nil {
			r.series = map[string]*promql.Series{}
		}
		series := r.series[key]
		if series == nil {
			series = &promql.Series{Metric: lset}
			r.series[key] = series
		}
		series.Floats = append(series.Floats, promql.FPoint{T: now.UnixMilli(), F: float64(sample.Value)})
		served[key] = series
	}
	return served
}

// read returns a copy of what is recorded now, by labels, and the times of the first and the last scrape.
func (r *Recording) read() (all Series, first, last time.Time) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, key := range slices.Sorted(maps.Keys(r.series)) {
		all = append(all, promql.Series{Metric: r.series[key].Metric, Floats: slices.Clone(r.series[key].Floats)})
	}
	return all, r.first, r.last
}

// Series can be queried with PromQL.
type Series []promql.Series

// Querier implements storage.Queryable.
func (s Series) Querier(int64, int64) (storage.Querier, error) { return &querier{all: s}, nil }

type querier struct {
	storage.MockQuerier // reports nothing about labels, which no query requests
	all                 Series
}

// Select implements storage.Querier.
func (q *querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{at: -1}
	for _, series := range q.all {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(series.Metric.Get(m.Name)) }) {
			set.found = append(set.found, series)
		}
	}
	return set
}

type seriesSet struct {
	found Series
	at    int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.found) }
func (s *seriesSet) At() storage.Series                { return promql.NewStorageSeries(s.found[s.at]) }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }
