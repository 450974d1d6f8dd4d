// SPDX-License-Identifier: Apache-2.0

// Package egress restricts the operator's connections to addresses that the platform allows, where a tenant names the
// server: API servers of guests, and registries. It checks addresses when they are dialed, so that neither a DNS name
// nor a redirect leads elsewhere.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Private are the private networks (RFC 1918, RFC 6598, RFC 4193).
const Private = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7"

// dialTimeout is the timeout of a TCP connection.
const dialTimeout = 30 * time.Second

// ErrForbidden is wrapped by errors for addresses that the platform doesn't allow.
var ErrForbidden = errors.New("the platform doesn't allow the operator to connect to this address")

// Policy decides which addresses may be dialed. The zero value allows public ones.
type Policy struct {
	allowed []netip.Prefix
	denied  []netip.AddrPort
}

// NewPolicy allows public addresses, and those of a comma-separated list of networks such as "10.0.0.0/8,fd00::/8". A
// single address in the list overrides Deny.
func NewPolicy(networks string) (*Policy, error) {
	p := &Policy{}
	for network := range strings.SplitSeq(networks, ",") {
		if network = strings.TrimSpace(network); network == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(network)
		if err != nil {
			return nil, fmt.Errorf("%q is no network such as 10.0.0.0/8", network)
		}
		if prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is an IPv4 network in IPv6 form; write it as IPv4", network)
		}
		p.allowed = append(p.allowed, prefix.Masked())
	}
	return p, nil
}

// Deny forbids connections to a server, such as "https://10.96.0.1:443". It resolves a host name now.
func (p *Policy) Deny(ctx context.Context, server string) error {
	if !strings.Contains(server, "://") {
		server = "https://" + server
	}
	parsed, err := url.Parse(server)
	if err != nil {
		return fmt.Errorf("parsing %s: %w", server, err)
	}
	port := parsed.Port()
	if port == "" {
		if port = "443"; parsed.Scheme == "http" {
			port = "80"
		}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return fmt.Errorf("parsing the port of %s: %w", server, err)
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", parsed.Hostname())
	if err != nil {
		return fmt.Errorf("resolving %s: %w", parsed.Hostname(), err)
	}
	for _, address := range addresses {
		p.denied = append(p.denied, netip.AddrPortFrom(address.Unmap().WithZone(""), uint16(number)))
	}
	return nil
}

// Check returns an error that wraps ErrForbidden if an address isn't allowed. The error doesn't say why: it would tell
// the tenant who named the server which addresses exist.
func (p *Policy) Check(address netip.AddrPort) error {
	ip := address.Addr().Unmap().WithZone("")
	var allowed, single bool
	for _, network := range p.allowed {
		if network.Contains(ip) {
			allowed, single = true, single || network.IsSingleIP()
		}
	}
	for _, denied := range p.denied {
		if denied.Addr() == ip && denied.Port() == address.Port() && !single {
			return ErrForbidden
		}
	}
	if allowed || public(ip) {
		return nil
	}
	return ErrForbidden
}

// reserved are networks without servers on the internet that netip doesn't report, and networks that stand for any IPv4
// address.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),      // this network, RFC 791
	netip.MustParsePrefix("100.64.0.0/10"),  // shared with the provider's network, RFC 6598
	netip.MustParsePrefix("192.0.0.0/24"),   // protocol assignments, RFC 6890; a cloud's metadata service has one
	netip.MustParsePrefix("198.18.0.0/15"),  // benchmarks, RFC 2544
	netip.MustParsePrefix("240.0.0.0/4"),    // class E, RFC 1112, with the broadcast address
	netip.MustParsePrefix("64:ff9b::/96"),   // NAT64, RFC 6052
	netip.MustParsePrefix("64:ff9b:1::/48"), // NAT64 of a site, RFC 8215
	netip.MustParsePrefix("2002::/16"),      // 6to4, RFC 3056
	netip.MustParsePrefix("2001::/32"),      // Teredo, RFC 4380
	netip.MustParsePrefix("::/96"),          // IPv4-compatible, RFC 4291
	netip.MustParsePrefix("fec0::/10"),      // site-local, RFC 3879
}

func public(ip netip.Addr) bool {
	return ip.IsGlobalUnicast() && !ip.IsPrivate() &&
		!slices.ContainsFunc(reserved, func(network netip.Prefix) bool { return network.Contains(ip) })
}

// DialContext dials as net.Dialer does, and checks each address that it dials.
func (p *Policy) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		resolved, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("parsing address %q: %w", address, err)
		}
		return p.Check(resolved)
	}}
	return dialer.DialContext(ctx, network, address)
}
