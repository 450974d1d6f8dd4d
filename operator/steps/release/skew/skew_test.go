// SPDX-License-Identifier: Apache-2.0

package skew_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/scope/scopetest"
	"github.com/autonode-io/autonode/operator/steps/release/skew"
	"github.com/autonode-io/autonode/payload"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

func TestMisfit(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	s, err := clusters.NewScope(ctx, "skew")
	g.Expect(err).NotTo(HaveOccurred())
	clock := testingclock.NewFakePassiveClock(time.Now())
	server, asked, down := "v1.36.3", 0, error(nil)
	newChecker := func() *skew.Checker {
		return skew.New(skew.Config{Clock: clock, Versions: guest.NewVersions(clock, func(context.Context, *rest.Config) (string, error) { asked++; return server, down })})
	}
	check := func(g Gomega, checker *skew.Checker, nodes string, crds ...*apiextensionsv1.CustomResourceDefinition) *skew.Misfit {
		component := payload.Component{Name: "karpenter-clusterapi", Versions: map[string]string{payload.KubernetesVersion: nodes}, CRDs: crds}
		misfit, err := checker.Misfit(ctx, s, s.Release, component)
		g.Expect(err).NotTo(HaveOccurred())
		return misfit
	}

	for name, test := range map[string]struct{ nodes, server, want string }{
		"When both are the same, it should fit":                                         {"1.36.3", "v1.36.3", ""},
		"When nodes are a patch ahead, they should wait, which fits":                    {"1.36.4", "v1.36.3", ""},
		"When nodes are a minor version ahead, they should wait, which fits":            {"1.37.0", "v1.36.3+k3s1", ""},
		"When nodes are two minor versions ahead, it should be refused":                 {"1.38.0", "v1.36.3", "payload 1.36.3: its nodes run Kubernetes 1.38.0, and the guest's API server, now at 1.36.3, has to reach 1.37 before; upgrade the control plane one minor version at a time, or choose a payload of 1.37 at most"},
		"When nodes are three minor versions behind, it should fit":                     {"1.33.0", "v1.36.3", ""},
		"When nodes are four minor versions behind, it should be refused":               {"1.32.9", "v1.36.0", "payload 1.36.3: its nodes run Kubernetes 1.32.9, more than 3 minor versions behind the guest's API server at 1.36.0; choose a payload of 1.33 at least"},
		"When the major version is another, it should be refused":                       {"2.0.0", "v1.36.3", "payload 1.36.3: its nodes run Kubernetes 2.0.0 and the guest's API server 1.36.3, which is another major version; choose a payload for that"},
		"When the API server's version can't be understood, that should refuse nothing": {"1.36.3", "unversioned", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server = test.server
			misfit := check(g, newChecker(), test.nodes)
			if test.want == "" {
				g.Expect(misfit).To(BeNil())
				return
			}
			g.Expect(misfit).To(Equal(&skew.Misfit{Reason: v1beta1.VersionSkewReason, Message: test.want}))
		})
	}

	t.Run("When the guest has stored what the payload doesn't define, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		server = "v1.36.3"
		definition := func(versions ...string) *apiextensionsv1.CustomResourceDefinition {
			d := &apiextensionsv1.CustomResourceDefinition{
				ObjectMeta: metav1.ObjectMeta{Name: "things.skew.example.com"},
				Spec: apiextensionsv1.CustomResourceDefinitionSpec{
					Group: "skew.example.com", Scope: apiextensionsv1.ClusterScoped,
					Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: "Thing", ListKind: "ThingList", Plural: "things", Singular: "thing"},
				},
			}
			for i, version := range versions {
				d.Spec.Versions = append(d.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
					Name: version, Served: true, Storage: i == 0,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}},
				})
			}
			return d
		}
		g.Expect(clusters.Guest.Client.Create(ctx, definition("v2", "v1"))).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(check(g, newChecker(), "1.36.3", definition("v1"))).To(Equal(&skew.Misfit{
				Reason:  v1beta1.StoredVersionMissingReason,
				Message: "payload 1.36.3: CustomResourceDefinition things.skew.example.com in the guest stores v2, which the payload doesn't define; choose a payload that does",
			}))
		}).Should(Succeed())
		g.Expect(check(g, newChecker(), "1.36.3", definition("v1", "v2"))).To(BeNil())
	})

	t.Run("When a payload fitted, it should be checked again only after a while, and a failure then change nothing", func(t *testing.T) {
		g := NewWithT(t)
		server = "v1.36.3"
		checker := newChecker()
		g.Expect(check(g, checker, "1.36.3")).To(BeNil())
		before := asked
		g.Expect(check(g, checker, "1.36.3")).To(BeNil())
		g.Expect(asked).To(Equal(before))
		clock.SetTime(clock.Now().Add(skew.Recheck))
		down = errors.New("connection refused")
		g.Expect(check(g, checker, "1.36.3")).To(BeNil())
		g.Expect(asked).To(Equal(before + 1))
		down, server = nil, "v1.40.0"
		g.Expect(check(g, checker, "1.36.3")).NotTo(BeNil())
		server = "v1.39.0"
		clock.SetTime(clock.Now().Add(skew.Recheck))
		g.Expect(check(g, checker, "1.36.3")).To(BeNil(), "the control plane may have been upgraded")
	})

	t.Run("When nothing is known and the API server can't be asked, it should be an error and no decision", func(t *testing.T) {
		g := NewWithT(t)
		down = errors.New("connection refused")
		defer func() { down = nil }()
		_, err := newChecker().Misfit(ctx, s, s.Release, s.Karpenter)
		g.Expect(err).To(MatchError(ContainSubstring("connection refused")))
	})
}
