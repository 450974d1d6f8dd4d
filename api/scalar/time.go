// SPDX-License-Identifier: Apache-2.0

package scalar

import (
	"encoding/json"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Time is a time in RFC 3339. A malformed one is zero.
//
// +kubebuilder:validation:Type=string
// +kubebuilder:validation:Format=date-time
// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
type Time struct {
	// Time isn't embedded: its decoders fail.
	Time metav1.Time `json:"-"`
	// Malformed is the text that isn't a time. It is encoded again, so that a client that writes the object back changes nothing.
	Malformed string `json:"-"`
}

// NewTime returns a time.
func NewTime(t time.Time) Time { return Time{Time: metav1.NewTime(t)} }

// Now returns the current time.
func Now() Time { return NewTime(time.Now()) }

// At returns the time; zero for a malformed one. The receiver may be nil.
func (t *Time) At() time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time.Time
}

// IsZero reports whether there is no time, or only a malformed one. The receiver may be nil.
func (t *Time) IsZero() bool { return t.At().IsZero() }

// Equal reports whether both are the same. Either may be nil.
func (t *Time) Equal(other *Time) bool {
	if t == nil || other == nil {
		return t == other
	}
	return t.Malformed == other.Malformed && t.Time.Equal(&other.Time)
}

// Stored returns the time as an API server stores it, to the second.
func (t Time) Stored() Time { return Time{Time: t.Time.Rfc3339Copy(), Malformed: t.Malformed} }

// DeepCopyInto copies the time.
func (t *Time) DeepCopyInto(out *Time) { *out = *t }

// DeepCopy copies the time.
func (t *Time) DeepCopy() *Time {
	if t == nil {
		return nil
	}
	out := *t
	return &out
}

// String returns the text.
func (t Time) String() string {
	switch {
	case t.Malformed != "":
		return t.Malformed
	case t.Time.IsZero():
		return ""
	}
	return t.Time.UTC().Format(time.RFC3339)
}

// MarshalJSON implements json.Marshaler.
func (t Time) MarshalJSON() ([]byte, error) {
	text := t.String()
	if text == "" {
		return []byte("null"), nil
	}
	return json.Marshal(text)
}

// UnmarshalJSON implements json.Unmarshaler. RFC 3339 allows lower case, and Go doesn't.
func (t *Time) UnmarshalJSON(data []byte) error {
	*t = Time{}
	text, ok := textOf(data)
	if text == "" && ok {
		return nil
	}
	if parsed, err := time.Parse(time.RFC3339, strings.ToUpper(text)); ok && err == nil {
		t.Time = metav1.NewTime(parsed.Local())
	} else {
		t.Malformed = text
	}
	return nil
}

// textOf returns the text of a JSON string, empty for null. It returns any other value as it is.
func textOf(data []byte) (text string, ok bool) {
	if err := json.Unmarshal(data, &text); err != nil {
		return string(data), false
	}
	return text, true
}
