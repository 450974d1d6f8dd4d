// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/release/pullsecret"
	"github.com/autonode-io/autonode/payload"
)

// origin is a registry that counts, and can be broken.
type origin struct {
	host      string
	requests  atomic.Int64
	manifests atomic.Int64
	status    atomic.Int64 // answered instead, if not zero
	hold      atomic.Pointer[chan struct{}]
}

func newOrigin(t *testing.T) *origin {
	t.Helper()
	s := &origin{}
	inner := registry.New()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		s.requests.Add(1)
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
			s.manifests.Add(1)
		}
		if hold := s.hold.Load(); hold != nil {
			<-*hold
		}
		if status := s.status.Load(); status != 0 {
			if status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			}
			w.WriteHeader(int(status))
			return
		}
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(server.Close)
	s.host = strings.TrimPrefix(server.URL, "http://")
	return s
}

func (s *origin) push(t *testing.T, tag string, components ...payload.ComponentSpec) string {
	t.Helper()
	img, err := payload.Build(payload.Spec{Version: "1.36." + tag, Components: components})
	if err != nil {
		t.Fatal(err)
	}
	ref := fmt.Sprintf("%s/release:%s", s.host, tag)
	if _, err := payload.Push(t.Context(), ref, img, payload.Options{}); err != nil {
		t.Fatal(err)
	}
	s.requests.Store(0)
	s.manifests.Store(0)
	return ref
}

func karpenter(version string) payload.ComponentSpec {
	return payload.ComponentSpec{
		Name: "karpenter-clusterapi", Image: "registry.example/karpenter@sha256:" + strings.Repeat("a", 64),
		Versions: map[string]string{payload.KubernetesVersion: version},
	}
}

// secrets is one pull secret for all.
type secrets struct {
	secret *corev1.Secret
	err    error
}

func (s *secrets) Get(context.Context, *v1beta1.HostedCluster) (*corev1.Secret, error) {
	return s.secret, s.err
}

// guests has one decision for all.
type guests struct{ misfit error }

func (g *guests) check(context.Context, *scope.Scope, *payload.Release, payload.Component) error {
	return g.misfit
}

func scopeOf(image string) *scope.Scope {
	return &scope.Scope{Profile: clusterapi.New(clusterapi.DefaultGroups), HostedCluster: &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue", Generation: 3},
		Spec: v1beta1.HostedClusterSpec{
			Release: v1beta1.Release{Image: image},
			AutoNode: &v1beta1.AutoNode{ProvisionerConfig: v1beta1.ProvisionerConfig{
				Name: v1beta1.ProvisionerKarpenter, Karpenter: &v1beta1.Karpenter{Platform: v1beta1.PlatformClusterAPI, ClusterAPI: &v1beta1.ClusterAPI{}},
			}},
		},
	}}
}

// reconciled reconciles without an error.
func reconciled(t *testing.T, r *Resolver, s *scope.Scope) scope.Result {
	t.Helper()
	result, err := r.Reconcile(t.Context(), s)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return result
}

// resolve has a payload resolved for the first time, and returns which.
func resolve(t *testing.T, r *Resolver, s *scope.Scope) v1beta1.DesiredVersion {
	t.Helper()
	reconciled(t, r, s)
	return *s.HostedCluster.Status.Version.Desired
}

// installed is the component of a payload that was rolled out whole.
func installed(release v1beta1.DesiredVersion) *v1beta1.ControlPlaneComponent {
	return &v1beta1.ControlPlaneComponent{Status: v1beta1.ControlPlaneComponentStatus{
		Version: release.Version, ReleaseImage: release.Image,
		Conditions: []metav1.Condition{{Type: v1beta1.RolloutComplete, Status: metav1.ConditionTrue, Reason: v1beta1.AsExpectedReason}},
	}}
}

func resolvedReason(s *scope.Scope) string {
	c := meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.ReleaseResolved)
	if c == nil {
		return ""
	}
	return string(c.Status) + "/" + c.Reason
}

