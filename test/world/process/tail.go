// SPDX-License-Identifier: Apache-2.0

package process

import (
	"io"
	"os"
)

// Tail returns the end of a log: so many lines, and no more than so many bytes.
func Tail(path string, lines int, bytes int64) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	content, err := io.ReadAll(io.NewSectionReader(file, max(info.Size()-bytes, 0), bytes))
	if err != nil {
		return "", err
	}
	return string(content[LastLines(content, lines):]), nil
}

// LastLines returns where the last so many lines begin.
func LastLines(content []byte, lines int) int {
	if lines <= 0 {
		return len(content)
	}
	for i := len(content) - 2; i >= 0; i-- {
		if content[i] == '\n' {
			if lines--; lines == 0 {
				return i + 1
			}
		}
	}
	return 0
}
