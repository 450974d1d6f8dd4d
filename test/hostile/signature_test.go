// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator"
	"github.com/autonode-io/autonode/payload"
	"github.com/autonode-io/autonode/payload/payloadtest"
)

// TestSignatures is the operator of a registry that serves a payload which the platform didn't build.
func TestSignatures(t *testing.T) {
	const label = "hostile-signatures"
	g, ctx := NewWithT(t), t.Context()
	platform, stranger := payloadtest.Key(t), payloadtest.Key(t)
	file := filepath.Join(t.TempDir(), "payload.pub")
	g.Expect(os.WriteFile(file, payloadtest.PublicPEM(t, platform), 0o600)).To(Succeed())
	serve := func(t *testing.T, policy string) {
		until, stop := context.WithCancel(ctx)
		serveUntil(t, until, clusters.Management.Config, label, func(options *operator.Options) {
			options.PayloadSignatures, options.PayloadKeysFile = policy, file
		})
		t.Cleanup(stop)
	}
	served := func(t *testing.T) (tag, digest string) {
		tag = servePayload(t)
		digest, err := payload.Resolve(ctx, tag, payload.Options{})
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return tag, digest
	}
	hostedWith := func(t *testing.T, name, image string) *v1beta1.HostedCluster {
		controlPlane(t, client.ObjectKey{Namespace: "signatures-" + name, Name: name}, "signatures/"+name, guestKubeconfig(t))
		return hosted(t, "signatures", name, label, func(h *v1beta1.HostedCluster) { h.Spec.Release.Image = image })
	}

	t.Run("When the platform enforces signatures, it should reject a payload with a stranger's, and use one with its own", func(t *testing.T) {
		g := NewWithT(t)
		serve(t, operator.SignaturesEnforce)
		foreign, digest := served(t)
		payloadtest.SignWith(t, digest, stranger)
		g.Eventually(condition(t, hostedWith(t, "foreign", foreign), v1beta1.ReleaseResolved)).Should(
			And(HavePrefix("False/PayloadUnsigned: "), ContainSubstring("none of its signatures is by a key that the platform trusts")))
		own, digest := served(t)
		payloadtest.SignWith(t, digest, platform)
		g.Eventually(condition(t, hostedWith(t, "own", own), v1beta1.ReleaseResolved)).Should(HavePrefix("True/AsExpected: "))
	})

	t.Run("When the platform only warns, ReleaseResolved should report an unsigned payload, which is used", func(t *testing.T) {
		g := NewWithT(t)
		serve(t, operator.SignaturesWarn)
		tag, _ := served(t)
		g.Eventually(condition(t, hostedWith(t, "unsigned", tag), v1beta1.ReleaseResolved)).Should(
			And(HavePrefix("True/PayloadUnsigned: "), HaveSuffix("it has no signature by a key that the platform trusts; sign it")))
		g.Eventually(func(g Gomega) {
			events := &eventsv1.EventList{}
			g.Expect(clusters.Management.Client.List(ctx, events, client.InNamespace("signatures"))).To(Succeed())
			g.Expect(slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
				return e.Regarding.Name == "unsigned" && e.Reason == v1beta1.PayloadUnsignedReason && e.Type == corev1.EventTypeWarning
			})).To(BeTrue(), "an event should warn of it")
		}).Should(Succeed())
	})
}
