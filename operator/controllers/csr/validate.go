// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/operator/message"
)

// maxAge of an approved request: a kubelet waits this long for its first certificate.
const maxAge = time.Hour

// liveFor is how long an approved request may block the node's next one: a kubelet retries with a new key after that
// time.
const liveFor = 15 * time.Minute

// nameGrace is how long a machine's first request waits for the infrastructure to report the name that it requests. A kubelet
// whose request is denied tries again only when the denied one is gone, after an hour. A serving request waits as long for an address, and
// a request for another approver until it is reported.
const nameGrace = time.Minute

// joinWithin is how long a Machine that Karpenter didn't make may take to join from when its infrastructure is ready: a MachineHealthCheck
// counts from then, too. Bare metal may be awaited for days before.
const joinWithin = 24 * time.Hour

// maxMessage limits a message about a request, which quotes the requester.
const maxMessage = 900

// action on a request.
type action string

const (
	// ignored: not one of our nodes.
	ignored action = "ignored"
	// waiting: an input is missing.
	waiting  action = "waiting"
	approved action = "approved"
	denied   action = "denied"
)

// decision is an action and its reason. The reason is one of api/v1beta1's if it is stored in the request.
type decision struct {
	action
	reason, message string
	// machine is the UID of the Machine that a request is approved for.
	machine types.UID
	// requester is the Machine that asked for another's name; nil for none.
	requester *clusterv1.Machine
	// worker: it is about a Machine that Karpenter didn't make, and never a denial.
	worker bool
	// pending: another approver has to decide.
	pending bool
	// requeueAfter is the requeue interval, if only time can change the decision; otherwise zero.
	requeueAfter time.Duration
}

// party is the Machines and the NodeClaim of a node's name in a request.
type party struct {
	// machines are the Machines that have the name, or an address of that name. More than one is
	// ambiguous.
	machines []clusterv1.Machine
	// claim is the Machine's NodeClaim, or without a Machine the NodeClaim of that name; nil for none.
	claim *karpv1.NodeClaim
}

// karpenters reports whether Karpenter made a Machine.
func karpenters(machine clusterv1.Machine) bool { return v1alpha1.MadeForNodeClaim(&machine) }

// karpenters reports whether a NodeClaim or its Machine has the name.
func (p party) karpenters() bool {
	return slices.ContainsFunc(p.machines, karpenters) || p.claim != nil
}

// ours reports whether a NodeClaim, its Machine, or another worker Machine of the Cluster has the name.
func (p party) ours() bool {
	return p.karpenters() || len(p.machines) > 0 && !slices.ContainsFunc(p.machines, func(m clusterv1.Machine) bool { return !worker(&m) })
}

// inputs are the objects that a request is validated against.
type inputs struct {
	// requester is the requesting node, and subject the requested one.
	requester, subject party
	// madeWith is the Machine that was made with the requester's bootstrap token; nil for none.
	madeWith *clusterv1.Machine
	// joined: the subject's Node exists in the guest.
	joined bool
	// conflicting is another, approved request for the subject's first certificate; empty for none.
	conflicting string
	// others are the node's other requests to the same signer that were neither denied nor have failed.
	others []other
	// holders are other Machines that report a requested address, by address.
	holders map[string]*clusterv1.Machine
	network network
	// karpentersOnly: the platform leaves the other Machines of the Cluster to another approver.
	karpentersOnly bool
	// kinds say which addresses machines decide themselves.
	kinds infrastructure.Kinds
}

// other is another request of the same node to the same signer.
type other struct {
	name string
	made time.Time
	// approved and issued are its progress.
	approved, issued bool
}

// after orders a node's requests. API servers store whole seconds.
func (o other) after(r request) bool {
	if o.made.Equal(r.CreationTimestamp.Time) {
		return o.name > r.Name
	}
	return o.made.After(r.CreationTimestamp.Time)
}

