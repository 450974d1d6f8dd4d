// SPDX-License-Identifier: Apache-2.0

package clitest

import (
	"bytes"
	"context"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	"github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/hostedcluster"
)

// PayloadImage is the release of the HostedClusters.
const PayloadImage = "registry.example/release:1.36.3"

// GuestKubeconfig is one that the operator accepts.
const GuestKubeconfig = `
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "https://10.0.0.1:6443"}}]
users: [{name: a, user: {token: secret}}]
`

// MachineTemplate is the one that the MachineDeployments of MakeCluster refer to.
func MachineTemplate(namespace string) *unstructured.Unstructured {
	template := &unstructured.Unstructured{Object: map[string]any{}}
	template.SetAPIVersion("infrastructure.cluster.x-k8s.io/v1beta1")
	template.SetKind("TestMachineTemplate")
	template.SetNamespace(namespace)
	template.SetName("small")
	return template
}

// MakeCluster makes a Cluster with all that AutoNode needs, in a namespace of its own.
func (s *Server) MakeCluster(t *testing.T, namespace, name string) *clusterv1.Cluster {
	t.Helper()
	g := gomega.NewWithT(t)
	s.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	cluster := &clusterv1.Cluster{}
	cluster.Namespace, cluster.Name = namespace, name
	cluster.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.1", Port: 6443}
	s.Create(t, cluster)
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	g.Expect(s.Admin.Status().Update(t.Context(), cluster)).To(gomega.Succeed())
	template := MachineTemplate(namespace)
	template.Object["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{}}}
	s.Create(t, template)
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = namespace, name+"-kubeconfig"
	secret.Labels = map[string]string{clusterv1.ClusterNameLabel: name}
	secret.StringData = map[string]string{"value": GuestKubeconfig}
	s.Create(t, secret)
	deployment := &clusterv1.MachineDeployment{}
	deployment.Namespace, deployment.Name = namespace, name+"-workers"
	deployment.Labels = map[string]string{clusterv1.ClusterNameLabel: name}
	deployment.Spec.ClusterName = name
	deployment.Spec.Selector.MatchLabels = deployment.Labels
	deployment.Spec.Template.Spec.ClusterName = name
	deployment.Spec.Template.Spec.Bootstrap.DataSecretName = ptr.To("data")
	deployment.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "TestMachineTemplate", Name: "small",
	}
	s.Create(t, deployment)
	t.Cleanup(func() {
		hostedClusters := &v1beta1.HostedClusterList{}
		g.Expect(s.Admin.List(context.Background(), hostedClusters)).To(gomega.Succeed())
		for i := range hostedClusters.Items {
			g.Expect(s.Admin.Delete(context.Background(), &hostedClusters.Items[i])).To(gomega.Succeed())
		}
	})
	return cluster
}

// MakeHosted makes a control plane with one template, and in its guest, which is the same cluster, a NodePool of it.
func (s *Server) MakeHosted(t *testing.T, namespace string, provisioned bool) {
	t.Helper()
	g := gomega.NewWithT(t)
	cluster := s.MakeCluster(t, namespace, "blue")
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(provisioned)
	cluster.Status.FailureDomains = []clusterv1.FailureDomain{{Name: "a"}, {Name: "b"}}
	g.Expect(s.Admin.Status().Update(t.Context(), cluster)).To(gomega.Succeed())
	template := MachineTemplate(namespace)
	g.Expect(s.Admin.Get(t.Context(), client.ObjectKeyFromObject(template), template)).To(gomega.Succeed())
	template.SetAnnotations(map[string]string{
		"capacity.cluster-autoscaler.kubernetes.io/cpu": "4", "capacity.cluster-autoscaler.kubernetes.io/memory": "16Gi",
		v1alpha1.PriceAnnotation: "0.1",
	})
	g.Expect(s.Admin.Update(t.Context(), template)).To(gomega.Succeed())
	s.Create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "karpenter-prices"},
		Data: map[string]string{"prices.yaml": "- {instanceType: blue-workers, price: 0.25}\n"}})
	labels := map[string]string{"app.kubernetes.io/name": "karpenter"}
	s.Create(t, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "karpenter"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "karpenter", Image: "registry.example/karpenter",
				Args: []string{"--guest-kubeconfig=/etc/karpenter/guest/kubeconfig", "--cluster-name=blue"},
				Env: []corev1.EnvVar{
					{Name: "PRICE_FILE", Value: "/etc/karpenter/prices/prices.yaml"}, {Name: "FEATURE_GATES", Value: "NodeOverlay=true"},
				},
				VolumeMounts: []corev1.VolumeMount{{Name: "prices", MountPath: "/etc/karpenter/prices"}},
			}},
			Volumes: []corev1.Volume{{Name: "prices", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "karpenter-prices"}}}}},
		}},
	}})
	class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	class.Spec.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.ClusterNameLabel: "blue"}}
	s.Create(t, class)
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: namespace}
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("30s")
	s.Create(t, pool)
	for _, condition := range []string{karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady, status.ConditionReady} {
		pool.StatusConditions().SetTrue(condition)
	}
	g.Expect(s.Admin.Status().Update(t.Context(), pool)).To(gomega.Succeed())
	for name, cpu := range map[string]string{"web": "2", "huge": "64"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "registry.example/c",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}}}
		s.Create(t, pod)
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		}}
		g.Expect(s.Admin.Status().Update(t.Context(), pod)).To(gomega.Succeed())
	}
}

// CreateHostedCluster runs `autonode hosted-cluster create`, and returns what it prints and warns.
func (s *Server) CreateHostedCluster(t *testing.T, args ...string) (out, warnings string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	root := Command(hostedcluster.NewCommand(), append([]string{"create", "--kubeconfig", s.Kubeconfig}, args...)...)
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	err = root.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}
