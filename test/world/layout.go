// SPDX-License-Identifier: Apache-2.0

package world

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/autonode-io/autonode/test/world/lock"
)

// layout is a world's folder.
type layout string

func (l layout) logs() string                   { return filepath.Join(string(l), "logs") }
func (l layout) log(name string) string         { return filepath.Join(l.logs(), name+".log") }
func (l layout) auditLog(cluster string) string { return filepath.Join(l.logs(), cluster+"-audit.log") }
func (l layout) podLogs() string                { return filepath.Join(l.nodeAgent(), "logs") }
func (l layout) clusters() string               { return filepath.Join(string(l), "clusters") }
func (l layout) nodeAgent() string              { return filepath.Join(string(l), "node") }
func (l layout) registry() string               { return filepath.Join(string(l), "registry") }
func (l layout) manifests() string              { return filepath.Join(string(l), "manifests") }
func (l layout) state() string                  { return filepath.Join(string(l), "world.json") }
func (l layout) lock() string                   { return filepath.Join(string(l), "lock") }
func (l layout) kubeconfig(cluster string) string {
	return filepath.Join(string(l), cluster+".kubeconfig")
}

// transient are the files of a world that are useless after its end.
func (l layout) transient() ([]string, error) {
	kubeconfigs, err := filepath.Glob(l.kubeconfig("*"))
	if err != nil {
		return nil, fmt.Errorf("looking for kubeconfigs: %w", err)
	}
	return append(kubeconfigs, l.clusters(), l.nodeAgent(), l.registry(), l.manifests(), l.state()), nil
}

// prepare makes the folder, locks it against another world, and removes what an earlier one left.
func (l layout) prepare() (unlock func(), err error) {
	if err := os.MkdirAll(string(l), 0o755); err != nil {
		return nil, fmt.Errorf("making the world's folder: %w", err)
	}
	unlock, err = lock.Try(l.lock())
	if errors.Is(err, lock.ErrHeld) {
		return nil, fmt.Errorf("a world runs in %s already; stop it with 'autonode-dev world down', or choose another folder", string(l))
	}
	if err != nil {
		return nil, err
	}
	if err := errors.Join(l.clean(), os.RemoveAll(l.logs())); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// clean removes everything but the logs.
func (l layout) clean() error {
	if err := os.MkdirAll(l.logs(), 0o755); err != nil {
		return fmt.Errorf("keeping the logs: %w", err)
	}
	if err := os.Rename(l.podLogs(), filepath.Join(l.logs(), "pods")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keeping the logs of pods: %w", err)
	}
	paths, err := l.transient()
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, os.RemoveAll(path))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removing what a world left: %w", err)
	}
	return nil
}
