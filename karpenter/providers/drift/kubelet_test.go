// SPDX-License-Identifier: Apache-2.0

package drift_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// runs sets which kubelet the node has.
func (w *world) runs(version string) *world {
	w.machine.Status.NodeInfo = &corev1.NodeSystemInfo{KubeletVersion: version}
	return w
}

// carried is a node whose template names an image, and doesn't state the version of the kubelet in it: the payload's and the API server's.
func carried() *world {
	w := settled().runs("v1.36.2")
	config := &unstructured.Unstructured{}
	config.SetGroupVersionKind(schema.GroupVersionKind{Group: "bootstrap.cluster.x-k8s.io", Version: "v1beta2", Kind: "KubeadmConfigTemplate"})
	w.templates[0].Bootstrap = template.Bootstrap{ConfigTemplate: config, Hash: "bootstrap"}
	w.templates[0].Image = "ubuntu-kube"
	return w
}

// both are the payload and the API server at another version.
func (w *world) both(version string) { w.payload, w.server = version, version }

// patched has the node class patch the bootstrap with a variable.
func patched(w *world, variable string) {
	w.nodeClass.Spec.BootstrapPatches = []v1alpha1.BootstrapPatches{{APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfig", Patches: []v1alpha1.JSONPatch{{
		Op: v1alpha1.JSONPatchAdd, Path: "/spec/preKubeadmCommands/0", ValueFrom: &v1alpha1.JSONPatchValue{Variable: variable},
	}}}}
	w.nodeClaim.Annotations[v1alpha1.NodeClassHashAnnotation] = w.nodeClass.Hash()
}

func TestKubelet(t *testing.T) {
	const none = karpcloudprovider.DriftReason("")
	for name, tc := range map[string]struct {
		from   func() *world
		change func(*testing.T, *world)
		want   karpcloudprovider.DriftReason
	}{
		// Whatever the infrastructure: the node's own version counts.
		"When the template brought the payload's kubelet before the payload, it should not replace the node again": {settled, func(_ *testing.T, w *world) {
			w.runs("v1.36.3").both("1.36.3")
		}, none},
		"When the node runs another build than the payload's, it should replace it": {settled, func(_ *testing.T, w *world) {
			w.runs("v1.36.3+k3s1").both("1.36.3+k3s2")
		}, drift.VersionDrifted},
		"When the node is ahead of the payload and its Machine isn't, it should leave it": {settled, func(_ *testing.T, w *world) {
			w.runs("v1.36.3")
			w.server = "1.36.3"
		}, none},
		"When the node has what its image is said to have, it should not replace it": {upgraded, func(_ *testing.T, w *world) {
			w.runs("v1.36.3")
			w.templates[0].ImageVersion = "1.36.3"
		}, none},
		"When the node has what another template's image has, it should not replace it by one of that": {upgraded, func(_ *testing.T, w *world) {
			w.runs("v1.36.3")
			w.renewed("1.36.3")
		}, none},
		"When the node has the payload's kubelet but its template has changed, it should find that": {settled, func(_ *testing.T, w *world) {
			w.runs("v1.36.3").both("1.36.3")
			w.templates[0].ContentHash = "new"
		}, drift.TemplateDrifted},

		// The template names its image: a new node would boot the same.
		"When the payload comes before the template, it should find nothing, because a new node would be the same": {
			carried, func(_ *testing.T, w *world) { w.both("1.36.3") }, none,
		},
		"When the payload goes back, it should find nothing": {carried, func(_ *testing.T, w *world) { w.payload = "1.36.1" }, none},
		"When the bootstrap is a Secret, it should find nothing: its content is the same for each version": {carried, func(_ *testing.T, w *world) {
			w.templates[0].Bootstrap = template.Bootstrap{DataSecretName: "data", Hash: "bootstrap"}
			w.both("1.36.3")
		}, none},
		"When another bootstrap provider installs the Machine's version, it should find it": {carried, func(_ *testing.T, w *world) {
			w.templates[0].Bootstrap.ConfigTemplate.SetKind("RKE2ConfigTemplate")
			w.both("1.36.3")
		}, drift.VersionDrifted},
		"When a patch passes the bootstrap the version, it should find it":         {carried, func(_ *testing.T, w *world) { patched(w, "version"); w.both("1.36.3") }, drift.VersionDrifted},
		"When a patch passes the bootstrap something else, it should find nothing": {carried, func(_ *testing.T, w *world) { patched(w, "nodeClaim"); w.both("1.36.3") }, none},
		"When a patch chooses the image by version, it should find it": {carried, func(t *testing.T, w *world) {
			list, err := patch.Parse([]v1alpha1.JSONPatch{{Op: v1alpha1.JSONPatchReplace, Path: "/spec/template", ValueFrom: &v1alpha1.JSONPatchValue{Template: "ubuntu-{{ .version }}"}}})
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			w.templates[0].Patches = list
			w.both("1.36.3")
		}, drift.VersionDrifted},
		"When the template names no image, so that the provider looks for the Machine's version, it should find it": {carried, func(_ *testing.T, w *world) {
			w.templates[0].Image = ""
			w.both("1.36.3")
		}, drift.VersionDrifted},
	} {
		t.Run(name, func(t *testing.T) {
			w := tc.from()
			tc.change(t, w)
			w.expect(t, tc.want)
		})
	}
}
