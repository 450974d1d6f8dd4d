// SPDX-License-Identifier: Apache-2.0

package access

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestTokens(t *testing.T) {
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	long := token{issuedAt: noon, expiresAt: noon.Add(3 * time.Hour), until: noon.Add(3 * time.Hour)}
	short := token{issuedAt: noon.Add(-time.Hour), expiresAt: noon.Add(30 * time.Minute), until: noon.Add(30 * time.Minute)}

	t.Run("When tokens expire at different times, it should say when the first does, and when the first is to be renewed", func(t *testing.T) {
		g := NewWithT(t)
		both := tokens{"token": long, "aws-token": short}
		g.Expect(both.until()).To(Equal("2026-11-21T12:30:00Z"))
		g.Expect(both.renewAt()).To(Equal(noon))
		g.Expect(tokens{"token": long}.renewAt()).To(Equal(noon.Add(time.Hour)))
	})
}

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		claims string
		want   audiences
		err    string
	}{
		"When a token has a list of audiences, it should have them":               {`{"iat": 1, "exp": 2, "aud": ["a", "b"]}`, audiences{"a", "b"}, ""},
		"When a token has an audience that is a string, it should have it":        {`{"iat": 1, "exp": 2, "aud": "a"}`, audiences{"a"}, ""},
		"When a token has no audience, it should have none":                       {`{"iat": 1, "exp": 2}`, nil, ""},
		"When an audience is neither, the token should be malformed":              {`{"iat": 1, "exp": 2, "aud": {}}`, nil, "it is malformed"},
		"When a token is longer than one of an API server, it should not be read": {strings.Repeat(" ", maxToken), nil, "it is longer than 16 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			parsed, err := parse("e30." + base64.RawURLEncoding.EncodeToString([]byte(test.claims)) + ".c2ln")
			if test.err != "" {
				g.Expect(err).To(MatchError(test.err))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(audiences(parsed.audiences)).To(Equal(test.want))
		})
	}
}
