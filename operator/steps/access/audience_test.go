// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/steps/access"
)

const awsToken = "aws-token"

// TestAudience has a provider that needs a token for another audience than the guest.
func TestAudience(t *testing.T) {
	ctx, management, s := t.Context(), clusters.Management.Client, clusters.NewScope(t, "audience")
	s.Profile, s.HostedCluster.Spec.AutoNode = aws.New(), scopetest.AWS()
	clock := clocktesting.NewFakePassiveClock(time.Now())
	step := newAccess(clock, 30*time.Minute)
	secret := func(g Gomega) *corev1.Secret { return secretOf(ctx, g, s) }
	token := func(g Gomega, key string) string { return string(secret(g).Data[key]) }

	t.Run("When the provider requires a token for AWS, it should make one that is for AWS alone, beside the guest's", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(scopetest.Reconcile(t, step, s).RequeueAfter).To(BeNumerically("<=", 20*time.Minute))
		g.Expect(claimsOf(g, token(g, awsToken))).To(And(
			HaveKeyWithValue("aud", ConsistOf("sts.amazonaws.com")), HaveKeyWithValue("sub", "system:serviceaccount:kube-system:karpenter"),
		))
		g.Expect(user(ctx, g, token(g, access.TokenKey))).To(Equal("system:serviceaccount:kube-system:karpenter"))
		g.Expect(user(ctx, g, token(g, awsToken))).To(BeEmpty(), "the guest's API server isn't who it is for")
		g.Expect(user(ctx, g, token(g, awsToken), "sts.amazonaws.com")).To(Equal("system:serviceaccount:kube-system:karpenter"))
		g.Expect(user(ctx, g, token(g, access.TokenKey), "sts.amazonaws.com")).To(BeEmpty())
		g.Expect(string(secret(g).Data[access.KubeconfigKey])).NotTo(ContainSubstring(awsToken))
	})

	t.Run("When a third of their lifetime is left, it should renew both", func(t *testing.T) {
		g := NewWithT(t)
		before := secret(g)
		clock.SetTime(clock.Now().Add(19 * time.Minute))
		scopetest.Reconcile(t, step, s)
		g.Expect(secret(g).Data).To(Equal(before.Data))
		clock.SetTime(clock.Now().Add(2 * time.Minute))
		scopetest.Reconcile(t, step, s)
		for _, key := range []string{access.TokenKey, awsToken} {
			g.Expect(secret(g).Data[key]).NotTo(Equal(before.Data[key]), key)
		}
		clock.SetTime(time.Now())
		scopetest.Reconcile(t, step, s) // which sees that a clock was set
	})

	for name, change := range map[string]func(*corev1.Secret){
		"is missing":                    func(s *corev1.Secret) { delete(s.Data, awsToken) },
		"is nonsense":                   func(s *corev1.Secret) { s.Data[awsToken] = []byte("nonsense") },
		"has a broken signature":        func(s *corev1.Secret) { s.Data[awsToken] = breakSignature(s.Data[awsToken]) },
		"is for the guest's API server": func(s *corev1.Secret) { s.Data[awsToken] = s.Data[access.TokenKey] },
	} {
		t.Run("When the token for AWS "+name+", it should replace it and keep the other", func(t *testing.T) {
			g := NewWithT(t)
			before := token(g, access.TokenKey)
			edited := secret(g)
			change(edited)
			g.Expect(management.Update(ctx, edited)).To(Succeed())
			scopetest.Reconcile(t, step, s)
			g.Expect(user(ctx, g, token(g, awsToken), "sts.amazonaws.com")).To(Equal("system:serviceaccount:kube-system:karpenter"))
			g.Expect(token(g, access.TokenKey)).To(Equal(before))
		})
	}

	expectAccess(t, "Karpenter for AWS", []ask{
		{"create", "karpenter.sh", "nodeclaims", "", "", true},
		{"watch", "karpenter.k8s.aws", "ec2nodeclasses", "", "", true},
		{"patch", "karpenter.k8s.aws", "ec2nodeclasses/status", "", "", true},
		{"create", "coordination.k8s.io", "leases", "", "kube-system", true},
		{"update", "coordination.k8s.io", "leases", "karpenter-leader-election", "kube-system", true},
		{"get", "", "services", "kube-dns", "kube-system", true},
		{"update", "coordination.k8s.io", "leases", "kube-scheduler", "kube-system", false},
		{"update", "coordination.k8s.io", "leases", "karpenter-leader-election", "kube-node-lease", false},
		{"delete", "karpenter.k8s.aws", "ec2nodeclasses", "", "", false},
		{"get", "karpenter.cluster.x-k8s.io", "clusterapinodeclasses", "", "", false},
		{"get", "", "secrets", "", "kube-system", false},
		{"create", "", "serviceaccounts/token", "karpenter", "kube-system", false},
	})

	t.Run("When AutoNode is turned off, it should take the right to launch nodes, and give it back when it is turned on again", func(t *testing.T) {
		g := NewWithT(t)
		may := func(verb string) func(Gomega) bool {
			return func(g Gomega) bool { return allowed(ctx, g, verb, "karpenter.sh", "nodeclaims", "", "") }
		}
		s.HostedCluster.Spec.AutoNode = nil
		scopetest.Reconcile(t, step, s)
		g.Eventually(may("create")).Should(BeFalse())
		g.Expect(may("delete")(g)).To(BeTrue())
		g.Expect(may("patch")(g)).To(BeTrue())
		s.HostedCluster.Spec.AutoNode = scopetest.AWS()
		scopetest.Reconcile(t, step, s)
		g.Eventually(may("create")).Should(BeTrue())
	})
}

func claimsOf(g Gomega, token string) map[string]any {
	parts := strings.Split(token, ".")
	g.Expect(parts).To(HaveLen(3))
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	g.Expect(err).NotTo(HaveOccurred())
	claims := map[string]any{}
	g.Expect(json.Unmarshal(payload, &claims)).To(Succeed())
	return claims
}

// ask is a question to the guest of what Karpenter may do.
type ask struct {
	verb, group, resource, name, namespace string // resource/subresource
	want                                   bool
}

// expectAccess asks each in a subtest: a role is in force a moment after it was made.
func expectAccess(t *testing.T, who string, asks []ask) {
	t.Helper()
	for _, ask := range asks {
		verb := map[bool]string{false: "refuse", true: "allow"}[ask.want]
		t.Run("When "+who+" tries to "+ask.verb+" "+ask.resource+" "+ask.name+" in "+ask.namespace+", the guest should "+verb+" it", func(t *testing.T) {
			NewWithT(t).Eventually(func(g Gomega) {
				g.Expect(allowed(t.Context(), g, ask.verb, ask.group, ask.resource, ask.name, ask.namespace)).To(Equal(ask.want))
			}).Should(Succeed())
		})
	}
}

// allowed checks with the guest what Karpenter may do.
func allowed(ctx context.Context, g Gomega, verb, group, resource, name, namespace string) bool {
	resource, subresource, _ := strings.Cut(resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:   "system:serviceaccount:kube-system:karpenter",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: group, Resource: resource, Subresource: subresource, Name: name, Namespace: namespace,
		},
	}}
	g.Expect(clusters.Guest.Client.Create(ctx, review)).To(Succeed())
	return review.Status.Allowed
}
