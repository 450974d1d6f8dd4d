// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"slices"

	"github.com/autonode-io/autonode/test/repetition"
	localworld "github.com/autonode-io/autonode/test/world"
)

// checkRepetition finds what one of AutoNode's programs has logged more than once a second. It leaves out the operators that tests start: those of
// many short lives have one log together.
func checkRepetition(_ context.Context, world *localworld.World) (findings []string, err error) {
	logs, err := programLogs(world)
	if err != nil {
		return nil, err
	}
	for path, content := range logs {
		if slices.Contains(world.OperatorLogs(), path) {
			continue
		}
		found, err := repetition.Find(bytes.NewReader(content))
		if err != nil {
			return nil, err
		}
		for _, line := range found {
			findings = append(findings, path+": "+line)
		}
	}
	return findings, nil
}
