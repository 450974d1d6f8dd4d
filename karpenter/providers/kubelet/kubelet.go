// SPDX-License-Identifier: Apache-2.0

// Package kubelet reads the kubelet settings in bootstrap templates that decide a node's allocatable resources and its taints
// at registration. Precedence is the kubelet's own: a flag replaces the value of a file.
package kubelet

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Group and TemplateKind of the bootstrap templates that Read reads.
const (
	Group        = "bootstrap.cluster.x-k8s.io"
	TemplateKind = "KubeadmConfigTemplate"
)

// Settings of a template's kubelets. A field that isn't set has the kubelet's default.
type Settings struct {
	// KubeletConfiguration as the template has it, as far as it changes a node's allocatable resources. Its quantities aren't validated.
	v1alpha1.KubeletConfiguration
	// MergeEvictionDefaults: signals which EvictionHard doesn't name have their default thresholds. Otherwise they have
	// none, unless EvictionHard is nil.
	MergeEvictionDefaults bool
	// IgnoreEviction: thresholds don't reduce a node's allocatable resources.
	IgnoreEviction bool
	// NoLocalStorage: nodes have no ephemeral storage to allocate.
	NoLocalStorage bool
	// ReservedCPUs is the number of cores of reserved-cpus, which replaces the CPU of kubeReserved and systemReserved; nil if
	// it isn't set.
	ReservedCPUs *int64
	// Taints that the template's nodes register with.
	Taints []corev1.Taint
	// Unread names settings that can't be read, each as "<place>: <why>". Nodes may allocate less than the settings imply.
	Unread []string
	// Unplanned names known settings that Karpenter can't plan with, each as "<place>: <why>". Nodes may hold less than they can
	// allocate.
	Unplanned []string
	// Patched are the settings that a node class's patches decide. They win over those of its spec.kubelet, because patches
	// are applied last.
	Patched Patched
}

// Patched names settings.
type Patched struct{ MaxPods, PodsPerCore, KubeReserved, SystemReserved, EvictionHard bool }

// cpuList bounds the numbers: cpuset.Parse makes an entry of each.
var cpuList = regexp.MustCompile(`^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$`)

// Unknown are the settings of bootstrap data that can't be read.
func Unknown(place, why string) Settings { return Settings{Unread: []string{place + ": " + why}} }

// Over returns the settings of a node whose node class sets some itself: the provider writes those as flags, before it applies
// patches.
func (s Settings) Over(nodeClass *v1alpha1.KubeletConfiguration) Settings {
	if nodeClass == nil {
		return s
	}
	template := s.KubeletConfiguration
	s.KubeletConfiguration = *nodeClass
	if nodeClass.MaxPods == nil || s.Patched.MaxPods {
		s.MaxPods = template.MaxPods
	}
	if nodeClass.PodsPerCore == nil || s.Patched.PodsPerCore {
		s.PodsPerCore = template.PodsPerCore
	}
	if len(nodeClass.KubeReserved) == 0 || s.Patched.KubeReserved {
		s.KubeReserved = template.KubeReserved
	}
	if len(nodeClass.SystemReserved) == 0 || s.Patched.SystemReserved {
		s.SystemReserved = template.SystemReserved
	}
	if len(nodeClass.EvictionHard) == 0 || s.Patched.EvictionHard {
		s.EvictionHard = template.EvictionHard
	} else {
		s.MergeEvictionDefaults = false // a flag, which defaults aren't merged into
	}
	return s
}

// Pods returns the number of pods of a node with so many cores. declared is the source's own maximum; 0 if it has none. Of
// two maximums the smaller one counts, except that a node class's replaces both, and that of a patch all of them. The maximum per
// core counts beside them.
func (s Settings) Pods(nodeClass *v1alpha1.KubeletConfiguration, declared, cores int64) int64 {
	pods := declared
	if s.MaxPods != nil && (pods == 0 || int64(*s.MaxPods) < pods) {
		pods = int64(*s.MaxPods)
	}
	if pods == 0 {
		pods = DefaultMaxPods
	}
	if nodeClass != nil && nodeClass.MaxPods != nil {
		pods = int64(*nodeClass.MaxPods)
	}
	if s.Patched.MaxPods {
		pods = int64(ptr.Deref(s.MaxPods, DefaultMaxPods))
	}
	perCore := s.PodsPerCore
	if nodeClass != nil && nodeClass.PodsPerCore != nil && !s.Patched.PodsPerCore {
		perCore = nodeClass.PodsPerCore
	}
	if n := int64(ptr.Deref(perCore, 0)); n > 0 {
		pods = min(pods, n*max(cores, 1))
	}
	return pods
}

