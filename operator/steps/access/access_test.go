// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/clientcmd"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/access"
	"github.com/autonode-io/autonode/operator/steps/featuregate"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

// newAccess returns the step; a zero lifetime is the default.
func newAccess(clock *clocktesting.FakePassiveClock, lifetime time.Duration) *access.Access {
	management := clusters.Management.Client
	return access.New(access.Config{Management: management, Live: management, Secrets: management, Apply: apply.New(), Clock: clock, TokenLifetime: lifetime})
}

func secretOf(ctx context.Context, g Gomega, s *scope.Scope) *corev1.Secret {
	return scopetest.Get(ctx, g, clusters.Management.Client, s.ControlPlaneNamespace, v1beta1.GuestAccessSecret, &corev1.Secret{})
}

func TestAccess(t *testing.T) {
	ctx, s := t.Context(), clusters.NewScope(t, "access")
	clock := clocktesting.NewFakePassiveClock(time.Now())
	step := newAccess(clock, 30*time.Minute)
	secret := func(g Gomega) *corev1.Secret { return secretOf(ctx, g, s) }
	token := func(g Gomega) string { return string(secret(g).Data[access.TokenKey]) }

	t.Run("When there is no Secret, it should make one whose token the guest accepts", func(t *testing.T) {
		g := NewWithT(t)
		result := scopetest.Reconcile(t, step, s)
		g.Expect(result).To(Equal(scope.Result{RequeueAfter: 10 * time.Minute}), "to ask the guest whether it still accepts the token")
		g.Expect(user(ctx, g, token(g))).To(Equal("system:serviceaccount:kube-system:karpenter"))
		g.Expect(metav1.IsControlledBy(secret(g), s.Component)).To(BeTrue())
	})

	t.Run("When the Secret is mounted somewhere, its kubeconfig should find the token beside it and reach the guest", func(t *testing.T) {
		g := NewWithT(t)
		directory := t.TempDir()
		for key, data := range secret(g).Data {
			g.Expect(os.WriteFile(filepath.Join(directory, key), data, 0o600)).To(Succeed())
		}
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		rules.ExplicitPath = filepath.Join(directory, access.KubeconfigKey)
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(config.BearerTokenFile).To(Equal(filepath.Join(directory, access.TokenKey)))
		g.Expect(config.CAFile).To(Equal(filepath.Join(directory, access.CAKey)))
		g.Expect(config.CAData).To(BeEmpty(), "client-go would never read the file again")
		g.Expect(config.CertData).To(BeEmpty(), "the operator's own credentials have no place there")
		karpenter, err := client.New(config, client.Options{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(karpenter.List(ctx, &corev1.NodeList{})).To(Succeed())
		g.Expect(karpenter.List(ctx, &corev1.SecretList{})).To(MatchError(ContainSubstring("forbidden")))
	})

	for name, change := range map[string]func(*corev1.Secret){
		"the token is edited":              func(s *corev1.Secret) { s.Data[access.TokenKey] = []byte("nonsense") },
		"the token's signature is broken":  func(s *corev1.Secret) { s.Data[access.TokenKey] = breakSignature(s.Data[access.TokenKey]) },
		"the annotation of expiry is gone": func(s *corev1.Secret) { delete(s.Annotations, v1beta1.TokenExpiresAtAnnotation) },
		"the token seems to expire soon": func(s *corev1.Secret) {
			s.Annotations[v1beta1.TokenExpiresAtAnnotation] = time.Now().Add(time.Minute).UTC().Format(time.RFC3339)
		},
		"the CA is edited":         func(s *corev1.Secret) { s.Data[access.CAKey] = []byte("nonsense") },
		"the kubeconfig is edited": func(s *corev1.Secret) { s.Data[access.KubeconfigKey] = []byte("nonsense") },
	} {
		t.Run("When "+name+", it should put things right", func(t *testing.T) {
			g := NewWithT(t)
			kubeconfig, ca := secret(g).Data[access.KubeconfigKey], secret(g).Data[access.CAKey]
			edited := secret(g)
			change(edited)
			g.Expect(clusters.Management.Client.Update(ctx, edited)).To(Succeed())
			scopetest.Reconcile(t, step, s)
			healed := secret(g)
			g.Expect(healed.Data[access.KubeconfigKey]).To(Equal(kubeconfig))
			g.Expect(healed.Data[access.CAKey]).To(Equal(ca))
			g.Expect(user(ctx, g, string(healed.Data[access.TokenKey]))).To(Equal("system:serviceaccount:kube-system:karpenter"))
			g.Expect(time.Parse(time.RFC3339, healed.Annotations[v1beta1.TokenExpiresAtAnnotation])).To(BeTemporally(">", time.Now().Add(10*time.Minute)))
		})
	}

	t.Run("When a feature gate is in use, it should grant what that needs, and withdraw it afterwards", func(t *testing.T) {
		g := NewWithT(t)
		buffers := HaveField("Resources", ContainElement("capacitybuffers"))
		role := func() *rbacv1.ClusterRole {
			return scopetest.Get(ctx, g, clusters.Guest.Client, "", "autonode:karpenter", &rbacv1.ClusterRole{})
		}
		with, without := *s, *s
		with.FeatureGates, without.FeatureGates = &scope.FeatureGates{InUse: sets.New(featuregate.CapacityBuffer)}, nil
		scopetest.Reconcile(t, step, &with)
		g.Expect(role().Rules).To(ContainElement(buffers))
		_, err := step.Reconcile(ctx, &without)
		g.Expect(err).To(MatchError(ContainSubstring("the feature gates aren't known")))
		g.Expect(role().Rules).To(ContainElement(buffers), "nothing is withdrawn for want of knowing")
		scopetest.Reconcile(t, step, s)
		g.Expect(role().Rules).NotTo(ContainElement(buffers))
	})

	t.Run("When the ServiceAccount is recreated, it should replace the token of the old one", func(t *testing.T) {
		g := NewWithT(t)
		before := token(g)
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter"}}
		g.Expect(clusters.Guest.Client.Delete(ctx, account)).To(Succeed())
		scopetest.Reconcile(t, step, s)
		g.Expect(token(g)).NotTo(Equal(before))
		g.Expect(user(ctx, g, token(g))).NotTo(BeEmpty())
	})
}

func TestOperatorAway(t *testing.T) {
	t.Run("When the operator goes away at any moment, Karpenter should have a token for six hours more", func(t *testing.T) {
		g, ctx, s := NewWithT(t), t.Context(), clusters.NewScope(t, "operator-away")
		start := time.Now()
		clock := clocktesting.NewFakePassiveClock(start)
		step := newAccess(clock, 0)
		renewed, last := 0, ""
		for clock.Since(start) < 12*time.Hour {
			result := scopetest.Reconcile(t, step, s)
			secret := secretOf(ctx, g, s)
			token := string(secret.Data[access.TokenKey])
			if token != last {
				renewed, last = renewed+1, token
				g.Expect(user(ctx, g, token)).To(Equal("system:serviceaccount:kube-system:karpenter"))
			}
			expires, err := time.Parse(time.RFC3339, secret.Annotations[v1beta1.TokenExpiresAtAnnotation])
			g.Expect(err).NotTo(HaveOccurred())
			// It would have looked again then, and is gone.
			away := clock.Now().Add(result.RequeueAfter)
			g.Expect(expires.Sub(away)).To(BeNumerically(">", 6*time.Hour))
			clock.SetTime(away)
		}
		g.Expect(renewed).To(BeNumerically("<=", 13), "a thousand guests are asked each time")
	})
}

// issuing counts the tokens that the guest issues.
func issuing(tokens *int) func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption) error {
	return func(ctx context.Context, c client.Client, sub string, obj, answer client.Object, opts ...client.SubResourceCreateOption) error {
		*tokens++
		return c.SubResource(sub).Create(ctx, obj, answer, opts...)
	}
}

// Skew is simulated from the operator's side: a guest whose clock is behind is one whose operator's clock is ahead.
func TestClockSkew(t *testing.T) {
	for name, ahead := range map[string]time.Duration{
		"the guest's clock is two hours behind": 2 * time.Hour, "the guest's clock is two hours ahead": -2 * time.Hour, "both clocks are right": 0,
	} {
		t.Run("When "+name+", it should renew the token after two thirds of its lifetime, and not before", func(t *testing.T) {
			g, ctx, s := NewWithT(t), t.Context(), clusters.NewScope(t, fmt.Sprintf("skew-%d", ahead/time.Hour+2))
			clock := clocktesting.NewFakePassiveClock(time.Now().Add(ahead))
			step := newAccess(clock, 30*time.Minute)
			reconcile := func(requeueAfter time.Duration) *corev1.Secret {
				g.Expect(scopetest.Reconcile(t, step, s).RequeueAfter).To(BeNumerically("~", requeueAfter, 5*time.Second))
				return secretOf(ctx, g, s)
			}
			first := reconcile(10 * time.Minute)
			g.Expect(user(ctx, g, string(first.Data[access.TokenKey]))).NotTo(BeEmpty())
			expires, err := time.Parse(time.RFC3339, first.Annotations[v1beta1.TokenExpiresAtAnnotation])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(expires).To(BeTemporally("~", clock.Now().Add(30*time.Minute), 5*time.Second), "by the operator's clock")

			g.Expect(reconcile(10 * time.Minute).ResourceVersion).To(Equal(first.ResourceVersion))
			step = newAccess(clock, 30*time.Minute)
			g.Expect(reconcile(10*time.Minute).ResourceVersion).To(Equal(first.ResourceVersion), "after a restart, too")
			clock.SetTime(clock.Now().Add(19 * time.Minute))
			g.Expect(reconcile(time.Minute).ResourceVersion).To(Equal(first.ResourceVersion))
			clock.SetTime(clock.Now().Add(2 * time.Minute))
			g.Expect(reconcile(10 * time.Minute).Data[access.TokenKey]).NotTo(Equal(first.Data[access.TokenKey]))
		})
	}

	for name, set := range map[string]time.Duration{"back": -24 * time.Hour, "forward": 24 * time.Hour} {
		t.Run("When the operator's clock is set "+name+" a day, it should measure again, once", func(t *testing.T) {
			g, s := NewWithT(t), clusters.NewScope(t, "set-"+name)
			clock := clocktesting.NewFakePassiveClock(time.Now())
			asked := 0
			s.Guest.Live = interceptor.NewClient(watching(g), interceptor.Funcs{SubResourceCreate: issuing(&asked)})
			step := newAccess(clock, 0)
			for _, now := range []time.Time{clock.Now(), clock.Now(), clock.Now().Add(set), clock.Now().Add(set), clock.Now().Add(set)} {
				clock.SetTime(now)
				scopetest.Reconcile(t, step, s)
			}
			g.Expect(asked).To(Equal(2))
		})
	}

	t.Run("When the guest refuses what it has just issued, it should say so instead of asking again and again", func(t *testing.T) {
		g, s := NewWithT(t), clusters.NewScope(t, "refused")
		clock := clocktesting.NewFakePassiveClock(time.Now())
		asked := 0
		s.Guest.Live = interceptor.NewClient(watching(g), interceptor.Funcs{
			SubResourceCreate: issuing(&asked),
			// Another of its API servers answers, whose clock is behind.
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				if review, ok := obj.(*authenticationv1.TokenReview); ok {
					review.Status = authenticationv1.TokenReviewStatus{Error: "token is not valid yet\n\x1b[2J" + strings.Repeat("!", 5000)}
					return nil
				}
				return c.Create(ctx, obj, opts...)
			},
		})
		step := newAccess(clock, 0)
		scopetest.Reconcile(t, step, s)
		for range 3 {
			_, err := step.Reconcile(t.Context(), s)
			g.Expect(err).To(MatchError(And(ContainSubstring(`"token is not valid yet\n\x1b[2J!`), ContainSubstring("same time and the same signing keys"))))
			g.Expect(len(err.Error())).To(BeNumerically("<", 500), "what a guest reports is quoted and cut")
		}
		g.Expect(asked).To(Equal(1))
		clock.SetTime(clock.Now().Add(2 * time.Minute))
		scopetest.Reconcile(t, step, s)
		g.Expect(asked).To(Equal(2), "some time later another one may do")
	})
}

