// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/explain"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// makeHosted makes a control plane with one template, and in its guest, which is the same cluster, a NodePool of it.
func makeHosted(t *testing.T, namespace string, provisioned bool) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	config, err := (&cluster.Flags{Kubeconfig: managementCluster.kubeconfig}).Config()
	g.Expect(err).NotTo(HaveOccurred())
	admin, err := client.New(config, client.Options{Scheme: clientgoscheme.Scheme})
	g.Expect(err).NotTo(HaveOccurred())
	made := func(object client.Object) {
		t.Helper()
		g.Expect(admin.Create(t.Context(), object)).To(Succeed())
		t.Cleanup(func() {
			g.Expect(client.IgnoreNotFound(admin.Delete(context.WithoutCancel(t.Context()), object))).To(Succeed())
		})
	}
	cluster := makeCluster(t, namespace, "blue")
	cluster.Status.Initialization.InfrastructureProvisioned = ptr.To(provisioned)
	cluster.Status.FailureDomains = []clusterv1.FailureDomain{{Name: "a"}, {Name: "b"}}
	g.Expect(managementCluster.admin.Status().Update(t.Context(), cluster)).To(Succeed())
	template := machineTemplate(namespace)
	g.Expect(managementCluster.admin.Get(t.Context(), client.ObjectKeyFromObject(template), template)).To(Succeed())
	template.SetAnnotations(map[string]string{
		"capacity.cluster-autoscaler.kubernetes.io/cpu": "4", "capacity.cluster-autoscaler.kubernetes.io/memory": "16Gi", v1alpha1.PriceAnnotation: "0.1",
	})
	g.Expect(managementCluster.admin.Update(t.Context(), template)).To(Succeed())
	made(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "karpenter-prices"},
		Data: map[string]string{"prices.yaml": "- {instanceType: blue-workers, price: 0.25}\n"}})
	labels := map[string]string{"app.kubernetes.io/name": "karpenter"}
	made(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "karpenter"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "karpenter", Image: "registry.example/karpenter", Args: []string{"--guest-kubeconfig=/etc/karpenter/guest/kubeconfig", "--cluster-name=blue"},
				Env:          []corev1.EnvVar{{Name: "PRICE_FILE", Value: "/etc/karpenter/prices/prices.yaml"}, {Name: "FEATURE_GATES", Value: "NodeOverlay=true"}},
				VolumeMounts: []corev1.VolumeMount{{Name: "prices", MountPath: "/etc/karpenter/prices"}},
			}},
			Volumes: []corev1.Volume{{Name: "prices", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "karpenter-prices"}}}}},
		}},
	}})
	class := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	class.Spec.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.ClusterNameLabel: "blue"}}
	made(class)
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	pool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: namespace}
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{}
	pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("30s")
	made(pool)
	for _, condition := range []string{karpv1.ConditionTypeValidationSucceeded, karpv1.ConditionTypeNodeClassReady, status.ConditionReady} {
		pool.StatusConditions().SetTrue(condition)
	}
	g.Expect(admin.Status().Update(t.Context(), pool)).To(Succeed())
	for name, cpu := range map[string]string{"web": "2", "huge": "64"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "registry.example/c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}}}
		made(pod)
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		g.Expect(admin.Status().Update(t.Context(), pod)).To(Succeed())
	}
}

