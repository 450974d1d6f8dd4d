// SPDX-License-Identifier: Apache-2.0

package drift_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// imaged is a node whose template states what its image boots: the payload's version, which is the API server's.
func imaged() *world {
	w := settled()
	w.templates[0].ImageVersion = "1.36.2"
	w.machine.Annotations[v1alpha1.TemplateKubernetesVersionAnnotation] = "1.36.2"
	return w
}

// upgraded is the same node once control plane and payload are at another version, and its template isn't.
func upgraded() *world {
	w := imaged()
	w.server, w.payload = "1.36.3", "1.36.3"
	return w
}

// renewed adds a template of the same instance type with another image.
func (w *world) renewed(version string) *template.Template {
	other := w.templates[0]
	other.Source.Name, other.ContentHash, other.ImageVersion = "c4-new", "new", version
	w.templates = append(w.templates, other)
	return &w.templates[len(w.templates)-1]
}

// replaced replaces the template by one of the same instance type with another image.
func (w *world) replaced(version string) {
	w.renewed(version)
	w.templates = w.templates[1:]
}

// edited gives the template another image in place.
func (w *world) edited(version string) {
	w.templates[0].ContentHash, w.templates[0].ImageVersion = "new", version
}

func TestImageVersion(t *testing.T) {
	const none = karpcloudprovider.DriftReason("")
	for name, tc := range map[string]struct {
		from   func() *world
		change func(*world)
		// want is the reason while nodes may be upgraded, and outside the window while they may not.
		want, outside karpcloudprovider.DriftReason
	}{
		"When nothing has changed, it should find nothing": {imaged, func(*world) {}, none, none},

		// Template first.
		"When a template with a newer image comes before the payload and the API server has the version, it should wait for the payload": {imaged, func(w *world) {
			w.server = "1.36.3"
			w.renewed("1.36.3")
		}, none, none},
		"When the template is replaced by one with a newer image before the payload, it should wait for that": {imaged, func(w *world) { w.replaced("1.36.3") }, none, none},
		// Payload first.
		"When the payload is ahead of the only template, it should find nothing, because a new node would be the same": {upgraded, func(*world) {}, none, none},
		// Both.
		"When a template has the payload's version, it should find the node's old":                      {upgraded, func(w *world) { w.renewed("1.36.3") }, drift.VersionDrifted, none},
		"When the template was replaced by one with the payload's version, it should find it":           {upgraded, func(w *world) { w.replaced("1.36.3") }, drift.TemplateDrifted, none},
		"When the template has the payload's version in place, it should find it":                       {upgraded, func(w *world) { w.edited("1.36.3") }, drift.TemplateDrifted, none},
		"When only what the template states has changed, it should take its image for another one":      {upgraded, func(w *world) { w.templates[0].ImageVersion = "1.36.3" }, drift.VersionDrifted, none},
		"When the template's bootstrap changes with its image, it should wait for the window with both": {upgraded, func(w *world) { w.templates[0].Bootstrap.Hash, w.templates[0].ImageVersion = "new", "1.36.3" }, drift.BootstrapDrifted, none},
		"When the new template makes no such machine in the node's zone, it should find nothing":        {upgraded, func(w *world) { w.renewed("1.36.3").FailureDomains = []string{"b"} }, none, none},
		"When a MachineDeployment makes the same with a version of its own, it should find nothing: that is its author's decision": {upgraded, func(w *world) {
			*w.renewed("") = *deployedAs(w, "v1.36.3")
		}, none, none},

		// What brings no other version isn't held.
		"When the template's content changes and its image's version doesn't, it should find that at any time": {imaged, func(w *world) { w.edited("1.36.2") }, drift.TemplateDrifted, drift.TemplateDrifted},
		"When the kubelet's settings change, it should find that at any time":                                  {upgraded, func(w *world) { w.renewed("1.36.3"); kubelet(w) }, drift.NodeClassDrifted, drift.NodeClassDrifted},

		// Back again.
		"When the payload goes back and another template has its version, it should find the node's too new": {func() *world {
			w := imaged()
			w.payload = "1.36.1"
			return w
		}, func(w *world) { w.renewed("1.36.1") }, drift.VersionDrifted, none},

		// The node class's own version.
		"When the node class requests an older version and a template has it, it should follow at any time": {imaged, func(w *world) {
			w.nodeClass.Spec.Version = "1.36.1"
			w.renewed("1.36.1")
		}, drift.VersionDrifted, drift.VersionDrifted},

		// Nodes from before the template said anything.
		"When the template declares that its machines boot less than was asked, it should find nothing": {
			settled, func(w *world) { w.templates[0].ImageVersion = "1.36.1" }, none, none,
		},
		"When the first template to say something replaces one, it should wait for the window": {unstated, func(w *world) { w.replaced("1.36.3") }, drift.TemplateDrifted, none},
		"When a template that declares nothing replaces one that did, it should take it for the payload's": {
			upgraded, func(w *world) { w.replaced("") }, drift.TemplateDrifted, none,
		},
		"When the template declares nothing any more, it should follow the payload": {upgraded, func(w *world) { w.templates[0].ImageVersion = "" }, drift.VersionDrifted, none},

		// A MachineDeployment without a version, whose template declares it.
		"When a MachineDeployment's template has another image, it should find it":                                {deployedImage, func(w *world) { w.edited("1.36.3") }, drift.TemplateDrifted, none},
		"When drift is deferred to Cluster API and a MachineDeployment has another image, it should find nothing": {deferredImage, func(w *world) { w.edited("1.36.3") }, none, none},
		"When drift is deferred and only the payload is ahead, it should find nothing":                            {deferredImage, func(*world) {}, none, none},
	} {
		t.Run(name, func(t *testing.T) {
			for when, c := range map[string]struct {
				allowed bool
				want    karpcloudprovider.DriftReason
			}{"in the window": {true, tc.want}, "outside the window": {false, tc.outside}} {
				w := tc.from()
				w.upgrades = func(time.Time) bool { return c.allowed }
				tc.change(w)
				NewWithT(t).Expect(w.reason()).To(Equal(c.want), when)
			}
		})
	}
}

