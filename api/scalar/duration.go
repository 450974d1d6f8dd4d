// SPDX-License-Identifier: Apache-2.0

package scalar

import (
	"encoding/json"
	"time"
)

// Duration is a duration such as 1h30m. A malformed one is zero.
//
// +kubebuilder:validation:Type=string
type Duration struct {
	time.Duration `json:"-"`
	// Malformed is the text that isn't a duration. It is encoded again, so that a client that writes the object back changes nothing.
	Malformed string `json:"-"`
}

// Or returns the duration; other if there is none, or only a malformed one. The receiver may be nil.
func (d *Duration) Or(other time.Duration) time.Duration {
	if d == nil || d.Duration <= 0 {
		return other
	}
	return d.Duration
}

// String returns the text.
func (d Duration) String() string {
	if d.Malformed != "" {
		return d.Malformed
	}
	return d.Duration.String()
}

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(data []byte) error {
	*d = Duration{}
	text, ok := textOf(data)
	if text == "" && ok {
		return nil
	}
	if parsed, err := time.ParseDuration(text); ok && err == nil {
		d.Duration = parsed
	} else {
		d.Malformed = text
	}
	return nil
}
