// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/message"
)

// A Machine's reported addresses may come from guest tools, so the machine's root user controls them. An address
// doesn't count if it belongs to something else: a Service, the API server, or another Machine.

// addressIndex indexes Machines by all addresses that they report, in normal form.
const addressIndex = "autonode.io/address"

// recheckClaims is the interval between checks whether another Machine still reports an address. This Machine's watch
// doesn't show that.
const recheckClaims = time.Minute

// serverNames are the names of any cluster's API server, and of every machine itself.
var serverNames = sets.New("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")

func addresses(object client.Object) []string {
	machine, ok := object.(*clusterv1.Machine)
	if !ok {
		return nil
	}
	found := sets.New[string]()
	for _, name := range ownNames(machine) {
		found.Insert(normal(name))
	}
	for _, address := range machine.Status.Addresses {
		found.Insert(normal(address.Address))
	}
	return sets.List(found)
}

// network holds the addresses that a cluster reserves.
type network struct {
	services []netip.Prefix
	// nodes are the platform's additionalNodeCIDRs.
	nodes []netip.Prefix
	// servers holds the API server's names and addresses.
	servers sets.Set[string]
}

func networkOf(cluster *clusterv1.Cluster, host string) network {
	n := network{services: prefixes(cluster.Spec.ClusterNetwork.Services.CIDRBlocks), servers: sets.New[string]()}
	for _, server := range []string{cluster.Spec.ControlPlaneEndpoint.Host, hostnameOf(host)} {
		if server != "" {
			n.servers.Insert(normal(server))
		}
	}
	return n
}

func prefixes(blocks []string) (parsed []netip.Prefix) {
	for _, block := range blocks {
		if prefix, err := netip.ParsePrefix(block); err == nil {
			parsed = append(parsed, prefix.Masked())
		}
	}
	return parsed
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

// reserves returns the owner of an address or name that no machine may have; empty for none. The address is in normal form.
func (n network) reserves(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil {
		for _, prefix := range n.services {
			if prefix.Contains(ip) {
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

// holders returns the Cluster's other Machines that report the requested addresses or have them as a name.
func (a *Approver) holders(ctx context.Context, j *evaluation, machine *clusterv1.Machine) (map[string]*clusterv1.Machine, error) {
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
			// A Machine that is being deleted releases its address.
			if other := &list.Items[i]; other.Name != machine.Name && other.DeletionTimestamp.IsZero() {
				holders[address] = other
			}
		}
	}
	return holders, nil
}

// owned checks that a Machine's reported address is its own. The name of another Machine is that Machine's. If two
// report the same address, it is of the one whose infrastructure decides it. If that holds for both or for neither,
// either's root may have forged it: both requests wait, both machines keep their certificates, and none is denied. The
// address is in normal form.
func (e inputs) owned(address string) *decision {
	machine := &e.subject.machines[0]
	if owner := e.network.reserves(address); owner != "" && !owns(machine, address) {
		return addressOf(address, owner)
	}
	other := e.holders[address]
	switch {
	case other == nil || owns(machine, address):
		return nil
	case owns(other, address):
		return addressOf(address, "Machine "+other.Name)
	}
	switch mine, theirs := chose(e.kinds, machine, address), chose(e.kinds, other, address); {
	case theirs && !mine:
		return nil
	case mine && !theirs:
		return addressOf(address, "Machine "+other.Name)
	}
	return &decision{action: waiting, reason: "AddressShared", requeueAfter: recheckClaims, message: fmt.Sprintf(
		"Machines %s and %s both report the address %s; one of them has to give it up, or be replaced", machine.Name, other.Name, address)}
}

func addressOf(address, owner string) *decision {
	return deny(v1beta1.AddressMismatchReason, "address %s is one of %s", message.Quoted(address), owner)
}

// called returns the Machine that a node's name stands for: the Machine of that name, else the one whose infrastructure
// machine has it, else the one whose node has joined under it. Other Machines' reports don't count against it, nor do other Machines'
// against Karpenter's.
func called(machines []clusterv1.Machine, node string) []clusterv1.Machine {
	if len(machines) < 2 {
		return machines
	}
	for _, name := range []func(*clusterv1.Machine) string{
		func(m *clusterv1.Machine) string { return m.Name },
		func(m *clusterv1.Machine) string { return m.Spec.InfrastructureRef.Name },
	} {
		if i := slices.IndexFunc(machines, func(m clusterv1.Machine) bool { return name(&m) == node }); i >= 0 {
			return machines[i : i+1]
		}
	}
	if slices.ContainsFunc(machines, karpenters) {
		machines = slices.DeleteFunc(slices.Clone(machines), func(m clusterv1.Machine) bool { return !karpenters(m) })
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
