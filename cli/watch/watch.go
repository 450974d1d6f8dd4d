// SPDX-License-Identifier: Apache-2.0

// Package watch shows a table of a cluster again whenever something changes.
package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/internal/message"
)

// redrawInterval is the shortest time between two tables of --watch. Ages change without an event, so a table comes after ageInterval too.
const (
	redrawInterval = time.Second
	ageInterval    = 10 * time.Second
)

// Options are those of commands that print a table of a cluster.
type Options struct {
	Output string
	Watch  bool
}

// Add adds --watch and --output. own are further formats of the command.
func (o *Options) Add(cmd *cobra.Command, own ...string) {
	cmd.Flags().BoolVarP(&o.Watch, "watch", "w", false, "print the table again after each change, until interrupted")
	printer.AddFlag(cmd, &o.Output, own...)
}

// Validate implements command.Options.
func (o *Options) Validate() error {
	if o.Watch && o.Output != "" {
		return fmt.Errorf("--watch prints tables only: leave out --output %s", o.Output)
	}
	return nil
}

// Show prints a table once, or, with --watch, whenever objects in a cache have changed, until ctx is done. show prints what it reads; live
// is false if it reads from the cache.
func (o *Options) Show(ctx context.Context, connect func(*runtime.Scheme) (*rest.Config, client.Client, error), streams command.Streams,
	options cache.Options, objects []client.Object,
	show func(ctx context.Context, reader client.Reader, to io.Writer, live bool) error) error {
	config, reader, err := connect(options.Scheme)
	if err != nil {
		return err
	}
	if !o.Watch {
		return show(ctx, reader, streams.Out, true)
	}
	if err := show(ctx, reader, io.Discard, true); err != nil {
		return err // a watch would try again and again what isn't allowed or isn't there
	}
	cached, err := cache.New(config, options)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() },
	}
	ended := make(chan error, 1)
	go func() { ended <- cached.Start(ctx) }()
	for _, object := range objects {
		informer, err := cached.GetInformer(ctx, object)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watching the cluster: %w", err)
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watching the cluster: %w", err)
		}
	}
	if !cached.WaitForCacheSync(ctx) {
		if ctx.Err() != nil {
			return nil
		}
		return cmp.Or(<-ended, errors.New("watching the cluster: the first lists failed"))
	}
	server, err := newServer(config)
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	var before sets.Set[string]
	for {
		now := time.Now()
		server.probe(ctx, now)
		var table strings.Builder
		if err := show(ctx, cached, &table, false); err != nil {
			return err
		}
		text := message.Visible(table.String())
		if to := screenOf(streams.Raw); to.terminal {
			text = to.draw(server.line(now), server.away(), text)
		} else {
			if server.away() {
				text = server.line(now) + "\n" + text
			}
			text, before = changes(before, text)
		}
		if _, err := io.WriteString(streams.Raw, text); err != nil {
			return fmt.Errorf("writing the table: %w", err)
		}
		if !wait(ctx, redrawInterval, nil) || !wait(ctx, ageInterval, changed) {
			return nil
		}
		select {
		case err := <-ended:
			return err
		default:
		}
	}
}

// wait for a time, or until something comes. It reports whether ctx goes on.
func wait(ctx context.Context, longest time.Duration, something <-chan struct{}) bool {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-something:
	}
	return true
}
