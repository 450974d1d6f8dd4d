// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/internal/message"
	_ "github.com/autonode-io/autonode/karpenter/core/wellknown" // the topology keys of CSI drivers
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
)

// The Cluster Autoscaler's annotations for scaling from zero.
// https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/cloudprovider/clusterapi/README.md
const (
	capacityPrefix = "capacity.cluster-autoscaler.kubernetes.io/"

	cpuAnnotation      = capacityPrefix + "cpu"
	memoryAnnotation   = capacityPrefix + "memory"
	diskAnnotation     = capacityPrefix + "ephemeral-disk"
	gpuTypeAnnotation  = capacityPrefix + "gpu-type"
	gpuCountAnnotation = capacityPrefix + "gpu-count"
	maxPodsAnnotation  = capacityPrefix + "maxPods"
	labelsAnnotation   = capacityPrefix + "labels"
	taintsAnnotation   = capacityPrefix + "taints"
	csiAnnotation      = capacityPrefix + "csi-driver"
	draAnnotation      = capacityPrefix + "dra-driver"
)

// Defaults, which are the Cluster Autoscaler's.
const (
	DefaultArch = karpv1.ArchitectureAmd64
	DefaultOS   = string(corev1.Linux)
)

var everything = labels.Everything()

// layer is one of the objects that a template is read from. Later layers override earlier ones.
type layer struct {
	object *unstructured.Unstructured
	// kind of an infrastructure template, whose status has its capacity; nil for any other object.
	kind   *infrastructure.Kind
	labels map[string]string
	taints []corev1.Taint
}

// read reads the layers, and returns the problem of the first malformed value.
func (s *Template) read(layers ...layer) *InvalidError {
	for _, l := range layers {
		if invalid := s.readLayer(l); invalid != nil {
			return invalid
		}
	}
	// The template may have the type of the GPUs, and the MachineDeployment their number.
	kind, _ := lastAnnotation(layers, gpuTypeAnnotation)
	count, on := lastAnnotation(layers, gpuCountAnnotation)
	driver, _ := lastAnnotation(layers, draAnnotation)
	if problem := s.readGPU(kind, count, strings.TrimSpace(driver)); problem != "" {
		return s.invalid(on, "annotation "+gpuCountAnnotation, count, problem)
	}
	if driver != "" && count == "" {
		s.note(fmt.Sprintf("annotation %s: %q without annotation %s declares no device", draAnnotation, message.Cut(driver, maxShown),
			gpuCountAnnotation))
	}
	return nil
}

// gpu is the value of the attribute type that the Cluster Autoscaler gives to the devices of its annotations.
const gpu = "gpu"

// lastAnnotation returns the value of an annotation in the last layer that has it, and that layer.
func lastAnnotation(layers []layer, key string) (value string, on layer) {
	for _, l := range layers {
		if v, ok := l.object.GetAnnotations()[key]; ok {
			value, on = v, l
		}
	}
	return value, on
}

// invalid returns the problem of a value, with its object.
func (s *Template) invalid(on layer, key, value, problem string) *InvalidError {
	e := &InvalidError{Source: s.Source, Key: key, Value: value, Problem: problem}
	if object := sourceOf(on.object); object.compare(s.Source) != 0 {
		e.On = object.String()
	}
	return e
}

func (s *Template) readLayer(l layer) *InvalidError {
	invalid := func(key, value, problem string) *InvalidError { return s.invalid(l, key, value, problem) }
	if s.Capacity == nil {
		s.Capacity, s.Labels = corev1.ResourceList{}, map[string]string{}
	}
	if l.kind != nil {
		s.readKind(l)
		if key, value, problem := s.readStatus(l.object); problem != "" {
			return invalid(key, value, problem)
		}
	}
	if key, value, problem := s.addLabels(l.labels); problem != "" {
		return invalid("label "+key, value, problem)
	}
	s.Taints = append(s.Taints, l.taints...)

	annotations := l.object.GetAnnotations()
	for _, a := range annotationReaders {
		value, ok := annotations[a.key]
		if !ok {
			continue
		}
		if problem := a.read(s, strings.TrimSpace(value)); problem != "" {
			return invalid("annotation "+a.key, value, problem)
		}
	}
	return nil
}

