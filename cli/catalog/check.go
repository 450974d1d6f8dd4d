// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/templates"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// CheckOptions are those of `autonode catalog check`.
type CheckOptions struct {
	Files []string
	// Print is the instance type whose machines are printed.
	Print string
}

func newCheckCommand() *cobra.Command {
	var o CheckOptions
	cmd := command.New(&cobra.Command{
		Use:   "check -f FILE...",
		Short: "Render the machine of each instance type, without a cluster",
		Long: `Render the machine of each instance type, without a cluster.

The files contain catalogs and the infrastructure templates that they refer to, and may contain the node class with its
bootstrap template. The command renders each instance type once for each of its capacity types. It fails, and names the entry,
if one can't be used.`,
		Example: `  autonode catalog check -f catalog.yaml -f templates.yaml
  autonode catalog check -f catalog.yaml -f templates.yaml --print m5.large`,
	}, &o)
	cmd.Flags().StringArrayVarP(&o.Files, "filename", "f", nil, "file with objects in YAML or JSON, or - for standard input; may be repeated")
	cmd.Flags().StringVar(&o.Print, "print", "", "name of the instance type whose machines to print")
	return cmd
}

// Validate implements command.Options.
func (o *CheckOptions) Validate() error {
	if len(o.Files) == 0 {
		return errors.New("name the files with the catalogs and their templates: -f FILE")
	}
	return nil
}

// Run reads catalogs as Karpenter does. The error joins what can't be used.
func (o *CheckOptions) Run(ctx context.Context, streams command.Streams) error {
	catalogs, objects, err := readCatalogs(streams.In, o.Files)
	if err != nil {
		return err
	}
	// A catalog and its template are in one namespace, and files may leave it out. Messages name the catalogs' own.
	namespace := corev1.NamespaceDefault
	if len(catalogs) > 0 && catalogs[0].Namespace != "" {
		namespace = catalogs[0].Namespace
	}
	for _, object := range objects {
		object.SetNamespace(namespace)
	}
	nodeClass := &v1alpha1.ClusterAPINodeClass{}
	kind := schema.GroupKind{Group: v1alpha1.Group, Kind: v1alpha1.Kind}
	if classes, err := objects.List(ctx, kind, labels.Everything()); err == nil && len(classes) > 0 {
		if nodeClass, err = objects.NodeClass(); err != nil {
			return err
		}
	}
	// All of the files, wherever they would be.
	nodeClass.Spec.TemplateSelectors = v1alpha1.TemplateSelectors{CatalogSelectors: []v1alpha1.CatalogSelector{{}}}
	found, err := templates.Resolve(ctx, objects, nodeClass, template.Config{ClusterName: "example", Namespace: namespace})
	if err != nil {
		return err
	}
	problems := slices.Concat(found.SelectorErrs, found.Unreadable, found.Closed)
	for _, invalid := range found.Invalid {
		problems = append(problems, invalid)
	}
	machines, offerings, shown := 0, 0, false
	for i := range found.Templates {
		tmpl := &found.Templates[i]
		machines, offerings = machines+len(tmpl.CapacityTypes()), offerings+len(tmpl.Offerings)
		if tmpl.InstanceType != o.Print {
			continue
		}
		for _, capacityType := range tmpl.CapacityTypes() {
			if err := printMachine(streams.Out, nodeClass, tmpl, capacityType); err != nil {
				return err
			}
			shown = true
		}
	}
	if o.Print != "" && !shown {
		problems = append(problems, fmt.Errorf("there is no usable instance type %s", o.Print))
	}
	if o.Print == "" {
		printer.Printf(streams.Out, "%s: %s, %s, %s rendered\n", english.Plural(len(catalogs), "catalog", ""),
			english.Plural(len(found.Templates), "usable instance type", ""), english.Plural(offerings, "offering", ""),
			english.Plural(machines, "machine", ""))
	}
	return errors.Join(problems...)
}

func printMachine(out io.Writer, nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template, capacityType string) error {
	chosen := machine.Chosen{ClusterName: "example", Version: "1.36.3", CapacityType: capacityType}
	for i := range tmpl.Offerings {
		if o := &tmpl.Offerings[i]; o.CapacityType == capacityType {
			chosen.Zone, chosen.ReservationID = o.Zone, o.Reservation
			break
		}
	}
	return templates.RenderMachine(out, nodeClass, tmpl, chosen)
}
