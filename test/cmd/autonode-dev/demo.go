// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/test/demo"
	"github.com/autonode-io/autonode/test/demo/recording"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/progress"
)

// terminal plays a recorded demo: as wide as most of what kubectl prints, and no slower than people watch.
var terminal = recording.Picture{
	Title:   "AutoNode's demo in a terminal: make demo",
	Columns: 120, Rows: 32, LongestWait: 1500 * time.Millisecond, Hold: 6 * time.Second,
}

func newDemoCommand() *cobra.Command {
	var dir, svg string
	var keep bool
	began := time.Now().Unix()
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Start a world and run AutoNode's main scenarios in it",
		Long: `Start a world of its own and play in it what AutoNode is for: a platform team turns it on, a cluster admin gets nodes and
replaces them within a disruption budget, a new payload rolls Karpenter and then the nodes. It fails if anything that it shows
did not happen.`,
		Example: `  # Watch, and leave nothing behind
  autonode-dev demo

  # Go on playing afterwards
  autonode-dev demo --keep --dir .world

  # Draw what the demo prints as a terminal that plays it again
  autonode-dev demo --svg docs/images/demo.svg`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			out := cmd.OutOrStdout()
			shown, recorder := out, recording.New(time.Now)
			if svg != "" {
				if _, err := os.Stat(filepath.Dir(svg)); err != nil {
					return fmt.Errorf("looking for the picture's folder: %w", err)
				}
				shown = io.MultiWriter(out, recorder)
			}
			if err := upDetached(cmd.Context(), out, dir, []string{"world", "up", "--dir=" + dir, "--guests=" + localworld.DefaultGuest}); err != nil {
				return err
			}
			defer func() {
				if keep && err == nil {
					return
				}
				err = errors.Join(err, localworld.Down(cmd.Context(), dir))
			}()
			state, err := localworld.ReadState(dir)
			if err != nil {
				return err
			}
			if err := demo.Run(cmd.Context(), demo.Config{
				Dir:                dir,
				Guest:              localworld.DefaultGuest,
				Initial:            state.Releases[localworld.InitialRelease],
				Upgraded:           state.Releases[localworld.UpgradedRelease],
				UpgradedKubernetes: localworld.UpgradedKubernetes,
				Kubectl:            state.Kubectl,
				Began:              time.Unix(began, 0),
				Printer:            progress.New(shown),
			}); err != nil {
				return err
			}
			if svg != "" {
				if err := os.WriteFile(svg, terminal.SVG(recorder.Lines()), 0o644); err != nil {
					return fmt.Errorf("writing the picture: %w", err)
				}
			}
			if !keep {
				fmt.Fprintln(out, "\nThat was all. 'autonode-dev demo --keep' leaves the world running for you to play with.")
				return nil
			}
			fmt.Fprintf(out, `
The world goes on running. For example:
   autonode-dev world kubectl --dir %[1]s blue scale deployment web --replicas=10
   autonode-dev world kubectl --dir %[1]s management get hostedclusters -A
   autonode-dev world status --dir %[1]s
   autonode-dev world down --dir %[1]s
`, dir)
			return nil
		},
	}
	addDirFlag(cmd.Flags(), &dir)
	cmd.Flags().BoolVar(&keep, "keep", false, "leave the world running")
	cmd.Flags().Int64Var(&began, "began", began, "Unix time that the printed durations count from, before the builds; default now")
	cmd.Flags().StringVar(&svg, "svg", "", "file to draw what the demo prints in, as a terminal that plays it again with shorter waits")
	return cmd
}
