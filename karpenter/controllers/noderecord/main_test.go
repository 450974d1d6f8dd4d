// SPDX-License-Identifier: Apache-2.0

package noderecord

import (
	"os"
	"testing"

	"github.com/autonode-io/autonode/internal/environment"
)

func TestMain(m *testing.M) { os.Exit(environment.Main(m)) }
