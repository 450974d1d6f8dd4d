// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog/patch"
)

// PatchError names a patch that doesn't parse or apply, and its field or annotation.
type PatchError struct {
	// Where is the field of the node class or the annotation of the source.
	Where string
	err   error
}

// Error reads "spec.bootstrapPatches for RKE2Config: patch 0 (add /spec/a): ...".
func (e *PatchError) Error() string { return e.Where + ": " + e.err.Error() }

// Unwrap returns the cause.
func (e *PatchError) Unwrap() error { return e.err }

// Registers reports whether nodes of a bootstrap kind (or its template's kind) register with the unregistered taint:
// the kind is known, or a patch of the node class writes the taints.
func Registers(nodeClass *v1alpha1.ClusterAPINodeClass, kind schema.GroupKind) bool {
	if KnownBootstrap(kind.Group, kind.Kind) {
		return true
	}
	list, err := bootstrapPatches(nodeClass.Spec.BootstrapPatches, kind)
	return err == nil && list.Refers(taintVariables...)
}

// taintVariables have the taints that a node registers with.
var taintVariables = []string{patch.Taints, patch.TaintList, patch.TaintFlag}

// writers are the variables that have one of the kubelet's settings. Two others have all with a flag, one all without.
var writers = map[v1alpha1.KubeletField]string{
	"maxPods": patch.MaxPods, "kubeReserved": patch.KubeReservedFlag, "systemReserved": patch.SystemReservedFlag,
	"evictionHard": patch.EvictionHardFlag,
}

// Unwritten returns the fields of a node class's spec.kubelet that don't reach the kubelets of a bootstrap kind (or its template's
// kind): the kind isn't known, and no patch of the node class writes them.
func Unwritten(nodeClass *v1alpha1.ClusterAPINodeClass, kind schema.GroupKind) []v1alpha1.KubeletField {
	if nodeClass.Spec.Kubelet == nil || KnownBootstrap(kind.Group, kind.Kind) {
		return nil
	}
	list, err := bootstrapPatches(nodeClass.Spec.BootstrapPatches, kind)
	if err != nil {
		return nil // CheckPatches reports the error
	}
	flags, others := list.Refers(patch.KubeletArgs, patch.KubeletArgList), list.Refers(patch.KubeletConfig)
	return slices.DeleteFunc(nodeClass.Spec.Kubelet.Fields(), func(field v1alpha1.KubeletField) bool {
		if !slices.Contains(v1alpha1.KubeletFields, field) {
			return others
		}
		return flags || writers[field] != "" && list.Refers(writers[field])
	})
}

// Unallowed returns the first kind, as a message names it, with patches that the platform doesn't allow, or "". Nil
// allows all patches. A patch can name a Secret that a bootstrap provider then hands to the machine.
func Unallowed(patches, allowed []v1alpha1.BootstrapPatches) string {
	if allowed == nil {
		return ""
	}
	for i := range patches {
		if !slices.ContainsFunc(allowed, func(a v1alpha1.BootstrapPatches) bool { return samePatches(a, patches[i]) }) {
			return fmt.Sprintf("%s (%s)", patches[i].Kind, patches[i].APIGroup)
		}
	}
	return ""
}

// samePatches compares values as JSON: API servers may format a value differently.
func samePatches(a, b v1alpha1.BootstrapPatches) bool {
	decoded := [2]any{}
	for i, patches := range []v1alpha1.BootstrapPatches{a, b} {
		raw, err := json.Marshal(patches)
		if err != nil || json.Unmarshal(raw, &decoded[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(decoded[0], decoded[1])
}

func patchesFor(all []v1alpha1.BootstrapPatches, kind schema.GroupKind) []v1alpha1.JSONPatch {
	name := strings.TrimSuffix(kind.Kind, clusterv1.TemplateSuffix)
	for _, patches := range all {
		if patches.APIGroup == kind.Group && patches.Kind == name {
			return patches.Patches
		}
	}
	return nil
}

// bootstrapPatches parses a node class's patches for a bootstrap config, or its template, of that kind. The error is a *PatchError.
func bootstrapPatches(all []v1alpha1.BootstrapPatches, kind schema.GroupKind) (patch.List, error) {
	patches := patchesFor(all, kind)
	list, err := patch.Parse(patches)
	if err != nil {
		return patch.List{}, &PatchError{Where: whereBootstrap(kind), err: err}
	}
	return list, nil
}

func whereBootstrap(kind schema.GroupKind) string {
	return "spec.bootstrapPatches for " + strings.TrimSuffix(kind.Kind, clusterv1.TemplateSuffix)
}
