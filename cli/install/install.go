// SPDX-License-Identifier: Apache-2.0

// Package install is `autonode install` and `autonode uninstall`: it applies and removes the objects of an installation of the operator.
package install

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/file"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/manifests"
)

// maxSettings bounds the file of Karpenter's settings, in bytes.
const maxSettings = 64 << 10

// Options are those of `autonode install`.
type Options struct {
	Management cluster.Flags
	Manifests  manifests.Options
	// Settings is the file with the settings of every Karpenter.
	Settings      string
	Render, Force bool
	Timeout       time.Duration
	Operator      Operator
}

// Operator checks what the operator of this program's version would reject.
type Operator struct {
	// CheckArguments is of further arguments, CheckSettings of the content of the file of Karpenter's settings.
	CheckArguments func([]string) error
	CheckSettings  func([]byte) error
}

// NewCommand returns `autonode install` of an image that --image replaces.
func NewCommand(image string, operator Operator) *cobra.Command {
	o := Options{Operator: operator}
	cmd := command.New(&cobra.Command{
		Use:   "install",
		Short: "Install or upgrade the operator in a management cluster",
		Long: `Install or upgrade the operator in a management cluster.

The command applies the manifests of this program's version, as "kubectl apply --server-side -k manifests" would, and
waits until the CRDs are served and the operator runs. Finally it prunes objects that an earlier run applied, except
CRDs. With --render it prints the objects without a connection to a cluster. Helm and clusterctl install the same
objects: upgrade an installation the way it was installed.`,
		Example: `  autonode install --image registry.example/autonode/autonode-operator@sha256:…
  autonode install --image registry.example/autonode/autonode-operator:v0.1.0 --operator-arg=--registry-networks=10.20.0.0/16
  autonode install --image registry.example/autonode/autonode-operator:v0.1.0 --render | kubectl diff --server-side -f -`,
	}, &o)
	flags := cmd.Flags()
	o.Management.Add(cmd, cluster.Management, nil)
	flags.StringVar(&o.Manifests.Image, "image", image, "image of the operator, by digest or with a tag")
	flags.StringArrayVar(&o.Manifests.Args, "operator-arg", nil,
		"argument of the operator, like --registry-networks=10.20.0.0/16; may be repeated")
	flags.StringArrayVar(&o.Manifests.PullSecrets, "pull-secret", nil,
		"Secret in namespace "+manifests.Namespace+" that the operator's image is pulled with; may be repeated")
	flags.StringVar(&o.Settings, "karpenter-settings", "", "file with the settings of every Karpenter")
	flags.BoolVar(&o.Manifests.Monitoring, "monitoring", false, "install the PodMonitor, the alerts and the dashboards, too")
	flags.BoolVar(&o.Render, "render", false, "print the objects and apply nothing")
	flags.BoolVar(&o.Force, "force-conflicts", false, "take over fields that another program has set")
	flags.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "how long to wait for each object to be ready")
	return cmd
}

// Validate implements command.Options.
func (o *Options) Validate() error {
	if o.Manifests.Image == "" {
		return errors.New("name the operator's image: --image REFERENCE; a release lists it in images.txt")
	}
	if _, err := name.ParseReference(o.Manifests.Image); err != nil {
		return fmt.Errorf("--image %q isn't an image such as registry.example/autonode/autonode-operator@sha256:…", o.Manifests.Image)
	}
	for _, arg := range o.Manifests.Args {
		flag, _, _ := strings.Cut(arg, "=")
		switch {
		case !argument.MatchString(flag):
			return fmt.Errorf("--operator-arg %q isn't a flag of the operator with its value, such as "+
				"--operator-arg=--registry-networks=10.20.0.0/16", arg)
		case flag == "--karpenter-settings":
			return errors.New("--operator-arg: name the file with `autonode install --karpenter-settings`, which mounts it, too")
		}
	}
	if err := o.Operator.CheckArguments(o.Manifests.Args); err != nil {
		return fmt.Errorf("--operator-arg: the operator would reject it: %w; docs/platform/settings.md has its flags", err)
	}
	return nil
}

// argument is a flag of the operator's.
var argument = regexp.MustCompile(`^--[a-z][a-z0-9-]*$`)

// Run applies the objects, or prints them.
func (o *Options) Run(ctx context.Context, streams command.Streams) error {
	if o.Settings != "" {
		content, err := file.ReadBounded(streams.In, o.Settings, maxSettings)
		if err != nil {
			return fmt.Errorf("--karpenter-settings: %w", err)
		}
		if err := o.Operator.CheckSettings(content); err != nil {
			return fmt.Errorf("--karpenter-settings: the operator would reject %s: %w; docs/platform/settings.md has its fields", o.Settings, err)
		}
		o.Manifests.Settings = content
	}
	objects, err := manifests.Render(o.Manifests)
	if err != nil {
		return err
	}
	if o.Render {
		return printer.Documents(streams.Out, objects...)
	}
	management, err := o.Management.Client()
	if err != nil {
		return err
	}
	installer := &Installer{Management: management, Out: streams.Out, Timeout: o.Timeout, Force: o.Force}
	if err := installer.Apply(ctx, objects); err != nil {
		return err
	}
	fmt.Fprintln(streams.Out, "Check the requirements with `autonode check`.")
	fmt.Fprintln(streams.Out, "Turn AutoNode on for a Cluster with `autonode hosted-cluster create --cluster NAMESPACE/NAME`.")
	return nil
}
