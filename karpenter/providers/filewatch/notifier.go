// SPDX-License-Identifier: Apache-2.0

package filewatch

import (
	"fmt"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/util/sets"
)

// process is the notifier of this process. Linux allows a user 128 inotify instances on a node, and all Karpenters on a
// node are one user.
var process notifier

// notifier watches directories with one inotify instance.
type notifier struct {
	mu        sync.Mutex
	watcher   *fsnotify.Watcher // nil without followers
	followers sets.Set[*follower]
}

// follower follows the files of a directory.
type follower struct {
	folder string
	// changes holds one element if something may have changed since it was last read.
	changes chan struct{}
}

// follow starts to watch a directory, until leave.
func (n *notifier) follow(folder string) (*follower, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.watcher == nil {
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			return nil, fmt.Errorf("watching folders: %w", err)
		}
		n.watcher, n.followers = watcher, sets.New[*follower]()
		go n.run(watcher)
	}
	f := &follower{folder: folder, changes: make(chan struct{}, 1)}
	n.followers.Insert(f)
	if err := n.watcher.Add(folder); err != nil {
		n.remove(f)
		return nil, fmt.Errorf("watching %s: %w", folder, err)
	}
	return f, nil
}

func (n *notifier) leave(f *follower) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(f)
}

// remove ends the watch of a directory with its last follower, and the watcher with the last of all. n.mu is held.
func (n *notifier) remove(f *follower) {
	n.followers.Delete(f)
	if len(n.followers) == 0 {
		_ = n.watcher.Close()
		n.watcher = nil
		return
	}
	for other := range n.followers {
		if other.folder == f.folder {
			return
		}
	}
	_ = n.watcher.Remove(f.folder) // which fails if the directory is gone
}

func (n *notifier) run(watcher *fsnotify.Watcher) {
	for {
		select {
		case event, ok := <-watcher.Events:
			if !ok {
				return
			}
			n.notify(func(f *follower) bool { return f.folder == event.Name || f.folder == filepath.Dir(event.Name) })
		case _, ok := <-watcher.Errors:
			if !ok {
				return
			}
			n.notify(func(*follower) bool { return true }) // events were lost
		}
	}
}

func (n *notifier) notify(concerned func(*follower) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for f := range n.followers {
		if concerned(f) {
			select {
			case f.changes <- struct{}{}:
			default: // it has yet to read the last change
			}
		}
	}
}
