// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/autonode-io/autonode/api/scalar"
)

// ImageGCThresholds returns both thresholds of the image garbage collection if one is set: an unset one has the kubelet's default.
func (k *KubeletConfiguration) ImageGCThresholds() (high, low int32, ok bool) {
	if k == nil || k.ImageGCHighThresholdPercent == nil && k.ImageGCLowThresholdPercent == nil {
		return 0, 0, false
	}
	high, low = DefaultImageGCHighThresholdPercent, DefaultImageGCLowThresholdPercent
	if k.ImageGCHighThresholdPercent != nil {
		high = *k.ImageGCHighThresholdPercent
	}
	if k.ImageGCLowThresholdPercent != nil {
		low = *k.ImageGCLowThresholdPercent
	}
	return high, low, true
}

// KubeletFields are the fields of spec.kubelet that have a type of their own.
var KubeletFields = []KubeletField{
	"clusterDNS", "cpuCFSQuota", "evictionHard", "evictionMaxPodGracePeriod", "evictionSoft", "evictionSoftGracePeriod",
	"imageGCHighThresholdPercent", "imageGCLowThresholdPercent", "kubeReserved", "maxPods", "podPidsLimit", "podsPerCore", "systemReserved",
}

// MarshalJSON writes the other fields beside the typed ones.
func (k KubeletConfiguration) MarshalJSON() ([]byte, error) {
	type typed KubeletConfiguration
	raw, err := json.Marshal(typed(k))
	if err != nil || len(k.Other) == 0 {
		return raw, err
	}
	all := map[string]apiextensionsv1.JSON{}
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	maps.Copy(all, k.Other)
	return json.Marshal(all)
}

// UnmarshalJSON keeps fields without a type as Other. It fails for typed fields alone, whose values the schema bounds.
func (k *KubeletConfiguration) UnmarshalJSON(raw []byte) (err error) {
	defer func() {
		// The decoder doesn't say what it decodes with this method.
		if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			mismatch.Struct, mismatch.Field = "KubeletConfiguration", strings.TrimSuffix("kubelet."+mismatch.Field, ".")
		}
	}()
	all := map[string]apiextensionsv1.JSON{}
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	*k = KubeletConfiguration{}
	for field, value := range all {
		if !slices.Contains(KubeletFields, KubeletField(field)) {
			if k.Other == nil {
				k.Other = map[string]apiextensionsv1.JSON{}
			}
			k.Other[field] = value
			delete(all, field)
		}
	}
	if raw, err = json.Marshal(all); err != nil {
		return err
	}
	type typed KubeletConfiguration
	return json.Unmarshal(raw, (*typed)(k))
}

// Fields are those that are set, sorted. The receiver may be nil.
func (k *KubeletConfiguration) Fields() (fields []KubeletField) {
	// Numbers, truth values, strings and maps of strings always encode.
	raw, _ := json.Marshal(k)
	set := map[KubeletField]json.RawMessage{}
	_ = json.Unmarshal(raw, &set)
	return slices.Sorted(maps.Keys(set))
}

// KubeletField is a field of spec.kubelet.
//
// +kubebuilder:validation:Enum=clusterDNS;maxPods;podsPerCore;kubeReserved;systemReserved;evictionHard;evictionSoft;evictionSoftGracePeriod;evictionMaxPodGracePeriod;imageGCHighThresholdPercent;imageGCLowThresholdPercent;cpuCFSQuota;podPidsLimit
type KubeletField string

// KubeletBounds bound spec.kubelet of node classes. A field that a node class doesn't set has the bootstrap template's value, independent
// of the bounds.
type KubeletBounds struct {
	// forbidden are the fields that no node class may set. Set them in the bootstrap template.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=13
	Forbidden []KubeletField `json:"forbidden,omitempty"`
	// max has the largest values that node classes may set.
	// +optional
	Max *KubeletMaximums `json:"max,omitempty"`
	// min has the smallest values that node classes may set.
	// +optional
	Min *KubeletMinimums `json:"min,omitempty"`
	// allowedFields are further fields of Kubernetes 1.36's KubeletConfiguration that node classes may set, such as maxParallelImagePulls.
	// By default none. Fields of the kubelet's identity, registration, TLS, authentication, authorization and static pods, and those that
	// Karpenter plans with, are never allowed.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.all(f, f.matches('^[a-z][A-Za-z0-9]*$'))",message="allowedFields has to hold names of fields, such as maxParallelImagePulls"
	// +kubebuilder:validation:XValidation:rule="self.all(f, !(f in ['apiVersion', 'authentication', 'authorization', 'cpuManagerPolicy', 'cpuManagerPolicyOptions', 'kind', 'localStorageCapacityIsolation', 'mergeDefaultEvictionSettings', 'providerID', 'readOnlyPort', 'registerNode', 'registerWithTaints', 'reservedSystemCPUs', 'rotateCertificates', 'serverTLSBootstrap', 'staticPodPath', 'staticPodURL', 'staticPodURLHeader', 'tlsCertFile', 'tlsCipherSuites', 'tlsCurvePreferences', 'tlsMinVersion', 'tlsPrivateKeyFile', 'topologyManagerPolicy']))",message="allowedFields must not hold a field of the kubelet's identity, registration, TLS, authentication, authorization or static pods, or one that Karpenter plans with"
	AllowedFields []string `json:"allowedFields,omitempty"`
}

