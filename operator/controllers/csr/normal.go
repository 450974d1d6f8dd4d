// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"net/netip"
	"strings"
)

// Infrastructure providers, kubelets and people write one name or address in several ways. Every comparison of names and
// addresses in this package is one of normal forms, except of a node's name: that is a certificate's identity, so a
// request has to write it in normal form itself.

// normal returns the normal form of a DNS name or an IP address, as a Machine, a Cluster or a request writes it: a name is
// in lower case and without the dot of the root; an IPv6 address is compressed and has no zone; an IPv4 address that is
// mapped into IPv6 is IPv4.
func normal(address string) string {
	address = strings.TrimSuffix(address, ".")
	if ip, err := netip.ParseAddr(address); err == nil {
		return ip.Unmap().WithZone("").String()
	}
	return strings.ToLower(address)
}

// isIP reports whether a normal form is an IP address's.
func isIP(normalForm string) bool {
	_, err := netip.ParseAddr(normalForm)
	return err == nil
}
