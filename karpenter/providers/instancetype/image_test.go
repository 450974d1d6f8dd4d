// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"testing"

	"github.com/blang/semver/v4"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// resolving resolves as version.Resolver does, for a payload and an API server.
func resolving(payload, server string) func(*v1alpha1.ClusterAPINodeClass, *template.Template) (version.Result, bool) {
	return func(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (version.Result, bool) {
		in := version.Input{Spec: nodeClass.Spec.Version, Payload: payload, Current: nodeClass.Status.Version}
		if tmpl != nil {
			in.MachineDeployment, in.Image = tmpl.Version(), tmpl.ImageVersion
		}
		if server != "" {
			v := semver.MustParse(server)
			in.Server = &v
		}
		return version.Resolve(in), server != ""
	}
}

// booting is a template of the instance type c4 whose image has a version, if it declares one.
func booting(name, image string, price float64) template.Template {
	return newTemplate(name, 4, price, func(tmpl *template.Template) { tmpl.InstanceType, tmpl.ImageVersion = "c4", image })
}

func TestImages(t *testing.T) {
	old, renewed := booting("old", "1.36.2", 0.1), booting("new", "1.36.3", 0.2)
	unstated, older := booting("unstated", "", 0.3), booting("older", "1.36.1", 0.05)
	labelled := booting("labelled", "1.36.3", 0.2)
	labelled.Labels = map[string]string{"rack": "b"}
	paused := renewed
	paused.Paused = true
	for name, tc := range map[string]struct {
		templates       []template.Template
		payload, server string
		// launched is the template that the next node is launched from, and the version that it gets if it isn't the payload's.
		launched string
		// successor is what a node of the first template is to be launched from instead, and behind are the sources whose image is too old.
		successor string
		behind    []string
		// unavailable is why nothing is launched from a source.
		unavailable map[string]string
		problem     string
	}{
		"When the payload comes first, the old template should launch what it has and be behind": {
			templates: []template.Template{old}, payload: "1.36.3", server: "1.36.3", launched: "old 1.36.2", behind: []string{"old"},
		},
		"When all templates are behind, the newest should launch": {
			templates: []template.Template{old, older}, payload: "1.36.3", server: "1.36.3", launched: "old 1.36.2", behind: []string{"old"},
		},
		"When the template comes first, it should wait for the payload": {
			templates: []template.Template{old, renewed}, payload: "1.36.2", server: "1.36.3", launched: "old 1.36.2",
			unavailable: map[string]string{"new": v1alpha1.TemplateImageNewer},
		},
		"When only a newer template is there, nothing should launch": {
			templates: []template.Template{renewed}, payload: "1.36.2", server: "1.36.2", launched: "new 1.36.3 unavailable",
			unavailable: map[string]string{"new": v1alpha1.TemplateImageNewer},
		},
		"When both have come, the new template should launch although it is dearer, and succeed the old one": {
			templates: []template.Template{old, renewed}, payload: "1.36.3", server: "1.36.3", launched: "new 1.36.3", successor: "new",
		},
		"When another template declares nothing of its image, it should be taken for the payload's": {
			templates: []template.Template{old, unstated}, payload: "1.36.3", server: "1.36.3", launched: "unstated", successor: "unstated",
		},
		"When one template declares the version and another nothing, the one that declares it should launch": {
			templates: []template.Template{unstated, renewed}, payload: "1.36.3", server: "1.36.3", launched: "new 1.36.3",
		},
		"When the new template has other labels, it should launch and not succeed, because pods may ask for the old ones": {
			templates: []template.Template{old, labelled}, payload: "1.36.3", server: "1.36.3", launched: "labelled 1.36.3", behind: []string{"old"},
		},
		"When nothing launches from the new template now, the old one should launch": {
			templates: []template.Template{old, paused}, payload: "1.36.3", server: "1.36.3", launched: "old 1.36.2", behind: []string{"old"},
			unavailable: map[string]string{"new": v1alpha1.TemplatePaused},
		},
		"When an image is beyond the skew, nothing should launch and the problem should say what to do": {
			templates: []template.Template{booting("ancient", "1.32.9", 0.1)}, payload: "1.36.2", server: "1.36.2", launched: "ancient 1.32.9 unavailable",
			unavailable: map[string]string{"ancient": blocked}, behind: []string{"ancient"},
			problem: "TestMachineTemplate clusters-blue/ancient: its image's version 1.32.9 is more than 3 minor versions behind the API server's version 1.36.2; replace it by a template with a newer image",
		},
		"When the API server hasn't reported its version, nothing should be known of images": {
			templates: []template.Template{old, renewed}, payload: "1.36.3", launched: "old 1.36.2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := newProvider(Config{Version: resolving(tc.payload, tc.server)})
			snapshot := set(store, nodeClass(1), tc.templates, template.Cluster{FailureDomains: []string{"a"}})
			key := offering.Key{InstanceType: "c4", Zone: "a", CapacityType: "on-demand"}
			choice, ok := snapshot.ResolveKey(key)
			NewWithT(t).Expect(ok).To(BeTrue(), "c4 isn't offered")
			launched := choice.Template.Source.Name
			if choice.Template.NodeVersion != "" {
				launched += " " + choice.Template.NodeVersion
			}
			if !choice.Offering.Available {
				launched += " unavailable"
			}
			var successor string
			own, _ := snapshot.Template(tc.templates[0].Source.Annotation())
			if next := snapshot.Successor(own, key); next != nil {
				successor = next.Source.Name
			}
			var behind []string
			unavailable := map[string]string{}
			for i := range tc.templates {
				source := tc.templates[i].Source
				if snapshot.Behind(source.Annotation()) {
					behind = append(behind, source.Name)
				}
				if why := snapshot.Unavailable(source.Annotation()); why != "" {
					unavailable[source.Name] = why
				}
			}
			if tc.unavailable == nil {
				tc.unavailable = map[string]string{}
			}
			g := NewWithT(t)
			g.Expect(launched).To(Equal(tc.launched), "launched")
			g.Expect(successor).To(Equal(tc.successor), "successor")
			g.Expect(behind).To(Equal(tc.behind), "behind")
			g.Expect(unavailable).To(Equal(tc.unavailable), "unavailable")
			g.Expect(problemsOf(store, tc.templates)).To(Equal(tc.problem))
		})
	}
}

