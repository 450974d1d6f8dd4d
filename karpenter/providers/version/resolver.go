// SPDX-License-Identifier: Apache-2.0

package version

import (
	"cmp"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Resolver resolves the versions of node classes. Launch and drift use the same one.
type Resolver struct {
	Tracker *Tracker
	// Payload is the release's node version; empty without a payload.
	Payload string
}

// TooOld reports whether the API server is known not to support nodes of a version any more.
func (r Resolver) TooOld(payload string) bool {
	server, _ := r.Tracker.Server()
	v, err := parse(payload)
	return server != nil && err == nil && tooOld(v, core(*server))
}

// ResolveFor resolves the version as Resolve does, with another payload's node version; the desired payload's for an empty one.
func (r Resolver) ResolveFor(payload string, nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (Result, bool) {
	r.Payload = cmp.Or(payload, r.Payload)
	return r.Resolve(nodeClass, tmpl)
}

// Resolve returns the version of a node class's nodes, or of one template's nodes, and whether the API server answered
// the last request.
func (r Resolver) Resolve(nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (result Result, reachable bool) {
	in := Input{Spec: nodeClass.Spec.Version, Payload: r.Payload, Current: nodeClass.Status.Version}
	if tmpl != nil {
		in.MachineDeployment, in.Image = tmpl.Version(), tmpl.ImageVersion
	}
	in.Server, reachable = r.Tracker.Server()
	return Resolve(in), reachable
}