func TestWhyCommand(t *testing.T) {
	const namespace = "why-blue"
	makeHosted(t, namespace, true)
	// A user who may read everything and write nothing: a write would be an error.
	viewer := managementCluster.addUser(t, "why-viewer", rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch"}})
	why := func(t *testing.T, args ...string) (string, error) {
		t.Helper()
		return run(t, "autonode", append([]string{"why"}, append(args, "--kubeconfig", viewer)...)...)
	}
	management := []string{"--management-kubeconfig", viewer, "--control-plane-namespace", namespace}

	t.Run("When the management cluster is named, it should resolve templates and prices as Karpenter does", func(t *testing.T) {
		g := NewWithT(t)
		out, err := why(t, append([]string{"pod", namespace + "/web", "-o", "json"}, management...)...)
		g.Expect(err).NotTo(HaveOccurred())
		var answer explain.PodAnswer
		g.Expect(json.Unmarshal([]byte(out), &answer)).To(Succeed())
		g.Expect(answer.Decision).To(Equal(explain.Launches), out)
		g.Expect(answer.Summary).To(Equal("Pod why-blue/web needs a new node, which NodePool why-blue can launch: 1 instance type, the cheapest blue-workers at $0.250 an hour"))
	})
	t.Run("When a pod is too large, it should say so first", func(t *testing.T) {
		g := NewWithT(t)
		out, err := why(t, append([]string{"pod", "huge", "-n", namespace}, management...)...)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(HavePrefix("Pod why-blue/huge doesn't fit NodePool why-blue\n"))
		g.Expect(out).To(ContainSubstring("needs 64 cpu with DaemonSets; the largest has"))
	})
	t.Run("When the guest alone is named, it should say what isn't known", func(t *testing.T) {
		g := NewWithT(t)
		out, err := why(t, "pod", namespace+"/web")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(HavePrefix("Pod why-blue/web doesn't fit NodePool why-blue\n"))
		g.Expect(out).To(ContainSubstring("offers no instance type; see `kubectl describe clusterapinodeclass why-blue`"))
		g.Expect(out).To(ContainSubstring("Not known:\n  Instance types come from the status of the node classes"))
	})
	t.Run("When an event reports that the only offering has failed, it should have the event's words", func(t *testing.T) {
		g, admin := NewWithT(t), managementCluster.admin
		class := &v1alpha1.ClusterAPINodeClass{}
		g.Expect(admin.Get(t.Context(), client.ObjectKey{Name: namespace}, class)).To(Succeed())
		class.Status.Templates = []v1alpha1.TemplateStatus{{
			InstanceType: "large", Source: "MachineDeployment/large", Architecture: "amd64", CPU: scalar.Text("4"), Memory: scalar.Text("16Gi"),
			Pods: 110, Price: "0.25", Zones: []string{"a"},
		}}
		g.Expect(admin.Status().Update(t.Context(), class)).To(Succeed())
		out, err := why(t, "pod", namespace+"/web")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(HavePrefix("Pod why-blue/web needs a new node, which NodePool why-blue can launch: 1 instance type, the cheapest large at $0.250 an hour\n"))
		g.Expect(out).NotTo(ContainSubstring("Not known"))
		now := time.Now()
		message := "no capacity for on-demand large in zone a: none left" + offering.RetryNotice(now.Add(3*time.Minute))
		made(t, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "why-blue-x"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "why-blue-x"},
			Reason:         "InsufficientCapacity", Message: message, LastTimestamp: metav1.NewTime(now),
		})
		out, err = why(t, "pod", namespace+"/web")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(HavePrefix("Pod why-blue/web has to wait: it fits NodePool why-blue, of which nothing that fits can be launched now\n"))
		g.Expect(out).To(ContainSubstring("  - 1: InsufficientCapacity: " + message + " (large)\n"))
	})
	t.Run("When the Cluster isn't provisioned, it should say why there are no instance types", func(t *testing.T) {
		g := NewWithT(t)
		makeHosted(t, "why-green", false)
		out, err := why(t, "pod", "why-green/web", "--management-kubeconfig", viewer, "--control-plane-namespace", "why-green")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(HavePrefix("Pod why-green/web fits none of 2 NodePools\n"))
		g.Expect(out).To(ContainSubstring("Node class why-green: "))
	})
	t.Run("When a node doesn't exist, it should say how to find it", func(t *testing.T) {
		_, err := why(t, "node", "none")
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("see `kubectl get nodes,nodeclaims`")))
	})
	t.Run("When the namespace has no Karpenter, it should say what to name", func(t *testing.T) {
		_, err := why(t, "pod", namespace+"/web", "--management-kubeconfig", viewer, "--control-plane-namespace", "default")
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("namespace default of the management cluster has no Deployment karpenter")))
	})
	t.Run("When there is no such HostedCluster, it should say so", func(t *testing.T) {
		_, err := why(t, "pod", "web", "--management-kubeconfig", viewer, "--hosted-cluster", "clusters/none")
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("no HostedCluster clusters/none")))
	})
}
