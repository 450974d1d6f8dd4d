// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"testing"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestValidateSubject(t *testing.T) {
	validateAll(t, map[string]validation{
		"When a node of ours requests another name (wrong CN), it should be denied": {
			ask: renewal("web-1").but(func(a *ask) { a.subject = subjectOf("web-9") }), inputs: inputs{requester: web1()},
			want: denied, reason: v1beta1.SubjectMismatchReason, message: `node web-1 requests a certificate of "system:node:web-9"`,
		},
		"When a node of ours requests to be the controller manager (wrong CN), it should be denied": {
			ask:    renewal("web-1").but(func(a *ask) { a.subject.CommonName = "system:kube-controller-manager" }),
			inputs: inputs{requester: web1()}, want: denied, reason: v1beta1.SubjectMismatchReason,
		},
		"When a node of ours requests to be in a stronger group, it should be denied": {
			ask:    renewal("web-1").but(func(a *ask) { a.subject.Organization = []string{"system:masters"} }),
			inputs: both(), want: denied, reason: v1beta1.SubjectMismatchReason,
		},
		"When a machine requests to be in a stronger group as well, it should be denied": {
			ask:    first("web-1").but(func(a *ask) { a.subject.Organization = []string{nodesGroup, "system:masters"} }),
			inputs: only(), want: denied, reason: v1beta1.SubjectMismatchReason,
		},
		"When the subject holds more than a kubelet's, it should be denied": {
			ask:    first("web-1").but(func(a *ask) { a.subject.OrganizationalUnit = []string{"x"} }),
			inputs: only(), want: denied, reason: v1beta1.SubjectMismatchReason,
		},
		"When the subject is a node with the user's name in another case, it should be denied": {
			ask:    servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.subject = subjectOf("WEB-1") }),
			inputs: inputs{requester: web1()}, want: denied, reason: v1beta1.SubjectMismatchReason,
		},
	})
}

func TestValidateRequester(t *testing.T) {
	validateAll(t, map[string]validation{
		"When another node requests a certificate of ours, it should be denied": {
			ask: renewal("theirs").but(func(a *ask) { a.subject = subjectOf("web-1") }), inputs: only(),
			want: denied, reason: v1beta1.RequesterMismatchReason, message: `user "system:node:theirs" requests a certificate of node web-1`,
		},
		"When a pod's ServiceAccount requests a node's certificate, it should be denied": {
			ask: first("web-1").but(func(a *ask) {
				a.user, a.groups = "system:serviceaccount:default:web", []string{"system:serviceaccounts", "system:serviceaccounts:default", authenticatedGroup}
			}),
			inputs: only(), want: denied, reason: v1beta1.RequesterMismatchReason,
		},
		"When a user only calls itself a bootstrap token, it should be denied": {
			ask: first("web-1").but(func(a *ask) { a.groups = []string{authenticatedGroup} }), inputs: only(),
			want: denied, reason: v1beta1.RequesterMismatchReason,
		},
		"When a bootstrap token is in other groups as well, it should be denied": {
			ask: first("web-1").but(func(a *ask) { a.groups = append([]string{"system:masters"}, tokenGroup...) }), inputs: only(),
			want: denied, reason: v1beta1.RequesterMismatchReason,
		},
		"When a user only calls itself the node, it should be denied": {
			ask: renewal("web-1").but(func(a *ask) { a.groups = []string{authenticatedGroup} }), inputs: both(),
			want: denied, reason: v1beta1.RequesterMismatchReason,
		},
		"When a machine makes a request with another machine's token, it should be denied": {
			ask: first("web-1"), inputs: inputs{subject: web1().with("zyxwvu")},
			want: denied, reason: v1beta1.RequesterMismatchReason, message: `user "system:bootstrap:abcdef" isn't the bootstrap token that Machine web-1 was made with`,
		},
		"When Karpenter has minted a token for another machine than one that was made with none, it should be denied": {
			ask: first("web-1").but(func(a *ask) { a.groups = append([]string{v1alpha1.BootstrapTokenGroup}, tokenGroup...) }), inputs: only(),
			want: denied, reason: v1beta1.RequesterMismatchReason, message: "was made with none",
		},
		"When a machine makes a request with an empty token, it should be denied": {
			ask:    first("web-1").but(func(a *ask) { a.user = bootstrapTokenPrefix }),
			inputs: inputs{subject: web1().with("abcdef")}, want: denied, reason: v1beta1.RequesterMismatchReason,
		},
		"When a machine requests a serving certificate by its token, it should be denied": {
			ask:    servingOf("web-1", "10.0.0.1").but(func(a *ask) { a.user, a.groups = tokenUser, tokenGroup }),
			inputs: only(), want: denied, reason: v1beta1.RequesterMismatchReason,
		},
	})
}
