// SPDX-License-Identifier: Apache-2.0

package why

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/cli/clitest"
	"github.com/autonode-io/autonode/cli/explain"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

var server clitest.Server

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

func TestWhyCommand(t *testing.T) {
	const namespace = "why-blue"
	server.MakeHosted(t, namespace, true)
	// A user who may read everything and write nothing: a write would be an error.
	viewer := server.AddUser(t, "why-viewer", rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch"}})
	why := func(t *testing.T, args ...string) (string, error) {
		t.Helper()
		return clitest.Run(t, NewCommand(), append(args, "--kubeconfig", viewer)...)
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
	t.Run("When a shell completes names, it should have those of the cluster that the flags choose", func(t *testing.T) {
		server.Create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "completed-node"}})
		for typed, want := range map[string]string{
			"pod -n why-blue ": "huge\nweb\n:4\n", "pod why-blue/": "why-blue/huge\nwhy-blue/web\n:4\n", "pod ": ":4\n", "pod why-blue/web ": ":4\n",
			"node ": "completed-node\n:4\n", "pod -n ": "\nwhy-blue\n", "pod --control-plane-namespace ": ":4\n",
			"pod --management-kubeconfig " + viewer + " --control-plane-namespace ": "\nwhy-blue\n",
		} {
			g, out := NewWithT(t), &bytes.Buffer{}
			root := clitest.Command(NewCommand())
			root.SetArgs(append([]string{"__complete", "why"}, slices.Insert(strings.Split(typed, " "), 1, "--kubeconfig", viewer)...))
			root.SetOut(out)
			root.SetErr(io.Discard)
			g.Expect(root.ExecuteContext(t.Context())).To(Succeed())
			g.Expect("\n"+out.String()).To(ContainSubstring("\n"+strings.TrimPrefix(want, "\n")), typed)
		}
	})
	t.Run("When the namespace has no such pod, it should say which one has", func(t *testing.T) {
		for argument, want := range map[string]string{
			"web": `"web" is in namespace why-blue, not in default: name it why-blue/web`, "other/web": `"web" is in namespace why-blue, not in other: name it why-blue/web`,
			"none": `namespace "default" has no pod "none"; see ` + "`kubectl -n default get pods`",
		} {
			_, err := why(t, "pod", argument)
			NewWithT(t).Expect(err).To(MatchError(want))
		}
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
		g, admin := NewWithT(t), server.Admin
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
		server.Create(t, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: "why-blue-x"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "why-blue-x"},
			Reason:         "InsufficientCapacity", Message: message, LastTimestamp: metav1.NewTime(now),
		})
		out, err = why(t, "pod", namespace+"/web")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(HavePrefix("Pod why-blue/web has to wait: it fits NodePool why-blue, but no instance type that fits can be launched now\n"))
		g.Expect(out).To(ContainSubstring("  - 1: InsufficientCapacity: " + message + " (large)\n"))
	})
	t.Run("When the Cluster isn't provisioned, it should say why there are no instance types", func(t *testing.T) {
		g := NewWithT(t)
		server.MakeHosted(t, "why-green", false)
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
		_, err := why(t, "pod", namespace+"/web", "--management-kubeconfig", viewer, "--hosted-cluster", "clusters/none")
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("no HostedCluster clusters/none")))
	})
}
