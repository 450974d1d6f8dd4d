// SPDX-License-Identifier: Apache-2.0

// Package templates is `autonode templates`, which shows what the sources of a node class become.
package templates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/file"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// NewCommand returns `autonode templates`.
func NewCommand() *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "templates",
		Short: "Render the machines that a node class can launch",
	}, newRenderCommand())
}

// RenderOptions are those of `autonode templates render`.
type RenderOptions struct {
	Files  []string
	Source string
	Chosen machine.Chosen
}

func newRenderCommand() *cobra.Command {
	var o RenderOptions
	cmd := command.New(&cobra.Command{
		Use:   "render -f FILE...",
		Short: "Print the machines of a node class, without a cluster",
		Long: `Print the machines of a node class, without a cluster.

The files contain one ClusterAPINodeClass and what it selects: infrastructure templates, MachineDeployments and
bootstrap templates. Without a node class, the default one of the HostedCluster in the files is used. For each source the
command applies the patches of the source and of the node class, and prints the infrastructure machine, the bootstrap
config and the Machine of a NodeClaim "example". Labels and taints of a NodePool are missing. An image of the release
payload appears as its name, such as image.aws.us-east-1.

The command prints the other sources if one can't be used, and fails with the reason, as in the node class's conditions.`,
		Example: `  autonode templates render -f nodeclass.yaml -f templates.yaml --capacity-type spot --zone a
  kubectl -n clusters-blue get awsmachinetemplates,kubeadmconfigtemplates -o yaml | autonode templates render -f nodeclass.yaml -f -`,
	}, &o)
	flags := cmd.Flags()
	flags.StringArrayVarP(&o.Files, "filename", "f", nil, "file with objects in YAML or JSON, or - for standard input; may be repeated")
	flags.StringVar(&o.Source, "source", "", "name of the source to print; by default all")
	flags.StringVar(&o.Chosen.ClusterName, "cluster-name", "example", "name of the Cluster that the machine would join")
	flags.StringVar(&o.Chosen.Version, "version", "1.36.3", "Kubernetes version of the node, if neither the node class nor the source has one")
	flags.StringVar(&o.Chosen.Zone, "zone", "", "zone of the node")
	flags.StringVar(&o.Chosen.FailureDomain, "failure-domain", "", "failure domain of the Machine; by default the zone")
	o.Chosen.CapacityType = "on-demand"
	command.AddChoice(cmd, &o.Chosen.CapacityType, "capacity-type", "", "capacity type of the node", "on-demand", "spot")
	command.RequireFlags(cmd, "filename")
	return cmd
}

// AnySecret takes for granted that a node class's bootstrap Secret exists.
type AnySecret struct{ client.Reader }

// Get finds everything.
func (AnySecret) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// Resolve returns the templates among objects that a node class selects, and why others can't be used.
func Resolve(ctx context.Context, objects file.Objects, nodeClass *v1alpha1.ClusterAPINodeClass, config template.Config) (*template.Found,
	error) {
	config.Objects, config.Secrets, config.Profiles = objects, AnySecret{}, profile.Embedded()
	found, err := template.NewResolver(config).Resolve(ctx, nodeClass)
	if err != nil {
		return nil, err
	}
	return found.Checked(func(tmpl *template.Template) error { return machine.CheckPatches(nodeClass, tmpl) }), nil
}

// Run prints the machines of one source, or of all. The error joins why others can't be used.
func (o *RenderOptions) Run(ctx context.Context, streams command.Streams) error {
	objects, err := file.ReadObjects(streams.In, o.Files)
	if err != nil {
		return err
	}
	nodeClass, err := objects.NodeClass()
	if err != nil {
		return err
	}
	for _, object := range objects {
		if object.GetNamespace() == "" {
			object.SetNamespace(corev1.NamespaceDefault)
		}
	}
	found, err := Resolve(ctx, objects, nodeClass, template.Config{ClusterName: o.Chosen.ClusterName})
	if err != nil {
		return err
	}
	problems := slices.Concat(found.SelectorErrs, found.Unreadable, found.Closed, []error{found.BootstrapErr})
	for _, invalid := range found.Invalid {
		if o.Source == "" || invalid.Source.Name == o.Source {
			problems = append(problems, invalid)
		}
	}
	printed := 0
	var sources []string
	for i := range found.Templates {
		tmpl := &found.Templates[i]
		sources = append(sources, tmpl.Source.Name)
		if o.Source != "" && tmpl.Source.Name != o.Source || !tmpl.Bootstrap.IsDefined() {
			continue
		}
		if offered := tmpl.CapacityTypes(); !slices.Contains(offered, o.Chosen.CapacityType) {
			problems = append(problems, fmt.Errorf("%s: it offers no %s machines, but %s: choose another --capacity-type, or declare a price and "+
				"a patch for it (docs/platform/templates.md)",
				tmpl.Source, o.Chosen.CapacityType, strings.Join(offered, ", ")))
			continue
		}
		if err := RenderMachine(streams.Out, nodeClass, tmpl, o.Chosen); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", tmpl.Source, err))
			continue
		}
		printed++
	}
	if err := errors.Join(problems...); err != nil || printed > 0 {
		return err
	}
	if len(sources) > 0 {
		slices.Sort(sources)
		return fmt.Errorf("--source %q: the node class selects no such source; it selects %s", o.Source,
			strings.Join(slices.Compact(sources), ", "))
	}
	return unselected(ctx, objects, nodeClass, found, o.Chosen.ClusterName)
}

// unselected returns, for each kind that a node class selects, why it selects none of the objects.
func unselected(ctx context.Context, objects file.Objects, nodeClass *v1alpha1.ClusterAPINodeClass, found *template.Found,
	cluster string) error {
	var reasons []string
	for kind, ours := range found.Existing {
		all, err := objects.List(ctx, kind, labels.Everything())
		wanted := "the labels of the selector"
		if kind == template.MachineDeploymentKind {
			wanted = metav1.FormatLabelSelector(template.MachineDeploymentSelector(nodeClass))
		}
		switch {
		case err != nil || len(all) == 0:
			reasons = append(reasons, "they contain no "+kind.Kind)
		case ours == 0:
			reasons = append(reasons, fmt.Sprintf("each %s belongs to another Cluster than %s, see --cluster-name", kind.Kind, cluster))
		default:
			reasons = append(reasons, fmt.Sprintf("no %s of Cluster %s has %s", kind.Kind, cluster, wanted))
		}
	}
	slices.Sort(reasons)
	return errors.New("the node class selects none of the objects in the files: " + strings.Join(reasons, "; "))
}

// RenderMachine prints what a template of a node class makes.
func RenderMachine(out io.Writer, nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template, chosen machine.Chosen) error {
	if nodeClass.Spec.Version != "" {
		chosen.Version = nodeClass.Spec.Version
	} else if tmpl.Version() != "" {
		chosen.Version = tmpl.Version()
	}
	if chosen.Zone == "" && len(tmpl.FailureDomains) > 0 {
		chosen.Zone = tmpl.FailureDomains[0]
	}
	chosen.FailureDomain = cmp.Or(chosen.FailureDomain, chosen.Zone)
	made, err := machine.Example(nodeClass, tmpl, chosen)
	if err != nil {
		return err
	}
	printer.Printf(out, "# %s as %s\n", tmpl.Source, tmpl.InstanceType)
	if made.Bootstrap == nil {
		return printer.Documents[any](out, made.Infrastructure, made.Machine)
	}
	return printer.Documents[any](out, made.Infrastructure, made.Bootstrap, made.Machine)
}
