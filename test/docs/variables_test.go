// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/drone/envsubst/v2"
	. "github.com/onsi/gomega"
)

var (
	exported = regexp.MustCompile(`([A-Z][A-Z0-9_]*)=(\S+)`)
	referred = regexp.MustCompile(`\$\{?([A-Z][A-Z0-9_]*)\}?`)
)

// variables are those that a page exports, with their values.
func (p page) variables() map[string]string {
	values := map[string]string{}
	for _, b := range p.blocks {
		for line := range strings.SplitSeq(b.text, "\n") {
			if b.language != "" || !strings.HasPrefix(line, "export ") {
				continue
			}
			for _, found := range exported.FindAllStringSubmatch(line, -1) {
				if strings.HasPrefix(found[2], "$(") { // made by a command: the request of a client certificate
					values[found[1]] = request()
					continue
				}
				values[found[1]] = referred.ReplaceAllStringFunc(found[2], func(name string) string { return values[strings.Trim(name, "${}")] })
			}
		}
	}
	return values
}

// request is a certificate request for user ada, as openssl and base64 write it.
var request = sync.OnceValue(func() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "ada"}}, key)
	if err != nil {
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
})

// filled is the page with values instead of the variables that it exports: in YAML with the library of clusterctl generate yaml, in commands as a
// shell does. A page that exports none stays as it is.
func (p page) filled() (page, error) {
	values := p.variables()
	if len(values) == 0 {
		return p, nil
	}
	var problems []error
	p.blocks = slices.Clone(p.blocks)
	for i, b := range p.blocks {
		value := func(name string) string {
			found, ok := values[name]
			if !ok {
				problems = append(problems, b.errorf("the page exports no %s", name))
			}
			return found
		}
		switch b.language {
		case "yaml":
			text, err := envsubst.Eval(b.text, value)
			if err != nil {
				problems = append(problems, b.errorf("%w", err))
			}
			p.blocks[i].text = text
		case "":
			p.blocks[i].text = referred.ReplaceAllStringFunc(b.text, func(name string) string { return value(strings.Trim(name, "${}")) })
		}
	}
	return p, errors.Join(problems...)
}

// generate checks clusterctl generate yaml, whose output the next command with -f - reads. The file is filled in already.
func (s *shell) generate(args []string) error {
	at := slices.Index(args, "--from")
	if at < 0 || at+1 == len(args) {
		return errors.New("clusterctl generate yaml needs --from")
	}
	if _, err := os.Stat(filepath.Join(s.dir, args[at+1])); err != nil {
		return fmt.Errorf("the page doesn't show %s", args[at+1])
	}
	s.generated = args[at+1]
	return nil
}

func TestVariables(t *testing.T) {
	t.Run("When a first-node page exports a variable, a command or a file should refer to it", func(t *testing.T) {
		g, pages := NewWithT(t), 0
		for _, p := range documentation(t) {
			if !slices.Contains(infrastructures, p.path) {
				continue
			}
			pages++
			var text strings.Builder
			for _, b := range p.blocks {
				text.WriteString(b.text)
			}
			for name := range p.variables() {
				g.Expect(text.String()).To(MatchRegexp(`\$\{?%s\b`, name), p.path)
			}
		}
		g.Expect(pages).To(Equal(len(infrastructures)))
	})
	for name, test := range map[string]struct{ content, want string }{
		"When YAML refers to a variable that the page doesn't export, it should name it": {
			shellBlock("export CLUSTER_NAME=blue") + yamlBlock("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"${CLUSTER}\"}"), "CLUSTER"},
		"When a command refers to one, it should name it": {
			shellBlock("export CLUSTER_NAME=blue\nkubectl get anhc $CLUSTER"), "the page exports no CLUSTER"},
		"When clusterctl reads a file that the page doesn't show, it should name it": {
			shellBlock("export CLUSTER_NAME=blue\nkubectl get nodes\nclusterctl generate yaml --from examples/page/$CLUSTER_NAME.yaml | kubectl apply -f -"),
			"the page doesn't show examples/page/blue.yaml"},
		"When what is filled in makes an unknown field, it should name the field": {
			shellBlock("export NAME=blue") + yamlBlock("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n${NAME}s: {a: b}"), `unknown field "blues"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := errors.Join(parse(played+"page.md", test.content).check(t.Context(), t.TempDir(), nil)...)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}
