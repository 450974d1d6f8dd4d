// SPDX-License-Identifier: Apache-2.0

package bootstraptoken_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/bootstraptoken"
)

// guest answers creations with errors, as many as there are, and then takes what it gets.
type guest struct {
	client.Writer
	errs []error
	made []*corev1.Secret
}

// Create implements client.Writer.
func (g *guest) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	if len(g.errs) > 0 {
		err := g.errs[0]
		g.errs = g.errs[1:]
		return err
	}
	secret, ok := object.(*corev1.Secret)
	if !ok {
		return errors.New("not a Secret")
	}
	g.made = append(g.made, secret)
	return nil
}

func TestGroups(t *testing.T) {
	t.Run("When an API server reads a token's groups, it should accept each of them", func(t *testing.T) {
		for group := range strings.SplitSeq(v1alpha1.BootstrapTokenGroups, ",") {
			NewWithT(t).Expect(bootstraputil.ValidateBootstrapGroupName(group)).To(Succeed())
		}
	})
}

func TestMint(t *testing.T) {
	taken := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, "bootstrap-token-abcdef")
	clock := clocktesting.NewFakePassiveClock(time.Now())

	t.Run("When a token is minted, its parts should be in the Secret, and no two should be the same", func(t *testing.T) {
		g := NewWithT(t)
		made := &guest{}
		minter := bootstraptoken.Minter{Guest: made, Clock: clock}
		for range 2 {
			token, err := minter.Mint(t.Context(), "web-1", bootstraptoken.Lifetime)
			g.Expect(err).NotTo(HaveOccurred())
			secret := made.made[len(made.made)-1]
			g.Expect(string(secret.Data["token-id"]) + "." + string(secret.Data["token-secret"])).To(Equal(token))
			id, ok := bootstraptoken.ID(token)
			g.Expect(ok).To(BeTrue())
			g.Expect(secret.Name).To(Equal("bootstrap-token-" + id))
		}
		g.Expect(made.made[0].Name).NotTo(Equal(made.made[1].Name))
	})

	t.Run("When the ID is taken, it should try another one", func(t *testing.T) {
		g := NewWithT(t)
		made := &guest{errs: []error{taken, taken}}
		_, err := bootstraptoken.Minter{Guest: made, Clock: clock}.Mint(t.Context(), "web-1", bootstraptoken.Lifetime)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(made.made).To(HaveLen(1))
	})

	for name, errs := range map[string][]error{
		"every ID is taken":    {taken, taken, taken},
		"the guest is away":    {errors.New("connection refused")},
		"the guest forbids it": {apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", nil)},
	} {
		t.Run("When "+name+", it should say so and mint nothing", func(t *testing.T) {
			g := NewWithT(t)
			made := &guest{errs: errs}
			_, err := bootstraptoken.Minter{Guest: made, Clock: clock}.Mint(t.Context(), "web-1", bootstraptoken.Lifetime)
			g.Expect(err).To(MatchError(ContainSubstring("creating the Secret of a bootstrap token in the guest")))
			g.Expect(made.made).To(BeEmpty())
		})
	}
}

func TestID(t *testing.T) {
	for _, token := range []string{"", "abcdef", "abcdef.", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcdef.x", " abcdef.0123456789abcdef"} {
		t.Run("When "+token+" is no token, it should have no ID", func(t *testing.T) {
			_, ok := bootstraptoken.ID(token)
			NewWithT(t).Expect(ok).To(BeFalse())
		})
	}
}
