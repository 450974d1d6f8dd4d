// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestOthers(t *testing.T) {
	const a, b = "registry.example/release:1.36.3", "registry.example/release:1.37.1"
	for name, test := range map[string]struct {
		others         []string
		release        string
		want, problems string
	}{
		"When there is no other HostedCluster, it should leave the payload out":        {},
		"When all others name one payload, it should be that":                          {others: []string{a, a}, want: a},
		"When all others have the operator's default release, it should have it too":   {others: []string{"", ""}},
		"When the others' payloads differ, it should ask for one":                      {others: []string{a, b}, problems: "have 2 different releases"},
		"When only some others have the default release, it should ask for a payload":  {others: []string{"", a}, problems: "have 2 different releases"},
		"When a payload is named, it should be that, whatever the others have":         {others: []string{"", a}, release: b, want: b},
		"When there is no other HostedCluster and a payload is named, it should be it": {release: a, want: a},
	} {
		t.Run(name, func(t *testing.T) {
			g, scheme := NewWithT(t), runtime.NewScheme()
			g.Expect(v1beta1.AddToScheme(scheme)).To(Succeed())
			builder := fake.NewClientBuilder().WithScheme(scheme)
			for i, image := range test.others {
				builder.WithObjects(&v1beta1.HostedCluster{
					ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: strconv.Itoa(i)}, Spec: v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: image}},
				})
			}
			i := inspection{
				management: builder.Build(), cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "blue"}},
				hostedCluster: &v1beta1.HostedCluster{
					ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "blue"}, Spec: v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: test.release}},
				},
			}
			err := i.others(t.Context())
			if test.problems != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.problems)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(i.hostedCluster.Spec.Release.Image).To(Equal(test.want))
		})
	}
}
