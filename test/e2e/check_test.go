// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/api/v1beta1"
	checkcommand "github.com/autonode-io/autonode/cli/check"
	"github.com/autonode-io/autonode/cli/describe"
	localworld "github.com/autonode-io/autonode/test/world"
)

// printed is what a command prints, and its error: the program exits with code 1 if there is one.
type printed struct {
	out string
	err error
}

// run runs a command of the program autonode with the kubeconfig of the management cluster.
func (c *cluster) run(ctx context.Context, command *cobra.Command, args ...string) printed {
	var out bytes.Buffer
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetOut(&out)
	command.SetErr(&out)
	command.SetArgs(append(args, "--kubeconfig", c.world.Kubeconfig(localworld.Management)))
	err := command.ExecuteContext(ctx)
	return printed{out.String(), err}
}

// check runs `autonode check`, for the management cluster or for this one.
func (c *cluster) check(ctx context.Context, args ...string) printed {
	return c.run(ctx, checkcommand.NewCommand(), args...)
}

// tree runs `autonode describe cluster`.
func (c *cluster) tree(ctx context.Context) printed {
	return c.run(ctx, describe.NewCommand(), "cluster", c.key().String(), "--guest-kubeconfig", c.world.Kubeconfig(c.name))
}

// expectNothingWrong expects that no command finds anything wrong. Karpenter may report what has changed a little later.
func (c *cluster) expectNothingWrong(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		for _, args := range [][]string{nil, {c.key().String()}} {
			checked := c.check(ctx, args...)
			g.Expect(checked.err).NotTo(HaveOccurred(), checked.out)
			g.Expect(checked.out).To(MatchRegexp(`\d+ checks: no failures`))
		}
		tree := c.tree(ctx)
		g.Expect(tree.err).NotTo(HaveOccurred())
		g.Expect(tree.out).To(HaveSuffix("\nNo problems found.\n"))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// mistake is one that people make in a HostedCluster.
type mistake struct {
	name string
	make func(*v1beta1.ClusterAPI)
	// checked are lines about the cause, each with what to do. described is the last line of the tree.
	checked   []string
	described string
}

// mistakes are the commonest.
var mistakes = []mistake{
	{
		name: "a selector matches nothing",
		make: func(spec *v1beta1.ClusterAPI) {
			spec.InfrastructureTemplateSelectors[0].Selector.MatchLabels = map[string]string{"pool": "typo"}
		},
		checked: []string{
			`✗ KwokMachineTemplates: none of \d+ in namespace \S+ matches pool=typo, so nothing launches\n {4}label one, or correct the selector: `,
			`✗ HostedCluster \S+: NodeClassReady \(NoTemplates\): .*pool=typo.*\n {4}`,
		},
		described: `Wrong: ClusterAPINodeClass default: .*pool=typo.*\n$`,
	},
	{
		name: "configTemplateRef names no bootstrap template",
		make: func(spec *v1beta1.ClusterAPI) { spec.Bootstrap.ConfigTemplateRef.Name = "typo" },
		checked: []string{
			`✗ Bootstrap: there is no KubeadmConfigTemplate \S+/typo, so nothing launches\n {4}create it, or correct bootstrap.configTemplateRef.name\n`,
			`✗ HostedCluster \S+: NodeClassReady \(BootstrapNotFound\): .*typo.*\n {4}`,
		},
		described: `Wrong: ClusterAPINodeClass default: .*typo.*\n$`,
	},
}

// expectMistakes makes each mistake and corrects it: the commands have to name its cause and what to do, and fail until then.
func (c *cluster) expectMistakes(t *testing.T) {
	t.Helper()
	set := func(change func(*v1beta1.ClusterAPI)) {
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
			spec.AutoNode = autoNode()
			change(spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI)
		})
	}
	for i := range mistakes {
		m := &mistakes[i]
		set(m.make)
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			ofCluster, ofManagement := c.check(ctx, c.key().String()), c.check(ctx)
			g.Expect(ofCluster.err).To(MatchError(ContainSubstring("fix the failures above, in order")), m.name)
			for _, line := range m.checked {
				g.Expect(ofCluster.out).To(MatchRegexp(line), m.name)
			}
			g.Expect(ofManagement.err).To(HaveOccurred(), m.name)
			g.Expect(ofManagement.out).To(MatchRegexp(`✗ HostedCluster ` + c.key().String() + `: NodeClassReady .*\n.*autonode check ` + c.key().String()))
			tree := c.tree(ctx)
			g.Expect(tree.err).NotTo(HaveOccurred())
			g.Expect(tree.out).To(MatchRegexp(m.described), m.name)
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	}
	set(func(*v1beta1.ClusterAPI) {})
}

// expectPending has a pod wait that no node fits: nothing is wrong with any object, and the tree has to say why it waits.
func (c *cluster) expectPending(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	huge := c.workload(t, "huge", 1, "9999")
	g.Eventually(func(g Gomega, ctx context.Context) {
		tree := c.tree(ctx)
		g.Expect(tree.err).NotTo(HaveOccurred())
		g.Expect(tree.out).To(MatchRegexp(`\nWaits: 1 pod is pending: Pod default/huge-.*needs 9999 cpu.*\n$`))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(c.guest.Delete(t.Context(), huge)).To(Succeed())
}
