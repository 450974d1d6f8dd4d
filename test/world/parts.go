// SPDX-License-Identifier: Apache-2.0

package world

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
)

// parts run inside the world's own process.
type parts struct {
	mu    sync.Mutex
	list  []part
	files []*os.File
}

type part struct {
	Component
	stop func() error
}

func (p *parts) add(component Component, stop func() error) {
	component.PID = os.Getpid()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, part{component, stop})
}

// keep closes a file when all parts have stopped.
func (p *parts) keep(file *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files = append(p.files, file)
}

func (p *parts) components() []Component {
	p.mu.Lock()
	defer p.mu.Unlock()
	components := make([]Component, 0, len(p.list))
	for _, part := range p.list {
		components = append(components, part.Component)
	}
	return components
}

// stop stops all parts, the last started first.
func (p *parts) stop() error {
	p.mu.Lock()
	list, files := slices.Clone(p.list), slices.Clone(p.files)
	p.mu.Unlock()
	var errs []error
	for _, part := range slices.Backward(list) {
		if err := part.stop(); err != nil {
			errs = append(errs, fmt.Errorf("stopping the %s: %w", part.Name, err))
		}
	}
	for _, file := range files {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}
