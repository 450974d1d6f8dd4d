// SPDX-License-Identifier: Apache-2.0

// Package manifest decodes embedded manifests.
package manifest

import (
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Decode reads an object from YAML. It rejects fields that the type doesn't have: a typo in an asset is found by the first test
// that renders it.
func Decode[T client.Object](data []byte, into T) (T, error) {
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return into, fmt.Errorf("decoding %T: %w", into, err)
	}
	return into, nil
}
