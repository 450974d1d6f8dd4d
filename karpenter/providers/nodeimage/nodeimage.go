// SPDX-License-Identifier: Apache-2.0

// Package nodeimage knows the images that release payloads name for machines to boot from.
package nodeimage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/blang/semver/v4"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/karpenter/providers/change"
	"github.com/autonode-io/autonode/karpenter/providers/filewatch"
)

// maxFileSize bounds the file, in bytes. A ConfigMap holds less.
const maxFileSize = 4 << 20

// Images are those for one architecture: by infrastructure, then by variant, which is a region or a format.
type Images map[string]map[string]string

// Get returns an image. Without a variant it is the one that there is alone.
func (i Images) Get(infrastructure, variant string) (string, bool) {
	variants := i[infrastructure]
	if name, ok := variants[variant]; ok || variant != "" || len(variants) != 1 {
		return name, ok
	}
	for _, name := range variants {
		return name, true
	}
	return "", false
}

// release is what one payload names: images of nodes that run its version, by architecture.
type release struct {
	Version string            `json:"version"`
	Images  map[string]Images `json:"images"`

	version semver.Version
}

// File knows the images in a JSON file, a list of {version, images}, and follows its changes. A file that doesn't exist names none; of
// one that can't be understood, what was read before stays. It is a manager.Runnable. A nil File names none.
type File struct {
	path     string
	releases atomic.Pointer[[]release] // the newest first

	observers change.Notifier

	mu  sync.Mutex
	raw []byte
}

// NewFile reads a file for the first time.
func NewFile(path string) *File {
	f := &File{path: filepath.Clean(path)}
	f.load(context.Background())
	return f
}

// For returns the images for nodes of a version, which may have a leading v, and an architecture. Those of that version come first, then
// the newest that aren't of a newer minor version: a kubelet may never be ahead of its API server by one, and an image may
// bring a kubelet.
func (f *File) For(version, architecture string) Images {
	if f == nil || f.releases.Load() == nil {
		return nil
	}
	wanted, err := semver.Parse(strings.TrimPrefix(version, "v"))
	if err != nil {
		return nil
	}
	var found *release
	for _, r := range *f.releases.Load() {
		switch {
		case r.version.EQ(wanted):
			return r.Images[architecture]
		case found == nil && (r.version.Major < wanted.Major || r.version.Major == wanted.Major && r.version.Minor <= wanted.Minor):
			found = &r
		}
	}
	if found == nil {
		return nil
	}
	return found.Images[architecture]
}

// OnChange calls do, which must not block, whenever the images have changed.
func (f *File) OnChange(do func()) { f.observers.Add(do) }

// NeedLeaderElection implements manager.LeaderElectionRunnable: who waits to lead knows the images too.
func (f *File) NeedLeaderElection() bool { return false }

// Start follows the file until ctx ends.
func (f *File) Start(ctx context.Context) error { return filewatch.Follow(ctx, f.path, f.load) }

func (f *File) load(ctx context.Context) {
	raw, err := filewatch.Read(f.path, maxFileSize)
	var releases []release
	if err == nil {
		releases, err = parse(raw)
	}
	if err != nil {
		// The operator wrote it, or will: nobody else has anything to correct.
		log.FromContext(ctx).Error(err, "node images can't be read; those read before stay in use", "file", f.path)
		return
	}
	f.mu.Lock()
	if f.releases.Load() != nil && bytes.Equal(raw, f.raw) {
		f.mu.Unlock()
		return
	}
	f.raw = raw
	f.releases.Store(&releases)
	f.mu.Unlock()
	f.observers.Notify()
}

func parse(raw []byte) ([]release, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var releases []release
	if err := json.Unmarshal(raw, &releases); err != nil {
		return nil, fmt.Errorf("it isn't a list of {version, images}: %w", err)
	}
	for i := range releases {
		var err error
		if releases[i].version, err = semver.Parse(strings.TrimPrefix(releases[i].Version, "v")); err != nil {
			return nil, fmt.Errorf("entry %d: version %q: %w", i+1, releases[i].Version, err)
		}
	}
	slices.SortStableFunc(releases, func(a, b release) int { return b.version.Compare(a.version) })
	return releases, nil
}