// validate decides on a request. It is a pure function.
func validate(r request, e inputs, now time.Time) decision {
	if !e.requester.ours() && !e.subject.ours() && e.madeWith == nil && !r.minted() {
		return decision{action: ignored, reason: "NotOurs", message: "no NodeClaim and no worker Machine has the name"}
	}
	v := check(r, e, now)
	if v == nil {
		machine := &e.subject.machines[0]
		v = &decision{action: approved, reason: v1beta1.NodeIdentityConfirmedReason, machine: machine.UID, message: "the request matches "}
		if e.subject.claim != nil {
			v.message += "NodeClaim " + e.subject.claim.Name + " and "
		}
		v.message += "Machine " + client.ObjectKeyFromObject(machine).String()
	}
	v.message = message.CutUpTo(v.message, maxMessage)
	if e.madeWith == nil && !r.minted() && !e.requester.karpenters() && !e.subject.karpenters() {
		v.ofWorker(e, now.Sub(r.CreationTimestamp.Time))
	}
	return *v
}

// ofWorker alters a decision on a Machine that Karpenter didn't make. Another approver may know more than the operator, so a mismatch
// leaves the request undecided.
func (v *decision) ofWorker(e inputs, age time.Duration) {
	v.worker = true
	switch {
	case v.action == approved && e.karpentersOnly:
		v.reason, v.pending = "LeftToAnother", true
		v.message = fmt.Sprintf("spec.autoNode.certificateApproval.scope is Karpenter, and Karpenter didn't make Machine %s",
			e.subject.machines[0].Name)
	case v.action == denied:
		v.pending = !slices.Contains([]string{
			v1beta1.RequestExpiredReason, v1beta1.AlreadyJoinedReason, v1beta1.AlreadyRequestedReason, v1beta1.RequestSupersededReason,
		}, v.reason)
	default:
		return
	}
	v.action = waiting
	if v.pending && age < nameGrace {
		v.pending, v.requeueAfter = false, nameGrace-age
	}
}

// check returns why a request isn't approved; nil if it passes every rule.
func check(r request, e inputs, now time.Time) *decision {
	for _, rule := range []func(request, inputs) *decision{
		wellFormed, fromRequester, forNode, withUsages, firstOrServing,
	} {
		if v := rule(r, e); v != nil {
			return v
		}
	}
	if v := forOwnName(r, e, now); v != nil {
		return v
	}
	if v := forMachine(r, e, now); v != nil {
		return v
	}
	if age := now.Sub(r.CreationTimestamp.Time); age > maxAge {
		return deny(v1beta1.RequestExpiredReason, "it was made %s ago; a kubelet has to retry after %s", age.Round(time.Second), maxAge)
	}
	if r.bootstraps() {
		return firstOfMachine(r, e)
	}
	v := forAddresses(r, e, now)
	if v == nil {
		v = onlyLive(e, now)
	}
	if v == nil || v.action == waiting {
		v = cmp.Or(latest(r, e), v)
	}
	return v
}

func deny(reason, format string, args ...any) *decision {
	return &decision{action: denied, reason: reason, message: fmt.Sprintf(format, args...)}
}

func alreadyRequested(conflicting string) *decision {
	return deny(v1beta1.AlreadyRequestedReason, "certificate request %s of this machine was approved before", conflicting)
}

// laterRequest is the decision on a node's request while an earlier one is approved and not issued.
func laterRequest(conflicting string, remaining time.Duration) *decision {
	return &decision{action: waiting, reason: "EarlierRequestLive", requeueAfter: remaining, message: fmt.Sprintf(
		"certificate request %s, which the node made before, is approved and its certificate not issued yet; "+
			"a node has one such request at a time",
		conflicting)}
}

func wellFormed(r request, _ inputs) *decision {
	if r.malformed != nil {
		return deny(v1beta1.RequestMalformedReason, "the request is malformed: %s", r.malformed)
	}
	if len(r.content.EmailAddresses)+len(r.content.URIs) > 0 {
		return deny(v1beta1.AddressMismatchReason, "a kubelet's certificate is for addresses only, and it requests %s", altNames(r))
	}
	return nil
}

