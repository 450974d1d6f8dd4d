// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// BootstrapPatches are for bootstrap configs of one kind.
type BootstrapPatches struct {
	// apiGroup of the bootstrap config, such as bootstrap.cluster.x-k8s.io.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	APIGroup string `json:"apiGroup"`
	// kind of the bootstrap config, such as RKE2Config.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!self.endsWith('Template')",message="kind has to be that of the bootstrap config, such as RKE2Config, and not of its template"
	Kind string `json:"kind"`
	// patches are applied in order.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Patches []JSONPatch `json:"patches"`
}

// JSONPatch changes one field of an object that a machine is made of, as the JSON patches of a ClusterClass do (RFC 6902).
//
// +kubebuilder:validation:XValidation:rule="self.op != 'remove' || !has(self.valueFrom)",message="a remove has no value"
type JSONPatch struct {
	// op is add, replace or remove. An add creates missing parents. A replace or a remove needs an existing field.
	// +required
	Op JSONPatchOperation `json:"op"`
	// path is a JSON pointer (RFC 6901) such as /spec/agentConfig/nodeTaints. A last part of "-" appends to a list.
	// +required
	// +kubebuilder:validation:MinLength=7
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/spec/')",message="path must begin with /spec/"
	Path string `json:"path"`
	// value to set: any JSON. An add or a replace has either value or valueFrom.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:pruning:PreserveUnknownFields
	Value *apiextensionsv1.JSON `json:"value,omitempty"`
	// valueFrom computes the value for each machine.
	// +optional
	ValueFrom *JSONPatchValue `json:"valueFrom,omitempty"`
}

// JSONPatchOperation is the operation of a JSON patch.
//
// +kubebuilder:validation:Enum=add;replace;remove
type JSONPatchOperation string

// Operations of a JSON patch.
const (
	// JSONPatchAdd sets a field, or inserts into a list.
	JSONPatchAdd JSONPatchOperation = "add"
	// JSONPatchReplace sets a field that exists.
	JSONPatchReplace JSONPatchOperation = "replace"
	// JSONPatchRemove removes a field that exists.
	JSONPatchRemove JSONPatchOperation = "remove"
)

// JSONPatchValue is a union: exactly one member is set. A patch whose variable is empty, or whose template renders nothing, is skipped.
//
// +kubebuilder:validation:XValidation:rule="has(self.variable) != has(self.template)",message="exactly one of variable and template must be set"
type JSONPatchValue struct {
	// variable names the variable to set, with its type. Lists: taints (objects as in a Node), taintList (key=value:effect), labelList
	// (key=value), kubeletArgList (name=value). Objects: labels, kubeletArgs (each of the kubelet's flags that the node class sets, and
	// max-pods), kubeletConfig (the fields of the kubelet's configuration that it sets beside those). Strings: taintFlag and labelFlag
	// (those lists, joined by commas), kubeReservedFlag, systemReservedFlag and evictionHardFlag (in the format of the kubelet's flags),
	// version (without a leading v), instanceType, zone, capacityType, reservationID, failureDomain, nodeClaim. Number: maxPods.
	// image.<infrastructure> is the image that the release payload names for the machine's architecture, and
	// image.<infrastructure>.<region or format> one of several, such as image.aws.us-east-1.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^(taint(s|List|Flag)|label(s|List|Flag)|kubelet(Args|ArgList|Config)|(kubeReserved|systemReserved|evictionHard)Flag|maxPods|version|instanceType|zone|capacityType|reservationID|failureDomain|nodeClaim|image([.][a-zA-Z0-9_-]+)+)$')",message="unknown variable: the variables are taints, taintList, taintFlag, labels, labelList, labelFlag, kubeletArgs, kubeletArgList, kubeletConfig, kubeReservedFlag, systemReservedFlag, evictionHardFlag, maxPods, version, instanceType, zone, capacityType, reservationID, failureDomain, nodeClaim and image.<infrastructure>[.<region or format>]"
	Variable string `json:"variable,omitempty"`
	// template is a Go template (text/template) that renders the value as YAML or JSON, such as 'max-pods={{ .maxPods }}'. It can refer to
	// the variables by name, and to images by {{ image "aws" "us-east-1" }}.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Template string `json:"template,omitempty"`
}
