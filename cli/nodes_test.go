// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/cluster"
)

func TestNodesCommand(t *testing.T) {
	g := NewWithT(t)
	flags := cluster.Flags{Kubeconfig: managementCluster.kubeconfig}
	config, err := flags.Config()
	g.Expect(err).NotTo(HaveOccurred())
	admin, err := client.New(config, client.Options{Scheme: clientgoscheme.Scheme})
	g.Expect(err).NotTo(HaveOccurred())
	create := func(name string) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			karpv1.NodePoolLabelKey: "general", corev1.LabelInstanceTypeStable: "m5.large", corev1.LabelTopologyZone: "a",
			karpv1.CapacityTypeLabelKey: "spot", v1alpha1.NodePriceLabel: "0.25",
		}}}
		g.Expect(admin.Create(t.Context(), node)).To(Succeed())
		t.Cleanup(func() { NewWithT(t).Expect(admin.Delete(context.WithoutCancel(t.Context()), node)).To(Succeed()) })
	}
	create("first")

	t.Run("When it is run once, it should print the nodes of the cluster", func(t *testing.T) {
		NewWithT(t).Eventually(func() (string, error) { // the API server answers from its cache
			return run(t, "autonode", "nodes", "--kubeconfig", managementCluster.kubeconfig)
		}).Should(And(MatchRegexp(`(?m)^first +general +m5.large +a +spot +\$0.250`), ContainSubstring("1 node, $0.250 an hour")))
	})
	t.Run("When it watches, it should print another table when a node has come, and end when it is interrupted", func(t *testing.T) {
		watch := watching(t, "nodes")
		watch.prints(t, `1 node, \$0\.250 an hour`)
		NewWithT(t).Expect(watch.out.Contents()).NotTo(ContainSubstring("\x1b"), "it is no terminal")
		create("second")
		watch.prints(t, `2 nodes, \$0\.500 an hour`)
		watch.endsInterrupted(t)
	})
	t.Run("When the NodePool has no node, it should say which have some", func(t *testing.T) {
		_, err := run(t, "autonode", "nodes", "--kubeconfig", managementCluster.kubeconfig, "--nodepool", "genral")
		NewWithT(t).Expect(err).To(MatchError(`no node is of NodePool "genral"; NodePools with nodes are general`))
	})
}
