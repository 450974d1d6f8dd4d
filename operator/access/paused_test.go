// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/access"
	"github.com/autonode-io/autonode/operator/apply"
)

func TestWhilePaused(t *testing.T) {
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	s, err := clusters.NewScope(ctx, "paused")
	g.Expect(err).NotTo(HaveOccurred())
	clock := testingclock.NewFakePassiveClock(time.Now())
	step := access.New(access.Config{
		Management: management, Live: management, Secrets: management,
		Apply: apply.New(), Clock: clock, TokenLifetime: 30 * time.Minute,
	})
	secret := func(g Gomega) *corev1.Secret {
		secret := &corev1.Secret{}
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: s.ControlPlaneNamespace, Name: v1beta1.GuestAccessSecret}, secret)).To(Succeed())
		return secret
	}

	t.Run("When there is no Secret, it should make none", func(t *testing.T) {
		g := NewWithT(t)
		_, err := step.WhilePaused().Reconcile(ctx, s)
		g.Expect(err).NotTo(HaveOccurred())
		err = management.Get(ctx, client.ObjectKey{Namespace: s.ControlPlaneNamespace, Name: v1beta1.GuestAccessSecret}, &corev1.Secret{})
		g.Expect(err).To(HaveOccurred())
		g.Expect(client.IgnoreNotFound(err)).To(Succeed())
	})

	t.Run("When the token lasts, it should leave even an edited Secret alone", func(t *testing.T) {
		g := NewWithT(t)
		_, err := step.Reconcile(ctx, s)
		g.Expect(err).NotTo(HaveOccurred())
		edited := secret(g)
		edited.Data[access.KubeconfigKey] = []byte("edited")
		g.Expect(management.Update(ctx, edited)).To(Succeed())
		result, err := step.WhilePaused().Reconcile(ctx, s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(BeNumerically("~", 20*time.Minute, time.Minute))
		g.Expect(secret(g).ResourceVersion).To(Equal(edited.ResourceVersion))
	})

	t.Run("When the token would expire, it should renew it", func(t *testing.T) {
		g := NewWithT(t)
		before := string(secret(g).Data[access.TokenKey])
		clock.SetTime(clock.Now().Add(21 * time.Minute))
		_, err := step.WhilePaused().Reconcile(ctx, s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(secret(g).Data[access.TokenKey])).NotTo(Equal(before))
	})
}
