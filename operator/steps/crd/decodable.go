// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
)

// patterns are parts of patterns in Karpenter's CRDs that admit text that Go can't parse, or only in hours. One such object would stop the
// guest's Karpenter.
var patterns = []struct {
	loose, strict string
	maxLength     int64
}{
	{`([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+)))`, `([eE](\+|-)?[0-9]{1,3})`, 256},
	// Twenty characters are at most 239 years. Go's durations end at 292 years.
	{`[0-9]+(s|m|h)`, `([0-9]{1,6}h|[0-9]{1,7}m|[0-9]{1,9}s)`, 20},
	{`[0-9]+(h|m))|([0-9]+h[0-9]+m`, `[0-9]{1,6}(h|m))|([0-9]{1,6}h[0-9]{1,6}m`, 20},
}

// dateTime admits those times of the format date-time that Go parses: the format also has lowercase letters, other offsets and trailing
// text.
const dateTime = `^[0-9-]+T[0-9:]+(\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`

// decodable makes a schema reject text that Go can't decode.
func decodable(schema *apiextensionsv1.JSONSchemaProps) {
	for name, property := range schema.Properties {
		decodable(&property)
		schema.Properties[name] = property
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		decodable(schema.Items.Schema)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		decodable(schema.AdditionalProperties.Schema)
	}
	if schema.Format == "date-time" {
		// The API server doesn't check the type of a list in a field with this format.
		schema.Pattern, schema.MinItems, schema.MaxItems = dateTime, ptr.To[int64](1), ptr.To[int64](0)
	}
	for _, p := range patterns {
		if strings.Contains(schema.Pattern, p.loose) {
			schema.Pattern, schema.MaxLength = strings.ReplaceAll(schema.Pattern, p.loose, p.strict), ptr.To(p.maxLength)
		}
	}
}
