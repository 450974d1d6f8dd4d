// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"os"

	"github.com/autonode-io/autonode/payload"
)

// Values of Options.PayloadSignatures.
const (
	// SignaturesOff verifies no signature.
	SignaturesOff = "off"
	// SignaturesWarn reports unsigned payloads in ReleaseResolved and uses them.
	SignaturesWarn = "warn"
	// SignaturesEnforce rejects unsigned payloads.
	SignaturesEnforce = "enforce"
)

// newVerifier returns nil if the policy is off.
func newVerifier(policy, keysFile string) (*payload.Verifier, error) {
	switch policy {
	case "", SignaturesOff:
		return nil, nil
	case SignaturesWarn, SignaturesEnforce:
	default:
		return nil, fmt.Errorf("payload signatures: %q isn't a policy; use %s, %s or %s", policy, SignaturesOff, SignaturesWarn, SignaturesEnforce)
	}
	if keysFile == "" {
		return nil, fmt.Errorf("payload signatures: policy %s needs a file of public keys", policy)
	}
	keys, err := os.ReadFile(keysFile)
	if err != nil {
		return nil, fmt.Errorf("payload signatures: reading the public keys: %w", err)
	}
	verifier, err := payload.NewVerifier(keys, policy == SignaturesEnforce)
	if err != nil {
		return nil, fmt.Errorf("payload signatures: file %s: %w", keysFile, err)
	}
	return verifier, nil
}
