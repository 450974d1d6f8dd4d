// SPDX-License-Identifier: Apache-2.0

package lenient

import (
	"bytes"
	jsonv1 "encoding/json"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/internal/message"
)

const (
	// maxProblems limits the values of an object that are left out, and maxDecoded the bytes that are decoded meanwhile: an object is
	// decoded again without each.
	maxProblems = 64
	maxDecoded  = 16 << 20
	// maxQuantity is the length of the longest quantity that is parsed.
	maxQuantity = 256
	// maxPath and maxWhy bound the path and the problem of a value, in bytes.
	maxPath = 128
	maxWhy  = 512
)

var (
	// ErrProblems is the error of an object with too many values that can't be decoded.
	ErrProblems = errors.New("too many of its values can't be decoded")

	// costly matches quantities that resource.ParseQuantity computes a power of ten for: 1e-999999999 takes half an hour.
	costly = regexp.MustCompile(`[eE][-+]?[0-9]{4}`)
	// machinery are the options of API machinery's decoder. It stops at the first error.
	machinery = json.JoinOptions(
		jsonv1.DefaultOptionsV1(), json.MatchCaseInsensitiveNames(false), jsonv1.ReportErrorsWithLegacySemantics(false))
)

// Skip returns a function that skips values of a type. It is an argument of Options.
func Skip[T any]() *json.Unmarshalers {
	return json.UnmarshalFromFunc(func(decoder *jsontext.Decoder, _ *T) error { return decoder.SkipValue() })
}

// Options returns the options of Decode, with others' ways to decode types.
func Options(unmarshalers ...*json.Unmarshalers) json.Options {
	quantity := json.UnmarshalFunc(func(raw []byte, into *resource.Quantity) error {
		if len(raw) > maxQuantity || costly.Match(raw) {
			return fmt.Errorf("%s isn't a quantity with an exponent of at most three digits and %d bytes", message.Cut(string(raw), 64), maxQuantity)
		}
		return into.UnmarshalJSON(raw)
	})
	ours := append(unmarshalers, quantity, timeIn[metav1.Time](time.RFC3339), timeIn[metav1.MicroTime](metav1.RFC3339Micro))
	return json.JoinOptions(machinery, json.WithUnmarshalers(json.JoinUnmarshalers(ours...)))
}

// timeIn returns a function that decodes a time. Its error has a time to use instead: the same one if only its letters are lowercase, which
// RFC 3339 leaves open, and otherwise the present, so that no deadline that is counted from it has passed.
func timeIn[T any, P interface {
	*T
	jsonv1.Unmarshaler
}](layout string) *json.Unmarshalers {
	return json.UnmarshalFunc(func(raw []byte, into P) error {
		err := into.UnmarshalJSON(raw)
		if err == nil {
			return nil
		}
		if upper := bytes.ToUpper(raw); into.UnmarshalJSON(upper) == nil {
			return &timeError{err, upper}
		}
		return &timeError{err, strconv.AppendQuote(nil, time.Now().UTC().Format(layout))}
	})
}

type timeError struct {
	error
	instead jsontext.Value
}

var standard = Options()

// Decode decodes an object. It leaves out values that the type can't hold, except times. It returns the JSON that it has decoded, and the
// problem of each such value.
func Decode(raw []byte, into any, options json.Options) (decoded []byte, problems []string, err error) {
	for read := len(raw); ; read += len(raw) {
		err := json.Unmarshal(raw, into, options)
		var failed *json.SemanticError
		if err == nil || !errors.As(err, &failed) || failed.JSONPointer == "" {
			return raw, problems, err
		}
		problems = append(problems, problemOf(failed))
		if len(problems) > maxProblems || read > maxDecoded {
			return raw, problems, ErrProblems
		}
		if raw, err = corrected(raw, failed); err != nil {
			return raw, problems, err
		}
		reflect.ValueOf(into).Elem().SetZero()
	}
}

func problemOf(failed *json.SemanticError) string {
	cause := failed.Err
	if cause == nil {
		cause = fmt.Errorf("isn't of type %s", failed.GoType)
	}
	return message.Cut(strings.Join(slices.Collect(failed.JSONPointer.Tokens()), "."), maxPath) + ": " + message.Cut(cause.Error(), maxWhy)
}

// corrected returns an object without the value that has failed.
func corrected(raw []byte, failed *json.SemanticError) ([]byte, error) {
	operation := map[string]any{"op": "remove", "path": failed.JSONPointer}
	if at := (*timeError)(nil); errors.As(failed.Err, &at) {
		operation["op"], operation["value"] = "replace", at.instead
	}
	patch, err := json.Marshal([]any{operation})
	if err != nil {
		return nil, err
	}
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, err
	}
	return operations.Apply(raw)
}
