// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/test/world/controlplane"
)

// sharedRollout keeps one value of the annotation that names a Karpenter's rollout. Guests on one API server share its node class, and the
// operator would write each guest's own value, one after the other, without end.
var sharedRollout = []string{`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: shared-rollout}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [` + v1alpha1.Group + `], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [clusterapinodeclasses]}
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: '[JSONPatch{op: "add", path: "/metadata/annotations", value: {"` + v1alpha1.RolloutAnnotation + `": "shared"}}]'
`, `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: shared-rollout}
spec: {policyName: shared-rollout}
`}

func shareRollout(ctx context.Context, guest *controlplane.Cluster) error {
	c, err := client.New(guest.RESTConfig(), client.Options{})
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", guest.Name, err)
	}
	for _, manifest := range sharedRollout {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(manifest), &object.Object); err != nil {
			return fmt.Errorf("decoding a policy: %w", err)
		}
		if err := c.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %s in %s: %w", object.GetKind(), guest.Name, err)
		}
	}
	return nil
}