// fromRequester checks the requester.
func fromRequester(r request, e inputs) *decision {
	requester, byNode := r.requester()
	subject, _ := r.subject()
	user := message.Quoted(r.Spec.Username)
	switch {
	case !byNode && !r.bootstraps():
		return deny(v1beta1.RequesterMismatchReason, "only the node itself may ask for its serving certificate, and user %s did", user)
	case !byNode && !r.byBootstrapper():
		return deny(v1beta1.RequesterMismatchReason, "user %s with the groups %s is no machine that joins", user, quotedList(r.Spec.Groups))
	case byNode && !r.byNodeGroups():
		return deny(v1beta1.RequesterMismatchReason, "user %s has the groups %s, which aren't a node's", user, quotedList(r.Spec.Groups))
	case byNode && requester != subject && !e.requester.ours():
		return deny(v1beta1.RequesterMismatchReason, "user %s requests a certificate of node %s", user, message.Quote(subject))
	case byNode && requester != subject:
		return deny(v1beta1.SubjectMismatchReason, "node %s requests a certificate of %s",
			message.Quote(requester), message.Quoted(r.content.Subject.CommonName))
	}
	return nil
}

// forNode checks the subject.
func forNode(r request, _ inputs) *decision {
	subject := r.content.Subject
	if _, isNode := r.subject(); !isNode || !slices.Equal(subject.Organization, []string{nodesGroup}) || len(subject.Names) != 2 {
		return deny(v1beta1.SubjectMismatchReason, "the subject of a kubelet's certificate is O=%s,CN=%s<node>, and it requests %s",
			nodesGroup, nodeUserPrefix, message.Quoted(subject.String()))
	}
	return nil
}

// forOwnName checks that a machine with a bootstrap token of its own requests its own node, unless the subject is another
// Machine's: firstOfMachine compares the tokens then.
func forOwnName(r request, e inputs, now time.Time) *decision {
	if !r.bootstraps() || e.subject.ours() {
		return nil
	}
	token, _ := r.token()
	subject, _ := r.subject()
	if len(e.subject.machines) > 0 {
		return otherMachine(e, "node %s is that of Machine %s, which isn't Karpenter's", message.Quote(subject), e.subject.machines[0].Name)
	}
	if e.madeWith == nil {
		return deny(v1beta1.NodeNameMismatchReason,
			"bootstrap token %s, which Karpenter minted for one machine, requests node %s, and no Machine that was made with it has that name",
			message.Quoted(token), message.Quote(subject))
	}
	machine := e.madeWith
	names, age := nodeNames(e.kinds)(machine), now.Sub(r.CreationTimestamp.Time)
	switch {
	case slices.Contains(names, subject):
		return &decision{action: waiting, reason: "NameUnknown", requeueAfter: nameGrace, message: fmt.Sprintf(
			"the cache lacks that Machine %s is called %s", machine.Name, message.Quote(subject))}
	case len(machine.Status.Addresses) == 0 && age <= maxAge:
		return &decision{action: waiting, reason: "AddressesUnknown", message: fmt.Sprintf(
			"Machine %s requests node %s and has no address yet: it may turn out to be called so", machine.Name, message.Quote(subject))}
	case age < nameGrace:
		return &decision{action: waiting, reason: "NameUnknown", requeueAfter: nameGrace - age, message: fmt.Sprintf(
			"Machine %s requests node %s, which isn't a name of it yet", machine.Name, message.Quote(subject))}
	}
	v := deny(v1beta1.NodeNameMismatchReason,
		"Machine %s requests node %s, and its node has to be called %s: correct the machine's host name or the kubelet's hostname-override%s",
		machine.Name, message.Quote(subject), strings.Join(names, " or "), dotted(machine, subject))
	v.requester = machine
	return v
}

// dotted returns the remedy if a host name ended at the first dot of a Machine's; empty if it didn't.
func dotted(machine *clusterv1.Machine, host string) string {
	for _, name := range ownNames(machine) {
		if label, _, found := strings.Cut(name, "."); found && label == host {
			return "; host names end at the first dot, so NodePools and NodeClaims need names without dots"
		}
	}
	return ""
}

