// SPDX-License-Identifier: Apache-2.0

package minsize

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// mark is who keeps Karpenter from disrupting a node.
type mark int

const (
	// unmarked: no one does.
	unmarked mark = iota
	// ours: this package does.
	ours
	// damaged: this package did, and one of its two annotations has been changed since.
	damaged
	// foreign: a user or another controller does. This package leaves the annotation alone.
	foreign
)

// markOf a node whose machine was made from a source.
func markOf(node *corev1.Node, source string) mark {
	held := node.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true"
	keptFor, kept := node.Annotations[v1alpha1.KeptForMinimumAnnotation]
	switch {
	case kept && held && keptFor == source:
		return ours
	case kept:
		return damaged
	case held:
		return foreign
	}
	return unmarked
}

// member is a registered node of a source.
type member struct {
	// node is shared with the cache: never change it.
	node *corev1.Node
	// nodeClaim is the NodeClaim's name, and created when that was created.
	nodeClaim string
	created   time.Time
	// leaving: the node is being removed, or Karpenter has decided to remove it.
	leaving bool
	// drifted: Karpenter will replace the node.
	drifted bool
	mark    mark
}

// memberOf returns a NodeClaim's member, or false unless it and its Node are registered: Karpenter disrupts no node
// before.
func memberOf(nodeClaim *karpv1.NodeClaim, node *corev1.Node, source string) (m member, registered bool) {
	claimed := claimStateOf(nodeClaim)
	if !claimed.registered {
		return member{}, false
	}
	joined := nodeStateOf(node)
	if !joined.registered || joined.providerID != claimed.providerID {
		return member{}, false
	}
	return member{
		node: node, nodeClaim: nodeClaim.Name, created: nodeClaim.CreationTimestamp.Time,
		leaving: claimed.leaving || joined.leaving, drifted: claimed.drifted,
		mark: markOf(node, source),
	}, true
}

// choose returns which of a source's nodes to mark and which to unmark, so that minimum of them stay: the oldest ones
// that are neither leaving nor drifted. A node with a foreign mark stays anyway and counts.
//
// choose unmarks nothing while a mark is missing: Karpenter must see the replacement's mark first. It also unmarks
// nothing while the minimum is unknown.
func choose(members []member, minimum int, known bool) (keep, release []member) {
	var candidates []member
	for _, m := range members {
		switch {
		case m.leaving:
		case m.mark == foreign:
			minimum--
		case !m.drifted:
			candidates = append(candidates, m)
		case m.mark != unmarked:
			release = append(release, m)
		}
	}
	slices.SortFunc(candidates, func(a, b member) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.nodeClaim, b.nodeClaim))
	})
	for i, m := range candidates {
		switch {
		case i < minimum && m.mark != ours:
			keep = append(keep, m)
		case i >= minimum && m.mark != unmarked:
			release = append(release, m)
		}
	}
	if len(keep) > 0 || !known {
		release = nil
	}
	return keep, release
}
