// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// MaxScale is the maximum number of pods of a Size: the NodePool's limits.
	MaxScale = 1000
	// besidePerNode is how many pods a node has room for beside the one that needs it.
	besidePerNode = 7
)

// besideCPU is what each of them requests: a machine of two CPUs keeps a tenth of one for the kubelet.
var besideCPU = resource.MustParse("250m")

// appLabel divides a burst's pods from the residents.
const appLabel = "app"

// podLabels are the labels of a burst's pods.
var podLabels = map[string]string{appLabel: "burst"}

// residentLabels are those of the pods on nodes that were there before a burst.
var residentLabels = map[string]string{appLabel: "resident"}

// Size is a burst's.
type Size struct {
	// Pods are those that are created at once.
	Pods int `json:"pods"`
	// Nodes are those that the pods need: so many pods need a node each, and the others fit beside these.
	Nodes int `json:"nodes"`
}

// apart is the size of pods that need a node each.
func apart(pods int) Size { return Size{Pods: pods, Nodes: pods} }

// ReadSize reads "150", pods that need a node each, or "1000/157", pods and nodes.
func ReadSize(text string) (Size, error) {
	pods, nodes, divided := strings.Cut(strings.TrimSpace(text), "/")
	var s Size
	var err error
	if s.Pods, err = strconv.Atoi(pods); err == nil {
		if s.Nodes = s.Pods; divided {
			s.Nodes, err = strconv.Atoi(nodes)
		}
	}
	if err != nil {
		return Size{}, fmt.Errorf("size %s: it is a number of pods, 150, or of pods and nodes, 1000/157", text)
	}
	return s, s.validate()
}

func (s Size) validate() error {
	switch {
	case s.Pods < 1 || s.Pods > MaxScale:
		return fmt.Errorf("size %s: there have to be from 1 to %d pods", s, MaxScale)
	case s.Nodes < 1 || s.Nodes > s.Pods:
		return fmt.Errorf("size %s: there have to be from 1 to %d nodes, one for a pod", s, s.Pods)
	case s.Pods > s.Nodes*(1+besidePerNode):
		return fmt.Errorf("size %s: at most %d pods fit on a node", s, 1+besidePerNode)
	}
	return nil
}

// String is the text that ReadSize reads.
func (s Size) String() string {
	if s.Nodes == s.Pods {
		return strconv.Itoa(s.Pods)
	}
	return fmt.Sprintf("%d/%d", s.Pods, s.Nodes)
}

// fileName is the size in names of files.
func (s Size) fileName() string { return strings.ReplaceAll(s.String(), "/", "-") }

// deployments are those of the burst. Pods that share nodes run on one instance type: of a larger one fewer nodes would do.
func (s Size) deployments(instanceType string) []*appsv1.Deployment {
	alone := deployment("apart", s.Nodes, podLabels)
	alone.Spec.Template.Spec.Affinity = awayFrom(alone.Spec.Selector)
	if s.Nodes == s.Pods {
		return []*appsv1.Deployment{alone}
	}
	beside := deployment("beside", s.Pods-s.Nodes, podLabels)
	beside.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: besideCPU}
	all := []*appsv1.Deployment{alone, beside}
	for _, d := range all {
		d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelInstanceTypeStable: instanceType}
	}
	return all
}

// residents are pods that need a node each, on which no pod of a burst fits.
func residents(nodes int) *appsv1.Deployment {
	d := deployment("resident", nodes, residentLabels)
	d.Spec.Template.Spec.Affinity = awayFrom(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: appLabel, Operator: metav1.LabelSelectorOpIn, Values: []string{podLabels[appLabel], residentLabels[appLabel]}},
	}})
	return d
}

// awayFrom keeps pods on other nodes than those that a selector matches. The scheduler keeps those away from them, too.
func awayFrom(others *metav1.LabelSelector) *corev1.Affinity {
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: others, TopologyKey: corev1.LabelHostname}},
	}}
}

func deployment(name string, replicas int, labels map[string]string) *appsv1.Deployment {
	count := int32(replicas)
	selected := maps.Clone(labels)
	selected["part"] = name
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &count,
			Selector: &metav1.LabelSelector{MatchLabels: selected},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: selected},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64),
					Containers:                    []corev1.Container{{Name: "web", Image: "registry.example/web:1"}},
				},
			},
		},
	}
}
