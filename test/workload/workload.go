// SPDX-License-Identifier: Apache-2.0

// Package workload makes what the admin of a guest writes: a NodePool, and a Deployment that needs its nodes.
package workload

import (
	"context"

	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// NodePool returns a NodePool of the default node class that removes empty nodes at once, all of them together.
func NodePool(name string, options ...func(*karpv1.NodePool)) *karpv1.NodePool {
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: v1alpha1.DefaultNodeClass}
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	pool.Spec.Template.Spec.ExpireAfter = karpv1.MustParseNillableDuration("Never")
	pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("0s")
	pool.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
	pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "100%"}}
	for _, option := range options {
		option(pool)
	}
	return pool
}

// Require limits a NodePool to some values of a label.
func Require(key string, values ...string) func(*karpv1.NodePool) {
	return func(pool *karpv1.NodePool) {
		pool.Spec.Template.Spec.Requirements = append(pool.Spec.Template.Spec.Requirements,
			karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values})
	}
}

// Deployment returns a Deployment in the namespace default, whose pods have the label app with its name.
func Deployment(name string, replicas int32, cpu string, options ...func(*corev1.PodTemplateSpec)) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64(1)),
					Containers: []corev1.Container{{
						Name: "web", Image: "registry.example/web:1",
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
							corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("64Mi"),
						}},
					}},
				},
			},
		},
	}
	for _, option := range options {
		option(&deployment.Spec.Template)
	}
	return deployment
}

// Apart puts each pod of a Deployment on a node of its own.
func Apart(template *corev1.PodTemplateSpec) {
	template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: template.Labels}, TopologyKey: corev1.LabelHostname,
		}},
	}}
}

// ExpectRunning expects every replica of a Deployment of the namespace default to be available.
func ExpectRunning(g gomega.Gomega, ctx context.Context, guest client.Reader, name string) {
	deployment := &appsv1.Deployment{}
	g.Expect(guest.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, deployment)).To(gomega.Succeed())
	g.Expect(deployment.Status.ObservedGeneration).To(gomega.Equal(deployment.Generation))
	g.Expect(deployment.Status.AvailableReplicas).To(gomega.Equal(*deployment.Spec.Replicas), "available replicas of %s", name)
}
