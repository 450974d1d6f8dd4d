// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"encoding/json"
	"testing"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// FuzzNodeClass passes any node class, past the schema: a guest's admin may change the CustomResourceDefinition.
func FuzzNodeClass(f *testing.F) {
	for _, content := range []string{
		"{}", `{"spec":{"version":"v1.36.3"}}`,
		`{"spec":{"scalableResourceSelector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"a","operator":"In","values":[""]}]}}}`,
		`{"spec":{"bootstrap":{"dataSecretName":"x"},"kubelet":{"maxPods":-1,"systemReserved":{"cpu":"1e99"}}}}`,
		`{"spec":{"bootstrapPatches":[{"kind":"KubeadmConfig","patches":[{"op":"add","path":"/","value":null}]}]}}`,
	} {
		f.Add([]byte(content))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		nodeClass := &v1alpha1.ClusterAPINodeClass{}
		if json.Unmarshal(content, nodeClass) != nil {
			return
		}
		hash := nodeClass.Hash()
		if again := nodeClass.DeepCopy().Hash(); hash == "" || again != hash {
			t.Errorf("the hash is %q, and of a copy %q", hash, again)
		}
		template.MachineDeploymentSelector(nodeClass)
	})
}
