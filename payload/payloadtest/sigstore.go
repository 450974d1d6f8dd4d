// SPDX-License-Identifier: Apache-2.0

package payloadtest

import (
	"encoding/hex"
	"encoding/json"
	"testing"

	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/testing/ca"
)

// Sigstore is an instance of Sigstore: a certificate authority, a transparency log and a timestamp authority.
type Sigstore struct{ *ca.VirtualSigstore }

// NewSigstore starts an instance in memory.
func NewSigstore(t testing.TB) *Sigstore {
	t.Helper()
	services, err := ca.NewVirtualSigstore()
	if err != nil {
		t.Fatal(err)
	}
	return &Sigstore{services}
}

// TrustedRoot returns the instance's trusted root, with its log of certificates if its certificates have to be logged.
func (s *Sigstore) TrustedRoot(t testing.TB, logged bool) []byte {
	t.Helper()
	logs, certificates := s.RekorLogs(), map[string]*root.TransparencyLog{}
	if logged {
		certificates = s.CTLogs()
	}
	for _, instances := range []map[string]*root.TransparencyLog{logs, certificates} {
		for _, log := range instances {
			// The library's instance has the identifier in hexadecimal, where a trusted root has bytes.
			id, err := hex.DecodeString(string(log.ID))
			if err != nil {
				t.Fatal(err)
			}
			log.ID = id
		}
	}
	trusted, err := root.NewTrustedRoot(root.TrustedRootMediaType01, s.FulcioCertificateAuthorities(), certificates,
		s.TimestampingAuthorities(), logs)
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(trusted)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
