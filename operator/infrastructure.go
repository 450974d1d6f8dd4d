// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"os"

	"github.com/autonode-io/autonode/assets/infrastructure"
)

// ReadProfiles reads a YAML file of profiles of infrastructure kinds, which add kinds to the built-in ones or correct them; an
// empty path reads none. problems are the parts that aren't understood; the rest is in use.
func ReadProfiles(path string) (kinds infrastructure.Kinds, problems []error, err error) {
	if kinds, err = infrastructure.Embedded(); err != nil || path == "" {
		return kinds, nil, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	overlays, problems, err := infrastructure.Parse(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return kinds.With(overlays), problems, nil
}
