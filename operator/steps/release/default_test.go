// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/payload"
)

// following is a resolver with a default release, and a guest whose API server reports a version.
type following struct {
	*Resolver
	s      *scope.Scope
	clock  *clocktesting.FakePassiveClock
	server string
	down   error
	fit    *guests
}

func imageOf(digit string) string {
	return "registry.example/autonode/karpenter-clusterapi@sha256:" + strings.Repeat(digit, 64)
}

func newFollowing(t *testing.T) *following {
	t.Helper()
	f := &following{s: scopeOf(""), clock: clocktesting.NewFakePassiveClock(time.Now()), server: "v1.36.3", fit: &guests{}}
	f.s.Guest = &scope.Guest{Config: &rest.Config{}}
	f.restart(t, imageOf("b"), "v0.1.0")
	return f
}

// restart starts an operator with another default release.
func (f *following) restart(t *testing.T, image, version string) {
	t.Helper()
	byDefault, err := NewDefaultRelease(clusterapi.Component, image, version)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	versions := guest.NewVersions(f.clock, func(context.Context, *rest.Config) (string, error) { return f.server, f.down })
	f.Resolver = New(Config{PullSecrets: &secrets{}, Versions: versions, Clock: f.clock, Default: byDefault})
	f.skew = f.fit
}

// observe reconciles after an interval.
func (f *following) observe(t *testing.T, after time.Duration) (scope.Result, *v1beta1.DesiredVersion) {
	t.Helper()
	f.clock.SetTime(f.clock.Now().Add(after))
	f.s.Release = nil
	return reconciled(t, f.Resolver, f.s), f.s.HostedCluster.Status.Version.Desired.DeepCopy()
}

func (f *following) message() string {
	return meta.FindStatusCondition(f.s.HostedCluster.Status.Conditions, v1beta1.ReleaseResolved).Message
}

func TestDefaultRelease(t *testing.T) {
	t.Run("When spec.release isn't set, it should use the operator's release, for nodes of the API server's version, and say so", func(t *testing.T) {
		g, f := NewWithT(t), newFollowing(t)
		f.server = "v1.36.3+vmware.1"
		result, desired := f.observe(t, 0)
		g.Expect(result).To(Equal(scope.Result{RequeueAfter: followAfter}))
		g.Expect(*desired).To(Equal(v1beta1.DesiredVersion{
			Version: "1.36.3+autonode.0.1.0", NodeVersion: "1.36.3", Image: imageOf("b"), Source: v1beta1.ReleaseSourceDefault,
		}))
		g.Expect(resolvedReason(f.s)).To(Equal("True/DefaultRelease"))
		g.Expect(f.message()).To(Equal("spec.release isn't set: release 1.36.3+autonode.0.1.0 is the operator's default, " + imageOf("b") + " for nodes with Kubernetes 1.36.3"))
		g.Expect(f.s.Karpenter).To(Equal(payload.Component{
			Name: "karpenter-clusterapi", Image: imageOf("b"), Versions: map[string]string{payload.KubernetesVersion: "1.36.3"},
		}))
		g.Expect(f.s.Release.Digest).To(Equal("sha256:" + strings.Repeat("b", 64)))
	})

	t.Run("When the control plane is upgraded, nodes should follow it; an older version counts only if it stays", func(t *testing.T) {
		g, f := NewWithT(t), newFollowing(t)
		f.observe(t, 0)
		f.server = "v1.37.1"
		_, desired := f.observe(t, recheck)
		g.Expect(desired.Version).To(Equal("1.37.1+autonode.0.1.0"))

		for range 5 { // two API servers answer in turn
			f.server = "v1.36.3"
			_, desired = f.observe(t, olderFor-recheck)
			g.Expect(desired.NodeVersion).To(Equal("1.37.1"))
			f.server = "v1.37.1"
			_, desired = f.observe(t, recheck)
			g.Expect(desired.NodeVersion).To(Equal("1.37.1"))
		}
		f.server = "v1.36.3"
		_, desired = f.observe(t, recheck)
		g.Expect(desired.NodeVersion).To(Equal("1.37.1"))
		_, desired = f.observe(t, olderFor)
		g.Expect(desired.NodeVersion).To(Equal("1.36.3"), "it was rolled back")
	})

	t.Run("When the API server doesn't answer, nodes should keep their version", func(t *testing.T) {
		g, f := NewWithT(t), newFollowing(t)
		_, want := f.observe(t, 0)
		f.s.Component = installed(*want)
		f.down = errors.New("down")
		_, desired := f.observe(t, recheck)
		g.Expect(desired).To(Equal(want))
		f.s.Guest = nil
		_, desired = f.observe(t, recheck)
		g.Expect(desired).To(Equal(want))
		g.Expect(resolvedReason(f.s)).To(Equal("True/DefaultRelease"))
	})

	t.Run("When the operator is upgraded, its Karpenter should be the next release, once the guest answers", func(t *testing.T) {
		g, f := NewWithT(t), newFollowing(t)
		_, want := f.observe(t, 0)
		f.s.Component = installed(*want)
		f.restart(t, imageOf("c"), "v0.2.0")
		reached := f.s.Guest
		f.s.Guest = nil
		_, desired := f.observe(t, recheck)
		g.Expect(desired).To(Equal(want))
		g.Expect(resolvedReason(f.s)).To(Equal("Unknown/FitUnknown"))
		f.s.Guest = reached
		_, desired = f.observe(t, recheck)
		g.Expect(desired).To(HaveField("Version", "1.36.3+autonode.0.2.0"))
		g.Expect(desired).To(HaveField("Image", imageOf("c")))
	})

	t.Run("When the guest stores what the operator doesn't define, it should neither use its release nor lose what runs", func(t *testing.T) {
		g, f := NewWithT(t), newFollowing(t)
		_, want := f.observe(t, 0)
		f.s.Component = installed(*want)
		f.restart(t, imageOf("a"), "v0.0.9")
		f.fit.misfit = &failedError{reason: v1beta1.StoredVersionMissingReason, message: "stores v2", retryAfter: recheck}
		result, desired := f.observe(t, recheck)
		g.Expect(result).To(Equal(scope.Result{Wait: true, Message: "stores v2", RequeueAfter: recheck}))
		g.Expect(desired).To(Equal(want))
		g.Expect(f.s.Release).To(BeNil())
		g.Expect(resolvedReason(f.s)).To(Equal("False/StoredVersionMissing"))
	})
}

