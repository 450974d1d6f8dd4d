// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/printer/printertest"
	"github.com/autonode-io/autonode/internal/message"
)

// TestHostileOutput is of whole commands; each command's package has a test of that name for what it prints about a cluster.
func TestHostileOutput(t *testing.T) {
	const hostile = printertest.Hostile
	file := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		NewWithT(t).Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
		return path
	}
	const head = "apiVersion: karpenter.cluster.x-k8s.io/v1alpha1\nkind: InstanceTypeCatalog\nmetadata: {name: a}\nspec:\n  templateRef: {apiGroup: a, kind: XTemplate, name: b}\n"
	empty := file("empty.yaml", head+"  instanceTypes: []\n")
	one := file("one.yaml", head+"  instanceTypes: [{name: "+printertest.YAML+", capacity: {cpu: 1, memory: 1Gi}}]\n")
	misnamed := file("misnamed.yaml", strings.Replace(head, "name: b", "name: "+printertest.YAML, 1)+"  instanceTypes: [{name: a, capacity: {cpu: 1, memory: 1Gi}}]\n")
	offers := file("offers.yaml", head+"  instanceTypes: [{name: "+printertest.YAML+", capacity: {cpu: 1, memory: 1Gi}, offerings: [{zones: ["+printertest.YAML+"], price: '1'}]}]\n")
	program := func(args ...string) func(io.Writer) error {
		return func(out io.Writer) error {
			cmd := newCommand("autonode")
			cmd.SetArgs(args)
			cmd.SetOut(out)
			cmd.SetErr(out)
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				printer.Error(out, err)
			}
			return nil
		}
	}

	for name, show := range map[string]func(io.Writer) error{
		"catalog diff":          program("catalog", "diff", empty, one),
		"catalog diff, removed": program("catalog", "diff", one, empty),
		"catalog diff, changed": program("catalog", "diff", one, offers),
		"catalog check":         program("catalog", "check", "-f", misnamed),
		"an error":              program("templates", "render", "-f", hostile),
		"an unknown command":    program(hostile),
		"a writer without a printer": func(out io.Writer) error {
			_, err := fmt.Fprint(&message.Writer{To: out}, strings.ReplaceAll(hostile, "\nFORGED", ""))
			return err
		},
	} {
		printertest.Harmless(t, name, show)
	}
}
