// SPDX-License-Identifier: Apache-2.0

// Package profile fetches profiles of running programs.
package profile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
)

// Fetch writes a profile to a file. The URL is that of the program's pprof endpoint, such as
// http://127.0.0.1:6060/debug/pprof/heap. A profile that couldn't be read to its end leaves no file.
func Fetch(ctx context.Context, client *http.Client, url, file string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("asking for a profile: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("asking for a profile: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("asking for a profile: %s", response.Status)
	}
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("writing a profile: %w", err)
	}
	_, err = io.Copy(out, response.Body)
	if err = errors.Join(err, out.Close()); err != nil {
		return errors.Join(fmt.Errorf("writing a profile: %w", err), os.Remove(file))
	}
	return nil
}