// DefaultMaxPods is the kubelet's default, and the Cluster Autoscaler's.
const DefaultMaxPods = 110

// Read returns the settings of a bootstrap template's kubelets.
func Read(template *unstructured.Unstructured) Settings {
	gk := template.GroupVersionKind().GroupKind()
	place := gk.Kind + " " + template.GetName()
	if gk.Group != Group || gk.Kind != TemplateKind {
		return Unknown(place, "the kubelet settings of this kind aren't known")
	}
	return read(place, template, "spec", "template", "spec")
}

func read(place string, object *unstructured.Unstructured, path ...string) Settings {
	r := reader{place: place, staticPods: staticPodPath}
	content, _, err := unstructured.NestedFieldNoCopy(object.Object, path...)
	if err != nil {
		return Unknown(place, err.Error())
	}
	raw, err := json.Marshal(content)
	if err != nil {
		return Unknown(place, err.Error())
	}
	if err := json.Unmarshal(raw, &r.config); err != nil {
		return Unknown(place, err.Error())
	}
	return r.read()
}

// Patch returns a template's settings with the changes of patches. without and with are bootstrap configs that were made
// from it, the second one patched: every difference between them comes from the patches.
func Patch(template, without, with *unstructured.Unstructured) Settings {
	settings := Read(template)
	if gk := template.GroupVersionKind().GroupKind(); gk.Group != Group || gk.Kind != TemplateKind {
		return settings
	}
	place := template.GetKind() + " " + template.GetName()
	before, after := read(place, without, "spec"), read(place, with, "spec")
	if !equality.Semantic.DeepEqual(before.MaxPods, after.MaxPods) {
		settings.MaxPods, settings.Patched.MaxPods = after.MaxPods, true
	}
	if !maps.Equal(before.KubeReserved, after.KubeReserved) {
		settings.KubeReserved, settings.Patched.KubeReserved = after.KubeReserved, true
	}
	if !maps.Equal(before.SystemReserved, after.SystemReserved) {
		settings.SystemReserved, settings.Patched.SystemReserved = after.SystemReserved, true
	}
	if !sameEviction(before, after) {
		settings.EvictionHard, settings.MergeEvictionDefaults = after.EvictionHard, after.MergeEvictionDefaults
		settings.Patched.EvictionHard = true
	}
	if !equality.Semantic.DeepEqual(before.PodsPerCore, after.PodsPerCore) {
		settings.PodsPerCore, settings.Patched.PodsPerCore = after.PodsPerCore, true
	}
	settings.ReservedCPUs = after.ReservedCPUs
	settings.IgnoreEviction, settings.NoLocalStorage = after.IgnoreEviction, after.NoLocalStorage
	settings.Taints = patchTaints(settings.Taints, before.Taints, after.Taints)
	settings.Unread = patchPlaces(before.Unread, after.Unread)
	settings.Unplanned = patchPlaces(before.Unplanned, after.Unplanned)
	return settings
}

// sameEviction compares thresholds. Empty ones differ from nil, for which the kubelet has defaults.
func sameEviction(a, b Settings) bool {
	return (a.EvictionHard == nil) == (b.EvictionHard == nil) && maps.Equal(a.EvictionHard, b.EvictionHard) &&
		a.MergeEvictionDefaults == b.MergeEvictionDefaults
}

// patchPlaces returns places with those that patches add marked as theirs.
func patchPlaces(before, after []string) (places []string) {
	for _, place := range after {
		if !slices.Contains(before, place) {
			place = "spec.bootstrapPatches of the node class, " + place
		}
		places = append(places, place)
	}
	return places
}

// patchTaints returns a template's taints without those that patches remove, and with those that they add.
func patchTaints(declared, before, after []corev1.Taint) []corev1.Taint {
	has := func(taints []corev1.Taint, taint corev1.Taint) bool {
		return slices.ContainsFunc(taints, func(other corev1.Taint) bool {
			return other.Key == taint.Key && other.Value == taint.Value && other.Effect == taint.Effect
		})
	}
	var taints []corev1.Taint
	for _, taint := range declared {
		if !has(before, taint) || has(after, taint) {
			taints = append(taints, taint)
		}
	}
	for _, taint := range after {
		if !has(before, taint) {
			taints = append(taints, taint)
		}
	}
	return taints
}

