// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
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

// checkSignatures reports the problem with the policy and its files, without reading them.
func checkSignatures(options *Options) error {
	policy, identities, root := options.PayloadSignatures, options.PayloadIdentitiesFile != "", options.PayloadTrustedRootFile != ""
	switch policy {
	case "", SignaturesOff:
		return nil
	case SignaturesWarn, SignaturesEnforce:
	default:
		return fmt.Errorf("payload signatures: %q isn't a policy; use %s, %s or %s", policy, SignaturesOff, SignaturesWarn, SignaturesEnforce)
	}
	switch {
	case identities != root:
		return errors.New("payload signatures: keyless signatures need both a file of identities and one of a trusted root")
	case options.PayloadKeysFile == "" && !identities:
		return fmt.Errorf("payload signatures: policy %s needs a file of public keys, or files of identities and of a trusted root", policy)
	}
	return nil
}

// newVerifier returns nil if the policy is off.
func newVerifier(options Options) (*payload.Verifier, error) {
	if err := checkSignatures(&options); err != nil {
		return nil, err
	}
	policy := options.PayloadSignatures
	if policy == "" || policy == SignaturesOff {
		return nil, nil
	}
	keyless, err := newKeyless(options.PayloadIdentitiesFile, options.PayloadTrustedRootFile)
	if err != nil {
		return nil, fmt.Errorf("payload signatures: %w", err)
	}
	var keys []byte
	if options.PayloadKeysFile != "" {
		if keys, err = os.ReadFile(options.PayloadKeysFile); err != nil {
			return nil, fmt.Errorf("payload signatures: reading the public keys: %w", err)
		}
	}
	verifier, err := payload.NewVerifier(keys, keyless, policy == SignaturesEnforce)
	if err != nil {
		return nil, fmt.Errorf("payload signatures: file %s: %w", options.PayloadKeysFile, err)
	}
	return verifier, nil
}

// newKeyless returns nil without files.
func newKeyless(identitiesFile, trustedRootFile string) (*payload.Keyless, error) {
	if identitiesFile == "" && trustedRootFile == "" {
		return nil, nil
	}
	identities, err := os.ReadFile(identitiesFile)
	if err != nil {
		return nil, fmt.Errorf("reading the identities: %w", err)
	}
	trustedRoot, err := os.ReadFile(trustedRootFile)
	if err != nil {
		return nil, fmt.Errorf("reading the trusted root: %w", err)
	}
	keyless, err := payload.NewKeyless(identities, trustedRoot)
	if err != nil {
		return nil, fmt.Errorf("files %s and %s: %w", identitiesFile, trustedRootFile, err)
	}
	return keyless, nil
}
