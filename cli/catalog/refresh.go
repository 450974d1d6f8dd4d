// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
)

// RefreshOptions are those of `autonode catalog refresh`.
type RefreshOptions struct {
	source
	Management cluster.Flags
	DryRun     cluster.DryRun
	// MaxClosed is the percentage of the instance types with a price that may lose it.
	MaxClosed int
}

func newRefreshCommand() *cobra.Command {
	var o RefreshOptions
	cmd := command.New(&cobra.Command{
		Use:   "refresh FORMAT -f FILE --name NAME",
		Short: "Write new prices and instance types into a catalog of the management cluster",
		Long: `Write new prices and instance types into a catalog of the management cluster. It replaces no node.

The files and their formats are those of catalog import. The command updates the offerings of instance types that the
catalog has, but keeps reserved offerings if the files name none. It adds new instance types, and removes those that the
files lack: their offerings close, and their nodes stay. The catalog's template, patches and labels stay.

The command refuses if more than --max-closed percent of the instance types with a price would lose it: a price list may
be incomplete.

It needs the verbs get and patch on instancetypecatalogs in the catalog's namespace.`,
		Example: `  aws ec2 describe-instance-types > types.json
  autonode catalog refresh aws --name general -n autonode-catalogs -f types.json --prices prices.json --dry-run=client`,
		Args: command.ExactlyOne(&o.Format, "FORMAT", "the format of the file with the machine types, such as aws or csv"),
	}, &o)
	flags := cmd.Flags()
	o.Management.Add(cmd, cluster.Management, nil)
	o.add(flags)
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of the catalog; by default that of the context")
	o.Management.Complete(cmd, &corev1.Namespace{}, "namespace")
	o.DryRun.Add(cmd)
	flags.IntVar(&o.MaxClosed, "max-closed", 10, "highest percentage of priced instance types that may lose their price")
	command.RequireFlags(cmd, "name")
	return cmd
}

// Validate implements command.Options.
func (o *RefreshOptions) Validate() error {
	if o.MaxClosed < 0 || o.MaxClosed > 100 {
		return fmt.Errorf("--max-closed %d: must be a percentage from 0 to 100", o.MaxClosed)
	}
	return o.source.Validate()
}

// Run writes what has changed.
func (o *RefreshOptions) Run(ctx context.Context, streams command.Streams) error {
	imported, err := o.types(streams)
	if err != nil {
		return err
	}
	if o.Namespace == "" {
		if o.Namespace, err = o.Management.Namespace(); err != nil {
			return err
		}
	}
	management, err := o.Management.Client()
	if err != nil {
		return err
	}
	before, err := o.parts(ctx, management)
	if err != nil {
		return err
	}
	after, err := refreshed(before, imported.Types)
	if err != nil {
		return err
	}
	if len(after) != len(before) {
		return o.divided(len(before), len(after))
	}
	if drifting := diffCatalogs(streams.Out, before, after); drifting > 0 { // instance types that move between parts with different patches
		return fmt.Errorf("the nodes of %d instance types would be replaced; give all parts of the catalog the same template and patches",
			drifting)
	}
	if priced, closed := closing(before, after); closed*100 > priced*o.MaxClosed {
		return fmt.Errorf("%d of %d instance types with a price would lose it, and nothing would launch of them; check the price list, or "+
			"raise --max-closed (%d)", closed, priced, o.MaxClosed)
	}
	for i := range after {
		if err := o.write(ctx, management, streams.Out, before[i], after[i]); err != nil {
			return err
		}
	}
	return nil
}

// parts reads the catalog, and those of further names if it was too large for one.
func (o *RefreshOptions) parts(ctx context.Context, management client.Client) ([]*v1alpha1.InstanceTypeCatalog, error) {
	var parts []*v1alpha1.InstanceTypeCatalog
	for {
		c := &v1alpha1.InstanceTypeCatalog{}
		key := client.ObjectKey{Namespace: o.Namespace, Name: partName(o.Name, len(parts))}
		switch err := management.Get(ctx, key, c); {
		case apierrors.IsNotFound(err) && len(parts) > 0:
			return parts, nil
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("InstanceTypeCatalog %s doesn't exist; create it with `autonode catalog import %s` and kubectl apply", key,
				o.Format)
		case err != nil:
			return nil, fmt.Errorf("reading InstanceTypeCatalog %s: %w", key, err)
		}
		parts = append(parts, c)
	}
}

