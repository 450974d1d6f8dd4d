// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/message"
)

// maxAge of a request that is approved: as long as a kubelet waits for its first certificate before it gives up.
const maxAge = time.Hour

// liveFor is how long somebody waits for a node's own request: as long as a kubelet does before it asks again, with another key.
const liveFor = 15 * time.Minute

// maxMessage bounds what is said of a request: parts of it are the requester's words.
const maxMessage = 900

// decision on a request.
type decision string

const (
	// ignored: the request is none of ours.
	ignored decision = "ignored"
	// waiting: what is needed to decide isn't there yet.
	waiting  decision = "waiting"
	approved decision = "approved"
	denied   decision = "denied"
)

// verdict is a decision with its reason, which is one of api/v1beta1's where the decision is written down.
type verdict struct {
	decision
	reason, message string
	// again is when to decide again where only time tells; zero otherwise.
	again time.Duration
}

// party is what a node's name in a request stands for.
type party struct {
	// machines that have the name, or an address of that name; those that were made for a NodeClaim only. More than one can't be told apart.
	machines []clusterv1.Machine
	// claim is the NodeClaim that the Machine was made for; where there is no Machine, that of the name. It is nil where there is none.
	claim *karpv1.NodeClaim
}

// ours is true where a NodeClaim or its Machine has the name.
func (p party) ours() bool { return len(p.machines) > 0 || p.claim != nil }

// evidence is what a request is judged by.
type evidence struct {
	// requester is the node that asks, subject the one that is asked for.
	requester, subject party
	// joined says that the subject's Node is in the guest.
	joined bool
	// rival is another request for the subject's first certificate, which was approved; empty where there is none.
	rival string
	// others are what else the node has asked for of the same signer, as far as it was neither denied nor has failed.
	others []other
	// holders are other Machines that report an address which is asked for, by the address.
	holders map[string]*clusterv1.Machine
	network network
}

// other is another request of the same node to the same signer.
type other struct {
	name string
	made time.Time
	// approved and issued say how far it has come.
	approved, issued bool
}

// after orders a node's requests. API servers tell whole seconds.
func (o other) after(r request) bool {
	if o.made.Equal(r.CreationTimestamp.Time) {
		return o.name > r.Name
	}
	return o.made.After(r.CreationTimestamp.Time)
}

// judge decides on a request. It depends on nothing but its arguments.
func judge(r request, e evidence, now time.Time) verdict {
	if !e.requester.ours() && !e.subject.ours() {
		return verdict{decision: ignored, reason: "NotOurs", message: "no NodeClaim and no Machine has the name"}
	}
	if v := check(r, e, now); v != nil {
		if len(v.message) > maxMessage {
			v.message = strings.ToValidUTF8(v.message[:maxMessage], "") + "…"
		}
		return *v
	}
	machine := &e.subject.machines[0]
	return verdict{decision: approved, reason: v1beta1.NodeIdentityConfirmedReason,
		message: fmt.Sprintf("the request matches NodeClaim %s and Machine %s", e.subject.claim.Name, client.ObjectKeyFromObject(machine))}
}

// check returns why a request isn't approved; nil when nothing speaks against it.
func check(r request, e evidence, now time.Time) *verdict {
	for _, rule := range []func(request, evidence) *verdict{
		wellFormed, fromRequester, forNode, forMachine, withUsages,
	} {
		if v := rule(r, e); v != nil {
			return v
		}
	}
	if age := now.Sub(r.CreationTimestamp.Time); age > maxAge {
		return deny(v1beta1.RequestExpiredReason, "it was made %s ago; a kubelet has to ask again after %s", age.Round(time.Second), maxAge)
	}
	var v *verdict
	switch {
	case r.Spec.SignerName == certificatesv1.KubeletServingSignerName:
		v = forAddresses(r, e)
	case len(r.content.DNSNames)+len(r.content.IPAddresses) > 0:
		return deny(v1beta1.AddressMismatchReason, "a client certificate has no subject alternative names, and it asks for %s", altNames(r))
	case r.bootstraps():
		return firstOfMachine(r, e)
	}
	if v == nil {
		v = onlyLive(e, now)
	}
	if v == nil || v.decision == waiting {
		v = cmp.Or(latest(r, e), v)
	}
	return v
}

func deny(reason, format string, args ...any) *verdict {
	return &verdict{decision: denied, reason: reason, message: fmt.Sprintf(format, args...)}
}

