// SPDX-License-Identifier: Apache-2.0

package release

import (
	"strings"
	"testing"

	registryname "github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestNodePlatforms(t *testing.T) {
	node := func(name, arch string) client.Object {
		labels := map[string]string{corev1.LabelOSStable: "linux"}
		if arch != "" {
			labels[corev1.LabelArchStable] = arch
		}
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	for name, tc := range map[string]struct {
		nodes []client.Object
		// arch of Karpenter's image; empty for an image that isn't there.
		arch, want string
	}{
		"When a node has the platform of Karpenter's image, it should take the payload": {
			nodes: []client.Object{node("a", "arm64"), node("b", "amd64")}, arch: "amd64", want: "True/AsExpected",
		},
		"When no node has it, it should refuse the payload":                 {nodes: []client.Object{node("a", "arm64")}, arch: "amd64", want: "False/PlatformMissing"},
		"When the image can't be read, it should take the payload":          {nodes: []client.Object{node("a", "arm64")}, want: "True/AsExpected"},
		"When the platform of no node is known, it should take the payload": {nodes: []client.Object{node("a", "")}, arch: "amd64", want: "True/AsExpected"},
	} {
		t.Run(name, func(t *testing.T) {
			g, source := NewWithT(t), newOrigin(t)
			component := karpenter("1.36.3")
			repository, err := registryname.NewRepository(source.host + "/karpenter")
			g.Expect(err).NotTo(HaveOccurred())
			component.Image = repository.Digest("sha256:" + strings.Repeat("a", 64)).Name()
			if tc.arch != "" {
				image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: tc.arch})
				g.Expect(err).NotTo(HaveOccurred())
				digest, err := image.Digest()
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(remote.Write(repository.Tag("1"), image)).To(Succeed())
				component.Image = repository.Digest(digest.String()).Name()
			}
			s := scopeOf(source.push(t, "3", component))
			reconciled(t, New(Config{PullSecrets: &secrets{}, Nodes: fake.NewClientBuilder().WithObjects(tc.nodes...).Build()}), s)
			g.Expect(resolvedReason(s)).To(Equal(tc.want))
			if tc.want == "False/PlatformMissing" {
				g.Expect(meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.ReleaseResolved).Message).To(And(
					ContainSubstring("the image of karpenter-clusterapi is for linux/amd64"), ContainSubstring("the nodes of the management cluster are linux/arm64")))
			}
		})
	}
}
