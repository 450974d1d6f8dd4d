// SPDX-License-Identifier: Apache-2.0

package mutant_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/mutants/mutant"
)

const code = `package code

import (
	"fmt"
	"strings"
)

// Holder holds 1, and One returns 1.
type Holder struct{}

func (h *Holder) One() string {
	if fmt.Sprint() == "" {
		return "1"
	}
	return strings.ToUpper("1a")
}

func One() string { return "1" }
`

func TestEdited(t *testing.T) {
	for name, test := range map[string]struct {
		edits   []mutant.Edit
		want    string // of what was edited
		wantErr string
	}{
		"When a method and a function have the same name, it should edit the method, and drop an import that is unused then": {
			edits: []mutant.Edit{{Folder: "code", Symbol: "Holder.One", Replace: "if fmt.Sprint() == \"\" {\n...\n}"}},
			want:  "import (\n\t\n\t\"strings\"\n)",
		},
		"When there are several edits, it should make them one after the other": {
			edits: []mutant.Edit{
				{Folder: "code", Symbol: "One", Replace: `"1"`, With: `"2"`},
				{Folder: "code", Symbol: "One", Replace: `"2"`, With: `"3"`},
			},
			want: `func One() string { return "3" }`,
		},
		"When a file isn't Go code, it should edit the file": {
			edits: []mutant.Edit{{File: "code/limits.yaml", Replace: "limit: 1", With: "limit: 2"}},
			want:  "limit: 2\n",
		},
		"When the text is there twice, it should fail": {
			edits: []mutant.Edit{{Folder: "code", Symbol: "Holder.One", Replace: "return"}}, wantErr: "2 times, instead of once",
		},
		"When the text is in another declaration, or in a comment, it should fail": {
			edits: []mutant.Edit{{Folder: "code", Symbol: "Holder", Replace: "One"}}, wantErr: "0 times, instead of once",
		},
		"When there is no such symbol, it should fail": {
			edits: []mutant.Edit{{Folder: "code", Symbol: "Two", Replace: "1"}}, wantErr: "code declares no Two",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			root := t.TempDir()
			g.Expect(os.Mkdir(filepath.Join(root, "code"), 0o700)).To(Succeed())
			for file, content := range map[string]string{"code.go": code, "limits.yaml": "limit: 1\n"} {
				g.Expect(os.WriteFile(filepath.Join(root, "code", file), []byte(content), 0o600)).To(Succeed())
			}
			edited, err := mutant.Mutant{Name: "m", Edits: test.edits}.Edited(root)
			if test.wantErr != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.wantErr)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(edited).To(HaveLen(1))
			for _, content := range edited {
				g.Expect(string(content)).To(ContainSubstring(test.want))
			}
		})
	}
}