func alreadyRequested(rival string) *verdict {
	return deny(v1beta1.AlreadyRequestedReason, "certificate request %s of this machine was approved before", rival)
}

// laterRequest is what becomes of a node's request while another one, made before, is approved and not issued.
func laterRequest(rival string, left time.Duration) *verdict {
	return &verdict{decision: waiting, reason: "EarlierRequestLive", again: left, message: fmt.Sprintf(
		"certificate request %s, which the node made before, is approved and its certificate not issued yet; a node has one such request at a time", rival)}
}

func wellFormed(r request, _ evidence) *verdict {
	if r.malformed != nil {
		return deny(v1beta1.RequestMalformedReason, "the request is malformed: %s", r.malformed)
	}
	if len(r.content.EmailAddresses)+len(r.content.URIs) > 0 {
		return deny(v1beta1.AddressMismatchReason, "a kubelet's certificate is for addresses only, and it asks for %s", altNames(r))
	}
	return nil
}

// fromRequester checks who asks.
func fromRequester(r request, e evidence) *verdict {
	requester, byNode := r.requester()
	subject, _ := r.subject()
	switch {
	case !byNode && !r.bootstraps():
		return deny(v1beta1.RequesterMismatchReason, "only the node itself may ask for its serving certificate, and user %s did", message.Quoted(r.Spec.Username))
	case !byNode && !r.byBootstrapper():
		return deny(v1beta1.RequesterMismatchReason, "user %s with the groups %s is no machine that joins", message.Quoted(r.Spec.Username), quotedList(r.Spec.Groups))
	case byNode && !r.byNodeGroups():
		return deny(v1beta1.RequesterMismatchReason, "user %s has the groups %s, which aren't a node's", message.Quoted(r.Spec.Username), quotedList(r.Spec.Groups))
	case byNode && requester != subject && !e.requester.ours():
		return deny(v1beta1.RequesterMismatchReason, "user %s asks for a certificate of node %s", message.Quoted(r.Spec.Username), message.Quote(subject))
	case byNode && requester != subject:
		return deny(v1beta1.SubjectMismatchReason, "node %s asks for a certificate of %s", message.Quote(requester), message.Quoted(r.content.Subject.CommonName))
	}
	return nil
}

// forNode checks the subject.
func forNode(r request, _ evidence) *verdict {
	subject := r.content.Subject
	if _, isNode := r.subject(); !isNode || !slices.Equal(subject.Organization, []string{nodesGroup}) || len(subject.Names) != 2 {
		return deny(v1beta1.SubjectMismatchReason, "the subject of a kubelet's certificate is O=%s,CN=%s<node>, and it asks for %s", nodesGroup, nodeUserPrefix, message.Quoted(subject.String()))
	}
	return nil
}

// forMachine checks that the subject is a NodeClaim and its Machine.
func forMachine(r request, e evidence) *verdict {
	name, _ := r.subject()
	switch p := e.subject; {
	case len(p.machines) == 0:
		return deny(v1beta1.MachineMissingReason, "no Machine was made for NodeClaim %s", message.Quote(name))
	case len(p.machines) > 1:
		return &verdict{decision: waiting, reason: "NameShared", again: recheckClaims, message: fmt.Sprintf(
			"Machines %s and %s both report the name %s; one of them has to give it up, or be replaced", p.machines[0].Name, p.machines[1].Name, message.Quote(name))}
	case p.claim == nil:
		return deny(v1beta1.NodeClaimMissingReason, "NodeClaim %s of the Machine doesn't exist", p.machines[0].Name)
	case string(p.claim.UID) != p.machines[0].Labels[v1alpha1.NodeClaimUIDLabel]:
		return deny(v1beta1.NodeClaimMissingReason, "the Machine was made for another NodeClaim %s than the one that exists", p.claim.Name)
	}
	return nil
}

// usages that a kubelet asks for. It leaves key encipherment out where its key isn't RSA.
func withUsages(r request, _ evidence) *verdict {
	wanted := sets.New(certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth)
	if r.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		wanted = sets.New(certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth)
	}
	if !sets.New(r.Spec.Usages...).Delete(certificatesv1.UsageKeyEncipherment).Equal(wanted) {
		return deny(v1beta1.UsageMismatchReason, "the key usages %s aren't those of signer %s: %q", message.Quoted(fmt.Sprint(r.Spec.Usages)), r.Spec.SignerName, sets.List(wanted))
	}
	return nil
}