// neverAllowed are the fields that allowedFields can't hold.
var neverAllowed = []string{
	"apiVersion", "authentication", "authorization", "cpuManagerPolicy", "cpuManagerPolicyOptions", "kind", "localStorageCapacityIsolation",
	"mergeDefaultEvictionSettings", "providerID", "readOnlyPort", "registerNode", "registerWithTaints", "reservedSystemCPUs",
	"rotateCertificates", "serverTLSBootstrap", "staticPodPath", "staticPodURL", "staticPodURLHeader", "tlsCertFile", "tlsCipherSuites",
	"tlsCurvePreferences", "tlsMinVersion", "tlsPrivateKeyFile", "topologyManagerPolicy",
}

// fieldName is how a field of the kubelet may be called.
var fieldName = regexp.MustCompile(`^[a-z][A-Za-z0-9]{0,62}$`)

// maxOther is how many problems with other fields are listed.
const maxOther = 8

// Allows reports whether node classes may set a field without a type of its own. The receiver may be nil.
func (b *KubeletBounds) Allows(field string) bool {
	return b != nil && slices.Contains(b.AllowedFields, field) && !slices.Contains(neverAllowed, field)
}

// others returns the problems with fields that have no type of their own.
func (b *KubeletBounds) others(kubelet *KubeletConfiguration) (problems []string) {
	unallowed := 0
	for _, field := range slices.Sorted(maps.Keys(kubelet.Other)) {
		if b.Allows(field) {
			continue
		}
		if unallowed++; unallowed > maxOther {
			continue
		}
		if !fieldName.MatchString(field) {
			field = fmt.Sprintf("%.40q", field)
		}
		problems = append(problems, field+" is set, and the platform's kubeletBounds don't allow it")
	}
	if more := unallowed - maxOther; more > 0 {
		problems = append(problems, fmt.Sprintf("of %d more fields the same is true", more))
	}
	return problems
}

// KubeletMaximums are the largest values of fields of spec.kubelet.
type KubeletMaximums struct {
	// maxPods is the largest maxPods.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2500
	MaxPods *int32 `json:"maxPods,omitempty"`
	// podPidsLimit is the largest podPidsLimit; -1, which is no limit, exceeds it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4194304
	PodPidsLimit *int64 `json:"podPidsLimit,omitempty"`
}

// KubeletMinimums are the smallest values of fields of spec.kubelet.
type KubeletMinimums struct {
	// kubeReserved is the minimum for node classes that set kubeReserved: cpu, memory, ephemeral-storage and pid, as quantities.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage', 'pid'])",message="kubeReserved may hold cpu, memory, ephemeral-storage and pid"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$') && isQuantity(self[k]) && !quantity(self[k]).isLessThan(quantity('0')))",message="kubeReserved values have to be quantities that are not negative, such as 100m or 256Mi"
	KubeReserved map[string]ReservedQuantity `json:"kubeReserved,omitempty"`
	// systemReserved is the minimum for node classes that set systemReserved.
	// +optional
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage', 'pid'])",message="systemReserved may hold cpu, memory, ephemeral-storage and pid"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$') && isQuantity(self[k]) && !quantity(self[k]).isLessThan(quantity('0')))",message="systemReserved values have to be quantities that are not negative, such as 100m or 256Mi"
	SystemReserved map[string]ReservedQuantity `json:"systemReserved,omitempty"`
}

// Problems returns a node class's settings beyond the bounds, as "maxPods is 300, and the platform allows at most 250". Both may be nil.
func (b *KubeletBounds) Problems(kubelet *KubeletConfiguration) (problems []string) {
	if kubelet == nil {
		return nil
	}
	problems = b.others(kubelet)
	if b == nil {
		return problems
	}
	for _, field := range kubelet.Fields() {
		if slices.Contains(b.Forbidden, field) {
			problems = append(problems, string(field)+" is set, and the platform forbids it")
		}
	}
	if largest := b.Max; largest != nil {
		if n := kubelet.MaxPods; n != nil && largest.MaxPods != nil && *n > *largest.MaxPods {
			problems = append(problems, fmt.Sprintf("maxPods is %d, and the platform allows at most %d", *n, *largest.MaxPods))
		}
		if n := kubelet.PodPidsLimit; n != nil && largest.PodPidsLimit != nil && (*n > *largest.PodPidsLimit || *n <= 0) {
			problems = append(problems, fmt.Sprintf("podPidsLimit is %d, and the platform allows at most %d", *n, *largest.PodPidsLimit))
		}
	}
	if b.Min != nil {
		problems = append(problems, tooLittle("kubeReserved", kubelet.KubeReserved, b.Min.KubeReserved)...)
		problems = append(problems, tooLittle("systemReserved", kubelet.SystemReserved, b.Min.SystemReserved)...)
	}
	return problems
}

// tooLittle compares a node class's reservations with the minimum. Without a value the bootstrap's counts.
func tooLittle(field string, reserved, least map[string]ReservedQuantity) (problems []string) {
	if len(reserved) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(least)) {
		wanted, err := scalar.ParseQuantity(string(least[name]))
		if err != nil {
			continue // the schema refuses it
		}
		value, set := reserved[name]
		switch got, err := scalar.ParseQuantity(string(value)); {
		case !set:
			if wanted.Sign() > 0 {
				problems = append(problems, fmt.Sprintf("%s[%s] isn't set, and the platform requires at least %s", field, name, least[name]))
			}
		case err != nil || got.Cmp(wanted) < 0:
			problems = append(problems, fmt.Sprintf("%s[%s] is %s, and the platform requires at least %s", field, name, value, least[name]))
		}
	}
	return problems
}