func TestResolve(t *testing.T) {
	t.Run("When a tag is resolved, it should be pulled once and never looked up again", func(t *testing.T) {
		g, source := NewWithT(t), newOrigin(t)
		r := New(Config{PullSecrets: &secrets{}})
		s := scopeOf(source.push(t, "3", karpenter("1.36.3")))
		result := reconciled(t, r, s)
		g.Expect(result).To(Equal(scope.Result{}))
		g.Expect(resolvedReason(s)).To(Equal("True/AsExpected"))
		g.Expect(s.Karpenter.Image).To(HavePrefix("registry.example/karpenter@sha256:"))
		desired := s.HostedCluster.Status.Version.Desired
		g.Expect(desired.Version).To(Equal("1.36.3"))
		g.Expect(desired.NodeVersion).To(Equal("1.36.3"))
		g.Expect(desired.Image).To(HavePrefix(source.host + "/release@sha256:"))
		g.Expect(desired.Requested).To(Equal(s.HostedCluster.Spec.Release.Image))

		source.push(t, "3", karpenter("1.36.9")) // the tag moves
		s.Release = nil
		reconciled(t, r, s)
		g.Expect(source.requests.Load()).To(BeZero())
		g.Expect(s.Release.Components["karpenter-clusterapi"].Versions[payload.KubernetesVersion]).To(Equal("1.36.3"))
	})

	t.Run("When an annotation requests it, it should look the tag up once more, and no more when the annotation goes", func(t *testing.T) {
		g, source := NewWithT(t), newOrigin(t)
		r := New(Config{PullSecrets: &secrets{}})
		s := scopeOf(source.push(t, "3", karpenter("1.36.3")))
		annotated := func(annotation string) (nodeVersion string, requests int64) {
			s.Release = nil
			source.requests.Store(0)
			s.HostedCluster.Annotations = map[string]string{v1beta1.ResolveReleaseAnnotation: annotation}
			result := reconciled(t, r, s)
			g.Expect(result).To(Equal(scope.Result{}))
			g.Expect(resolvedReason(s)).To(Equal("True/AsExpected"))
			return s.HostedCluster.Status.Version.Desired.NodeVersion, source.requests.Load()
		}
		annotated("")
		first := s.HostedCluster.Status.Version.Desired.Image
		source.push(t, "3", karpenter("1.36.9")) // the tag moves

		for _, annotation := range []string{"once", strings.Repeat("very long ", 1000)} {
			version, requests := annotated(annotation)
			g.Expect(version).To(Equal("1.36.9"))
			g.Expect(requests).To(BeNumerically(">", 0))
			g.Expect(s.HostedCluster.Status.Version.Desired.Image).NotTo(Equal(first))
			g.Expect(len(s.HostedCluster.Status.Version.Desired.ResolveRequest)).To(BeNumerically("<=", 128))
			_, requests = annotated(annotation)
			g.Expect(requests).To(BeZero())
		}
		_, requests := annotated("")
		g.Expect(requests).To(BeZero())
	})

	t.Run("When the tag that is looked up again is gone, it should say so and look after what runs", func(t *testing.T) {
		g, source := NewWithT(t), newOrigin(t)
		r := New(Config{PullSecrets: &secrets{}})
		s := scopeOf(source.push(t, "3", karpenter("1.36.3")))
		runs := resolve(t, r, s)

		for _, annotation := range []string{"now", "and now"} {
			source.status.Store(http.StatusNotFound)
			source.requests.Store(0)
			s.Release = nil
			s.HostedCluster.Annotations = map[string]string{v1beta1.ResolveReleaseAnnotation: annotation}
			result := reconciled(t, r, s)
			g.Expect(source.requests.Load()).To(BeNumerically(">", 0), "who tries again isn't made to wait")
			g.Expect(resolvedReason(s)).To(Equal("False/ImageNotFound"))
			g.Expect(result.Wait).To(BeFalse())
			g.Expect(s.Release.Image).To(Equal(runs.Image))
			g.Expect(*s.HostedCluster.Status.Version.Desired).To(Equal(runs))
		}
	})

	t.Run("When a mirror has the payload, it should be taken from there, by the name that the HostedCluster gives it", func(t *testing.T) {
		g, source, mirror := NewWithT(t), newOrigin(t), newOrigin(t)
		s := scopeOf(source.push(t, "3", karpenter("1.36.3")))
		mirror.push(t, "3", karpenter("1.36.3"))
		source.status.Store(http.StatusServiceUnavailable)
		s.HostedCluster.Spec.ImageContentSources = []v1beta1.ImageContentSource{{Source: source.host, Mirrors: []string{mirror.host}}}
		desired := resolve(t, New(Config{PullSecrets: &secrets{}}), s)
		g.Expect(desired.Version).To(Equal("1.36.3"))
		g.Expect(desired.Image).To(HavePrefix(source.host + "/release@sha256:"))
		g.Expect(mirror.requests.Load()).To(BeNumerically(">", 0))
		g.Expect(source.requests.Load()).To(BeZero())
	})
}

func TestResolveFails(t *testing.T) {
	t.Run("When the wanted payload fails, it should look after the one that runs, and say why", func(t *testing.T) {
		g, source := NewWithT(t), newOrigin(t)
		r := New(Config{PullSecrets: &secrets{}})
		s := scopeOf(source.push(t, "2", karpenter("1.36.2")))
		runs := resolve(t, r, s)

		s.HostedCluster.Spec.Release.Image = source.host + "/release:9"
		s.Release = nil
		result := reconciled(t, r, s)
		g.Expect(resolvedReason(s)).To(Equal("False/ImageNotFound"))
		g.Expect(result.Wait).To(BeFalse())
		g.Expect(result.Message).To(ContainSubstring("/release:9"))
		g.Expect(result.RequeueAfter).To(And(BeNumerically(">", 0), BeNumerically("<=", minBackoff)))
		g.Expect(s.Release.Version).To(Equal("1.36.2"))
		g.Expect(*s.HostedCluster.Status.Version.Desired).To(Equal(runs))
	})

	t.Run("When the operator has restarted and the registry is gone, it should wait and touch nothing", func(t *testing.T) {
		g, source := NewWithT(t), newOrigin(t)
		s := scopeOf(source.push(t, "3", karpenter("1.36.3")))
		runs := resolve(t, New(Config{PullSecrets: &secrets{}}), s)

		source.status.Store(http.StatusServiceUnavailable)
		s.Release = nil
		options := payload.Options{Timeout: time.Second}
		result := reconciled(t, New(Config{PullSecrets: &secrets{}, Options: options}), s)
		g.Expect(resolvedReason(s)).To(Equal("False/RegistryUnreachable"))
		g.Expect(result.Wait).To(BeTrue())
		g.Expect(s.Release).To(BeNil())
		g.Expect(*s.HostedCluster.Status.Version.Desired).To(Equal(runs))
	})
}

