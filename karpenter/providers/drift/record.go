// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// record compares a machine's record of its template with the current template.
type record struct {
	revisionKey, revision string
	hashKey, hash         string
	ownedKey, owned       string
}

func templateOf(tmpl *template.Template) record {
	return record{
		v1alpha1.TemplateRevisionAnnotation, tmpl.Revision(), v1alpha1.TemplateHashAnnotation, tmpl.ContentHash,
		v1alpha1.TemplateOwnedHashAnnotation, tmpl.OwnedHash,
	}
}

func bootstrapOf(tmpl *template.Template) record {
	return record{
		v1alpha1.BootstrapRevisionAnnotation, tmpl.Bootstrap.Revision(), v1alpha1.BootstrapHashAnnotation, tmpl.Bootstrap.Hash,
		v1alpha1.BootstrapOwnedHashAnnotation, tmpl.Bootstrap.OwnedHash,
	}
}

// hasChanged reports whether the template's content differs from the content that the machine was made from. The same revision
// has the same content, however the API server returns it: an upgrade may change its preferred version or defaults. So has
// another revision in which only webhooks have set other defaults.
func (r record) hasChanged(annotations map[string]string) bool {
	if r.revision != "" && annotations[r.revisionKey] == r.revision {
		return false
	}
	if r.owned != "" && annotations[r.ownedKey] == r.owned {
		return false
	}
	return contentDiffers(annotations[r.hashKey], r.hash)
}

// renew adds the current record to annotations if the template hasn't changed but its record has: by another hash
// rule, an earlier representation of the same revision, or another revision with the same content. It leaves a
// machine without a record alone.
func (r record) renew(annotations, renewed map[string]string) {
	if annotations[r.hashKey] == "" || r.hash == "" || r.hasChanged(annotations) {
		return
	}
	if annotations[r.hashKey] != r.hash {
		renewed[r.hashKey] = r.hash
	}
	if r.revision != "" && annotations[r.revisionKey] != r.revision {
		renewed[r.revisionKey] = r.revision
	}
	if r.owned != "" && annotations[r.ownedKey] != r.owned {
		renewed[r.ownedKey] = r.owned
	}
}

// Renewed returns the annotations to update on a machine that hasn't drifted, so that a later change of its templates
// isn't confused with a change of their representation. It is almost always empty, and always for a machine whose
// template is unknown.
func (d *Detector) Renewed(nodeClass *v1alpha1.ClusterAPINodeClass, machine *clusterv1.Machine) map[string]string {
	current := d.template(nodeClass.Name, machine)
	tmpl := current.template
	if tmpl == nil || current.gone {
		return nil
	}
	renewed := map[string]string{}
	if current.succeeds {
		return renewed
	}
	templateOf(tmpl).renew(machine.Annotations, renewed)
	if hash := machine.Annotations[v1alpha1.TemplateHashAnnotation]; tmpl.ImageVersion != "" && !tmpl.ObservedImage && hash != "" &&
		machine.Annotations[v1alpha1.TemplateKubernetesVersionAnnotation] == "" && !templateOf(tmpl).hasChanged(machine.Annotations) {
		renewed[v1alpha1.TemplateKubernetesVersionAnnotation] = tmpl.ImageVersion
	}
	bootstrapOf(tmpl).renew(machine.Annotations, renewed)
	if resolved, reachable := d.Version(nodeClass, tmpl); reachable {
		have, want := machine.Annotations[v1alpha1.NodeImagesHashAnnotation], d.images(nodeClass, tmpl, resolved.Version)
		if have != "" && want != "" && ruleOf(have) != ruleOf(want) {
			renewed[v1alpha1.NodeImagesHashAnnotation] = want
		}
	}
	return renewed
}

// contentDiffers reports whether two known hashes of the same rule differ.
func contentDiffers(have, want string) bool {
	return differs(have, want) && ruleOf(have) == ruleOf(want)
}

// ruleOf returns the version of a hash's rule; empty for the first one.
func ruleOf(hash string) string {
	rule, _, found := strings.Cut(hash, ":")
	if !found {
		return ""
	}
	return rule
}
