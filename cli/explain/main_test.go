// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"os"
	"testing"

	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// TestMain registers node classes where Karpenter core looks for them, as cli/why does.
func TestMain(m *testing.M) {
	if err := v1alpha1.AddToScheme(clientgoscheme.Scheme); err != nil {
		fmt.Fprintln(os.Stderr, "registering node classes:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