func TestDefaultAndPayload(t *testing.T) {
	t.Run("When a HostedCluster goes from the default to a payload and back, each should be the other's successor", func(t *testing.T) {
		g, source, f := NewWithT(t), newOrigin(t), newFollowing(t)
		f.observe(t, 0)
		f.s.HostedCluster.Spec.Release.Image = source.push(t, "3", karpenter("1.36.3"))
		_, desired := f.observe(t, recheck)
		g.Expect(desired).To(HaveField("Version", "1.36.3"))
		g.Expect(desired).To(HaveField("Source", v1beta1.ReleaseSourcePayload))
		g.Expect(resolvedReason(f.s)).To(Equal("True/AsExpected"))
		payloads := desired

		f.s.HostedCluster.Spec.Release = v1beta1.Release{}
		f.s.Component = installed(*payloads)
		reached := f.s.Guest
		f.s.Guest = nil
		_, desired = f.observe(t, recheck)
		g.Expect(desired).To(Equal(payloads))
		g.Expect(resolvedReason(f.s)).To(Equal("Unknown/FitUnknown"))
		g.Expect(f.s.Release.Image).To(Equal(payloads.Image), "what runs is looked after")
		f.s.Guest = reached
		_, desired = f.observe(t, recheck)
		g.Expect(desired).To(HaveField("Version", "1.36.3+autonode.0.1.0"))
		g.Expect(desired).To(HaveField("Requested", ""))
	})

	t.Run("When the payload that replaces the default can't be pulled, the default should be looked after", func(t *testing.T) {
		g, source, f := NewWithT(t), newOrigin(t), newFollowing(t)
		_, want := f.observe(t, 0)
		f.s.HostedCluster.Spec.Release.Image = source.host + "/release:none"
		result, desired := f.observe(t, recheck)
		g.Expect(result.Wait).To(BeFalse())
		g.Expect(desired).To(Equal(want))
		g.Expect(f.s.Release.Version).To(Equal("1.36.3+autonode.0.1.0"))
		g.Expect(resolvedReason(f.s)).To(Equal("False/ImageNotFound"))
	})
}