// forMachine checks that the subject is a NodeClaim and its Machine, or another Machine that joins in time.
func forMachine(r request, e inputs, now time.Time) *decision {
	name, _ := r.subject()
	switch p := e.subject; {
	case len(p.machines) == 0:
		return deny(v1beta1.MachineMissingReason, "no Machine was made for NodeClaim %s", message.Quote(name))
	case len(p.machines) > 1:
		return &decision{action: waiting, reason: "NameShared", requeueAfter: recheckClaims, message: fmt.Sprintf(
			"Machines %s and %s both report the name %s; one of them has to give it up, or be replaced",
			p.machines[0].Name, p.machines[1].Name, message.Quote(name))}
	case !p.karpenters():
		ready := meta.FindStatusCondition(p.machines[0].Status.Conditions, clusterv1.MachineInfrastructureReadyCondition)
		if r.bootstraps() && ready != nil && ready.Status == metav1.ConditionTrue && now.Sub(ready.LastTransitionTime.Time) > joinWithin {
			return deny("MachineOverdue",
				"the infrastructure of Machine %s has been ready for more than %s, and no node has joined: replace the Machine",
				p.machines[0].Name, joinWithin)
		}
	case p.claim == nil:
		return deny(v1beta1.NodeClaimMissingReason, "NodeClaim %s of the Machine doesn't exist", v1alpha1.NodeClaimOf(&p.machines[0]))
	case string(p.claim.UID) != p.machines[0].Labels[v1alpha1.NodeClaimUIDLabel] || !karpenters(p.machines[0]):
		return deny(v1beta1.NodeClaimMissingReason, "the Machine was made for another NodeClaim %s than the one that exists", p.claim.Name)
	}
	return nil
}

// withUsages checks the certificate's usages. A kubelet leaves out key encipherment if its key isn't RSA.
func withUsages(r request, _ inputs) *decision {
	wanted := sets.New(certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth)
	if r.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		wanted = sets.New(certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth)
	}
	if !sets.New(r.Spec.Usages...).Delete(certificatesv1.UsageKeyEncipherment).Equal(wanted) {
		return deny(v1beta1.UsageMismatchReason, "the key usages %s aren't those of signer %s: %q",
			message.Quoted(fmt.Sprint(r.Spec.Usages)), r.Spec.SignerName, sets.List(wanted))
	}
	if r.Spec.SignerName == certificatesv1.KubeAPIServerClientKubeletSignerName && len(r.content.DNSNames)+len(r.content.IPAddresses) > 0 {
		return deny(v1beta1.AddressMismatchReason, "a client certificate has no subject alternative names, and it requests %s", altNames(r))
	}
	return nil
}

// firstOrServing leaves a node's next client certificate to kube-controller-manager. The request proves the node's
// identity by the certificate that it renews: see isSelfNodeClientCert in Kubernetes' pkg/controller/certificates/approver.
func firstOrServing(r request, _ inputs) *decision {
	if r.bootstraps() || r.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		return nil
	}
	return &decision{action: ignored, reason: "Renewal", message: "kube-controller-manager approves it"}
}

// firstOfMachine checks that a machine without a certificate requests its own.
func firstOfMachine(r request, e inputs) *decision {
	machine, claim := &e.subject.machines[0], e.subject.claim
	owner, deleted, joined := "Machine "+machine.Name, !machine.DeletionTimestamp.IsZero(), e.joined || machine.Status.NodeRef.IsDefined()
	if claim != nil {
		owner, deleted, joined = "NodeClaim "+claim.Name, deleted || !claim.DeletionTimestamp.IsZero(), joined || claim.Status.NodeName != ""
	}
	token, fixed := machine.Annotations[v1alpha1.BootstrapTokenIDAnnotation]
	switch {
	case fixed && r.Spec.Username != bootstrapTokenPrefix+token:
		return otherMachine(e, "user %s isn't the bootstrap token that Machine %s was made with", message.Quoted(r.Spec.Username), machine.Name)
	case !fixed && (r.minted() || e.madeWith != nil):
		return otherMachine(e, "user %s is a bootstrap token of Karpenter's, and Machine %s was made with none",
			message.Quoted(r.Spec.Username), machine.Name)
	case deleted:
		return deny(v1beta1.MachineMissingReason, "%s is being deleted", owner)
	case joined:
		return deny(v1beta1.AlreadyJoinedReason, "the node has joined before, and only the node itself may renew its certificate; "+
			"a machine that has lost it has to be replaced: delete %s", owner)
	case e.conflicting != "":
		return alreadyRequested(e.conflicting)
	}
	return nil
}

// otherMachine is the decision on a request for a Machine's node with a token that isn't the Machine's.
func otherMachine(e inputs, format string, args ...any) *decision {
	v := deny(v1beta1.RequesterMismatchReason, format, args...)
	if e.madeWith != nil {
		v.message += fmt.Sprintf("; it is that of Machine %s, which requests another's name", e.madeWith.Name)
		v.requester = e.madeWith
	}
	return v
}

