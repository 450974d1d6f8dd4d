// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/clitest"
)

var server clitest.Server

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

func TestNodesCommand(t *testing.T) {
	create := func(name string) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			karpv1.NodePoolLabelKey: "general", corev1.LabelInstanceTypeStable: "m5.large", corev1.LabelTopologyZone: "a",
			karpv1.CapacityTypeLabelKey: "spot", v1alpha1.NodePriceLabel: "0.25",
		}}}
		server.Create(t, node)
	}
	create("first")

	t.Run("When it is run once, it should print the nodes of the cluster", func(t *testing.T) {
		NewWithT(t).Eventually(func() (string, error) { // the API server answers from its cache
			return clitest.Run(t, NewCommand(), "--kubeconfig", server.Kubeconfig)
		}).Should(And(MatchRegexp(`(?m)^first +general +m5.large +a +spot +\$0.250`), ContainSubstring("1 node, $0.250 an hour")))
	})
	t.Run("When it watches, it should print another table when a node has come, and end when it is interrupted", func(t *testing.T) {
		g := NewWithT(t)
		out, interrupt := server.Watch(t, NewCommand())
		g.Eventually(out).Should(gbytes.Say(`1 node, \$0\.250 an hour`))
		create("second")
		g.Eventually(out).Should(gbytes.Say(`2 nodes, \$0\.500 an hour`))
		interrupt()
		g.Expect(string(out.Contents())).NotTo(ContainSubstring("\x1b"), "it is no terminal")
		g.Expect(strings.Count(string(out.Contents()), "first ")).To(Equal(1), "it hasn't changed")
	})
	t.Run("When the NodePool has no node, it should say which have some", func(t *testing.T) {
		_, err := clitest.Run(t, NewCommand(), "--kubeconfig", server.Kubeconfig, "--nodepool", "genral")
		NewWithT(t).Expect(err).To(MatchError(`NodePool "genral" has no nodes; NodePools with nodes: general`))
	})
}

// TestWrongClusters calls commands with clusters that can't be used: the error has to say what to do.
func TestWrongClusters(t *testing.T) {
	var current string
	expired := server.AlteredKubeconfig(t, func(c *clientcmdapi.Config) {
		current = c.CurrentContext
		for name := range c.AuthInfos {
			c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: "expired"}
		}
	})
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"When the context doesn't exist, it should list those that do": {[]string{"--kubeconfig", server.Kubeconfig,
			"--context", "typo"}, `the kubeconfig has no context "typo"; it has ` + current},
		"When the credentials have expired, it should say to renew them": {[]string{"--kubeconfig", expired}, "which may have expired: renew them"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := clitest.Run(t, NewCommand(), test.args...)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}
