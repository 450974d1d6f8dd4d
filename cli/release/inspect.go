// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/payload"
)

// InspectOptions are those of `autonode release inspect`.
type InspectOptions struct {
	registryFlags
	Image, Output string
}

func newInspectCommand() *cobra.Command {
	var o InspectOptions
	cmd := command.New(&cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Show the content of a release payload",
		Example: `  # A payload's version, components and CustomResourceDefinitions
  autonode release inspect registry.example/release:1.36.3

  # The image of one component, for a script
  autonode release inspect registry.example/release:1.36.3 -o json | jq -r '.components["karpenter-clusterapi"].image'

  # The payload's own digest, with a cluster's pull secret
  kubectl get secret pull-secret -n clusters -o jsonpath='{.data.\.dockerconfigjson}' | base64 -d > pull-secret.json
  autonode release inspect registry.example/release:1.36.3 -o name --registry-config pull-secret.json`,
		Args: command.ExactlyOne(&o.Image, "IMAGE", "the payload to show, like registry.example/release:1.36.3"),
	}, &o)
	printer.AddFlag(cmd, &o.Output)
	o.add(cmd)
	return cmd
}

// Run prints the payload.
func (o *InspectOptions) Run(ctx context.Context, streams command.Streams) error {
	opts, err := o.options()
	if err != nil {
		return err
	}
	release, err := payload.Read(ctx, o.Image, opts)
	if err != nil {
		return o.hint(err)
	}
	v := viewOf(release)
	if o.Output != "name" {
		ctx, cancel := context.WithTimeout(ctx, platformsTimeout)
		defer cancel()
		for name, component := range v.Components {
			component.Platforms, _ = payload.Platforms(ctx, component.Image, opts) // images that can't be read stay without
			v.Components[name] = component
		}
	}
	return v.print(streams.Out, o.Output)
}

// platformsTimeout bounds the queries of the images' platforms.
const platformsTimeout = 30 * time.Second

// view is what is printed of a release as JSON and YAML: a format that scripts may rely on.
type view struct {
	Version    string                   `json:"version"`
	Previous   []string                 `json:"previous,omitempty"`
	Image      string                   `json:"image"`
	Digest     string                   `json:"digest"`
	Components map[string]componentView `json:"components"`
	NodeImages payload.NodeImages       `json:"nodeImages,omitempty"`
}

type componentView struct {
	Image     string            `json:"image"`
	Platforms []string          `json:"platforms,omitempty"`
	Versions  map[string]string `json:"versions,omitempty"`
	CRDs      []crdView         `json:"crds,omitempty"`
}

type crdView struct {
	Name     string   `json:"name"`
	Versions []string `json:"versions"`
}

func viewOf(r *payload.Release) view {
	v := view{Version: r.Version, Previous: r.Previous, Image: r.Image, Digest: r.Digest,
		Components: map[string]componentView{}, NodeImages: r.NodeImages}
	for name, c := range r.Components {
		component := componentView{Image: c.Image, Versions: c.Versions}
		for _, crd := range c.CRDs {
			crdOf := crdView{Name: crd.Name}
			for _, version := range crd.Spec.Versions {
				crdOf.Versions = append(crdOf.Versions, version.Name)
			}
			component.CRDs = append(component.CRDs, crdOf)
		}
		v.Components[name] = component
	}
	return v
}

func (v view) print(w io.Writer, output string) error {
	return printer.Print(w, output, v, func(w io.Writer) error { return printTable(w, v) }, v.Image)
}

func printTable(w io.Writer, v view) error {
	about := printer.NewTable(w, "Version:", v.Version)
	about.Row("Image:", v.Image)
	if len(v.Previous) > 0 {
		about.Row("Upgrades from:", strings.Join(v.Previous, ", "))
	}
	components := printer.NewTable(w, "COMPONENT", "VERSIONS", "CRDS", "PLATFORMS", "IMAGE")
	crds := printer.NewTable(w, "CRD", "VERSIONS", "COMPONENT")
	tables := []*printer.Table{about, components}
	for _, name := range slices.Sorted(maps.Keys(v.Components)) {
		c := v.Components[name]
		var versions []string
		for _, what := range slices.Sorted(maps.Keys(c.Versions)) {
			versions = append(versions, what+" "+c.Versions[what])
		}
		components.Row(name, strings.Join(versions, ", "), len(c.CRDs), strings.Join(c.Platforms, ", "), c.Image)
		for _, crd := range c.CRDs {
			crds.Row(crd.Name, strings.Join(crd.Versions, ", "), name)
			tables = []*printer.Table{about, components, crds}
		}
	}
	if len(v.NodeImages) > 0 {
		tables = append(tables, nodeImages(w, v.NodeImages))
	}
	for i, table := range tables {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}