func TestReview(t *testing.T) {
	t.Run("When a token stays, it should have the guest review it every ten minutes, and not in each pass", func(t *testing.T) {
		g, s := NewWithT(t), clusters.NewScope(t, "review")
		clock := clocktesting.NewFakePassiveClock(time.Now())
		reviews := 0
		s.Guest.Live = interceptor.NewClient(watching(g), interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
				if _, ok := obj.(*authenticationv1.TokenReview); ok {
					reviews++
				}
				return c.Create(ctx, obj, opts...)
			},
		})
		step := newAccess(clock, 0)
		scopetest.Reconcile(t, step, s) // which issues it
		for _, pass := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {9 * time.Minute, 1}, {time.Minute, 2}, {time.Minute, 2}} {
			clock.SetTime(clock.Now().Add(pass.after))
			scopetest.Reconcile(t, step, s)
			g.Expect(reviews).To(Equal(pass.want), "%s later", pass.after)
		}
	})
}

func TestRole(t *testing.T) {
	scopetest.Reconcile(t, newAccess(clocktesting.NewFakePassiveClock(time.Now()), 0), clusters.NewScope(t, "role"))

	expectAccess(t, "Karpenter", []ask{
		{"list", "", "pods", "", "", true},
		{"create", "", "pods/eviction", "", "shop", true},
		{"delete", "", "pods", "", "shop", true},
		{"patch", "", "nodes", "", "", true},
		{"delete", "", "nodes", "", "", true},
		{"create", "", "events", "", "default", true},
		{"watch", "policy", "poddisruptionbudgets", "", "", true},
		{"watch", "storage.k8s.io", "csinodes", "", "", true},
		{"create", "karpenter.sh", "nodeclaims", "", "", true},
		{"patch", "karpenter.sh", "nodeclaims/status", "", "", true},
		{"update", "karpenter.sh", "nodeclaims/finalizers", "", "", true},
		{"patch", "karpenter.sh", "nodepools/status", "", "", true},
		{"patch", "karpenter.cluster.x-k8s.io", "clusterapinodeclasses/status", "", "", true},

		{"list", "", "services", "", "", false},
		{"list", "apps", "replicasets", "", "", false},
		{"create", "", "pods", "", "shop", false},
		{"create", "", "nodes", "", "", false},
		{"update", "karpenter.sh", "nodeclaims", "", "", false},
		{"get", "", "secrets", "", "kube-system", false},
		{"get", "", "configmaps", "", "kube-system", false},
		{"create", "", "serviceaccounts/token", "", "kube-system", false},
		{"create", "karpenter.sh", "nodepools", "", "", false},
		{"delete", "karpenter.sh", "nodepools", "", "", false},
		{"delete", "karpenter.cluster.x-k8s.io", "clusterapinodeclasses", "", "", false},
		{"get", "apiextensions.k8s.io", "customresourcedefinitions", "", "", false},
		{"create", "rbac.authorization.k8s.io", "clusterrolebindings", "", "", false},
		{"update", "coordination.k8s.io", "leases", "", "kube-node-lease", false},
		{"get", "coordination.k8s.io", "leases", "", "kube-system", false},
	})
}

