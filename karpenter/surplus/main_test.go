// SPDX-License-Identifier: Apache-2.0

package surplus_test

import (
	"os"
	"testing"

	"github.com/autonode-io/autonode/karpenter/sandbox"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }
