// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// root of the repository.
const root = "../.."

// page is a file in Markdown.
type page struct {
	// path from the root, with slashes.
	path string
	// prose is the text outside of blocks, a line for each line of the file.
	prose  []string
	blocks []block
}

// block is what is between two fences.
type block struct {
	page string
	// line of its first line in the page, counted from 1.
	line     int
	language string
	// marker is the HTML comment before the block: see markers in yaml_test.go. Readers don't see it.
	marker string
	text   string
	// file is the example, as a path from the root, that the block shows or that was read as one; empty without.
	file string
}

func (b block) errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", b.page, b.line, fmt.Errorf(format, args...))
}

var (
	fence   = regexp.MustCompile("^( *)```(.*)$")
	comment = regexp.MustCompile(`^ *<!-- (.+) -->$`)
)

// parse splits a page.
func parse(path, content string) page {
	p := page{path: path}
	var open *block
	indentation, marker := "", ""
	for i, line := range strings.Split(content, "\n") {
		found := fence.FindStringSubmatch(line)
		switch {
		case found != nil && open != nil:
			open.file = exampleOf(path, *open)
			p.blocks = append(p.blocks, *open)
			open, marker = nil, ""
		case found != nil:
			indentation = found[1]
			open = &block{page: path, line: i + 2, language: found[2], marker: marker}
		case open != nil:
			open.text += strings.TrimPrefix(line, indentation) + "\n"
		case comment.MatchString(line):
			marker = comment.FindStringSubmatch(line)[1]
		case strings.TrimSpace(line) != "":
			marker = ""
		}
		if open != nil || found != nil {
			line = ""
		}
		p.prose = append(p.prose, line)
	}
	return p
}

// documentation returns every page of the repository.
func documentation(t *testing.T) []page {
	t.Helper()
	g := NewWithT(t)
	var pages []page
	read := func(path string) {
		content, err := os.ReadFile(filepath.Join(root, path))
		g.Expect(err).NotTo(HaveOccurred())
		pages = append(pages, parse(filepath.ToSlash(path), string(content)))
	}
	top, err := filepath.Glob(filepath.Join(root, "*.md"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, path := range top {
		read(filepath.Base(path))
	}
	for _, folder := range []string{"docs", "examples"} {
		g.Expect(filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && filepath.Ext(path) == ".md" {
				relative, _ := filepath.Rel(root, path)
				read(relative)
			}
			return err
		})).To(Succeed())
	}
	byPath := map[string]page{}
	for _, p := range pages {
		byPath[p.path] = p
	}
	for i, p := range pages {
		if slices.Contains(infrastructures, p.path) {
			pages[i].blocks = append(examplesOf(t, p), inSteps(byPath[firstNode], p)...)
		}
	}
	return pages
}

// firstNode has the steps that are the same on every infrastructure, and infrastructures the pages that add to them. A reader runs the commands
// of both, step by step, and so do the tests.
const firstNode = played + "README.md"

var infrastructures = []string{played + "vsphere.md", played + "kubevirt.md", played + "openstack.md", played + "aws.md", played + "metal3.md"}

// step is the heading of one.
var step = regexp.MustCompile(`^## (\d)\. `)

// steps are a page's blocks by the number of the step that they are in; 0 for those above the first.
func (p page) steps() map[int][]block {
	steps, number := map[int][]block{}, 0
	blocks := p.blocks
	for i, line := range p.prose {
		if found := step.FindStringSubmatch(line); found != nil {
			number, _ = strconv.Atoi(found[1])
		}
		for len(blocks) > 0 && blocks[0].line <= i+2 {
			steps[number], blocks = append(steps[number], blocks[0]), blocks[1:]
		}
	}
	return steps
}

// inSteps are the blocks of both pages, those that are shared first in each step.
func inSteps(shared, more page) (blocks []block) {
	first, then := shared.steps(), more.steps()
	blocks = then[0]
	for number := 1; number < 10; number++ {
		blocks = append(append(blocks, first[number]...), then[number]...)
	}
	return blocks
}

// examplesOf are the files of an infrastructure's examples, as if its page showed them.
func examplesOf(t *testing.T, p page) (blocks []block) {
	t.Helper()
	g := NewWithT(t)
	folder := "examples/" + strings.TrimSuffix(strings.TrimPrefix(p.path, played), ".md") + "/"
	for _, file := range []string{
		folder + "cluster.yaml", folder + "cloud-controller-manager.yaml", folder + "templates.yaml", folder + "hostedcluster.yaml", "examples/first-node/web.yaml",
	} {
		content, err := os.ReadFile(filepath.Join(root, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		g.Expect(err).NotTo(HaveOccurred())
		blocks = append(blocks, block{page: file, line: 1, language: "yaml", text: string(content), file: file})
	}
	return blocks
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`^#+ (.+)$`)
	code    = regexp.MustCompile("`[^`]*`")
	// dropped are the characters that an anchor lacks.
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors of a page's headings, as GitHub makes them.
func (p page) anchors() []string {
	var anchors []string
	for _, line := range p.prose {
		if found := heading.FindStringSubmatch(line); found != nil {
			text := link.ReplaceAllString(strings.ReplaceAll(found[1], "[", ""), "")
			anchors = append(anchors, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(text), ""), " ", "-"))
		}
	}
	return anchors
}

// links returns what is wrong with the page's links to other files and headings. Pages of other hosts aren't asked.
func (p page) links(pages map[string]page) (problems []error) {
	for i, line := range p.prose {
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(line, ""), -1) {
			target, anchor, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path := p.path
			if target != "" {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(p.path), target))
			}
			if _, err := os.Stat(filepath.Join(root, path)); err != nil {
				problems = append(problems, fmt.Errorf("%s:%d: there is no %s", p.path, i+1, path))
				continue
			}
			if other, ok := pages[path]; ok && anchor != "" && !slices.Contains(other.anchors(), anchor) {
				problems = append(problems, fmt.Errorf("%s:%d: %s has no heading #%s", p.path, i+1, path, anchor))
			}
		}
	}
	return problems
}