// firstOfMachine checks that a machine which has no certificate yet asks for its own.
func firstOfMachine(r request, e evidence) *verdict {
	machine, claim := &e.subject.machines[0], e.subject.claim
	token, fixed := machine.Annotations[v1alpha1.BootstrapTokenIDAnnotation]
	switch {
	case fixed && r.Spec.Username != bootstrapTokenPrefix+token:
		return deny(v1beta1.RequesterMismatchReason, "user %s isn't the bootstrap token that Machine %s was made with", message.Quoted(r.Spec.Username), machine.Name)
	case !fixed && slices.Contains(r.Spec.Groups, v1alpha1.BootstrapTokenGroup):
		return deny(v1beta1.RequesterMismatchReason, "user %s is a bootstrap token of Karpenter's, and Machine %s was made with none", message.Quoted(r.Spec.Username), machine.Name)
	case !machine.DeletionTimestamp.IsZero() || !claim.DeletionTimestamp.IsZero():
		return deny(v1beta1.MachineMissingReason, "NodeClaim %s and its Machine are being deleted", claim.Name)
	case e.joined || machine.Status.NodeRef.IsDefined() || claim.Status.NodeName != "":
		return deny(v1beta1.AlreadyJoinedReason, "the node has joined before, and only the node itself may renew its certificate; a machine that has lost it has to be replaced: delete NodeClaim %s", claim.Name)
	case e.rival != "":
		return alreadyRequested(e.rival)
	}
	return nil
}

// latest lets only the last of a node's requests be: a kubelet that asks again has made another key and forgotten the one before.
func latest(r request, e evidence) *verdict {
	for _, o := range e.others {
		if o.after(r) {
			return deny(v1beta1.RequestSupersededReason, "the node has asked again since, by certificate request %s", o.name)
		}
	}
	return nil
}

// onlyLive lets a node have one approved request at a time that is still to be issued. It doesn't lock a kubelet out whose
// request got lost: nobody waits for that longer than liveFor.
func onlyLive(e evidence, now time.Time) *verdict {
	for _, o := range e.others {
		if left := o.made.Add(liveFor).Sub(now); o.approved && !o.issued && left > 0 {
			return laterRequest(o.name, left)
		}
	}
	return nil
}

// forAddresses checks that a serving certificate is for addresses of the machine.
func forAddresses(r request, e evidence) *verdict {
	name, _ := r.subject()
	machine := &e.subject.machines[0]
	if len(r.content.DNSNames)+len(r.content.IPAddresses) == 0 {
		return deny(v1beta1.AddressMismatchReason, "a serving certificate is for at least one address, and it asks for none")
	}
	names, ips := sets.New(strings.ToLower(name)), sets.New[string]()
	for _, address := range machine.Status.Addresses {
		if ip := net.ParseIP(address.Address); ip != nil {
			ips.Insert(ip.String())
		} else {
			names.Insert(strings.ToLower(address.Address))
		}
	}
	for _, ip := range r.content.IPAddresses {
		if len(ips) == 0 {
			return &verdict{decision: waiting, reason: "AddressesUnknown", message: fmt.Sprintf("Machine %s has no IP address yet", machine.Name)}
		}
		if !ips.Has(ip.String()) {
			return deny(v1beta1.AddressMismatchReason, "IP address %s isn't one of Machine %s: %s", ip, machine.Name, strings.Join(sets.List(ips), ", "))
		}
		if v := e.owned(ip.String()); v != nil {
			return v
		}
	}
	for _, dnsName := range r.content.DNSNames {
		if !names.Has(strings.ToLower(dnsName)) {
			return deny(v1beta1.AddressMismatchReason, "DNS name %s isn't one of Machine %s: %s", message.Quoted(dnsName), machine.Name, strings.Join(sets.List(names), ", "))
		}
		if v := e.owned(dnsName); v != nil {
			return v
		}
	}
	return nil
}

// altNames lists what a request asks for beside its subject.
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

// quotedList quotes a list that the requester wrote, and of a long one its beginning.
func quotedList(list []string) string {
	if text := fmt.Sprintf("%q", list); len(text) <= message.QuoteLimit {
		return text
	}
	return message.Quoted(strings.Join(list, " "))
}
