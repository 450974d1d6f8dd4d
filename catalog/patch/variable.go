// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"fmt"
	"strings"
)

// Variables that patches can refer to. docs/platform/patches.md describes them.
const (
	Taints             = "taints"
	TaintList          = "taintList"
	TaintFlag          = "taintFlag"
	Labels             = "labels"
	LabelList          = "labelList"
	LabelFlag          = "labelFlag"
	KubeletArgs        = "kubeletArgs"
	KubeletArgList     = "kubeletArgList"
	KubeletConfig      = "kubeletConfig"
	KubeReservedFlag   = "kubeReservedFlag"
	SystemReservedFlag = "systemReservedFlag"
	EvictionHardFlag   = "evictionHardFlag"
	MaxPods            = "maxPods"
	Version            = "version"
	InstanceType       = "instanceType"
	Zone               = "zone"
	CapacityType       = "capacityType"
	ReservationID      = "reservationID"
	FailureDomain      = "failureDomain"
	NodeClaim          = "nodeClaim"
)

// imageVariable begins the variables that are images: image.<infrastructure>[.<region or format>].
const imageVariable = "image"

// maxItems bounds the lists and objects that a template ranges over.
const maxItems = 256

type variableType int

const (
	text variableType = iota
	number
	list
	object
)

var types = map[string]variableType{
	Taints: list, TaintList: list, TaintFlag: text,
	Labels: object, LabelList: list, LabelFlag: text,
	KubeletArgs: object, KubeletArgList: list, KubeletConfig: object,
	KubeReservedFlag: text, SystemReservedFlag: text, EvictionHardFlag: text,
	MaxPods: number, Version: text, InstanceType: text, Zone: text, CapacityType: text, ReservationID: text,
	FailureDomain: text, NodeClaim: text,
}

// Image is a reference to an image of the release payload.
type Image struct {
	// Infrastructure such as aws.
	Infrastructure string
	// Variant is a region or a format; empty where the infrastructure has one image.
	Variant string
}

// String is how valueFrom.variable refers to the image.
func (i Image) String() string {
	if i.Variant == "" {
		return imageVariable + "." + i.Infrastructure
	}
	return imageVariable + "." + i.Infrastructure + "." + i.Variant
}

func imageOf(variable string) (Image, bool) {
	rest, ok := strings.CutPrefix(variable, imageVariable+".")
	infrastructure, variant, _ := strings.Cut(rest, ".")
	return Image{Infrastructure: infrastructure, Variant: variant}, ok && infrastructure != ""
}

func checkVariable(name string) error {
	if _, ok := imageOf(name); ok {
		return nil
	}
	if _, ok := types[name]; !ok {
		return fmt.Errorf("unknown variable %q", shorten(name))
	}
	return nil
}

// Values of the variables for one machine.
type Values struct {
	// Variables by name. A text is a string, a number an int64, a list a []any and an object a map[string]any; one that is missing is empty.
	Variables map[string]any
	// Image finds an image of the release payload.
	Image func(Image) (string, bool)
}

func (v Values) get(name string) (any, error) {
	if image, ok := imageOf(name); ok {
		return v.image(image)
	}
	return v.Variables[name], nil
}

func (v Values) image(image Image) (string, error) {
	if v.Image != nil {
		if found, ok := v.Image(image); ok {
			return found, nil
		}
	}
	return "", fmt.Errorf("the release names no %s for the machine's architecture", image)
}

// data is a template's dot: every variable, with its type.
func (v Values) data() (map[string]any, error) {
	data := make(map[string]any, len(types))
	for name, kind := range types {
		value := v.Variables[name]
		switch typed := value.(type) {
		case []any:
			if len(typed) > maxItems {
				return nil, fmt.Errorf("variable %s has %d items, and templates support %d", name, len(typed), maxItems)
			}
		case map[string]any:
			if len(typed) > maxItems {
				return nil, fmt.Errorf("variable %s has %d items, and templates support %d", name, len(typed), maxItems)
			}
		case nil:
			value = map[variableType]any{text: "", number: int64(0), list: []any{}, object: map[string]any{}}[kind]
		}
		data[name] = value
	}
	return data, nil
}

func isEmpty(value any) bool {
	switch v := value.(type) {
	case string:
		return v == ""
	case int64:
		return v == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return value == nil
}