func TestNoDefaultRelease(t *testing.T) {
	for name, test := range map[string]struct {
		server  string
		down    error
		change  func(*testing.T, *following)
		want    string
		message string
	}{
		"When the operator has no default release, it should ask for a payload": {
			change: func(t *testing.T, f *following) { f.restart(t, "", "v0.1.0") },
			want:   "False/ReleaseMissing", message: "name a payload in spec.release.image",
		},
		"When the platform is AWS, it should ask for a payload that has its Karpenter": {
			change: func(_ *testing.T, f *following) { f.s.Profile = aws.New() },
			want:   "False/ComponentMissing", message: "default release has karpenter-clusterapi only; name a payload that has karpenter-aws",
		},
		"When the guest hasn't answered yet, it should wait for its version": {
			change: func(_ *testing.T, f *following) { f.s.Guest = nil },
			want:   "Unknown/FitUnknown", message: "which doesn't answer",
		},
		"When the API server is too old, it should say which versions are supported": {
			server: "v1.30.9", want: "False/VersionSkewUnsupported", message: "supports Kubernetes 1.31 to 1.37, and the guest's API server runs 1.30.9; upgrade the control plane",
		},
		"When the API server is newer than what was tested, it should say what to do": {
			server: "v1.38.0", want: "False/VersionSkewUnsupported", message: "runs 1.38.0; upgrade the operator, or name a payload for it in spec.release.image",
		},
		"When the API server's major version is another, it should say what to do": {
			server: "v2.31.0", want: "False/VersionSkewUnsupported", message: "runs 2.31.0; upgrade the operator",
		},
		"When the API server reports no version, it should quote it": {
			server: "unversioned", want: "False/VersionSkewUnsupported", message: `reports version "unversioned", which isn't one`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, f := NewWithT(t), newFollowing(t)
			if test.server != "" {
				f.server = test.server
			}
			if test.change != nil {
				test.change(t, f)
			}
			result, desired := f.observe(t, 0)
			g.Expect(resolvedReason(f.s)).To(Equal(test.want))
			g.Expect(result.Wait).To(BeTrue())
			g.Expect(result.Message).To(ContainSubstring(test.message))
			g.Expect(desired).To(BeNil())
			g.Expect(f.s.Release).To(BeNil())
		})
	}

	t.Run("When a control plane leaves what is supported, nodes should keep their version, and Karpenter should be looked after", func(t *testing.T) {
		g, f := NewWithT(t), newFollowing(t)
		f.server = "v1.37.2"
		_, want := f.observe(t, 0)
		f.server = "v1.38.0"
		result, desired := f.observe(t, recheck)
		g.Expect(result.Wait).To(BeFalse())
		g.Expect(result.Message).To(ContainSubstring("upgrade the operator"))
		g.Expect(desired).To(Equal(want))
		g.Expect(f.s.Release.Version).To(Equal("1.37.2+autonode.0.1.0"))
	})

	t.Run("When the documentation names the supported versions, they should be these", func(t *testing.T) {
		g := NewWithT(t)
		page, err := os.ReadFile("../../../docs/platform/versions.md")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(page)).To(ContainSubstring("that of the guest's API server, from 1.%d to 1.%d,", oldestMinor, newestMinor))
	})

	t.Run("When the image of the default release isn't by digest, it should be rejected", func(t *testing.T) {
		_, err := NewDefaultRelease(clusterapi.Component, "registry.example/karpenter-clusterapi:v0.1.0", "v0.1.0")
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("isn't an image by digest")))
	})
}

func TestBuild(t *testing.T) {
	for name, tc := range map[string]struct{ server, kind, nodes string }{
		"When the API server is RKE2's, nodes should get its build":                               {"v1.36.3+rke2r1", "", "1.36.3+rke2r1"},
		"When the API server is K3s', nodes should get its build":                                 {"v1.36.3+k3s1", "KThreesConfigTemplate", "1.36.3+k3s1"},
		"When the API server is K3s' and nodes join by kubeadm, they should get no build":         {"v1.36.3+k3s1", "KubeadmConfigTemplate", "1.36.3"},
		"When the build is no installer's, nodes should not get it":                               {"v1.36.3+k0s", "", "1.36.3"},
		"When a cloud's build is part of the version, nodes should get the version alone":         {"v1.36.3-eks-1a2b3c", "", "1.36.3"},
		"When the guest invents a build that begins like an installer's, nodes should not get it": {"v1.36.3+k3s1.evil", "", "1.36.3"},
	} {
		t.Run(name, func(t *testing.T) {
			g, f := NewWithT(t), newFollowing(t)
			f.server = tc.server
			if tc.kind != "" {
				f.s.HostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI.Bootstrap = &v1alpha1.Bootstrap{
					ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{Kind: tc.kind},
				}
			}
			_, desired := f.observe(t, 0)
			g.Expect(desired).To(HaveField("NodeVersion", tc.nodes))
			_, err := utilversion.ParseSemantic(desired.Version)
			g.Expect(err).NotTo(HaveOccurred(), desired.Version)
		})
	}
	t.Run("When API servers get another build one after the other, nodes should not go back and forth", func(t *testing.T) {
		g, f := NewWithT(t), newFollowing(t)
		for _, f.server = range []string{"v1.36.3+rke2r9", "v1.36.3+rke2r10", "v1.36.3+rke2r9", "v1.36.3+rke2r10"} {
			f.observe(t, recheck)
		}
		f.server = "v1.36.3+rke2r9"
		_, desired := f.observe(t, recheck)
		g.Expect(desired).To(HaveField("NodeVersion", "1.36.3+rke2r10"))
		f.s.Guest = nil
		_, desired = f.observe(t, recheck)
		g.Expect(desired).To(HaveField("NodeVersion", "1.36.3+rke2r10"))
	})
}
