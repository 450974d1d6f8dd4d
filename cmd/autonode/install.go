// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/cmd/autonode/installation"
	"github.com/autonode-io/autonode/manifests"
)

// operatorImage is stamped when a release is built.
var operatorImage string

// maxSettings bounds the file of Karpenter's settings, in bytes.
const maxSettings = 64 << 10

// installFlags are those of `autonode install`.
type installFlags struct {
	management    managementFlags
	options       manifests.Options
	settings      string
	render, force bool
	timeout       time.Duration
}

// newInstallCommand returns `autonode install`.
func newInstallCommand() *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install or upgrade the operator in a management cluster",
		Long: `Install or upgrade the operator in a management cluster.

The command applies what "kubectl apply --server-side -k manifests" applies, of this program's version, and waits until
the CRDs are served and the operator runs. Then it deletes what it has applied before and doesn't apply any more, but
never a CRD. With --render it prints the objects and connects to nothing. Helm and clusterctl install the same objects:
upgrade an installation in the way in which it was made.`,
		Example: `  autonode install --image registry.example/autonode/autonode-operator@sha256:…
  autonode install --image registry.example/autonode/autonode-operator:v0.1.0 --operator-arg=--registry-networks=10.20.0.0/16
  autonode install --image registry.example/autonode/autonode-operator:v0.1.0 --render | kubectl diff --server-side -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	f.management.add(flags)
	flags.StringVar(&f.options.Image, "image", operatorImage, "image of the operator, by digest or with a tag")
	flags.StringArrayVar(&f.options.Args, "operator-arg", nil, "argument of the operator, like --registry-networks=10.20.0.0/16; may be repeated")
	flags.StringArrayVar(&f.options.PullSecrets, "pull-secret", nil, "Secret in namespace "+manifests.Namespace+" that the operator's image is pulled with; may be repeated")
	flags.StringVar(&f.settings, "karpenter-settings", "", "file with the settings of every Karpenter")
	flags.BoolVar(&f.options.Monitoring, "monitoring", false, "install the PodMonitor, the alerts and the dashboards, too")
	flags.BoolVar(&f.render, "render", false, "print the objects and apply nothing")
	flags.BoolVar(&f.force, "force-conflicts", false, "take fields over that another program has set")
	flags.DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long each object may take to be ready")
	return cmd
}

func (f *installFlags) run(cmd *cobra.Command) error {
	if f.options.Image == "" {
		return errors.New("name the operator's image: --image REFERENCE; a release lists it in images.txt")
	}
	if f.settings != "" {
		content, err := readBounded(f.settings, maxSettings)
		if err != nil {
			return fmt.Errorf("--karpenter-settings: %w", err)
		}
		f.options.Settings = content
	}
	objects, err := manifests.Render(f.options)
	if err != nil {
		return err
	}
	if f.render {
		for _, object := range objects {
			content, err := marshalYAML(object)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "---\n%s", content); err != nil {
				return err
			}
		}
		return nil
	}
	management, err := f.management.client()
	if err != nil {
		return err
	}
	installer := &installation.Installer{Management: management, Out: cmd.OutOrStdout(), Timeout: f.timeout, Force: f.force}
	if err := installer.Apply(cmd.Context(), objects); err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), "Turn AutoNode on for a Cluster with `autonode hosted-cluster create --cluster NAMESPACE/NAME`.")
	return nil
}

// newUninstallCommand returns `autonode uninstall`.
func newUninstallCommand() *cobra.Command {
	var management managementFlags
	var leave, definitions bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the operator from a management cluster",
		Long: `Remove the operator from a management cluster.

The operator drains the nodes of HostedClusters that are deleted, so the command refuses while HostedClusters have
nodes. With --leave-nodes it removes the operator all the same: the nodes stay, and Karpenter runs until its token
expires, seven to eight hours later. The CRDs and their guard stay unless --delete-crds is given, which needs every
HostedCluster to be gone.`,
		Example: `  kubectl delete hostedclusters.autonode.io --all -A
  autonode uninstall --delete-crds`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			objects, err := manifests.Render(manifests.Options{Image: manifests.Operator + ":any"})
			if err != nil {
				return err
			}
			reader, err := management.client()
			if err != nil {
				return err
			}
			using, err := installation.InUse(cmd.Context(), reader, definitions)
			if err != nil {
				return err
			}
			switch {
			case using != "" && definitions:
				return fmt.Errorf("%s. Deleting the CRDs deletes HostedClusters, which nothing drains without the operator; "+
					"run `kubectl delete hostedclusters.autonode.io --all -A` first, or leave out --delete-crds", using)
			case using != "" && !leave:
				return fmt.Errorf("%s. Run `kubectl delete hostedclusters.autonode.io --all -A` first, which drains them; "+
					"or keep the nodes without the operator with --leave-nodes", using)
			}
			installer := &installation.Installer{Management: reader, Out: cmd.OutOrStdout(), Timeout: timeout}
			return installer.Remove(cmd.Context(), objects, definitions)
		},
	}
	flags := cmd.Flags()
	management.add(flags)
	flags.BoolVar(&leave, "leave-nodes", false, "remove the operator although HostedClusters have nodes, which stay")
	flags.BoolVar(&definitions, "delete-crds", false, "delete the CRDs, too, and with them CapacityAccounts and catalogs")
	flags.DurationVar(&timeout, "timeout", 5*time.Minute, "how long the deletion of each object may take")
	return cmd
}

func readBounded(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return content, err
}