// unstated is a node, after an upgrade, whose template said nothing of its image when the node was launched.
func unstated() *world {
	w := settled()
	w.server, w.payload = "1.36.3", "1.36.3"
	return w
}

func deployedImage() *world {
	w := deployed()
	w.templates[0].Machine.Spec.Version, w.templates[0].ImageVersion = "", "1.36.1"
	w.machine.Annotations[v1alpha1.TemplateKubernetesVersionAnnotation] = "1.36.1"
	w.server, w.payload = "1.36.3", "1.36.3"
	return w
}

func deferredImage() *world {
	w := deployedImage()
	w.nodeClass.Spec.DriftPolicy = v1alpha1.DriftPolicyDefer
	return w
}

// deployedAs is the template of a MachineDeployment that makes the same as w's.
func deployedAs(w *world, version string) *template.Template {
	tmpl := deployed().templates[0]
	tmpl.Machine.Spec.Version, tmpl.ContentHash = version, w.templates[0].ContentHash
	return &tmpl
}

func TestImageVersionRecord(t *testing.T) {
	const record = v1alpha1.TemplateKubernetesVersionAnnotation
	for name, tc := range map[string]struct {
		from   func() *world
		change func(*world)
		want   map[string]string
	}{
		"When the machine's record is its template's, it should write nothing": {imaged, func(*world) {}, map[string]string{}},
		"When the template of an older machine reports what it boots, it should record that": {
			settled, func(w *world) { w.templates[0].ImageVersion = "1.36.1" }, map[string]string{record: "1.36.1"},
		},
		"When the template of an older machine has changed too, it should record nothing": {settled, func(w *world) { w.edited("1.36.3") }, map[string]string{}},
		"When the template states another version, it should not record what the machine doesn't boot": {
			upgraded, func(w *world) { w.templates[0].ImageVersion = "1.36.3" }, map[string]string{},
		},
		"When another template is to replace the machine's, it should record nothing of that": {upgraded, func(w *world) {
			w.renewed("1.36.3").ContentHash = "content"
		}, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := tc.from()
			tc.change(w)
			NewWithT(t).Expect(w.detector().Renewed(w.nodeClass, w.machine)).To(BeComparableTo(tc.want))
		})
	}
}