// annotationReaders in the order in which problems are reported. Each returns the problem of the value, or nothing.
var annotationReaders = []struct {
	key  string
	read func(s *Template, value string) (problem string)
}{
	{cpuAnnotation, capacityReader(corev1.ResourceCPU)},
	{memoryAnnotation, func(s *Template, value string) string {
		s.NominalMemory = false
		return capacityReader(corev1.ResourceMemory)(s, value)
	}},
	{diskAnnotation, capacityReader(corev1.ResourceEphemeralStorage)},
	{maxPodsAnnotation, func(s *Template, value string) string {
		pods, err := strconv.ParseInt(value, 10, 32)
		if err != nil || pods <= 0 {
			return "is not a positive number of pods"
		}
		s.Capacity[corev1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)
		return ""
	}},
	{labelsAnnotation, func(s *Template, value string) string {
		set, problem := parseLabels(value)
		if problem != "" {
			return problem
		}
		if key, v, problem := s.addLabels(set); problem != "" {
			return fmt.Sprintf("has label %s=%s, which %s", key, v, problem)
		}
		return ""
	}},
	{taintsAnnotation, func(s *Template, value string) string {
		taints, problem := parseTaints(value)
		s.Taints = append(s.Taints, taints...)
		return problem
	}},
	{csiAnnotation, func(s *Template, value string) (problem string) {
		s.VolumeLimits, problem = parseVolumeLimits(value)
		return problem
	}},
	{draAnnotation, func(_ *Template, value string) string { return catalog.DriverProblem(value) }},
	{v1alpha1.PriceAnnotation, priceReader(func(s *Template, price *float64) { s.Price = price })},
	{v1alpha1.SpotPriceAnnotation, priceReader(func(s *Template, price *float64) { s.SpotPrice = price })},
	{v1alpha1.InstanceTypeAnnotation, func(s *Template, value string) string {
		s.InstanceType = value
		return catalog.LabelValueProblem(value)
	}},
	{v1alpha1.CapacityTypeAnnotation, func(s *Template, value string) string {
		if value != karpv1.CapacityTypeOnDemand && value != karpv1.CapacityTypeSpot {
			return "is neither on-demand nor spot"
		}
		s.CapacityType = value
		return ""
	}},
	{v1alpha1.MemoryOverheadAnnotation, func(s *Template, value string) string {
		fraction, err := ParsePercentage(value)
		if err != nil {
			return err.Error()
		}
		s.MemoryOverhead = &fraction
		return ""
	}},
	{v1alpha1.KubernetesVersionAnnotation, (*Template).setImageVersion},
	{v1alpha1.InfrastructurePatchesAnnotation, (*Template).readPatches},
	{clusterv1.AutoscalerMaxSizeAnnotation, (*Template).setMaxSize},
}

// readPatches reads the patches of infrastructure machines. The last object that has some decides.
func (s *Template) readPatches(value string) (problem string) {
	patches, err := patch.Decode(value)
	if err == nil {
		s.Patches, err = patch.Parse(patches)
	}
	if err != nil {
		return "can't be used: " + err.Error()
	}
	return ""
}

func capacityReader(name corev1.ResourceName) func(*Template, string) string {
	return func(s *Template, value string) string {
		q, problem := ParseQuantity(value)
		if problem == "" {
			s.Capacity[name] = q
		}
		return problem
	}
}

func priceReader(set func(*Template, *float64)) func(*Template, string) string {
	return func(s *Template, value string) string {
		price, err := catalog.ParsePrice(value)
		if err != nil {
			return err.Error()
		}
		set(s, &price)
		return ""
	}
}

func (s *Template) setMaxSize(value string) (problem string) {
	size, err := strconv.ParseInt(value, 10, 32)
	if err != nil || size < 0 {
		return "is not a number of machines"
	}
	s.MaxSize = new(int(size))
	return ""
}

// readStatus reads the capacity and node information that an infrastructure provider found out.
// https://cluster-api.sigs.k8s.io/developer/providers/contracts/infra-machine#inframachinetemplate-support-cluster-autoscaling-from-zero
func (s *Template) readStatus(object *unstructured.Unstructured) (key, value, problem string) {
	capacity, _, err := unstructured.NestedMap(object.Object, "status", "capacity")
	if err != nil {
		return "status.capacity", "", "is not a map of quantities"
	}
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		// A quantity may be a number too.
		text := fmt.Sprint(capacity[name])
		q, problem := ParseQuantity(text)
		if problem != "" {
			return "status.capacity." + name, text, problem
		}
		s.Capacity[corev1.ResourceName(name)] = q
		if corev1.ResourceName(name) == corev1.ResourceMemory {
			s.NominalMemory = true
		}
	}
	for field, target := range map[string]*string{"architecture": &s.Arch, "operatingSystem": &s.OS} {
		text, found, err := unstructured.NestedString(object.Object, "status", "nodeInfo", field)
		if err != nil {
			return "status.nodeInfo." + field, "", "is not a string"
		}
		if found && text != "" {
			if problem := catalog.LabelValueProblem(text); problem != "" {
				return "status.nodeInfo." + field, text, problem
			}
			*target = text
		}
	}
	return "", "", ""
}

