// SPDX-License-Identifier: Apache-2.0

// Package filewatch watches files mounted from a ConfigMap or a Secret.
package filewatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
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
