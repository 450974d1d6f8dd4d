// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"

	"github.com/autonode-io/autonode/test/repetition"
	localworld "github.com/autonode-io/autonode/test/world"
)

// checkRepetition finds what one of AutoNode's programs has logged more than once a second.
func checkRepetition(_ context.Context, world *localworld.World) (findings []string, err error) {
	logs, err := programLogs(world)
	if err != nil {
		return nil, err
	}
	for path, content := range logs {
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
