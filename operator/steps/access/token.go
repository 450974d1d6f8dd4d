// SPDX-License-Identifier: Apache-2.0

package access

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// token is a ServiceAccount's token and its claims, in times of the guest's clock, which may differ from the operator's.
type token struct {
	raw       string
	issuedAt  time.Time
	expiresAt time.Time
	account   types.UID
	audiences []string
	// until is when it expires by the operator's clock.
	until time.Time
}

// lifetime doesn't depend on whose clock it is.
func (t token) lifetime() time.Duration { return t.expiresAt.Sub(t.issuedAt) }

// renewAt is an hour after it was issued, by the operator's clock, or when a third of its lifetime is left if that comes first.
func (t token) renewAt() time.Time {
	return t.until.Add(-max(t.lifetime()/3, t.lifetime()-renewAfter))
}

// maxToken is the largest token that is used, in bytes: a guest's API server issues tokens of any size, and a token becomes
// part of a Secret.
const maxToken = 16 << 10

// parse reads a token's claims. It doesn't verify them: that is for the API server that issued it.
func parse(raw string) (token, error) {
	malformed := errors.New("it is malformed")
	if len(raw) > maxToken {
		return token{}, fmt.Errorf("it is longer than %d KiB", maxToken>>10)
	}
	parts := strings.Split(raw, ".")
	if len(parts) != 3 {
		return token{}, malformed
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return token{}, malformed
	}
	var claims struct {
		IssuedAt   int64     `json:"iat"`
		ExpiresAt  int64     `json:"exp"`
		Audiences  audiences `json:"aud"`
		Kubernetes struct {
			ServiceAccount struct {
				UID types.UID `json:"uid"`
			} `json:"serviceaccount"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil || claims.ExpiresAt <= claims.IssuedAt {
		return token{}, malformed
	}
	return token{
		raw:       raw,
		issuedAt:  time.Unix(claims.IssuedAt, 0),
		expiresAt: time.Unix(claims.ExpiresAt, 0),
		account:   claims.Kubernetes.ServiceAccount.UID,
		audiences: claims.Audiences,
	}, nil
}

// audiences may be a string instead of a list, by RFC 7519.
type audiences []string

func (a *audiences) UnmarshalJSON(data []byte) error {
	var one string
	if err := json.Unmarshal(data, &one); err == nil {
		*a = audiences{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(a))
}
