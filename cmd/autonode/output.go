// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// encode writes a view for a script: format is json or yaml.
func encode(to io.Writer, format string, view any) error {
	if format == "json" {
		encoder := json.NewEncoder(to)
		encoder.SetIndent("", "  ")
		return encoder.Encode(view)
	}
	content, err := yaml.Marshal(view)
	if err != nil {
		return fmt.Errorf("encoding as YAML: %w", err)
	}
	_, err = to.Write(content)
	return err
}
