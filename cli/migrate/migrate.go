// SPDX-License-Identifier: Apache-2.0

// Package migrate is `autonode migrate`, which rewrites NodePools and node classes of other providers of Karpenter.
package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/file"
	"github.com/autonode-io/autonode/internal/message"
)

// Options are those of `autonode migrate nodepool`.
type Options struct{ Files []string }

// NewCommand returns `autonode migrate`.
func NewCommand() *cobra.Command {
	var o Options
	return command.Group(&cobra.Command{Use: "migrate", Short: "Rewrite NodePools of other Karpenter providers"}, command.New(&cobra.Command{
		Use:   "nodepool FILE...",
		Short: "Rewrite NodePools and node classes of EKS, AKS and karpenter-provider-cluster-api",
		Long: `Rewrite NodePools and node classes of EKS (also Auto Mode), AKS and karpenter-provider-cluster-api for a hosted cluster.

The command prints NodePools and ClusterAPINodeClasses, whose selectors you fill in. A requirement, a label or a field without a
counterpart becomes a comment in its place, and the command exits with code 1. It omits the files' own comments, and the status
and metadata that a cluster writes.`,
		Example: `  autonode migrate nodepool nodepools.yaml > migrated.yaml
  kubectl get nodepools,ec2nodeclasses -o yaml | autonode migrate nodepool -`,
		Args: command.AtLeastOne(&o.Files, "FILE", "files with NodePools and node classes, or - for standard input"),
	}, &o))
}

// Run prints the objects of the files. The error joins what they lack.
func (o *Options) Run(_ context.Context, streams command.Streams) error {
	var out strings.Builder
	var problems []error
	var c converter
	err := file.Each(streams.In, o.Files, func(where string, object *unstructured.Unstructured) error {
		lost := c.lost
		converted, err := c.convert(object)
		if err != nil {
			c.lost = lost
			problems = append(problems, fmt.Errorf("%s: %w", where, err))
		}
		out.Write(converted)
		return nil
	})
	if err != nil {
		return err
	}
	if c.lost > 0 {
		problems = append(problems, fmt.Errorf("%s without a counterpart: see the comments in the output", english.Plural(c.lost, "setting", "")))
	}
	_, err = io.WriteString(streams.Out, message.Visible(out.String()))
	return errors.Join(append(problems, err)...)
}
