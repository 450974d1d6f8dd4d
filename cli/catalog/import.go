// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/cli/catalog/importer"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/file"
	"github.com/autonode-io/autonode/cli/printer"
)

// maxProblems is how many problems of one catalog are shown, of which the first is the whole catalog's.
const maxProblems = 6

// source is what instance types are imported from, and the catalog that they are for.
type source struct {
	Format, Input, Prices, SpotPrices, ZoneOfferings string
	Name, Namespace                                  string
	Include                                          []string
	// Rates are US dollars by currency, as they are given.
	Rates   map[string]string
	Options importer.Options

	format importer.Format // set by Validate
}

// ImportOptions are those of `autonode catalog import`.
type ImportOptions struct {
	source
	Template, Patches string
	Labels            map[string]string
}

// formatsHelp lists the formats that an import reads.
func formatsHelp() string {
	var formats strings.Builder
	formats.WriteString("Formats:")
	for _, format := range importer.Formats {
		fmt.Fprintf(&formats, "\n  %-10s %s", format.Name, format.Input)
	}
	return formats.String()
}

func newImportCommand() *cobra.Command {
	var o ImportOptions
	cmd := command.New(&cobra.Command{
		Use:   "import FORMAT -f FILE",
		Short: "Create a catalog from an infrastructure's list of machine types",
		Long: `Create a catalog from an infrastructure's list of machine types, and print it. The command connects to nothing.

` + formatsHelp() + `

The command skips machine types that can't be used, and names them on standard error. Prices come from
the infrastructure's own price list (aws, azure, hetzner), or from a CSV file with the columns instanceType, zone,
capacityType, price and currency. A machine type that the price list lacks gets no offering. A catalog's prices
are in US dollars: other currencies need --rates.

A catalog that would exceed 1 MB is split.`,
		Example: `  aws ec2 describe-instance-types | autonode catalog import aws -f - --prices prices.json --template general > catalog.yaml
  autonode catalog import openstack -f flavors.json --prices prices.csv --template workers -n clusters-blue
  autonode catalog import csv -f types.csv --template ProxmoxMachineTemplate/workers --patches patches.yaml`,
		Args: command.ExactlyOne(&o.Format, "FORMAT", "the format of the file with the machine types, such as aws or csv"),
	}, &o)
	flags := cmd.Flags()
	o.add(flags)
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of the catalog")
	flags.StringToStringVar(&o.Labels, "labels", nil, "labels of the catalog, for the selectors of node classes")
	flags.StringVar(&o.Template, "template", "", "infrastructure template, as <name>, <kind>/<name> or <kind>.<group>/<name>; the format "+
		"has a default kind")
	flags.StringVar(&o.Patches, "patches", "", "file with the catalog's patches in YAML, instead of the format's")
	return cmd
}

// add adds the flags that say what to import.
func (s *source) add(flags *pflag.FlagSet) {
	flags.StringVarP(&s.Input, "filename", "f", "", "file with the machine types, or - for standard input")
	flags.StringVar(&s.Prices, "prices", "", "file with a price list of the infrastructure, or with prices in CSV")
	flags.StringVar(&s.SpotPrices, "spot-prices", "", "file with spot prices: the output of aws ec2 describe-spot-price-history, or CSV")
	flags.StringToStringVar(&s.Rates, "rates", nil,
		"exchange rates to US dollars, such as EUR=1.08; prices in other currencies are refused")
	flags.StringVar(&s.ZoneOfferings, "zone-offerings", "",
		"file with the zones of each machine type: the output of aws ec2 describe-instance-type-offerings --location-type availability-zone")
	flags.BoolVar(&s.Options.Estimate, "estimate-prices", false,
		"without a price list, estimate on-demand prices from cores, memory and GPUs, so that a bigger machine costs more")
	flags.StringVar(&s.Options.Region, "region", "", "region of the machine types, prices and zones, if a file has several")
	flags.StringSliceVar(&s.Options.Zones, "zones", nil,
		"zones of machine types for which the file has none; by default every failure domain of a Cluster")
	flags.StringVar(&s.Options.GPUResource, "gpu-resource", "nvidia.com/gpu", "resource name of GPUs for which the file names no vendor")
	flags.StringSliceVar(&s.Include, "include", nil, "names of the machine types to import, where * stands for any text; without it all are")
	flags.StringVar(&s.Name, "name", "imported", "name of the catalog; a second one gets -2, and so on")
}

// Validate finds the format.
func (s *source) Validate() (err error) {
	s.Options.Rates = map[string]float64{}
	for currency, rate := range s.Rates {
		dollars, err := catalog.ParsePrice(rate)
		if err != nil || dollars == 0 {
			return fmt.Errorf("--rates %s=%s: must be the US dollars for one %s, such as 1.08", currency, rate, currency)
		}
		s.Options.Rates[strings.ToUpper(currency)] = dollars
	}
	s.format, err = importer.FormatOf(s.Format)
	return err
}

// Validate implements command.Options.
func (o *ImportOptions) Validate() error {
	if err := o.source.Validate(); err != nil {
		return err
	}
	if _, err := templateReference(o.Template, o.format.Template); err != nil {
		return err
	}
	if msgs := validation.IsDNS1123Subdomain(o.Name); len(msgs) > 0 {
		return fmt.Errorf("--name %q: %s", o.Name, msgs[0])
	}
	return nil
}

