// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"testing"
	"time"

	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestValidateMachine(t *testing.T) {
	validateAll(t, map[string]validation{
		"When a NodeClaim has no Machine, it should be denied": {
			ask: first("web-1"), inputs: inputs{subject: party{claim: web1().claim}},
			want: denied, reason: v1beta1.MachineMissingReason, message: "no Machine was made for NodeClaim web-1",
		},
		"When a Machine has no NodeClaim, it should be denied": {
			ask: first("web-1"), inputs: inputs{subject: party{machines: web1().machines}},
			want: denied, reason: v1beta1.NodeClaimMissingReason,
		},
		"When the NodeClaim is a later one of the same name, it should be denied": {
			ask: first("web-1"), inputs: inputs{subject: party{machines: web1().machines, claim: web2().claim}},
			want: denied, reason: v1beta1.NodeClaimMissingReason,
		},
		"When two Machines go by the name and neither is called so, it should wait, with a reason": {
			ask: first("web-1"), inputs: inputs{subject: party{machines: append(web1().machines, web2().machines...), claim: web1().claim}},
			want: waiting, reason: "NameShared", message: "Machines web-1 and web-2 both", requeueAfter: recheckClaims,
		},
		"When the Machine is being deleted, it should not join any more": {
			ask: first("web-1"), inputs: inputs{subject: web1().with("abcdef")}.but(deleting),
			want: denied, reason: v1beta1.MachineMissingReason,
		},
		"When the Machine is being deleted, its node should go on with a new certificate until it is drained": {
			ask: servingOf("web-1", "10.0.0.1"), inputs: both().but(deleting), want: approved,
		},
	})
}

func TestValidateReplay(t *testing.T) {
	validateAll(t, map[string]validation{
		"When a token is used again after its node has joined (replay), it should be denied": {
			ask: first("web-1"), inputs: inputs{subject: web1().with("abcdef"), joined: true},
			want: denied, reason: v1beta1.AlreadyJoinedReason, message: "delete NodeClaim web-1",
		},
		"When the Node was deleted after it had joined, the token should not do again (replay)": {
			ask: first("web-1"), inputs: only().but(func(i *inputs) { i.subject.claim.Status.NodeName = "web-1" }),
			want: denied, reason: v1beta1.AlreadyJoinedReason,
		},
		"When Cluster API has seen the Node, the token should not do again (replay)": {
			ask: first("web-1"), inputs: only().but(func(i *inputs) { i.subject.machines[0].Status.NodeRef.Name = "web-1" }),
			want: denied, reason: v1beta1.AlreadyJoinedReason,
		},
		"When a second request comes before the node has joined (replay), it should be denied": {
			ask: first("web-1"), inputs: inputs{subject: web1(), conflicting: "node-csr-1"},
			want: denied, reason: v1beta1.AlreadyRequestedReason, message: "node-csr-1",
		},
		"When the request is old, it should be denied, so that the kubelet tries again": {
			ask: first("web-1").but(func(a *ask) { a.age = maxAge + time.Second }), inputs: only(),
			want: denied, reason: v1beta1.RequestExpiredReason, message: "it was made 1h0m1s ago",
		},
		"When the request is nearly too old, it should be approved": {
			ask: first("web-1").but(func(a *ask) { a.age = maxAge }), inputs: only(), want: approved,
		},
	})
}

func TestValidateOtherRequests(t *testing.T) {
	called := func(name string, age time.Duration) ask {
		return servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.name, a.age = name, age })
	}
	validateAll(t, map[string]validation{
		"When a node has another request that is approved and not issued, it should wait": {
			ask:    called("b", 0),
			inputs: asked(other{name: "a", made: now.Add(-time.Minute), approved: true}),
			want:   waiting, reason: "EarlierRequestLive", message: "certificate request a, which the node made before", requeueAfter: liveFor - time.Minute,
		},
		"When the other request's certificate is issued, it should be approved": {
			ask: called("b", 0), inputs: asked(other{name: "a", made: now.Add(-time.Minute), approved: true, issued: true}), want: approved,
		},
		"When the other request was approved so long ago that no kubelet waits for it, it should be approved": {
			ask: called("b", 0), inputs: asked(other{name: "a", made: now.Add(-liveFor), approved: true}), want: approved,
		},
		"When the other request is undecided and older, the later one should be approved": {
			ask: called("b", 0), inputs: asked(other{name: "a", made: now.Add(-time.Minute)}), want: approved,
		},
		"When the node has asked again since, the older request should be denied": {
			ask:    called("b", time.Minute),
			inputs: asked(other{name: "a", made: now}),
			want:   denied, reason: v1beta1.RequestSupersededReason, message: "by certificate request a",
		},
		"When the node has asked again since, and that is issued, the older request should be denied all the same": {
			ask:    called("b", time.Minute),
			inputs: asked(other{name: "a", made: now, approved: true, issued: true}), want: denied, reason: v1beta1.RequestSupersededReason,
		},
		"When two were made in the same second, one should be the later": {
			ask:    called("a", 0),
			inputs: asked(other{name: "b", made: now}), want: denied, reason: v1beta1.RequestSupersededReason,
		},
		"When a request that waits for addresses was made before another one, it should be denied": {
			ask: called("", time.Minute), inputs: inputs{requester: partyOf("web-1"), subject: partyOf("web-1"), others: []other{{name: "later", made: now}}},
			want: denied, reason: v1beta1.RequestSupersededReason,
		},
		"When a forged request was made before another one, it should be denied for what is wrong with it": {
			ask:    servingOf("web-1", "10.0.0.2").but(func(a *ask) { a.age = time.Minute }),
			inputs: asked(other{name: "later", made: now}), want: denied, reason: v1beta1.AddressMismatchReason,
		},
	})
}
