// SPDX-License-Identifier: Apache-2.0

// Package release is `autonode release`, which makes and shows release payloads.
package release

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/payload"
)

// NewCommand returns `autonode release`.
func NewCommand() *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "release",
		Short: "Create and inspect release payloads",
		Long: `Create and inspect release payloads.

A release payload is an OCI image that pins what the platform runs for one version: the image of each
component by digest, the Kubernetes version of its nodes, and its CustomResourceDefinitions. A HostedCluster
names one in spec.release.image.`,
	}, newNewCommand(), newInspectCommand())
}

// registryFlags are what every command that talks to a registry takes.
type registryFlags struct {
	config  string
	timeout time.Duration
}

func (f *registryFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.config, "registry-config", "",
		"file with registry credentials, like a pull secret's .dockerconfigjson; without it, those of docker or podman login are used")
	cmd.Flags().DurationVar(&f.timeout, "timeout", payload.DefaultTimeout, "how long to wait for the registry")
}

// Validate rejects a timeout that has passed at once.
func (f *registryFlags) Validate() error {
	if f.timeout <= 0 {
		return fmt.Errorf("--timeout must be more than 0, not %s", f.timeout)
	}
	return nil
}

func (f *registryFlags) options() (payload.Options, error) {
	opts := payload.Options{Keychain: authn.DefaultKeychain, Timeout: f.timeout}
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
