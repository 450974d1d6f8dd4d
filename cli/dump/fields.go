// SPDX-License-Identifier: Apache-2.0

package dump

import (
	_ "embed"
	"maps"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// tree is what of an object stays: fields with what of them stays, nil for a whole one.
type tree map[string]tree

// anyText is beside the fields of one that is a text in other kinds, which stays.
const anyText = "*"

//go:embed fields.yaml
var fieldsYAML []byte

// allowed are the fields of fields.yaml, by kind. Without them nothing would stay.
var allowed = sync.OnceValue(func() (fields struct {
	Common                       tree
	Kinds, AutoNode              map[string]tree
	Metadata, Condition, Kubelet []string
}) {
	_ = yaml.Unmarshal(fieldsYAML, &fields) // a test reads it
	return fields
})

// treeOf returns the fields of a kind that stay.
func treeOf(gk schema.GroupKind, ours bool) tree {
	t := both(allowed().Common, allowedFields(gk))
	if ours {
		t = both(t, allowed().AutoNode[gk.String()])
	}
	return t
}

// both returns the fields of two trees.
func both(a, b tree) tree {
	all := tree{} // none is nil, which would be a whole one
	maps.Copy(all, a)
	for field, t := range b {
		if before, known := all[field]; known && before != nil && t != nil {
			t = both(before, t)
		} else if known {
			t = nil
		}
		all[field] = t
	}
	return all
}

func allowedFields(gk schema.GroupKind) tree {
	if fields, ok := allowed().Kinds[gk.String()]; ok {
		return fields
	}
	for group := gk.Group; group != ""; {
		if fields, ok := allowed().Kinds["*."+group]; ok {
			return fields
		}
		_, group, _ = strings.Cut(group, ".")
	}
	return nil
}
