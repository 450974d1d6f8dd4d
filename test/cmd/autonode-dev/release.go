// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/test/release"
	"github.com/autonode-io/autonode/test/world/programs"
)

func newReleaseCommand() *cobra.Command {
	cfg := release.Config{Source: "."}
	var push, key string
	cmd := &cobra.Command{
		Use:   "release --version VERSION",
		Short: "Make a release: images, command-line tools, payloads, install.yaml, SBOMs, provenance and checksums",
		Long: `Make a release in a folder, from source without changes, and push its images if --push names a registry.

It needs Go and git, and no container engine. The same source, version and Go version give the same bytes. With --key, everything is
signed as version 3 of cosign does; the variable COSIGN_PASSWORD has the key's password. Needs to be run in AutoNode's source.`,
		Example: `  # Into dist/v0.1.0
  autonode-dev release --version v0.1.0

  # Signed, and pushed with the credentials of docker or podman login
  autonode-dev release --version v0.1.0 --key cosign.key --push registry.example/autonode`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if push != "" {
				if cfg.Prefix != "" && cfg.Prefix != push {
					return errors.New("--image-prefix and --push name different registries; a mirror gets its images by copying")
				}
				cfg.Prefix, cfg.Push = push, true
			}
			if key != "" {
				content, err := os.ReadFile(key)
				if err != nil {
					return fmt.Errorf("--key: %w", err)
				}
				if cfg.Signer, err = release.NewSigner(content, []byte(os.Getenv("COSIGN_PASSWORD"))); err != nil {
					return fmt.Errorf("--key %s: %w", key, err)
				}
			}
			cfg.Output = cmp.Or(cfg.Output, filepath.Join("dist", cfg.Version))
			cfg.Out = cmd.OutOrStdout()
			return release.Run(cmd.Context(), cfg)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Version, "version", "", "the release's version, like v0.1.0 (required)")
	flags.StringVar(&cfg.Output, "output", "", "folder to write, which has to be empty; default dist/VERSION")
	flags.StringVar(&push, "push", "", "registry and folder to push the images to, like registry.example/autonode")
	flags.StringVar(&cfg.Prefix, "image-prefix", "", "what the names of images begin with in install.yaml and payloads; default that of --push, else "+release.DefaultPrefix)
	flags.StringVar(&key, "key", "", "file of a private key, as cosign generate-key-pair makes it")
	flags.StringSliceVar(&cfg.Kubernetes, "kubernetes", []string{strings.TrimPrefix(programs.KubernetesUpgradedVersion, "v")},
		"Kubernetes versions of nodes, each with a payload of its own")
	flags.StringVar(&cfg.Builder, "builder", release.BuilderByHand, "URI of who builds, for the provenance")
	flags.BoolVar(&cfg.AllowChanges, "allow-changes", false, "accept source with changes that aren't committed; the provenance then names no commit")
	if err := cmd.MarkFlagRequired("version"); err != nil {
		panic(err) // the flag is defined above
	}
	return cmd
}
