// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/steps/policy"
)

// naming is a guest that calls the operator by a name of its own.
type naming struct {
	client.Client
	name string
}

func (n naming) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	if review, ok := object.(*authenticationv1.SelfSubjectReview); ok {
		review.Status.UserInfo.Username = n.name
		return nil
	}
	return n.Client.Create(ctx, object, options...)
}

func TestUser(t *testing.T) {
	for name, user := range map[string]string{"a name of a megabyte": strings.Repeat("x", 1<<20), "terminal escapes": "\x1b[2J"} {
		t.Run("When a guest reports that the operator is "+name+", it should quote that, and render no policy with it", func(t *testing.T) {
			g, s := NewWithT(t), clusters.NewScope(t, "named")
			s.Guest.Live = naming{s.Guest.Live, user}
			_, err := policy.New(policy.Config{Apply: apply.New()}).Reconcile(t.Context(), s)
			g.Expect(err).To(MatchError(ContainSubstring("which isn't a name")))
			g.Expect(len(err.Error())).To(BeNumerically("<", 500))
			g.Expect(err.Error()).NotTo(ContainSubstring("\x1b"))
		})
	}
}
