// SPDX-License-Identifier: Apache-2.0

package exponent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/autonode-io/autonode/lenient/exponent"
)

func TestFound(t *testing.T) {
	for text, found := range map[string]bool{
		`{"cpu":"1e-999999999"}`:                         true,
		`{"cpu":"-.5E+12345"}`:                           true,
		`{"cpu":"1.e9999"}`:                              true,
		`{"cpu": 1e9999}`:                                true,
		`["1e9999"]`:                                     true,
		"{\"cpu\":\"\u00a01e9999\"}":                     true, // resource.Quantity cuts off what is white space to Go
		"{\"cpu\":\"\u30001e9999\"}":                     true,
		`{"uid":"1e9999ab-1e99-4e99-9e99-1e99999999ab"}`: false,
		"{\"cpu\":\"1e9999\u00a0\"}":                     true,
		"{\"cpu\":\"\v1e9999\"}":                         true,
		`{"cpu":"` + strings.Repeat("9", 600) + `"}`:     true,
		`{"cpu":"0.` + strings.Repeat("0", 600) + `"`:    true,
		`{"cpu":"\u0031e9999"}`:                          true,
		`{"cpu":"1\u0065-9999"}`:                         true,
		`{"cpu":"1e\u002d9999"}`:                         true,
		`{"cpu":"1e3","memory":"1e18","a":"5e-9"}`:       false,
		`{"cpu":4,"memory":1099511627776}`:               false,
		`{"a":"\u003cb\u003e \u0026"}`:                   false,
		`{"image":"web@sha256:12e45678"}`:                false,
		`{"uid":"ab12e4567-0000"}`:                       false,
		`{"time":"2026-12-01T06:00:00Z"}`:                false,
	} {
		t.Run(fmt.Sprintf("When JSON is %.40s, it should say %t", text, found), func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(exponent.Found([]byte(text))).To(Equal(found))
			for _, size := range []int{1, 2, 7, 300} { // a stream comes in pieces, and the piece with the end of the document must not be passed on
				reader, seen := exponent.Reader{}, false
				for rest := text; rest != ""; rest = rest[min(size, len(rest)):] {
					seen = reader.Found([]byte(rest[:min(size, len(rest))])) || seen
				}
				g.Expect(seen).To(Equal(found), "in pieces of %d bytes", size)
			}
		})
	}
}

// What isn't found must be cheap, or nothing is gained.
func FuzzBounded(f *testing.F) {
	for _, seed := range []string{"1", "1e999", "1e-999", "-.5E+12", "1Ki", "1e-999999999", "1ee9999", strings.Repeat("9", 256), "1e+-9999", "+-1e9999", "\u00a01e9999", "\v1e9999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !exponent.Bounded(text) {
			return
		}
		began := time.Now()
		_, _ = resource.ParseQuantity(text)
		if took := time.Since(began); took > time.Second {
			t.Errorf("parsing %q took %s", text, took)
		}
	})
}
