// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/autonode-io/autonode/test/monitoring/recording"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/hosting"
)

// dashboardsFolder is where the dashboards are drawn to; empty draws none.
var dashboardsFolder = os.Getenv("DASHBOARDS")

const (
	// scrapeInterval is shorter than a PodMonitor's, because tests are shorter than days.
	scrapeInterval = 5 * time.Second
	metricsPort    = 8080
)

// recordBoards records what the operator and Karpenter of a world serve until its context ends or draw is called, which draws the dashboards of
// it. Without a folder for these it does nothing.
func recordBoards(ctx context.Context, w *localworld.World, number int) (draw func(io.Writer) error) {
	if dashboardsFolder == "" {
		return func(io.Writer) error { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	recorded, done := &recording.Recording{}, make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(scrapeInterval)
		defer ticker.Stop()
		scraper := &http.Client{Timeout: scrapeInterval}
		for {
			// Programs come and go while they are read. What ought to be there and isn't is seen in the drawing.
			_ = recorded.Scrape(ctx, scraper, scrapeTargets(w))
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	return func(output io.Writer) error {
		cancel()
		<-done
		return drawBoards(context.WithoutCancel(ctx), recorded, w, filepath.Join(dashboardsFolder, fmt.Sprintf("world-%d", number)), output)
	}
}

// scrapeTargets are the pods that the PodMonitors select, with the labels that these give to what is read.
func scrapeTargets(w *localworld.World) []recording.Target {
	var targets []recording.Target
	for _, process := range w.Agent().Processes() {
		port, ok := process.Ports[metricsPort]
		if !ok {
			continue
		}
		targets = append(targets, recording.Target{
			URL:         "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))) + "/metrics",
			Labels:      map[string]string{"namespace": process.Pod.Namespace, "pod": process.Pod.Name, "container": process.Container},
			HonorLabels: process.Pod.Namespace == localworld.OperatorNamespace,
		})
	}
	return targets
}

// drawBoards writes a page for the fleet, and one for each guest's cluster. It prints which panels are empty.
func drawBoards(ctx context.Context, recorded *recording.Recording, w *localworld.World, folder string, output io.Writer) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("making the dashboards' folder: %w", err)
	}
	pages := map[string]map[string]string{"fleet": nil}
	for _, guest := range w.Guests() {
		pages["cluster-"+guest.Name] = map[string]string{"namespace": hosting.ControlPlaneNamespace(guest.Name)}
	}
	var failures []error
	for name, variables := range pages {
		kind, _, _ := strings.Cut(name, "-")
		data, err := os.ReadFile(filepath.Join("..", "..", "manifests", "monitoring", "dashboard-"+kind+".json"))
		if err != nil {
			return fmt.Errorf("reading a dashboard: %w", err)
		}
		board, err := recording.ReadDashboard(data)
		if err != nil {
			return err
		}
		drawing, err := recorded.Draw(ctx, board, variables)
		failures = append(failures, err)
		var page bytes.Buffer
		if err := drawing.Write(&page); err != nil {
			return err
		}
		file := filepath.Join(folder, name+".html")
		if err := os.WriteFile(file, page.Bytes(), 0o644); err != nil {
			return fmt.Errorf("writing a dashboard: %w", err)
		}
		fmt.Fprintf(output, "%s; without data: %s\n", file, strings.Join(drawing.Empty(), ", "))
	}
	return errors.Join(failures...)
}
