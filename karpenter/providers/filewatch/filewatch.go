// SPDX-License-Identifier: Apache-2.0

// Package filewatch watches files mounted from a ConfigMap or a Secret.
package filewatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/karpenter/providers/change"
)

// pollInterval is between two reads of a file that can't be watched, because the node's inotify watches are used up.
const pollInterval = time.Minute

// Follow calls load at once, and whenever the file may have changed, until ctx ends. It watches the directory: the
// kubelet updates a mounted ConfigMap by replacing a symbolic link in it. Without a path, it only waits for ctx to end.
func Follow(ctx context.Context, path string, load func(context.Context)) error {
	if path == "" {
		<-ctx.Done()
		return nil
	}
	logger := log.FromContext(ctx).WithValues("file", path)
	ctx = log.IntoContext(ctx, logger)
	var changes <-chan struct{}
	var poll <-chan time.Time
	follower, err := process.follow(filepath.Dir(path))
	if err == nil {
		defer process.leave(follower)
		changes = follower.changes
	} else {
		logger.Error(err, "watching the file; polling it instead")
		ticker := time.NewTicker(pollInterval)
		defer ticker.Stop()
		poll = ticker.C
	}
	load(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
		case <-poll:
		}
		load(ctx)
	}
}

// Read returns a file's content: nil for a missing file, and an error above limit bytes.
func Read(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	raw, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) > limit {
		return nil, fmt.Errorf("it is larger than %d bytes", limit)
	}
	return raw, nil
}

// File is a file that is read again when it changes. It is a manager.Runnable, of standbys too.
type File struct {
	path      string
	limit     int64
	read      func(ctx context.Context, raw []byte, err error) (changed bool)
	observers change.Notifier

	mu    sync.Mutex
	raw   []byte
	known bool // raw is the content
}

// NewFile reads a file for the first time, if the path isn't empty. read gets content up to limit that differs from what it got before, nil
// of a missing file, or the error. It isn't called concurrently, and reports whether that changes something for observers.
func NewFile(path string, limit int64, read func(ctx context.Context, raw []byte, err error) (changed bool)) *File {
	f := &File{limit: limit, read: read}
	if path != "" {
		f.path = filepath.Clean(path)
		f.load(context.Background())
	}
	return f
}

// OnChange calls do, which must not block, whenever a change was read.
func (f *File) OnChange(do func()) { f.observers.Add(do) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (f *File) NeedLeaderElection() bool { return false }

// Start watches the file until ctx ends.
func (f *File) Start(ctx context.Context) error { return Follow(ctx, f.path, f.load) }

func (f *File) load(ctx context.Context) {
	raw, err := Read(f.path, f.limit)
	f.mu.Lock()
	changed := (err != nil || !f.known || !bytes.Equal(raw, f.raw)) && f.read(ctx, raw, err)
	f.raw, f.known = raw, err == nil
	f.mu.Unlock()
	if changed {
		f.observers.Notify()
	}
}
