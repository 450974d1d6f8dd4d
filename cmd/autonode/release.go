// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/payload"
)

// newReleaseCommand returns `autonode release`, which makes and shows release payloads.
func newReleaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release",
		Short: "Make and look at release payloads",
		Long: `Make and look at release payloads.

A release payload is an OCI image that pins what the platform runs for one version: the image of each
component by digest, the Kubernetes version of its nodes, and its CustomResourceDefinitions. A HostedCluster
names one in spec.release.image.`,
		Args: subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newReleaseNewCommand(), newReleaseInspectCommand())
	return cmd
}

// registryFlags are what every command that talks to a registry takes.
type registryFlags struct {
	config  string
	timeout time.Duration
}

func (f *registryFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.config, "registry-config", "",
		"file with registry credentials, like a pull secret's .dockerconfigjson; without it, those of docker or podman login are used")
	cmd.Flags().DurationVar(&f.timeout, "timeout", payload.DefaultTimeout, "how long to try")
}

func (f *registryFlags) options() (payload.Options, error) {
	opts := payload.Options{Keychain: authn.DefaultKeychain, Timeout: f.timeout}
	if f.timeout <= 0 {
		return opts, fmt.Errorf("--timeout must be more than 0, not %s", f.timeout)
	}
	if f.config == "" {
		return opts, nil
	}
	content, err := os.ReadFile(f.config)
	if err != nil {
		return opts, fmt.Errorf("--registry-config: %w", err)
	}
	if opts.Keychain, err = payload.KeychainFromDockerConfig(content); err != nil {
		return opts, fmt.Errorf("--registry-config %s: %w", f.config, err)
	}
	return opts, nil
}

// hint adds the next step to an error for which there is one.
func (f *registryFlags) hint(err error) error {
	var e *payload.Error
	if !errors.As(err, &e) || e.Reason != payload.ReasonImagePullUnauthorized {
		return err
	}
	if f.config != "" {
		return fmt.Errorf("%w\nadd or correct the entry for %s in %s", err, e.Registry, f.config)
	}
	return fmt.Errorf("%w\nlog in with `docker login %s`, or name a file with --registry-config", err, e.Registry)
}

type releaseNewOptions struct {
	registry          registryFlags
	version           string
	previous          []string
	components        []string
	componentVersions []string
	crds              []string
	nodeImages        []string
	output            string
}

func newReleaseNewCommand() *cobra.Command {
	var o releaseNewOptions
	cmd := &cobra.Command{
		Use:   "new --version VERSION --component NAME=IMAGE ... TARGET",
		Short: "Make a release payload and push it",
		Long: `Make a release payload and push it to TARGET, and print it by digest.

The same input gives the same digest. A component that is given by tag is pinned to what the tag means now.`,
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
		Args: exactlyOne("TARGET", "the image to push to, like registry.example/release:1.36.3"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&o.version, "version", "", "the release's version, like 1.36.3 (required)")
	flags.StringSliceVar(&o.previous, "previous", nil, "versions from which an upgrade is meant to work")
	flags.StringArrayVar(&o.components, "component", nil, "a component as NAME=IMAGE; repeat for more (required)")
	flags.StringArrayVar(&o.componentVersions, "component-version", nil,
		"a version of what a component contains, as NAME:WHAT=VERSION; nodes run the one of kubernetes")
	flags.StringArrayVar(&o.crds, "crds", nil, "a file or folder with a component's CustomResourceDefinitions, as NAME=PATH; repeat for more")
	flags.StringArrayVar(&o.nodeImages, "node-image", nil, "what machines boot from, as ARCH/INFRASTRUCTURE[/VARIANT]=IMAGE, "+
		"where VARIANT is a region or a disk's format; repeat for more")
	flags.StringVarP(&o.output, "output", "o", "", "what to print: nothing special for the image by digest, or json or yaml for the payload's content")
	o.registry.add(cmd)
	requireFlags(cmd, "version", "component")
	registerCompletion(cmd, "output", "json", "yaml")
	return cmd
}

func (o *releaseNewOptions) run(cmd *cobra.Command, target string) error {
	if o.output != "" && o.output != "json" && o.output != "yaml" {
		return fmt.Errorf("--output: %q is neither json nor yaml", o.output)
	}
	opts, err := o.registry.options()
	if err != nil {
		return err
	}
	spec, err := o.spec()
	if err != nil {
		return err
	}
	for i := range spec.Components {
		c := &spec.Components[i]
		if c.Image, err = payload.Resolve(cmd.Context(), c.Image, opts); err != nil {
			return fmt.Errorf("component %s: %w", c.Name, o.registry.hint(err))
		}
	}
	img, err := payload.Build(spec)
	if err != nil {
		return err
	}
	ref, err := payload.Push(cmd.Context(), target, img, opts)
	if err != nil {
		return o.registry.hint(err)
	}
	if o.output == "" {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), ref)
		return err
	}
	release, err := payload.ReadDigest(cmd.Context(), ref, opts)
	if err != nil {
		return o.registry.hint(err)
	}
	return printRelease(cmd.OutOrStdout(), release, o.output)
}

// spec makes a payload's specification of the flags.
func (o *releaseNewOptions) spec() (payload.Spec, error) {
	spec := payload.Spec{Version: strings.TrimPrefix(o.version, "v"), Previous: o.previous}
	var err error
	if spec.NodeImages, err = parseNodeImages(o.nodeImages); err != nil {
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
	for _, value := range o.components {
		name, image, ok := strings.Cut(value, "=")
		if !ok || name == "" || image == "" {
			return spec, fmt.Errorf("--component %q: want NAME=IMAGE", value)
		}
		if _, err := find("", name); err == nil {
			return spec, fmt.Errorf("--component %s is given twice", name)
		}
		spec.Components = append(spec.Components, payload.ComponentSpec{Name: name, Image: image, Versions: map[string]string{}})
	}
	for _, value := range o.componentVersions {
		name, pair, ok := strings.Cut(value, ":")
		what, version, ok2 := strings.Cut(pair, "=")
		if !ok || !ok2 || name == "" || what == "" || version == "" {
			return spec, fmt.Errorf("--component-version %q: want NAME:WHAT=VERSION, like karpenter-clusterapi:kubernetes=1.36.3", value)
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
	for _, value := range o.crds {
		name, path, ok := strings.Cut(value, "=")
		if !ok || name == "" || path == "" {
			return spec, fmt.Errorf("--crds %q: want NAME=PATH", value)
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

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// exactlyOne wants one argument and says what it is for if it is missing.
func exactlyOne(name, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fmt.Errorf("%s is missing: %s; see `%s --help`", name, what, cmd.CommandPath())
		case len(args) > 1:
			return fmt.Errorf("one %s is wanted, and %q is too much", name, args[1:])
		}
		return nil
	}
}

func requireFlags(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		if err := cmd.MarkFlagRequired(flag); err != nil {
			panic(err) // the flag is one of the command's own
		}
	}
}

func registerCompletion(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is one of the command's own
	}
}
