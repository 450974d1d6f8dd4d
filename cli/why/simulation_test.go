// SPDX-License-Identifier: Apache-2.0

package why

import (
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestReadOnly(t *testing.T) {
	var sent []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = append(sent, r.Method)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"}}`))
	}))
	t.Cleanup(server.Close)
	t.Run("When something writes while a pod is explained, no request should be sent", func(t *testing.T) {
		g := NewWithT(t)
		clients, err := kubernetes.NewForConfig(readOnlyConfig(&rest.Config{Host: server.URL}))
		g.Expect(err).NotTo(HaveOccurred())
		pods, pod := clients.CoreV1().Pods("shop"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		_, err = pods.Create(t.Context(), pod, metav1.CreateOptions{})
		g.Expect(err).To(MatchError(errWrite))
		_, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
		g.Expect(err).To(MatchError(errWrite))
		_, err = pods.Patch(t.Context(), "web", "application/merge-patch+json", []byte("{}"), metav1.PatchOptions{})
		g.Expect(err).To(MatchError(errWrite))
		g.Expect(pods.Delete(t.Context(), "web", metav1.DeleteOptions{})).To(MatchError(errWrite))
		g.Expect(sent).To(BeEmpty())
		_, err = pods.Get(t.Context(), "web", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(sent).To(Equal([]string{http.MethodGet}))
	})
}

func TestSimulatedOptions(t *testing.T) {
	running := func(args []string, env ...corev1.EnvVar) *appsv1.Deployment {
		deployment := &appsv1.Deployment{}
		deployment.Spec.Template.Spec.Containers = []corev1.Container{{Name: "karpenter", Args: args, Env: env}}
		return deployment
	}
	t.Run("When Karpenter has flags and variables, they should be simulated, and the flags count more", func(t *testing.T) {
		g := NewWithT(t)
		provider, core, err := simulatedOptions(running(
			[]string{"--cluster-name=blue", "--guest-kubeconfig=/etc/karpenter/guest/kubeconfig", "--vm-memory-overhead=5%"},
			corev1.EnvVar{Name: "FEATURE_GATES", Value: "NodeOverlay=true,SpotToSpotConsolidation=true"}, corev1.EnvVar{Name: "VM_MEMORY_OVERHEAD", Value: "9%"},
			corev1.EnvVar{Name: "REPAIR_POLICIES", Value: `[{"conditionType":"GPU","conditionStatus":"False","reason":"^Xid$$","tolerationDuration":"1m"}]`},
			corev1.EnvVar{Name: "PRICE_FILE", Value: "/etc/karpenter/prices/prices.yaml"}, corev1.EnvVar{Name: "UNKNOWN", Value: "x"},
			corev1.EnvVar{Name: "LEADER_ELECTION_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
		), "clusters-blue", map[string]string{"price-file": "/tmp/prices"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(provider.ClusterName).To(Equal("blue"))
		g.Expect(provider.Namespace).To(Equal("clusters-blue"))
		g.Expect(provider.GuestKubeconfig).To(BeEmpty())
		g.Expect(provider.MemoryOverhead).To(Equal("5%"))
		g.Expect(provider.PriceFile).To(Equal("/tmp/prices"))
		g.Expect(provider.RepairPolicies).To(ContainSubstring(`"^Xid$"`), "as the kubelet reads it")
		g.Expect(core.FeatureGates.SpotToSpotConsolidation).To(BeTrue())
		g.Expect(core.FeatureGates.NodeOverlay).To(BeTrue())
	})
	t.Run("When Karpenter has a flag that this program doesn't know, it should say what to do", func(t *testing.T) {
		_, _, err := simulatedOptions(running([]string{"--cluster-name=blue", "--new=x"}), "clusters-blue", nil)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("leave out the management cluster")))
	})
}
