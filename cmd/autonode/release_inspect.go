// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/api/message"
	"github.com/autonode-io/autonode/payload"
)

func newReleaseInspectCommand() *cobra.Command {
	var (
		registry registryFlags
		output   string
	)
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Show what a release payload holds",
		Example: `  # A payload's version, components and CustomResourceDefinitions
  autonode release inspect registry.example/release:1.36.3

  # The image of one component, for a script
  autonode release inspect registry.example/release:1.36.3 -o json | jq -r '.components["karpenter-clusterapi"].image'

  # The payload's own digest, with a cluster's pull secret
  kubectl get secret pull-secret -n clusters -o jsonpath='{.data.\.dockerconfigjson}' | base64 -d > pull-secret.json
  autonode release inspect registry.example/release:1.36.3 -o name --registry-config pull-secret.json`,
		Args: exactlyOne("IMAGE", "the payload to show, like registry.example/release:1.36.3"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(releaseOutputs, output) {
				return fmt.Errorf("--output: %q is none of %s", output, strings.Join(releaseOutputs, ", "))
			}
			opts, err := registry.options()
			if err != nil {
				return err
			}
			release, err := payload.Read(cmd.Context(), args[0], opts)
			if err != nil {
				return registry.hint(err)
			}
			return printRelease(cmd.OutOrStdout(), release, output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "how to print it: "+strings.Join(releaseOutputs, ", "))
	registry.add(cmd)
	registerCompletion(cmd, "output", releaseOutputs...)
	return cmd
}

var releaseOutputs = []string{"table", "json", "yaml", "name"}

// releaseView is what is printed of a release as JSON and YAML: a format that scripts may rely on.
type releaseView struct {
	Version    string                   `json:"version"`
	Previous   []string                 `json:"previous,omitempty"`
	Image      string                   `json:"image"`
	Digest     string                   `json:"digest"`
	Components map[string]componentView `json:"components"`
	NodeImages payload.NodeImages       `json:"nodeImages,omitempty"`
}

type componentView struct {
	Image    string            `json:"image"`
	Versions map[string]string `json:"versions,omitempty"`
	CRDs     []crdView         `json:"crds,omitempty"`
}

type crdView struct {
	Name     string   `json:"name"`
	Versions []string `json:"versions"`
}

func viewRelease(r *payload.Release) releaseView {
	view := releaseView{Version: r.Version, Previous: r.Previous, Image: r.Image, Digest: r.Digest,
		Components: map[string]componentView{}, NodeImages: r.NodeImages}
	for name, c := range r.Components {
		component := componentView{Image: c.Image, Versions: c.Versions}
		for _, crd := range c.CRDs {
			v := crdView{Name: crd.Name}
			for _, version := range crd.Spec.Versions {
				v.Versions = append(v.Versions, version.Name)
			}
			component.CRDs = append(component.CRDs, v)
		}
		view.Components[name] = component
	}
	return view
}

func printRelease(w io.Writer, r *payload.Release, output string) error {
	view := viewRelease(r)
	switch output {
	case "name":
		_, err := fmt.Fprintln(w, message.Line(view.Image))
		return err
	case "json", "yaml":
		return encode(w, output, view)
	}
	return printReleaseTable(w, view)
}

func printReleaseTable(w io.Writer, view releaseView) error {
	table := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	printf(table, "Version:\t%s\nImage:\t%s\n", view.Version, view.Image)
	if len(view.Previous) > 0 {
		printf(table, "Upgrades from:\t%s\n", strings.Join(view.Previous, ", "))
	}
	fmt.Fprintln(table)
	if err := table.Flush(); err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(view.Components))
	crds := 0
	fmt.Fprintln(table, "COMPONENT\tVERSIONS\tCRDS\tIMAGE")
	for _, name := range names {
		c := view.Components[name]
		var versions []string
		for _, what := range slices.Sorted(maps.Keys(c.Versions)) {
			versions = append(versions, what+" "+c.Versions[what])
		}
		crds += len(c.CRDs)
		printf(table, "%s\t%s\t%d\t%s\n", name, orDash(strings.Join(versions, ", ")), len(c.CRDs), c.Image)
	}
	if crds > 0 {
		if err := table.Flush(); err != nil {
			return err
		}
		fmt.Fprint(table, "\nCRD\tVERSIONS\tCOMPONENT\n")
		for _, name := range names {
			for _, crd := range view.Components[name].CRDs {
				printf(table, "%s\t%s\t%s\n", crd.Name, strings.Join(crd.Versions, ", "), name)
			}
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return printNodeImages(w, view.NodeImages)
}
