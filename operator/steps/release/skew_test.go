// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/payload"
)

func TestSkew(t *testing.T) {
	ctx := t.Context()
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(apiextensionsv1.AddToScheme(scheme)).To(Succeed())
	server := fake.NewClientBuilder().WithScheme(scheme).Build()
	s := scopeOf("registry.example/release:1.36.3")
	s.Guest = &scope.Guest{Cached: server, Live: server, Config: &rest.Config{}, Complete: true}
	s.Release, s.Karpenter = &payload.Release{Version: "1.36.3", Digest: "sha256:1363"}, payload.Component{Versions: map[string]string{payload.KubernetesVersion: "1.36.3"}}
	clock := clocktesting.NewFakePassiveClock(time.Now())
	version, asked, down := "v1.36.3", 0, error(nil)
	checker := func() *skew {
		return newSkew(guest.NewVersions(clock, func(context.Context, *rest.Config) (string, error) { asked++; return version, down }), clock)
	}
	check := func(c *skew, nodes string, crds ...*apiextensionsv1.CustomResourceDefinition) error {
		return c.check(ctx, s, s.Release, payload.Component{Name: "karpenter-clusterapi", Versions: map[string]string{payload.KubernetesVersion: nodes}, CRDs: crds})
	}
	refused := func(reason, message string) error {
		return &failedError{reason: reason, message: message, retryAfter: recheck}
	}

	for name, test := range map[string]struct{ nodes, server, want string }{
		"When both are the same, it should fit":                                         {"1.36.3", "v1.36.3", ""},
		"When nodes are a patch ahead, they should wait, which fits":                    {"1.36.4", "v1.36.3", ""},
		"When nodes are a minor version ahead, they should wait, which fits":            {"1.37.0", "v1.36.3+k3s1", ""},
		"When nodes are two minor versions ahead, it should be refused":                 {"1.38.0", "v1.36.3", "release 1.36.3: its nodes run Kubernetes 1.38.0, and the guest's API server, now at 1.36.3, has to reach 1.37 before; upgrade the control plane one minor version at a time, or choose a payload of 1.37 at most"},
		"When nodes are three minor versions behind, it should fit":                     {"1.33.0", "v1.36.3", ""},
		"When nodes are four minor versions behind, it should be refused":               {"1.32.9", "v1.36.0", "release 1.36.3: its nodes run Kubernetes 1.32.9, more than 3 minor versions behind the guest's API server at 1.36.0; choose a payload of 1.33 at least"},
		"When the major version is another, it should be refused":                       {"2.0.0", "v1.36.3", "release 1.36.3: its nodes run Kubernetes 2.0.0 and the guest's API server 1.36.3, which is another major version; choose a payload for that"},
		"When the API server's version can't be understood, that should refuse nothing": {"1.36.3", "unversioned", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			version = test.server
			if err := check(checker(), test.nodes); test.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(Equal(refused(v1beta1.VersionSkewReason, test.want)))
			}
		})
	}

	t.Run("When the guest has stored what the payload doesn't define, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		version = "v1.36.3"
		definition := func(versions ...string) *apiextensionsv1.CustomResourceDefinition {
			d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "things.skew.example.com"}}
			for _, version := range versions {
				d.Spec.Versions = append(d.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: version})
			}
			return d
		}
		stored := definition("v2", "v1")
		stored.Status.StoredVersions = []string{"v2"}
		g.Expect(server.Create(ctx, stored)).To(Succeed())
		g.Expect(check(checker(), "1.36.3", definition("v1"))).To(Equal(refused(v1beta1.StoredVersionMissingReason,
			"release 1.36.3: CustomResourceDefinition things.skew.example.com in the guest stores v2, which the release doesn't define; choose one that does")))
		g.Expect(check(checker(), "1.36.3", definition("v1", "v2"))).To(Succeed())
	})

	t.Run("When a payload fitted, it should be checked again only after a while, and a failure then change nothing", func(t *testing.T) {
		g := NewWithT(t)
		version = "v1.36.3"
		c := checker()
		g.Expect(check(c, "1.36.3")).To(Succeed())
		before := asked
		g.Expect(check(c, "1.36.3")).To(Succeed())
		g.Expect(asked).To(Equal(before))
		clock.SetTime(clock.Now().Add(recheck))
		down = errors.New("connection refused")
		g.Expect(check(c, "1.36.3")).To(Succeed())
		g.Expect(asked).To(Equal(before + 1))
		down, version = nil, "v1.40.0"
		g.Expect(check(c, "1.36.3")).NotTo(Succeed())
		version = "v1.39.0"
		clock.SetTime(clock.Now().Add(recheck))
		g.Expect(check(c, "1.36.3")).To(Succeed(), "the control plane may have been upgraded")
	})

	t.Run("When nothing is known and the API server can't be asked, it should be an error and no decision", func(t *testing.T) {
		g := NewWithT(t)
		down = errors.New("connection refused")
		defer func() { down = nil }()
		g.Expect(checker().check(ctx, s, s.Release, s.Karpenter)).To(MatchError(ContainSubstring("connection refused")))
	})
}
