// SPDX-License-Identifier: Apache-2.0

package printer_test

import (
	"bytes"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/printer/printertest"
	"github.com/autonode-io/autonode/internal/message"
)

// TestHostileEncoding is for scripts: they get what the cluster has.
func TestHostileEncoding(t *testing.T) {
	for _, format := range []string{"json", "yaml"} {
		t.Run("When a script reads "+format+", it should get what a stranger wrote", func(t *testing.T) {
			g := NewWithT(t)
			for _, text := range []string{printertest.Hostile, "plain: text", "größer \u202e"} {
				var out bytes.Buffer
				g.Expect(printer.Encode(&message.Writer{To: &out}, format, map[string]any{text: []string{text}})).To(Succeed())
				var got map[string][]string
				g.Expect(yaml.UnmarshalStrict(out.Bytes(), &got)).To(Succeed())
				g.Expect(got).To(Equal(map[string][]string{text: {text}}))
				g.Expect(out.String()).To(Equal(message.Visible(out.String())))
			}
		})
	}
}