// Taints decodes the taints of a bootstrap config.
func Taints(value any) ([]corev1.Taint, error) {
	if value == nil {
		return nil, nil
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	var taints []corev1.Taint
	return taints, json.Unmarshal(raw, &taints)
}

// Args decodes both forms of kubeletExtraArgs: v1beta2's list of names and values, and v1beta1's map.
func Args(value any) (map[string]string, error) {
	args := map[string]string{}
	switch typed := value.(type) {
	case nil:
	case map[string]any:
		for name, value := range typed {
			text, ok := value.(string)
			if !ok {
				return nil, fmt.Errorf("%s isn't a string", name)
			}
			args[name] = text
		}
	case []any:
		for i, item := range typed {
			arg, ok := item.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("item %d isn't an object", i)
			}
			name, _ := arg["name"].(string)
			value, _ := arg["value"].(string)
			if name == "" {
				return nil, fmt.Errorf("item %d has no name", i)
			}
			args[name] = value
		}
	default:
		return nil, fmt.Errorf("neither a list nor a map")
	}
	return args, nil
}

// setFlags lets the flags of a kubelet replace the values of its configuration.
func (r *reader) setFlags(args map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(args)) {
		value := args[name]
		problem := ""
		switch name {
		case "max-pods":
			if n, err := strconv.ParseInt(value, 10, 32); err != nil || n <= 0 {
				problem = "is not a number of pods"
			} else {
				r.settings.MaxPods = ptr.To(int32(n))
			}
		case "pods-per-core":
			if n, err := strconv.ParseInt(value, 10, 32); err != nil || n < 0 {
				problem = "is not a number of pods"
			} else {
				r.settings.PodsPerCore = perCore(int32(n))
			}
		case "kube-reserved":
			r.settings.KubeReserved, problem = pairs[v1alpha1.ReservedQuantity](value, "=")
		case "system-reserved":
			r.settings.SystemReserved, problem = pairs[v1alpha1.ReservedQuantity](value, "=")
		case "eviction-hard":
			r.settings.EvictionHard, problem = pairs[v1alpha1.EvictionThreshold](value, "<")
			r.settings.MergeEvictionDefaults = false
		case "experimental-allocatable-ignore-eviction":
			r.settings.IgnoreEviction, problem = truth(value)
		case "local-storage-capacity-isolation":
			isolated, unclear := truth(value)
			r.settings.NoLocalStorage, problem = !isolated && unclear == "", unclear
		case "topology-manager-policy":
			r.topology = value
		case "cpu-manager-policy":
			r.cpuPolicy = value
		case "cpu-manager-policy-options":
			r.cpuOptions, problem = pairs[string](value, "=")
		case "pod-manifest-path":
			r.staticPods = value
		case "manifest-url":
			r.staticPodURL = value
		case "reserved-cpus":
			problem = r.reserveCPUs(value)
		case "register-with-taints":
			problem = r.registerWith(value)
		}
		if problem != "" {
			r.unread(fmt.Sprintf("kubeletExtraArgs %s", name), fmt.Sprintf("%q %s", value, problem))
		}
	}
}

// perCore is nil without a limit.
func perCore(pods int32) *int32 {
	if pods <= 0 {
		return nil
	}
	return &pods
}

func truth(value string) (is bool, problem string) {
	is, err := strconv.ParseBool(value)
	if err != nil {
		return false, "is neither true nor false"
	}
	return is, ""
}

// reserveCPUs reads a list of CPUs, such as 0-1,4.
func (r *reader) reserveCPUs(value string) (problem string) {
	if value == "" {
		return ""
	}
	if !cpuList.MatchString(value) {
		return "is not a list of CPUs, such as 0-1"
	}
	cpus, err := cpuset.Parse(value)
	if err != nil {
		return "is not a list of CPUs, such as 0-1"
	}
	r.settings.ReservedCPUs = ptr.To(int64(cpus.Size()))
	return ""
}

// registerWith reads taints as the kubelet's flag has them: key=value:effect,key:effect.
func (r *reader) registerWith(value string) (problem string) {
	var taints []corev1.Taint
	for part := range strings.SplitSeq(value, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		rest, effect, ok := strings.Cut(part, ":")
		key, v, _ := strings.Cut(rest, "=")
		if !ok || key == "" {
			return "is not a list of taints, such as dedicated=web:NoSchedule"
		}
		taints = append(taints, corev1.Taint{Key: key, Value: v, Effect: corev1.TaintEffect(effect)})
	}
	r.settings.Taints = taints
	return ""
}

func pairs[V ~string](value, operator string) (result map[string]V, problem string) {
	result = map[string]V{}
	for part := range strings.SplitSeq(value, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		key, v, ok := strings.Cut(part, operator)
		if key = strings.TrimSpace(key); !ok || key == "" {
			return nil, "is not a list of <name>" + operator + "<quantity>"
		}
		result[key] = V(strings.TrimSpace(v))
	}
	return result, ""
}
