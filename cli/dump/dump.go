// SPDX-License-Identifier: Apache-2.0

// Package dump collects what is needed to find out what is wrong with a hosted cluster, without what is secret: it never reads the
// content of Secrets, keeps of other objects what fields.yaml lists, and removes from texts what looks like a secret.
package dump

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/manifests"
)

// dumped are a bundle's contents, for whoever opens it.
const dumped = `This is a bundle of "autonode dump".

management/   the management cluster: HostedClusters, CapacityAccounts; of each control-plane namespace what belongs to
              Cluster API and AutoNode, with pods, events and Karpenter's logs; the operator and its logs
guest/        the guest cluster, if its kubeconfig was named: NodePools, NodeClaims, node classes, nodes, pods, events
errors.txt    what couldn't be read, and why

Of Secrets it has names, types and numbers of keys. Of other objects it has metadata, conditions, and the fields that
are known to say what is wrong without saying what is secret; see docs/reference/cli/dump.md. "REMOVED" stands in place of the values
of all other fields, so that their names can still be read. Logs, events and messages are complete but for what looks
like a token, a password or a key. A secret in other words isn't recognized: read the bundle before you pass it on.
`

// Options are those of `autonode dump`.
type Options struct {
	Management, Guest                    cluster.Flags
	HostedCluster, OperatorNamespace, To string
	LogLines                             int64
	// Program is the version of this program.
	Program string
}

// NewCommand returns `autonode dump` of a program's version.
func NewCommand(program string) *cobra.Command {
	o := Options{Program: program}
	cmd := command.New(&cobra.Command{
		Use:   "dump",
		Short: "Collect a support bundle, without secrets",
		Long: `Collect a support bundle, without secrets.

The command reads HostedClusters, the objects in their control-plane namespaces, the operator, and logs, and writes
them into a tar.gz file, a folder, or, with --to -, a tar.gz on standard output. With --guest-kubeconfig or
--guest-context it reads a guest cluster, too. It never reads the content of Secrets. It keeps other objects' metadata,
conditions and fields that are known to hold no secrets, and only the names of all other fields. It removes text that
looks like a secret from logs and messages. errors.txt lists failed reads.`,
		Example: `  autonode dump
  autonode dump --hosted-cluster clusters/blue --guest-kubeconfig blue.kubeconfig --to blue.tar.gz
  autonode dump --to - | ssh bastion 'cat > dump.tar.gz'`,
	}, &o)
	flags := cmd.Flags()
	o.Management.Add(cmd, cluster.Management, &o.Guest)
	flags.StringVar(&o.HostedCluster, "hosted-cluster", "", "HostedCluster to collect, as NAMESPACE/NAME; by default all")
	flags.StringVar(&o.OperatorNamespace, "operator-namespace", manifests.Namespace, "namespace of the operator")
	o.Management.Complete(cmd, &v1beta1.HostedCluster{}, "hosted-cluster")
	o.Management.Complete(cmd, &corev1.Namespace{}, "operator-namespace")
	flags.StringVar(&o.To, "to", "", "file that ends in .tar.gz, folder, or - for a tar.gz on standard output; by default "+
		"autonode-dump-TIME.tar.gz")
	flags.Int64Var(&o.LogLines, "log-lines", 5000, "number of last lines to collect of each log")
	return cmd
}

// Validate implements command.Options.
func (o *Options) Validate() error {
	if o.LogLines <= 0 {
		return fmt.Errorf("--log-lines %d: must be at least 1", o.LogLines)
	}
	if namespace, name, both := strings.Cut(o.HostedCluster, "/"); o.HostedCluster != "" && (!both || namespace == "" || name == "" ||
		strings.Contains(name, "/")) {
		return fmt.Errorf("--hosted-cluster %q: must be NAMESPACE/NAME, such as clusters/blue", o.HostedCluster)
	}
	return checkName(o.To)
}

