// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// record is what a machine says of a template that it was made from, and what it would say if it were made now.
type record struct {
	revisionKey, revision string
	hashKey, hash         string
}

func shapeOf(sh *template.Template) record {
	return record{v1alpha1.ShapeRevisionAnnotation, sh.Revision(), v1alpha1.ShapeHashAnnotation, sh.ContentHash}
}

func bootstrapOf(sh *template.Template) record {
	return record{v1alpha1.BootstrapRevisionAnnotation, sh.Bootstrap.Revision(), v1alpha1.BootstrapHashAnnotation, sh.Bootstrap.Hash}
}

// hasChanged tells whether the template has another content than the machine was made from. The same revision has the same
// content, whatever the API server makes of it by now: it may prefer another version since an upgrade, or know new defaults.
func (r record) hasChanged(annotations map[string]string) bool {
	if r.revision != "" && annotations[r.revisionKey] == r.revision {
		return false
	}
	return contentDiffers(annotations[r.hashKey], r.hash)
}

// renew adds to what a machine is to say where its template hasn't changed but the machine says it in another way: by another
// rule, of an earlier form of the same revision, or of another revision with the same content. A machine that says nothing of
// its template is left alone.
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
}

// Renewed are the annotations that a machine which hasn't drifted should have by now, as far as it has others: so that a later
// change of its templates is told from a change of how they are written. It is empty nearly always, and always for a machine
// whose shape isn't known.
func (d *Detector) Renewed(nodeClass *v1alpha1.ClusterAPINodeClass, machine *clusterv1.Machine) map[string]string {
	sh, gone := d.shape(nodeClass.Name, machine)
	if sh == nil || gone {
		return nil
	}
	renewed := map[string]string{}
	shapeOf(sh).renew(machine.Annotations, renewed)
	bootstrapOf(sh).renew(machine.Annotations, renewed)
	if resolved, reachable := d.Version(nodeClass, sh); reachable {
		have, want := machine.Annotations[v1alpha1.NodeImagesHashAnnotation], d.images(nodeClass, sh, resolved.Version)
		if have != "" && want != "" && ruleOf(have) != ruleOf(want) {
			renewed[v1alpha1.NodeImagesHashAnnotation] = want
		}
	}
	return renewed
}

// contentDiffers compares two hashes of which either may be unknown. Those of different rules say nothing of each other.
func contentDiffers(have, want string) bool {
	return differs(have, want) && ruleOf(have) == ruleOf(want)
}

// ruleOf is the version of the rule that a hash was made by; empty for the first one.
func ruleOf(hash string) string {
	rule, _, found := strings.Cut(hash, ":")
	if !found {
		return ""
	}
	return rule
}