// problemsOf are the problems that the templates' versions have.
func problemsOf(store *Provider, templates []template.Template) (text string) {
	for _, problem := range store.setVersions(nodeClass(1), append([]template.Template{}, templates...)) {
		text += fmt.Sprint(problem)
	}
	return text
}

// TestObservedImages: the template names an image and doesn't state what is in it. Its nodes do.
func TestObservedImages(t *testing.T) {
	named := func(name string) template.Template {
		tmpl := booting(name, "", 0.1)
		tmpl.Image, tmpl.ContentHash = "ubuntu-"+name, name
		tmpl.Bootstrap = template.Bootstrap{DataSecretName: "data", Hash: "bootstrap"}
		return tmpl
	}
	for name, tc := range map[string]struct {
		payload, runs string
		change        func(tmpl *template.Template)
		// image is the version that the template is taken to have, and gets what its nodes get if that isn't the payload's.
		image, gets string
		behind      bool
	}{
		"When the payload comes first, it should know from the nodes that the image is behind": {payload: "1.36.3", runs: "v1.36.2", image: "1.36.2", gets: "1.36.2", behind: true},
		"When the nodes run the payload's version, the template should have it":                {payload: "1.36.3", runs: "v1.36.3", image: "1.36.3", gets: "1.36.3"},
		"When the template comes first, it should launch from it all the same":                 {payload: "1.36.2", runs: "v1.36.3"},
		"When no node has reported, it should take the image for the payload's":                {payload: "1.36.3"},
		"When the template states another version, that should count": {payload: "1.36.3", runs: "v1.36.2", image: "1.36.3", gets: "1.36.3", change: func(tmpl *template.Template) {
			tmpl.ImageVersion = "1.36.3"
		}},
		"When the provider looks for an image by version, it should know nothing from nodes": {payload: "1.36.3", runs: "v1.36.2", change: func(tmpl *template.Template) { tmpl.Image = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl := named("first")
			if tc.change != nil {
				tc.change(&tmpl)
			}
			store := newProvider(Config{Version: resolving(tc.payload, "1.36.3")})
			if tc.runs != "" {
				revision := Revision(&tmpl, "")
				store.Inventory.ObserveMachine("1", inventory.Machine{
					Origin: inventory.Origin{Source: revision.Source}, ContentHash: revision.ContentHash, ProviderID: "cloud://1",
				})
				store.Inventory.ObserveNode("a", inventory.Node{ProviderID: "cloud://1", Kubelet: tc.runs})
			}
			// An unstated one beside it is no successor: what it boots is unknown.
			second := named("second")
			second.Price = ptr.To(0.2)
			snapshot := set(store, nodeClass(1), []template.Template{tmpl, second}, template.Cluster{FailureDomains: []string{"a"}})
			own, _ := snapshot.Template(tmpl.Source.Annotation())
			if own.ImageVersion != tc.image || own.NodeVersion != tc.gets {
				t.Errorf("image %q, nodes get %q; want %q, %q", own.ImageVersion, own.NodeVersion, tc.image, tc.gets)
			}
			NewWithT(t).Expect(own.Outdated).To(Equal(tc.behind))
			if next := snapshot.Successor(own, offering.Key{InstanceType: "c4", Zone: "a", CapacityType: "on-demand"}); next != nil {
				t.Errorf("%s succeeds", next.Source)
			}
			// Nothing that was learned outlives what it was learned from.
			store.Inventory.ForgetNode("a")
			snapshot = set(store, nodeClass(1), []template.Template{tmpl, second}, template.Cluster{FailureDomains: []string{"a"}})
			if own, _ := snapshot.Template(tmpl.Source.Annotation()); own.ObservedImage {
				t.Errorf("%q is still taken from a node that is gone", own.ImageVersion)
			}
		})
	}
}
