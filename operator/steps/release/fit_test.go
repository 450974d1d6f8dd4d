// SPDX-License-Identifier: Apache-2.0

package release

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// fitting returns a resolver that has resolved payload 1.36.2, which fits the guest.
func fitting(t *testing.T) (source *origin, fit *guests, r *Resolver, s *scope.Scope, runs v1beta1.DesiredVersion) {
	t.Helper()
	source, fit = newOrigin(t), &guests{}
	r = New(Config{PullSecrets: &secrets{}})
	r.skew = fit
	s = scopeOf(source.push(t, "2", karpenter("1.36.2")))
	s.Guest = &scope.Guest{}
	return source, fit, r, s, resolve(t, r, s)
}

func misfit(message string) error {
	return &failedError{reason: v1beta1.VersionSkewReason, message: message, retryAfter: recheck}
}

func TestFit(t *testing.T) {
	t.Run("When a payload doesn't fit the guest, it should be refused as if it weren't there, and be taken once it fits", func(t *testing.T) {
		g := NewWithT(t)
		source, guests, r, s, runs := fitting(t)

		guests.misfit = misfit("too far ahead")
		s.HostedCluster.Spec.Release.Image = source.push(t, "3", karpenter("1.38.0"))
		for range 2 {
			s.Release = nil
			result := reconciled(t, r, s)
			g.Expect(result).To(Equal(scope.Result{Message: "too far ahead", RequeueAfter: recheck}))
			g.Expect(resolvedReason(s)).To(Equal("False/VersionSkewUnsupported"))
			g.Expect(s.Release.Version).To(Equal("1.36.2"), "what runs is looked after")
			g.Expect(*s.HostedCluster.Status.Version.Desired).To(Equal(runs))
			source.requests.Store(0)
		}
		g.Expect(source.requests.Load()).To(BeZero())

		s.Guest = nil
		reconciled(t, r, s)
		g.Expect(resolvedReason(s)).To(Equal("False/VersionSkewUnsupported"), "an absent guest changes nothing")

		s.Guest, guests.misfit = &scope.Guest{}, nil
		result := reconciled(t, r, s)
		g.Expect(result).To(Equal(scope.Result{}))
		g.Expect(resolvedReason(s)).To(Equal("True/AsExpected"))
		g.Expect(s.Release.Version).To(Equal("1.36.3"))
		g.Expect(source.requests.Load()).To(BeZero())
	})

	t.Run("When the guest moves away from the payload that runs, it should say so and look after it all the same", func(t *testing.T) {
		g := NewWithT(t)
		_, guests, r, s, _ := fitting(t)
		guests.misfit = misfit("too far behind")
		s.Release = nil
		result := reconciled(t, r, s)
		g.Expect(result.Wait).To(BeTrue(), "it was never rolled out")
		g.Expect(s.Release).To(BeNil())

		s.Component = &v1beta1.ControlPlaneComponent{Status: v1beta1.ControlPlaneComponentStatus{
			Version: "1.36.2", ReleaseImage: s.HostedCluster.Status.Version.Desired.Image,
		}}
		result = reconciled(t, r, s)
		g.Expect(result.Wait).To(BeFalse())
		g.Expect(s.Release.Version).To(Equal("1.36.2"))
		g.Expect(resolvedReason(s)).To(Equal("False/VersionSkewUnsupported"))
	})

	t.Run("When another build of the version that runs doesn't fit, it should be refused like any other", func(t *testing.T) {
		g := NewWithT(t)
		source, guests, r, s, runs := fitting(t)
		s.Component = installed(runs)

		source.push(t, "2", karpenter("1.38.0")) // the tag moves
		s.HostedCluster.Annotations = map[string]string{v1beta1.ResolveReleaseAnnotation: "now"}
		guests.misfit = misfit("too far ahead")
		s.Release = nil
		result := reconciled(t, r, s)
		g.Expect(result.Wait).To(BeFalse())
		g.Expect(s.Release.Version).To(Equal("1.36.2"))
		g.Expect(s.Release.Image).To(Equal(runs.Image))
		g.Expect(*s.HostedCluster.Status.Version.Desired).To(Equal(runs))
		g.Expect(resolvedReason(s)).To(Equal("False/VersionSkewUnsupported"))
	})
}

func TestFitUnknown(t *testing.T) {
	t.Run("When another payload is wanted while the guest is away, it should wait for the guest, and take it only if it fits", func(t *testing.T) {
		g := NewWithT(t)
		source, guests, r, s, runs := fitting(t)
		s.Component = installed(runs)
		looksAfter := func(want string) {
			s.Release = nil
			result := reconciled(t, r, s)
			g.Expect(resolvedReason(s)).To(Equal(want))
			g.Expect(result.Wait).To(BeFalse())
			g.Expect(result.Message).NotTo(BeEmpty())
			g.Expect(s.Release.Image).To(Equal(runs.Image), "what runs is looked after")
			g.Expect(*s.HostedCluster.Status.Version.Desired).To(Equal(runs))
		}

		s.Guest = nil
		s.HostedCluster.Spec.Release.Image = source.push(t, "3", karpenter("1.38.0"))
		s.HostedCluster.Generation++
		looksAfter("Unknown/FitUnknown")
		g.Expect(meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.ReleaseResolved).Message).To(And(
			HavePrefix("release 1.36.3 ("), HaveSuffix(" waits until the guest's API server answers, because the guest may reject it; release 1.36.2 stays until then")))
		source.requests.Store(0)
		looksAfter("Unknown/FitUnknown")
		g.Expect(source.requests.Load()).To(BeZero(), "the tag was looked up already")

		s.Guest, guests.misfit = &scope.Guest{}, misfit("too far ahead")
		looksAfter("False/VersionSkewUnsupported")
		s.Guest = nil
		s.HostedCluster.Generation++ // something else in the spec
		looksAfter("Unknown/FitUnknown")

		s.Guest, guests.misfit, s.Release = &scope.Guest{}, nil, nil
		result := reconciled(t, r, s)
		g.Expect(result).To(Equal(scope.Result{}))
		g.Expect(resolvedReason(s)).To(Equal("True/AsExpected"))
		g.Expect(s.HostedCluster.Status.Version.Desired.Version).To(Equal("1.36.3"))
	})

	t.Run("When nothing was installed yet and the guest is away, it should resolve whatever is wanted", func(t *testing.T) {
		g, source := NewWithT(t), newOrigin(t)
		r := New(Config{PullSecrets: &secrets{}})
		s := scopeOf(source.push(t, "2", karpenter("1.36.2")))
		s.Component = &v1beta1.ControlPlaneComponent{}
		resolve(t, r, s)
		s.HostedCluster.Spec.Release.Image = source.push(t, "3", karpenter("1.36.3"))
		g.Expect(resolve(t, r, s).Version).To(Equal("1.36.3"))
		g.Expect(resolvedReason(s)).To(Equal("True/AsExpected"))
	})
}
