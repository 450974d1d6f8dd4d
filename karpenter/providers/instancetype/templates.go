// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

type patchedKubelet struct {
	settings kubelet.Settings
	patched  bool
}

// check tries each template once, until it or the node class changes. It is called with e.resolving held.
func (p *Provider) check(e *entry, nodeClass *v1alpha1.ClusterAPINodeClass, found *template.Found) *template.Found {
	checked := make(map[string]error, len(found.Templates))
	result := found.Checked(func(tmpl *template.Template) error {
		key := fmt.Sprintf("%s/%d%s", nodeClass.UID, nodeClass.Generation, read(tmpl))
		err, known := e.checked[key]
		if !known {
			err = p.Check(nodeClass, tmpl)
		}
		checked[key] = err
		return err
	})
	e.checked = checked
	return result
}

// patch gives each template the kubelet settings that the node class's patches make of its own. They are read once, until
// the template or the node class changes. It is called with e.resolving held.
func (p *Provider) patch(e *entry, nodeClass *v1alpha1.ClusterAPINodeClass, found *template.Found) *template.Found {
	if len(nodeClass.Spec.BootstrapPatches) == 0 {
		e.patched = nil
		return found
	}
	patched := make(map[string]patchedKubelet, len(found.Templates))
	result := *found
	result.Templates = slices.Clone(found.Templates)
	for i := range result.Templates {
		tmpl := &result.Templates[i]
		key := fmt.Sprintf("%s/%d%s", nodeClass.UID, nodeClass.Generation, read(tmpl))
		known, ok := e.patched[key]
		if !ok {
			known.settings, known.patched = p.Kubelet(nodeClass, tmpl)
		}
		patched[key] = known
		if known.patched {
			tmpl.Bootstrap.Kubelet, tmpl.Bootstrap.Patched = known.settings, true
		}
	}
	e.patched = patched
	return &result
}

// keep adds the templates that were known before and lack only because a kind can't be read now, or because their source is
// malformed by now: a node whose instance type vanishes is replaced, and neither is a reason for that. Nothing is launched
// from a source that is malformed.
func keep(before []template.Template, found *template.Found) []template.Template {
	unread := map[schema.GroupKind]bool{}
	for _, err := range found.Unreadable {
		var unreadable *informer.UnreadableError
		if errors.As(err, &unreadable) {
			unread[unreadable.GroupKind] = true
		}
	}
	templates := slices.Clone(found.Templates)
	for _, old := range before {
		source := old.Source.Annotation()
		old.Blocked = slices.ContainsFunc(found.Invalid, func(invalid *template.InvalidError) bool { return invalid.Source.Covers(source) })
		depends := unread[old.Source.GroupKind] ||
			old.Infrastructure != nil && unread[old.Infrastructure.GroupVersionKind().GroupKind()] ||
			old.Bootstrap.ConfigTemplate != nil && unread[old.Bootstrap.ConfigTemplate.GroupVersionKind().GroupKind()]
		same := func(tmpl template.Template) bool { return tmpl.Source.Annotation() == source }
		if (depends || old.Blocked) && !slices.ContainsFunc(templates, same) {
			templates = append(templates, old)
		}
	}
	return templates
}

// setVersions sets the templates' versions from their images, and from their MachineDeployments if the node class sets none. It
// returns the errors of impossible versions; those templates launch nothing.
func (p *Provider) setVersions(nodeClass *v1alpha1.ClusterAPINodeClass, templates []template.Template) (problems []error) {
	if p.Version == nil {
		return nil
	}
	given, _ := p.Version(nodeClass, nil)
	for i := range templates {
		tmpl := &templates[i]
		p.observeImage(nodeClass, tmpl, given)
		tmpl.NodeVersion, tmpl.Outdated, tmpl.Ahead = "", false, false
		if tmpl.ImageVersion == "" && (nodeClass.Spec.Version != "" || tmpl.Version() == "") {
			continue
		}
		resolved, _ := p.Version(nodeClass, tmpl)
		tmpl.NodeVersion = resolved.Version
		if tmpl.ImageVersion != "" {
			tmpl.NodeVersion = tmpl.ImageVersion
			if !given.Ready() {
				continue // the node class's condition reports why
			}
			tmpl.Outdated, tmpl.Ahead = !version.IsMade(tmpl.ImageVersion, given.Version), resolved.Outcome == version.ImageTooNew
			if tmpl.Ahead {
				continue
			}
		}
		if !resolved.Ready() && resolved.Outcome != version.Unknown {
			tmpl.Blocked = true
			problems = append(problems, &template.InvalidError{Source: tmpl.Source, Problem: resolved.Message})
		}
	}
	return problems
}

// observeImage sets the image's version of a template that doesn't state it from the kubelets of its nodes. It leaves a version alone that
// is newer than nodes get: nothing would be launched from the template, and no user has requested that.
func (p *Provider) observeImage(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template, given version.Result) {
	if tmpl.ObservedImage {
		tmpl.ImageVersion, tmpl.ObservedImage = "", false // of an earlier refresh
	}
	if tmpl.ImageVersion != "" || tmpl.Version() != "" || !given.Ready() || !tmpl.NamesKubelet(nodeClass) {
		return
	}
	runs, known := p.Inventory.Kubelet(Revision(tmpl, nodeClass.Hash()))
	if known && (version.IsMade(runs, given.Version) || version.Compare(runs, given.Version) < 0) {
		tmpl.ImageVersion, tmpl.ObservedImage = runs, true
	}
}

// keyOf differs whenever a snapshot may differ. rest is of everything but the templates.
func keyOf(rest string, templates []template.Template) string {
	var b strings.Builder
	b.WriteString(rest)
	for i := range templates {
		b.WriteString(identity(&templates[i]))
	}
	return b.String()
}

func restOf(nodeClass *v1alpha1.ClusterAPINodeClass, cluster template.Cluster, gaps template.Gaps) string {
	return fmt.Sprintf("%s/%d|%q|%q|%t|%t%q", nodeClass.UID, nodeClass.Generation, cluster.FailureDomains, cluster.Region,
		cluster.Paused || cluster.Deleting, gaps.All, gaps.Sources)
}

// identity of a template: the same one offers the same.
func identity(tmpl *template.Template) string {
	id := read(tmpl)
	if tmpl.Blocked {
		id += "!"
	}
	if tmpl.Paused && tmpl.IsCatalogs() {
		id += "~" // the annotation of a catalog isn't in the revision of its entries
	}
	if tmpl.Outdated {
		id += "-"
	}
	if tmpl.Ahead {
		id += "+"
	}
	return id + tmpl.NodeVersion
}

// read identifies the objects that a template was read from: its source and its bootstrap, at their revisions.
func read(tmpl *template.Template) string {
	parts := []string{"|", tmpl.Source.Annotation(), "@", string(tmpl.Source.UID), "@", tmpl.Source.ResourceVersions, "+", tmpl.Bootstrap.Hash}
	if tmpl.Bootstrap.ConfigTemplate != nil {
		parts = append(parts, "@", tmpl.Bootstrap.ConfigTemplate.GetResourceVersion())
	}
	return strings.Join(parts, "")
}