// divided reports why nothing is written if the number of catalogs would change.
func (o *RefreshOptions) divided(have, want int) error {
	if want > have {
		return fmt.Errorf("the instance types no longer fit into %s: create InstanceTypeCatalog %s/%s with the same template and patches, and "+
			"no instance types",
			english.Plural(have, "catalog", ""), o.Namespace, partName(o.Name, have))
	}
	return fmt.Errorf("the instance types fit into %s: delete InstanceTypeCatalog %s/%s, which would offer them at its old prices",
		english.Plural(want, "catalog", ""), o.Namespace, partName(o.Name, have-1))
}

// refreshed returns the catalogs with the imported instance types. What a catalog declares itself of one stays, but for the offerings.
func refreshed(before []*v1alpha1.InstanceTypeCatalog, imported []v1alpha1.CatalogInstanceType) ([]*v1alpha1.InstanceTypeCatalog, error) {
	known := map[string]*v1alpha1.CatalogInstanceType{}
	for _, c := range before {
		for i := range c.Spec.InstanceTypes {
			if entry := &c.Spec.InstanceTypes[i]; known[entry.Name] == nil { // the first one counts
				known[entry.Name] = entry
			}
		}
	}
	types := make([]v1alpha1.CatalogInstanceType, len(imported))
	for i := range imported {
		types[i] = imported[i]
		if entry := known[imported[i].Name]; entry != nil {
			types[i] = *entry.DeepCopy()
			types[i].Offerings = offeringsOf(entry.Offerings, imported[i].Offerings)
		}
	}
	parts, err := split(v1alpha1.InstanceTypeCatalogSpec{TemplateRef: before[0].Spec.TemplateRef, Patches: before[0].Spec.Patches}, types)
	if err != nil {
		return nil, err
	}
	after := make([]*v1alpha1.InstanceTypeCatalog, len(parts))
	for i := range parts {
		after[i] = &v1alpha1.InstanceTypeCatalog{Spec: before[0].Spec}
		if i < len(before) {
			after[i] = before[i].DeepCopy()
		}
		after[i].Spec.InstanceTypes = parts[i].InstanceTypes
	}
	return after, nil
}

// offeringsOf returns the imported offerings, and the reserved ones that were there if none is imported: price lists don't know them.
func offeringsOf(were, imported []v1alpha1.CatalogOffering) []v1alpha1.CatalogOffering {
	reserved := func(o v1alpha1.CatalogOffering) bool { return o.Reservation != nil }
	offerings := slices.Clone(imported)
	if slices.ContainsFunc(imported, reserved) {
		return offerings
	}
	for _, o := range were {
		if reserved(o) {
			offerings = append(offerings, o)
		}
	}
	return offerings
}

// closing counts the instance types that have a price, and those of them that would have none.
func closing(before, after []*v1alpha1.InstanceTypeCatalog) (had, lose int) {
	pricedOf := func(catalogs []*v1alpha1.InstanceTypeCatalog) sets.Set[string] {
		names := sets.New[string]()
		for _, c := range catalogs {
			for i := range c.Spec.InstanceTypes {
				if entry := &c.Spec.InstanceTypes[i]; priced(entry) {
					names.Insert(entry.Name)
				}
			}
		}
		return names
	}
	was := pricedOf(before)
	return was.Len(), was.Difference(pricedOf(after)).Len()
}

// write patches a catalog that has changed. It fails if another client has written the catalog since it was read.
func (o *RefreshOptions) write(ctx context.Context, management client.Client, out io.Writer, before,
	after *v1alpha1.InstanceTypeCatalog) error {
	const resource = "instancetypecatalog.karpenter.cluster.x-k8s.io/"
	change, err := client.MergeFrom(before).Data(after)
	if err != nil {
		return fmt.Errorf("comparing InstanceTypeCatalog %s: %w", before.Name, err)
	}
	options := []client.PatchOption{client.FieldOwner(cluster.FieldOwner)}
	switch {
	case string(change) == "{}":
		printer.Printf(out, "%s%s unchanged\n", resource, before.Name)
		return nil
	case o.DryRun == cluster.DryRunClient:
		printer.Printf(out, "%s%s patched%s\n", resource, before.Name, o.DryRun.Suffix())
		return nil
	case o.DryRun == cluster.DryRunServer:
		options = append(options, client.DryRunAll)
	}
	locked := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := management.Patch(ctx, after, locked, options...); err != nil {
		return fmt.Errorf("writing InstanceTypeCatalog %s/%s: %w", before.Namespace, before.Name, err)
	}
	printer.Printf(out, "%s%s patched%s\n", resource, before.Name, o.DryRun.Suffix())
	return nil
}