func TestRoleOfDefaultSpread(t *testing.T) {
	t.Run("When pods spread by default, Karpenter should be allowed to read what selects them, and no longer than that", func(t *testing.T) {
		g, ctx, s, management := NewWithT(t), t.Context(), clusters.NewScope(t, "spread"), clusters.Management.Client
		for _, spreads := range []bool{true, false} {
			step := access.New(access.Config{
				Management: management, Live: management, Secrets: management, Apply: apply.New(), Clock: clocktesting.NewFakePassiveClock(time.Now()), SpreadsByDefault: spreads,
			})
			scopetest.Reconcile(t, step, s)
			for _, resource := range [][2]string{{"", "services"}, {"", "replicationcontrollers"}, {"apps", "replicasets"}, {"apps", "statefulsets"}} {
				for _, verb := range []string{"list", "watch"} {
					g.Eventually(func(g Gomega) { g.Expect(allowed(ctx, g, verb, resource[0], resource[1], "", "")).To(Equal(spreads)) }).Should(Succeed())
				}
				g.Expect(allowed(ctx, g, "patch", resource[0], resource[1], "", "shop")).To(BeFalse())
			}
		}
	})
}

// watching is a client of the guest that an interceptor takes.
func watching(g Gomega) client.WithWatch {
	guest, err := client.NewWithWatch(clusters.Guest.Config, client.Options{Scheme: clusters.Guest.Client.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	return guest
}

// user returns the guest's user of a token, or "". It asks on behalf of the API server, or of the audiences given.
func user(ctx context.Context, g Gomega, token string, audiences ...string) string {
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}
	g.Expect(clusters.Guest.Client.Create(ctx, review)).To(Succeed())
	return review.Status.User.Username
}

// breakSignature keeps the claims.
func breakSignature(token []byte) []byte {
	broken := slices.Clone(token)
	slices.Reverse(broken[len(broken)-20:])
	return broken
}