// Run prints the catalogs that the files say.
func (o *ImportOptions) Run(_ context.Context, streams command.Streams) error {
	spec, err := o.spec(streams.In)
	if err != nil {
		return err
	}
	imported, err := o.types(streams)
	if err != nil {
		return err
	}
	parts, err := split(spec, imported.Types)
	if err != nil {
		return err
	}
	for i := range parts {
		if err := o.usable(&parts[i]); err != nil {
			return err
		}
	}
	printer.Printf(streams.ErrOut, "%s imported in %s, %s\n", english.Plural(len(imported.Types), "machine type", ""),
		english.Plural(len(parts), "catalog", ""), english.Plural(len(imported.Problems), "problem", ""))
	return o.print(streams.Out, parts)
}

// print prints a catalog for each part.
func (o *ImportOptions) print(to io.Writer, parts []v1alpha1.InstanceTypeCatalogSpec) error {
	catalogs := make([]any, len(parts))
	for i := range parts {
		catalogs[i] = printer.Object{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "InstanceTypeCatalog"},
			ObjectMeta: metav1.ObjectMeta{Name: partName(o.Name, i), Namespace: o.Namespace, Labels: o.Labels}, Spec: parts[i],
		}
	}
	return printer.Documents(to, catalogs...)
}

// usable returns why a catalog can't be used as it is. Each type alone can be: what is missing are patches.
func (o *ImportOptions) usable(spec *v1alpha1.InstanceTypeCatalogSpec) error {
	read := catalog.Read(spec)
	problems := []error{read.Err}
	for _, problem := range read.Problems {
		problems = append(problems, problem)
	}
	err := errors.Join(problems[:min(len(problems), maxProblems)]...)
	if err == nil {
		return nil
	}
	if more := len(problems) - maxProblems; more > 0 {
		err = fmt.Errorf("%w\nand %d more", err, more)
	}
	return fmt.Errorf("the catalog couldn't be used: %w\nname a file with patches that write the machine type into the machine: --patches "+
		"FILE; see docs/platform/catalog.md", err)
}

// types returns the instance types that the files say, and names on standard error what it leaves out.
func (s *source) types(streams command.Streams) (*importer.Imported, error) {
	if s.Input == "" {
		return nil, errors.New("name the file with the machine types: -f FILE, or -f - for standard input")
	}
	var input io.Reader
	options := s.Options
	for _, list := range []struct {
		name string
		into *io.Reader
	}{{s.Input, &input}, {s.Prices, &options.Prices}, {s.SpotPrices, &options.SpotPrices}, {s.ZoneOfferings, &options.ZoneOfferings}} {
		if list.name == "" {
			continue
		}
		opened, err := file.Open(streams.In, list.name)
		if err != nil {
			return nil, err
		}
		defer opened.Close()
		*list.into = opened
	}
	imported, err := s.format.Read(input, options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Input, err)
	}
	for _, problem := range imported.Problems {
		printer.Printf(streams.ErrOut, "%s: %s\n", s.Input, problem)
	}
	imported.Types = included(imported.Types, s.Include)
	if len(imported.Types) == 0 {
		return nil, fmt.Errorf("%s: no machine type can be imported", s.Input)
	}
	unpriced := 0
	for i := range imported.Types {
		if !priced(&imported.Types[i]) {
			unpriced++
		}
	}
	if unpriced > 0 {
		printer.Printf(streams.ErrOut, "%s: %s without a price, of which nothing launches: add --prices or --estimate-prices\n", s.Input,
			english.Plural(unpriced, "machine type", ""))
	}
	return imported, nil
}

// spec of the catalog without its instance types.
func (o *ImportOptions) spec(stdin io.Reader) (spec v1alpha1.InstanceTypeCatalogSpec, err error) {
	spec.Patches = o.format.Patches
	if spec.TemplateRef, err = templateReference(o.Template, o.format.Template); err != nil {
		return spec, err
	}
	if o.Patches == "" {
		return spec, nil
	}
	raw, err := file.Read(stdin, o.Patches)
	if err != nil {
		return spec, err
	}
	spec.Patches = nil
	if err := yaml.UnmarshalStrict(raw, &spec.Patches); err != nil {
		return spec, fmt.Errorf("%s: not a list of patches {op, path, value or valueFrom}: %w", o.Patches, err)
	}
	return spec, nil
}

// templateReference reads a template's name over the format's kind.
func templateReference(text string, usual v1alpha1.InfrastructureTemplateReference) (v1alpha1.InfrastructureTemplateReference, error) {
	ref := usual
	kind, name, ok := strings.Cut(text, "/")
	if !ok {
		kind, name = "", text
	}
	if kind != "" {
		ref.Kind, ref.APIGroup, ok = strings.Cut(kind, ".")
		if !ok {
			ref.APIGroup = "infrastructure.cluster.x-k8s.io"
		}
	}
	ref.Name = name
	switch {
	case name == "":
		return ref, errors.New("name the infrastructure template that machines are cloned from: --template NAME")
	case ref.Kind == "":
		return ref, errors.New("this format has no default kind of template: use --template KIND/NAME")
	case !strings.HasSuffix(ref.Kind, "Template"):
		return ref, fmt.Errorf("--template %q: kind %q isn't a machine template: use one such as AWSMachineTemplate/%s", text, ref.Kind, ref.Name)
	}
	return ref, nil
}

// included returns the types whose name matches one of the patterns.
func included(types []v1alpha1.CatalogInstanceType, patterns []string) []v1alpha1.CatalogInstanceType {
	if len(patterns) == 0 {
		return types
	}
	return slices.DeleteFunc(types, func(entry v1alpha1.CatalogInstanceType) bool {
		return !slices.ContainsFunc(patterns, func(pattern string) bool {
			matches, err := path.Match(pattern, entry.Name)
			return err == nil && matches
		})
	})
}
