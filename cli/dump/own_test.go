// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestOwn(t *testing.T) {
	configMap := func(name, cluster string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		u.SetKind("ConfigMap")
		u.SetName(name)
		if cluster != "" {
			u.SetLabels(map[string]string{"cluster.x-k8s.io/cluster-name": cluster})
		}
		return u
	}
	for name, test := range map[string]struct {
		name, cluster string
		want          bool
	}{
		"When a ConfigMap is AutoNode's, it should be collected whole":                  {"karpenter-node-images", "", true},
		"When it is that of a Cluster in a shared namespace, it should be, too":         {"karpenter-node-images-blue", "blue", true},
		"When its name ends in another Cluster's, what may be secret should be removed": {"karpenter-node-images-green", "blue", false},
		"When the operator didn't make it, what may be secret should be removed":        {"settings", "", false},
		"When it is a Cluster's own, what may be secret should be removed":              {"settings-blue", "blue", false},
	} {
		t.Run(name, func(t *testing.T) { NewWithT(t).Expect(isOwn(configMap(test.name, test.cluster))).To(Equal(test.want)) })
	}
}
