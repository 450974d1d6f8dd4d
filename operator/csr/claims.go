// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/message"
)

// What a Machine reports of its addresses may come from inside the machine (guest tools), so its root decides what they say. An address is no
// evidence where it belongs to something else: a Service, the API server, or another Machine.

// addressIndex indexes Machines by all addresses that they report, in one form each.
const addressIndex = "autonode.io/address"

// recheckClaims is how often to look whether another Machine still reports an address: no watch of this one's tells.
const recheckClaims = time.Minute

// serverNames are what clients in any cluster know its API server by, and what each machine calls itself.
var serverNames = sets.New("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")

func addresses(object client.Object) []string {
	machine, ok := object.(*clusterv1.Machine)
	if !ok {
		return nil
	}
	found := sets.New(strings.ToLower(machine.Name))
	for _, address := range machine.Status.Addresses {
		found.Insert(normal(address.Address))
	}
	return sets.List(found)
}

// normal is one form for each address.
func normal(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil {
		return ip.Unmap().String()
	}
	return strings.ToLower(strings.TrimSuffix(address, "."))
}

// network is what a cluster keeps for itself.
type network struct {
	services []netip.Prefix
	// servers are the API server's names and addresses.
	servers sets.Set[string]
}

func networkOf(cluster *clusterv1.Cluster, host string) network {
	n := network{servers: sets.New[string]()}
	for _, block := range cluster.Spec.ClusterNetwork.Services.CIDRBlocks {
		if prefix, err := netip.ParsePrefix(block); err == nil {
			n.services = append(n.services, prefix.Masked())
		}
	}
	for _, server := range []string{cluster.Spec.ControlPlaneEndpoint.Host, hostnameOf(host)} {
		if server != "" {
			n.servers.Insert(normal(server))
		}
	}
	return n
}

func hostnameOf(server string) string {
	if parsed, err := url.Parse(server); err == nil && parsed.Host != "" {
		return parsed.Hostname()
	}
	if host, _, err := net.SplitHostPort(server); err == nil {
		return host
	}
	return server
}

// reserves says what has an address, or a name, that no machine can have; empty for nothing.
func (n network) reserves(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil {
		for _, prefix := range n.services {
			if prefix.Contains(ip.Unmap()) {
				return "the Service range " + prefix.String()
			}
		}
		if ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() {
			return "no machine"
		}
	}
	if n.servers.Has(address) || serverNames.Has(address) || strings.HasPrefix(address, "kubernetes.default.svc.") {
		return "the API server"
	}
	return ""
}

// holders finds, for the addresses that a request asks for, the other Machines of the Cluster that report them or are called so.
func (a *Approver) holders(ctx context.Context, j *judged, machine *clusterv1.Machine) (map[string]*clusterv1.Machine, error) {
	if j.request.content == nil {
		return nil, nil
	}
	wanted := sets.New[string]()
	for _, ip := range j.request.content.IPAddresses {
		wanted.Insert(normal(ip.String()))
	}
	for _, name := range j.request.content.DNSNames {
		wanted.Insert(normal(name))
	}
	holders := map[string]*clusterv1.Machine{}
	for address := range wanted {
		list := &clusterv1.MachineList{}
		if err := a.Management.List(ctx, list, client.InNamespace(j.cluster.Namespace), client.MatchingFields{addressIndex: address},
			client.MatchingLabels{clusterv1.ClusterNameLabel: j.cluster.Name}); err != nil {
			return nil, fmt.Errorf("looking for other Machines at %s: %w", address, err)
		}
		for i := range list.Items {
			// One that is being deleted gives its address away.
			if other := &list.Items[i]; other.Name != machine.Name && other.DeletionTimestamp.IsZero() {
				holders[address] = other
			}
		}
	}
	return holders, nil
}

// owned checks that an address which a Machine reports is its own. The name of another Machine is that Machine's. Of two that report the same
// address, neither is believed, because either's root may have written it: both wait, with the certificates that they have, and nobody is denied.
func (e evidence) owned(address string) *verdict {
	address = normal(address)
	machine := &e.subject.machines[0]
	if owner := e.network.reserves(address); owner != "" && address != strings.ToLower(machine.Name) {
		return addressOf(address, owner)
	}
	other := e.holders[address]
	switch {
	case other == nil || address == strings.ToLower(machine.Name):
		return nil // management gave the Machine its name
	case address == strings.ToLower(other.Name):
		return addressOf(address, "Machine "+other.Name)
	}
	return &verdict{decision: waiting, reason: "AddressShared", again: recheckClaims, message: fmt.Sprintf(
		"Machines %s and %s both report the address %s; one of them has to give it up, or be replaced", machine.Name, other.Name, address)}
}

func addressOf(address, owner string) *verdict {
	return deny(v1beta1.AddressMismatchReason, "address %s is one of %s", message.Quoted(address), owner)
}

// called chooses, of the Machines that may be meant by a node's name, the one that management knows by it: the Machine of that name, else the one
// whose node has joined under it. What others report of themselves doesn't count against that one.
func called(machines []clusterv1.Machine, node string) []clusterv1.Machine {
	if len(machines) < 2 {
		return machines
	}
	for i := range machines {
		if strings.EqualFold(machines[i].Name, node) {
			return machines[i : i+1]
		}
	}
	var joined []clusterv1.Machine
	for i := range machines {
		if machines[i].Status.NodeRef.Name == node {
			joined = append(joined, machines[i])
		}
	}
	if len(joined) == 1 {
		return joined
	}
	return machines
}