// Run writes the bundle.
func (o *Options) Run(ctx context.Context, streams command.Streams) (err error) {
	now := time.Now()
	config, err := o.Management.Config()
	if err != nil {
		return err
	}
	var guest *rest.Config
	if o.Guest.Chosen() {
		if guest, err = o.Guest.Config(); err != nil {
			return err
		}
	}
	hostedClusters, problem, err := o.hostedClusters(ctx)
	if err != nil {
		return err
	}
	to := o.To
	if to == "" {
		to = "autonode-dump-" + now.UTC().Format("20060102-150405") + ".tar.gz"
	}
	out, shown := streams.Out, to
	if to == Stdout {
		out, shown = streams.ErrOut, "standard output" // what is said of the archive isn't in it
		if file, ok := streams.Raw.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
			return errors.New("--to -: standard output is a terminal; redirect it into a file or a program")
		}
	}
	archive, err := Create(to, streams.Raw, now)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, archive.Close()); err != nil && to != Stdout {
			err = errors.Join(err, os.RemoveAll(to)) // it isn't complete, and was made just now
		}
	}()
	problems := []string{}
	if problem != "" {
		problems = append(problems, problem)
	}
	for name, content := range map[string]string{"README.txt": dumped, "autonode-version.txt": o.Program} {
		if err := archive.Add(name, []byte(content)); err != nil {
			return fmt.Errorf("writing %s: %w", to, err)
		}
	}
	found, err := o.dumpManagement(ctx, config, archive, hostedClusters)
	if err != nil {
		return err
	}
	problems = append(problems, found...)
	if guest != nil {
		problems = append(problems, o.dumpGuest(ctx, guest, archive)...)
	}
	if err := archive.Add("errors.txt", []byte(strings.Join(append(problems, ""), "\n"))); err != nil {
		return fmt.Errorf("writing %s: %w", to, err)
	}
	printer.Printf(out, "%s: %s\n", shown, english.Plural(len(hostedClusters), "HostedCluster", ""))
	if len(problems) > 0 {
		printer.Printf(out, "%s failed; errors.txt in the bundle lists them:\n", english.Plural(len(problems), "read", ""))
		for _, problem := range problems {
			printer.Line(out, " ", problem)
		}
	}
	fmt.Fprintln(out, "It contains no Secrets. Review it before you share it: it names hosts, images and workloads.")
	return nil
}

// hostedClusters returns those to collect. problem is why they can't be listed, which doesn't end a dump of them all.
func (o *Options) hostedClusters(ctx context.Context) (chosen []v1beta1.HostedCluster, problem string, err error) {
	management, err := o.Management.Client()
	if err != nil {
		return nil, "", err
	}
	list := &v1beta1.HostedClusterList{}
	switch err := management.List(ctx, list); {
	case meta.IsNoMatchError(err):
		return nil, "", errors.New("the cluster has no HostedClusters: AutoNode isn't installed in it; " +
			"name the management cluster with --context or --kubeconfig")
	case err != nil && o.HostedCluster != "":
		return nil, "", fmt.Errorf("listing HostedClusters: %w", err)
	case err != nil:
		return nil, "management: HostedClusters: " + Text(err.Error()), nil
	}
	if o.HostedCluster == "" {
		return list.Items, "", nil
	}
	i := slices.IndexFunc(list.Items, func(hc v1beta1.HostedCluster) bool {
		return client.ObjectKeyFromObject(&hc).String() == o.HostedCluster
	})
	if i < 0 {
		return nil, "", fmt.Errorf("there is no HostedCluster %s; see `kubectl get hostedclusters -A`", o.HostedCluster)
	}
	return list.Items[i : i+1], "", nil
}

func (o *Options) dumpManagement(ctx context.Context, config *rest.Config, archive Archive, hostedClusters []v1beta1.HostedCluster) (
	[]string, error,
) {
	c, err := NewCollector(config, archive, "management")
	if err != nil {
		return nil, err
	}
	c.LogLines = o.LogLines
	if err := c.Discover(); err != nil {
		return nil, err
	}
	c.Objects(ctx, "", "autonode.io")
	homes, namespaces := []string{}, []string{o.OperatorNamespace}
	for i := range hostedClusters {
		homes = append(homes, hostedClusters[i].Namespace)
		namespaces = append(namespaces, hostedClusters[i].ControlPlaneNamespace())
	}
	for _, namespace := range sets.List(sets.New(namespaces...)) {
		c.Objects(ctx, namespace, "autonode.io", ".cluster.x-k8s.io", "apps", "coordination.k8s.io")
		c.Resources(ctx, namespace, "pods", "events", "configmaps")
		c.Secrets(ctx, namespace)
		c.Logs(ctx, namespace)
	}
	for _, namespace := range sets.List(sets.New(homes...)) {
		if !slices.Contains(namespaces, namespace) {
			c.Objects(ctx, namespace, "autonode.io")
			c.Resources(ctx, namespace, "events")
		}
	}
	return c.Problems(), nil
}

func (o *Options) dumpGuest(ctx context.Context, config *rest.Config, archive Archive) []string {
	c, err := NewCollector(config, archive, "guest")
	if err != nil {
		return []string{"guest: " + err.Error()}
	}
	c.Tenant = true
	if err := c.Discover(); err != nil {
		return []string{"guest: " + Text(err.Error())}
	}
	c.Objects(ctx, "", "karpenter.sh", "karpenter.cluster.x-k8s.io", "karpenter.k8s.aws")
	c.Resources(ctx, "", "nodes", "pods", "events", "persistentvolumeclaims", "daemonsets.apps", "poddisruptionbudgets.policy",
		"storageclasses.storage.k8s.io", "certificatesigningrequests.certificates.k8s.io")
	return c.Problems()
}
