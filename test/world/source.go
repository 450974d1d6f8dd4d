// SPDX-License-Identifier: Apache-2.0

package world

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/autonode-io/autonode/test/world/programs"
)

// modulePath is AutoNode's own.
const modulePath = "github.com/autonode-io/autonode"

var errNoSource = errors.New("the operator and Karpenter are built from AutoNode's source, and the working directory isn't in it: " +
	"go there, set AUTONODE_SOURCE, or start the world without them (--without-operator)")

// findSource returns the folder of AutoNode's source: the one that dir is in, whichever of its modules, else $AUTONODE_SOURCE, else the working directory.
func findSource(ctx context.Context, dir string) (string, error) {
	dir = cmp.Or(dir, os.Getenv("AUTONODE_SOURCE"))
	module, err := programs.Go(ctx, dir, "list", "-m", "-f", "{{.Path}} {{.Dir}}", modulePath)
	path, source, _ := strings.Cut(module, " ")
	switch {
	case err == nil && path == modulePath:
		return source, nil
	case dir == "" && err != nil: // the go command says whether it is the folder, or its own version
		return "", fmt.Errorf("%w: %w", errNoSource, err)
	case dir == "":
		return "", errNoSource
	case err != nil:
		return "", fmt.Errorf("%s isn't AutoNode's source: %w", dir, err)
	}
	return "", fmt.Errorf("%s isn't AutoNode's source: its go.mod has to name module %s", dir, modulePath)
}
