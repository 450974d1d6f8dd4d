// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/payload"
)

// NewOptions are those of `autonode release new`.
type NewOptions struct {
	registryFlags
	Target, Version, Output                                   string
	Previous, Components, ComponentVersions, CRDs, NodeImages []string
}

func newNewCommand() *cobra.Command {
	var o NewOptions
	cmd := command.New(&cobra.Command{
		Use:   "new --version VERSION --component NAME=IMAGE ... TARGET",
		Short: "Create a release payload and push it",
		Long: `Create a release payload and push it to TARGET, and print it by digest.

The same input gives the same digest. A component with a tag is pinned to the tag's current digest.`,
		Example: `  # A payload whose nodes run Kubernetes 1.36.3
  autonode release new --version 1.36.3 \
    --component karpenter-clusterapi=registry.example/karpenter-clusterapi@sha256:9ab2… \
    --component-version karpenter-clusterapi:kubernetes=1.36.3 \
    --crds karpenter-clusterapi=./assets/crds \
    registry.example/release:1.36.3

  # The next one, with credentials from a file
  autonode release new --version 1.37.0 --previous 1.36.3 \
    --component karpenter-clusterapi=registry.example/karpenter-clusterapi:v1.14.2 \
    --component-version karpenter-clusterapi:kubernetes=1.37.0 \
    --registry-config pull-secret.json registry.example/release:1.37.0

  # One whose machines boot from other images than the one before
  autonode release new --version 1.37.1 \
    --component karpenter-clusterapi=registry.example/karpenter-clusterapi:v1.14.2 \
    --component-version karpenter-clusterapi:kubernetes=1.37.1 \
    --node-image amd64/kubevirt=quay.example/node@sha256:51d0… \
    --node-image amd64/metal/raw.gz=https://images.example/node-1.37.1.raw.gz \
    registry.example/release:1.37.1`,
		Args: command.ExactlyOne(&o.Target, "TARGET", "the image to push to, like registry.example/release:1.36.3"),
	}, &o)
	flags := cmd.Flags()
	flags.StringVar(&o.Version, "version", "", "the release's version, like 1.36.3 (required)")
	flags.StringSliceVar(&o.Previous, "previous", nil, "versions that can be upgraded to this one")
	flags.StringArrayVar(&o.Components, "component", nil, "a component as NAME=IMAGE; repeat for more (required)")
	flags.StringArrayVar(&o.ComponentVersions, "component-version", nil,
		"a version of software in a component, as NAME:WHAT=VERSION; nodes run the version of kubernetes")
	flags.StringArrayVar(&o.CRDs, "crds", nil, "a file or folder with a component's CustomResourceDefinitions, as NAME=PATH; repeat for more")
	flags.StringArrayVar(&o.NodeImages, "node-image", nil, "a machine image, as ARCH/INFRASTRUCTURE[/VARIANT]=IMAGE, "+
		"where VARIANT is a region or a disk format; repeat for more")
	printer.AddFlag(cmd, &o.Output)
	o.add(cmd)
	command.RequireFlags(cmd, "version", "component")
	return cmd
}

// Run pushes the payload.
func (o *NewOptions) Run(ctx context.Context, streams command.Streams) error {
	opts, err := o.options()
	if err != nil {
		return err
	}
	spec, err := o.spec()
	if err != nil {
		return err
	}
	for i := range spec.Components {
		c := &spec.Components[i]
		if c.Image, err = payload.Resolve(ctx, c.Image, opts); err != nil {
			return fmt.Errorf("component %s: %w", c.Name, o.hint(err))
		}
	}
	img, err := payload.Build(spec)
	if err != nil {
		return err
	}
	ref, err := payload.Push(ctx, o.Target, img, opts)
	if err != nil {
		return o.hint(err)
	}
	if o.Output == "" {
		_, err = fmt.Fprintln(streams.Out, ref)
		return err
	}
	release, err := payload.ReadDigest(ctx, ref, opts)
	if err != nil {
		return o.hint(err)
	}
	return viewOf(release).print(streams.Out, o.Output)
}

// spec makes a payload's specification of the flags.
func (o *NewOptions) spec() (payload.Spec, error) {
	spec := payload.Spec{Version: strings.TrimPrefix(o.Version, "v"), Previous: o.Previous}
	var err error
	if spec.NodeImages, err = parseNodeImages(o.NodeImages); err != nil {
		return spec, err
	}
	find := func(flag, name string) (*payload.ComponentSpec, error) {
		for i := range spec.Components {
			if spec.Components[i].Name == name {
				return &spec.Components[i], nil
			}
		}
		return nil, fmt.Errorf("%s: there is no --component %s=…", flag, name)
	}
	for _, value := range o.Components {
		name, image, ok := strings.Cut(value, "=")
		if !ok || name == "" || image == "" {
			return spec, fmt.Errorf("--component %q: must be NAME=IMAGE", value)
		}
		if _, err := find("", name); err == nil {
			return spec, fmt.Errorf("--component %s is given twice", name)
		}
		spec.Components = append(spec.Components, payload.ComponentSpec{Name: name, Image: image, Versions: map[string]string{}})
	}
	for _, value := range o.ComponentVersions {
		name, pair, ok := strings.Cut(value, ":")
		what, version, ok2 := strings.Cut(pair, "=")
		if !ok || !ok2 || name == "" || what == "" || version == "" {
			return spec, fmt.Errorf("--component-version %q: must be NAME:WHAT=VERSION, like karpenter-clusterapi:kubernetes=1.36.3", value)
		}
		c, err := find("--component-version "+value, name)
		if err != nil {
			return spec, err
		}
		if _, ok := c.Versions[what]; ok {
			return spec, fmt.Errorf("--component-version %s:%s is given twice", name, what)
		}
		c.Versions[what] = version
	}
	for _, value := range o.CRDs {
		name, path, ok := strings.Cut(value, "=")
		if !ok || name == "" || path == "" {
			return spec, fmt.Errorf("--crds %q: must be NAME=PATH", value)
		}
		c, err := find("--crds "+value, name)
		if err != nil {
			return spec, err
		}
		content, err := readManifests(path)
		if err != nil {
			return spec, fmt.Errorf("--crds %s: %w", value, err)
		}
		c.CRDs = append(c.CRDs, content...)
	}
	return spec, nil
}

// readManifests returns a file's content, or that of all YAML and JSON files in a folder, sorted by name.
func readManifests(path string) ([][]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	files := []string{path}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		files = nil
		for _, e := range entries {
			if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
		if len(files) == 0 {
			return nil, errors.New("the folder has no .yaml, .yml or .json file")
		}
	}
	var contents [][]byte
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		contents = append(contents, content)
	}
	return contents, nil
}
