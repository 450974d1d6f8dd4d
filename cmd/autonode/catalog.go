// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/catalog/importer"
)

// maxCatalog is the size at which an import begins another catalog, in bytes of JSON: an object in etcd is limited to 1.5 MB.
const maxCatalog = 1_000_000

// newCatalogCommand returns `autonode catalog`.
func newCatalogCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "catalog",
		Short: "Import, check, compare and refresh InstanceTypeCatalogs",
		Args:  subcommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCatalogImportCommand(), newCatalogCheckCommand(), newCatalogDiffCommand(), newCatalogRefreshCommand())
	return cmd
}

// importFlags are those of catalog import.
type importFlags struct {
	format, input, prices, spotPrices, patches string
	name, namespace, template                  string
	labels                                     map[string]string
	include                                    []string
	options                                    importer.Options
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

func newCatalogImportCommand() *cobra.Command {
	f := importFlags{}
	cmd := &cobra.Command{
		Use:   "import FORMAT -f FILE",
		Short: "Make a catalog from what an infrastructure says of its machine types",
		Long: `Make a catalog from what an infrastructure says of its machine types, and print it. It calls nothing.

` + formatsHelp() + `

A machine type that can't be used is named on standard error and left out; the others are imported. Prices come from
the infrastructure's own price list (aws, azure), or from a CSV file with the columns instanceType, zone, capacityType
and price. With a price list, what it doesn't sell gets no offering.

A catalog that would exceed 1 MB is split.`,
		Example: `  aws ec2 describe-instance-types | autonode catalog import aws -f - --prices prices.json --template general > catalog.yaml
  autonode catalog import openstack -f flavors.json --prices prices.csv --template workers -n clusters-blue
  autonode catalog import csv -f types.csv --template ProxmoxMachineTemplate/workers --patches patches.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.format = args[0]
			catalogs, err := f.catalogs(cmd.InOrStdin(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for i, c := range catalogs {
				if err := printCatalog(cmd.OutOrStdout(), c, i > 0); err != nil {
					return err
				}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	f.add(flags)
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the catalog")
	flags.StringToStringVar(&f.labels, "labels", nil, "labels of the catalog, for the selectors of node classes")
	flags.StringVar(&f.template, "template", "", "infrastructure template, as <name>, <kind>/<name> or <kind>.<group>/<name>; the format has a default kind")
	flags.StringVar(&f.patches, "patches", "", "file with the catalog's patches in YAML, in place of the format's")
	return cmd
}

// add adds the flags that say what to import.
func (f *importFlags) add(flags *pflag.FlagSet) {
	flags.StringVarP(&f.input, "filename", "f", "", "file with the machine types, or - for standard input")
	flags.StringVar(&f.prices, "prices", "", "file with a price list of the infrastructure, or with prices in CSV")
	flags.StringVar(&f.spotPrices, "spot-prices", "", "file with spot prices: the output of aws ec2 describe-spot-price-history, or CSV")
	flags.BoolVar(&f.options.Estimate, "estimate-prices", false, "without a price list, estimate on-demand prices from cores, memory and GPUs, so that a bigger machine costs more")
	flags.StringVar(&f.options.Region, "region", "", "region of the prices and zones, where a file has several")
	flags.StringSliceVar(&f.options.Zones, "zones", nil, "zones that machine types are sold in, where the file doesn't say; without it every failure domain of a Cluster")
	flags.StringVar(&f.options.GPUResource, "gpu-resource", "nvidia.com/gpu", "resource of GPUs whose maker the file doesn't say")
	flags.StringSliceVar(&f.include, "include", nil, "names of the machine types to import, where * stands for any text; without it all are")
	flags.StringVar(&f.name, "name", "imported", "name of the catalog; a second one gets -2, and so on")
}

// catalogs returns the catalogs that the files say.
func (f *importFlags) catalogs(stdin io.Reader, problems io.Writer) ([]*v1alpha1.InstanceTypeCatalog, error) {
	format, err := importer.FormatOf(f.format)
	if err != nil {
		return nil, err
	}
	spec, err := f.spec(stdin, format)
	if err != nil {
		return nil, err
	}
	imported, err := f.types(stdin, problems, format)
	if err != nil {
		return nil, err
	}
	parts, err := split(spec, imported.Types)
	if err != nil {
		return nil, err
	}
	catalogs := make([]*v1alpha1.InstanceTypeCatalog, len(parts))
	for i := range parts {
		catalogs[i] = &v1alpha1.InstanceTypeCatalog{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "InstanceTypeCatalog"},
			ObjectMeta: metav1.ObjectMeta{Name: partName(f.name, i), Namespace: f.namespace, Labels: f.labels}, Spec: parts[i],
		}
	}
	printf(problems, "%d machine types imported in %d catalogs, %d problems\n", len(imported.Types), len(parts), len(imported.Problems))
	return catalogs, nil
}

// types returns the instance types that the files say, and names on problems what it leaves out.
func (f *importFlags) types(stdin io.Reader, problems io.Writer, format importer.Format) (*importer.Imported, error) {
	if f.input == "" {
		return nil, errors.New("name the file with the machine types: -f FILE, or -f - for standard input")
	}
	raw, err := readFile(stdin, f.input)
	if err != nil {
		return nil, err
	}
	options := f.options
	for file, into := range map[string]*[]byte{f.prices: &options.Prices, f.spotPrices: &options.SpotPrices} {
		if file == "" {
			continue
		}
		if *into, err = readFile(stdin, file); err != nil {
			return nil, err
		}
	}
	imported, err := format.Read(raw, options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.input, err)
	}
	for _, problem := range imported.Problems {
		printf(problems, "%s: %s\n", f.input, problem)
	}
	imported.Types = included(imported.Types, f.include)
	if len(imported.Types) == 0 {
		return nil, fmt.Errorf("%s: no machine type can be imported", f.input)
	}
	if unpriced := unpriced(imported.Types); unpriced > 0 {
		printf(problems, "%s: %d machine types have no price, and nothing launches of them: add --prices or --estimate-prices\n", f.input, unpriced)
	}
	return imported, nil
}

// partName is the name of a part, counted from 0, of what is too large for one catalog.
func partName(name string, part int) string {
	if part == 0 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, part+1)
}

// spec of the catalog without its instance types.
func (f *importFlags) spec(stdin io.Reader, format importer.Format) (spec v1alpha1.InstanceTypeCatalogSpec, err error) {
	spec.Patches = format.Patches
	if spec.TemplateRef, err = templateReference(f.template, format.Template); err != nil {
		return spec, err
	}
	if msgs := validation.IsDNS1123Subdomain(f.name); len(msgs) > 0 {
		return spec, fmt.Errorf("--name %q: %s", f.name, msgs[0])
	}
	if f.patches == "" {
		return spec, nil
	}
	raw, err := readFile(stdin, f.patches)
	if err != nil {
		return spec, err
	}
	spec.Patches = nil
	if err := yaml.UnmarshalStrict(raw, &spec.Patches); err != nil {
		return spec, fmt.Errorf("%s: not a list of patches {op, path, value or valueFrom}: %w", f.patches, err)
	}
	return spec, nil
}

// unpriced counts the types without a price.
func unpriced(types []v1alpha1.CatalogInstanceType) (n int) {
	for i := range types {
		if !priced(&types[i]) {
			n++
		}
	}
	return n
}

func priced(entry *v1alpha1.CatalogInstanceType) bool {
	return slices.ContainsFunc(entry.Offerings, func(o v1alpha1.CatalogOffering) bool { return o.Price != "" })
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
		return ref, errors.New("this format has no usual template; name its kind too: --template KIND/NAME")
	case !strings.HasSuffix(ref.Kind, "Template"):
		return ref, fmt.Errorf("--template %q: kind %q is no template", text, ref.Kind)
	}
	return ref, nil
}

// included returns the types whose name matches one of the patterns.
func included(types []v1alpha1.CatalogInstanceType, patterns []string) []v1alpha1.CatalogInstanceType {
	if len(patterns) == 0 {
		return types
	}
	var kept []v1alpha1.CatalogInstanceType
	for i := range types {
		for _, pattern := range patterns {
			if matches(pattern, types[i].Name) {
				kept = append(kept, types[i])
				break
			}
		}
	}
	return kept
}

// matches reports whether a text is as a pattern says, in which * stands for any text.
func matches(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	rest, ok := strings.CutPrefix(text, parts[0])
	if !ok || len(parts) == 1 {
		return ok && rest == ""
	}
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(rest, part)
		if !found {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, parts[len(parts)-1])
}

// split divides instance types among catalogs of the same template and patches.
func split(spec v1alpha1.InstanceTypeCatalogSpec, types []v1alpha1.CatalogInstanceType) ([]v1alpha1.InstanceTypeCatalogSpec, error) {
	var parts []v1alpha1.InstanceTypeCatalogSpec
	size := maxCatalog
	for i := range types {
		raw, err := json.Marshal(&types[i])
		if err != nil {
			return nil, fmt.Errorf("encoding %s: %w", types[i].Name, err)
		}
		if size+len(raw) > maxCatalog || len(parts[len(parts)-1].InstanceTypes) == catalog.MaxTypes {
			parts, size = append(parts, *spec.DeepCopy()), 0
		}
		last := &parts[len(parts)-1]
		last.InstanceTypes = append(last.InstanceTypes, types[i])
		size += len(raw)
	}
	return parts, nil
}

// printCatalog prints a catalog without its status.
func printCatalog(out io.Writer, c *v1alpha1.InstanceTypeCatalog, another bool) error {
	content, err := marshalYAML(struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        map[string]any                   `json:"metadata"`
		Spec            v1alpha1.InstanceTypeCatalogSpec `json:"spec"`
	}{c.TypeMeta, metadataOf(c), c.Spec})
	if err != nil {
		return err
	}
	if another {
		content = append([]byte("---\n"), content...)
	}
	_, err = out.Write(content)
	return err
}

func metadataOf(c *v1alpha1.InstanceTypeCatalog) map[string]any {
	metadata := map[string]any{"name": c.Name}
	if c.Namespace != "" {
		metadata["namespace"] = c.Namespace
	}
	if len(c.Labels) > 0 {
		metadata["labels"] = c.Labels
	}
	return metadata
}

// readCatalogs reads the catalogs of files. Other objects are left out.
func readCatalogs(stdin io.Reader, files []string) ([]*v1alpha1.InstanceTypeCatalog, objectFiles, error) {
	objects, err := readObjects(stdin, files)
	if err != nil {
		return nil, nil, err
	}
	var catalogs []*v1alpha1.InstanceTypeCatalog
	for _, object := range objects {
		if object.GroupVersionKind().Group != v1alpha1.Group || object.GetKind() != "InstanceTypeCatalog" {
			continue
		}
		raw, err := object.MarshalJSON()
		if err != nil {
			return nil, nil, err
		}
		c := &v1alpha1.InstanceTypeCatalog{}
		if err := yaml.UnmarshalStrict(raw, c); err != nil {
			return nil, nil, fmt.Errorf("InstanceTypeCatalog %s: %w", object.GetName(), err)
		}
		catalogs = append(catalogs, c)
	}
	if len(catalogs) == 0 {
		return nil, nil, fmt.Errorf("%s: no InstanceTypeCatalog", strings.Join(files, ", "))
	}
	return catalogs, objects, nil
}