// latest allows only the newest of a node's requests: a kubelet that retries has made a new key and dropped the
// previous one.
func latest(r request, e inputs) *decision {
	for _, o := range e.others {
		if o.after(r) {
			return deny(v1beta1.RequestSupersededReason, "the node has asked again since, by certificate request %s", o.name)
		}
	}
	return nil
}

// onlyLive allows a node one approved request at a time that isn't issued yet. A lost request blocks the kubelet for
// liveFor at most.
func onlyLive(e inputs, now time.Time) *decision {
	for _, o := range e.others {
		if remaining := o.made.Add(liveFor).Sub(now); o.approved && !o.issued && remaining > 0 {
			return laterRequest(o.name, remaining)
		}
	}
	return nil
}

// forAddresses checks that a serving certificate is for addresses of the machine.
func forAddresses(r request, e inputs, now time.Time) *decision {
	name, _ := r.subject()
	machine := &e.subject.machines[0]
	if len(r.content.DNSNames)+len(r.content.IPAddresses) == 0 {
		return deny(v1beta1.AddressMismatchReason, "a serving certificate is for at least one address, and it requests none")
	}
	names, ips := sets.New(normal(name)), sets.New[string]()
	for _, reported := range machine.Status.Addresses {
		switch address := normal(reported.Address); {
		case address == "":
		case isIP(address):
			ips.Insert(address)
		case !chosen(e.kinds, machine, reported):
			names.Insert(address)
		}
	}
	for _, requested := range r.content.IPAddresses {
		ip := normal(requested.String())
		address, _ := netip.AddrFromSlice(requested)
		free := e.holders[ip] == nil && e.network.reserves(ip) == "" // no other Machine and no Service has it
		if !ips.Has(ip) && free && slices.ContainsFunc(e.network.nodes, func(p netip.Prefix) bool { return p.Contains(address.Unmap()) }) {
			continue
		}
		if len(ips) == 0 {
			return &decision{action: waiting, reason: "AddressesUnknown", message: fmt.Sprintf("Machine %s has no IP address yet", machine.Name)}
		}
		if !ips.Has(ip) {
			v := deny(v1beta1.AddressMismatchReason, "IP address %s isn't one of Machine %s: %s%s",
				ip, machine.Name, strings.Join(sets.List(ips), ", "), oneFamily(ip, ips))
			if age := now.Sub(r.CreationTimestamp.Time); age < nameGrace && free { // the infrastructure may report it soon
				v.action, v.reason, v.requeueAfter = waiting, "AddressUnknown", nameGrace-age
			}
			return v
		}
		if v := e.owned(ip); v != nil {
			return v
		}
	}
	for _, requested := range r.content.DNSNames {
		dnsName := normal(requested)
		if !names.Has(dnsName) {
			return deny(v1beta1.AddressMismatchReason, "DNS name %s isn't one of Machine %s: %s",
				message.Quoted(requested), machine.Name, strings.Join(sets.List(names), ", "))
		}
		if v := e.owned(dnsName); v != nil {
			return v
		}
	}
	return nil
}

// oneFamily returns the remedy if the infrastructure reports no address of the requested IP family; empty if it does.
func oneFamily(requested string, reported sets.Set[string]) string {
	family := func(ip string) string {
		if strings.Contains(ip, ":") {
			return "IPv6"
		}
		return "IPv4"
	}
	for ip := range reported {
		if family(ip) == family(requested) {
			return ""
		}
	}
	return fmt.Sprintf("; the infrastructure reports no %s address: it has to report both families, "+
		"or the kubelet's node-ip has to be of one", family(requested))
}

// altNames lists a request's subject alternative names.
func altNames(r request) string {
	list := slices.Concat(r.content.DNSNames, r.content.EmailAddresses)
	for _, ip := range r.content.IPAddresses {
		list = append(list, ip.String())
	}
	for _, uri := range r.content.URIs {
		list = append(list, uri.String())
	}
	return quotedList(list)
}

// quotedList quotes a list that the requester wrote, truncated.
func quotedList(list []string) string {
	if text := fmt.Sprintf("%q", list); len(text) <= message.QuoteLimit {
		return text
	}
	return message.Quoted(strings.Join(list, " "))
}