func TestReasons(t *testing.T) {
	other := karpenter("1.36.3")
	other.Name = "karpenter-aws"
	mute := karpenter("1.36.3")
	mute.Versions = nil
	whole := other
	whole.CRDs = [][]byte{[]byte(`{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": {"name": "ec2nodeclasses.karpenter.k8s.aws"}, "spec": {"group": "karpenter.k8s.aws", "scope": "Cluster",
		"names": {"kind": "EC2NodeClass", "plural": "ec2nodeclasses"},
		"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}}`)}
	for _, test := range []struct {
		name       string
		image      func(*testing.T, *origin) string
		secrets    secrets
		pullSecret *corev1.LocalObjectReference
		profile    *provider.Profile
		want       string
		message    string
	}{
		{
			name:    "When the platform is AWS and the payload has no Karpenter for it, it should say which components there are",
			image:   func(t *testing.T, s *origin) string { return s.push(t, "3", karpenter("1.36.3")) },
			profile: aws.New(), want: "False/ComponentMissing", message: `no component "karpenter-aws"; it has karpenter-clusterapi`,
		}, {
			name:    "When the platform is AWS and the payload defines no EC2NodeClass, it should say so, because the operator doesn't either",
			image:   func(t *testing.T, s *origin) string { return s.push(t, "3", other) },
			profile: aws.New(), want: "False/DefinitionMissing",
			message: "release 1.36.3 ships no CustomResourceDefinition ec2nodeclasses.karpenter.k8s.aws for its component karpenter-aws; choose a payload that does",
		}, {
			name:  "When the component has no Kubernetes version, it should be malformed",
			image: func(t *testing.T, s *origin) string { return s.push(t, "3", mute) },
			want:  "False/PayloadMalformed", message: "kubernetes",
		}, {
			name:  "When the reference can't be parsed, it should be invalid",
			image: func(*testing.T, *origin) string { return "UPPER/case:::" },
			want:  "False/ImageReferenceInvalid", message: "UPPER/case",
		}, {
			name:  "When the tag doesn't exist, it should be not found",
			image: func(_ *testing.T, s *origin) string { return s.host + "/release:nope" },
			want:  "False/ImageNotFound", message: "/release:nope",
		}, {
			name:    "When the pull secret is missing, it should name it",
			image:   func(t *testing.T, s *origin) string { return s.push(t, "3", karpenter("1.36.3")) },
			secrets: secrets{err: &pullsecret.InvalidError{Message: "spec.pullSecret: there is no Secret clusters/pull-secret"}},
			want:    "False/PullSecretInvalid", message: "clusters/pull-secret",
		}, {
			name:  "When the pull secret holds garbage, it should name it and not show it",
			image: func(t *testing.T, s *origin) string { return s.push(t, "3", karpenter("1.36.3")) },
			secrets: secrets{secret: &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "pull-secret"},
				Data:       map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths": hunter2`)},
			}},
			pullSecret: &corev1.LocalObjectReference{Name: "pull-secret"},
			want:       "False/PullSecretInvalid", message: "clusters/pull-secret",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			s := scopeOf(test.image(t, newOrigin(t)))
			s.HostedCluster.Spec.PullSecret = test.pullSecret
			if test.profile != nil {
				s.Profile = test.profile
			}
			result := reconciled(t, New(Config{PullSecrets: ptr.To(test.secrets)}), s)
			g.Expect(resolvedReason(s)).To(Equal(test.want))
			g.Expect(result.Wait).To(BeTrue())
			g.Expect(result.Message).To(And(ContainSubstring(test.message), Not(ContainSubstring("hunter2"))))
			g.Expect(s.Release).To(BeNil())
			g.Expect(s.HostedCluster.Status.Version.Desired).To(BeNil())
		})
	}

	t.Run("When the platform is AWS and the payload has all of it, it should be resolved", func(t *testing.T) {
		g := NewWithT(t)
		s := scopeOf(newOrigin(t).push(t, "3", whole, karpenter("1.36.3")))
		s.Profile = aws.New()
		result := reconciled(t, New(Config{PullSecrets: &secrets{}}), s)
		g.Expect(result.Wait).To(BeFalse())
		g.Expect(resolvedReason(s)).To(Equal("True/AsExpected"))
		g.Expect(s.Karpenter.Name).To(Equal("karpenter-aws"))
	})
}