// readGPU needs two annotations to know one resource: the count, and the counted kind. A DRA driver makes devices of them
// instead of a resource, or beside it.
func (s *Template) readGPU(kind, count, driver string) string {
	kind, count = strings.TrimSpace(kind), strings.TrimSpace(count)
	if count == "" {
		return ""
	}
	q, problem := ParseQuantity(count)
	switch {
	case problem != "":
		return problem
	case q.IsZero():
		return ""
	}
	if driver != "" {
		if q.CmpInt64(catalog.MaxDevices) > 0 || q.MilliValue()%1000 != 0 {
			return fmt.Sprintf("is not a number of devices from 0 to %d", catalog.MaxDevices)
		}
		s.Devices = []catalog.Devices{{Driver: driver, Count: int(q.Value()), Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"type": {StringValue: ptr.To(gpu)},
		}}}
	}
	switch {
	case kind == "" && driver != "":
		return ""
	case kind == "":
		return fmt.Sprintf("needs annotation %s beside it, such as nvidia.com/gpu, or annotation %s, such as gpu.nvidia.com",
			gpuTypeAnnotation, draAnnotation)
	case len(validation.IsQualifiedName(kind)) > 0:
		return fmt.Sprintf("goes with annotation %s: %q, which is not the name of a resource", gpuTypeAnnotation, kind)
	}
	s.Capacity[corev1.ResourceName(kind)] = q
	return ""
}

// addLabels sets the fields of well-known labels, and adds the other labels.
func (s *Template) addLabels(set map[string]string) (key, value, problem string) {
	for _, key := range slices.Sorted(maps.Keys(set)) {
		value := set[key]
		// A CSI driver's topology key, or an older name of a well-known label: Karpenter reads both as that label.
		if known, ok := karpv1.NormalizedLabels[key]; ok {
			if _, declared := set[known]; declared {
				continue
			}
			key = known
		}
		// Where a field is set, an empty value would unset it.
		switch key {
		case corev1.LabelArchStable, corev1.LabelOSStable, corev1.LabelTopologyZone, corev1.LabelInstanceTypeStable:
			if value == "" {
				return key, value, "is empty"
			}
		}
		switch key {
		case corev1.LabelArchStable:
			s.Arch = value
		case corev1.LabelOSStable:
			s.OS = value
		case corev1.LabelTopologyZone:
			s.FailureDomains = []string{value}
		case corev1.LabelInstanceTypeStable:
			s.InstanceType = value
		case corev1.LabelHostname, karpv1.CapacityTypeLabelKey, karpv1.NodePoolLabelKey:
			return key, value, "can't be set by a template"
		default:
			s.Labels[key] = value
		}
	}
	return "", "", ""
}

// complete sets defaults and returns the first missing or contradictory value. The default architecture is arch, or
// DefaultArch if that is empty.
func (s *Template) complete(arch string) *InvalidError {
	for _, needed := range []struct {
		name       corev1.ResourceName
		annotation string
	}{{corev1.ResourceCPU, cpuAnnotation}, {corev1.ResourceMemory, memoryAnnotation}} {
		if q, ok := s.Capacity[needed.name]; !ok || q.Sign() <= 0 {
			return &InvalidError{Source: s.Source, Problem: fmt.Sprintf(
				"has no %s capacity: status.capacity doesn't have it; set annotation %s", needed.name, needed.annotation)}
		}
	}
	if q, ok := s.Capacity[corev1.ResourcePods]; !ok || q.Sign() <= 0 {
		s.Capacity[corev1.ResourcePods] = *resource.NewQuantity(kubelet.DefaultMaxPods, resource.DecimalSI)
		s.DefaultPods = true
	}
	s.addHash()
	if invalid := s.checkCapacityType(); invalid != nil {
		return invalid
	}
	s.Arch, s.OS = cmp.Or(s.Arch, arch, DefaultArch), cmp.Or(s.OS, DefaultOS)
	if s.InstanceType == "" {
		s.InstanceType = s.Source.Name
		if problem := catalog.LabelValueProblem(s.InstanceType); problem != "" {
			return &InvalidError{Source: s.Source, Problem: fmt.Sprintf(
				"its name can't be that of an instance type, because it %s; set annotation %s", problem, v1alpha1.InstanceTypeAnnotation)}
		}
	}
	for _, domain := range s.FailureDomains {
		if problem := catalog.LabelValueProblem(domain); problem != "" {
			return &InvalidError{Source: s.Source, Key: "failure domain", Value: domain, Problem: problem}
		}
	}
	return nil
}

func labelsOf(object *unstructured.Unstructured) labels.Set { return object.GetLabels() }
