// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Tail reads an audit log and goes on where it stopped. A log that isn't there yet is empty.
type Tail struct {
	Path   string
	offset int64
}

// Each reads what was written since the last call. A line that isn't whole yet is read next time.
func (t *Tail) Each(do func(*Record)) error {
	file, err := os.Open(t.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was asked yet
	}
	if err != nil {
		return fmt.Errorf("opening an audit log: %w", err)
	}
	defer file.Close()
	if _, err := file.Seek(t.offset, io.SeekStart); err != nil {
		return fmt.Errorf("reading %s: %w", t.Path, err)
	}
	size, err := Each(file, do)
	t.offset += size
	if err != nil {
		return fmt.Errorf("reading %s: %w", t.Path, err)
	}
	return nil
}

// Size is how long the log is, in bytes.
func (t *Tail) Size() (int64, error) {
	info, err := os.Stat(t.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("looking at an audit log: %w", err)
	}
	return info.Size(), nil
}
