// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// tools are other programs that blocks of commands call. Nothing is known of their arguments.
var tools = []string{
	"apt-get", "aws", "cd", "clusterctl", "cosign", "exec", "export", "git", "go", "helm", "install", "jq", "openssl", "openstack", "sha256sum", "source", "ssh-keygen", "tar", "virtctl",
	"base64", "cut", "date", "docker", "grep", "head", "ln", "tail", "tee", "tr",
}

var (
	placeholder = regexp.MustCompile(`<[a-z][a-z -]*>`)
	assignment  = regexp.MustCompile(`^[A-Z_]+=`)
	metric      = regexp.MustCompile(`^(karpenter|autonode)_[a-z_]+\{`)
	// nested are commands within a word.
	nested = regexp.MustCompile(`[<$]\(([^()]*)\)`)
)

// command is a line of a shell, without what redirects its output.
type command struct {
	line  int
	words []string
}

// commands returns those of a block. In a transcript only lines with a prompt are commands, and the others what they print. A block
// without any of the repository's programs, kubectl or make isn't about commands.
func (b block) commands() (found []command, problems []error) {
	lines := strings.Split(strings.TrimSuffix(b.text, "\n"), "\n")
	known := false
	transcript := slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "$ ") })
	for i := 0; i < len(lines); i++ {
		line, at := strings.TrimSpace(lines[i]), i
		prompted, isCommand := strings.CutPrefix(line, "$ ")
		if transcript && !isCommand {
			continue
		}
		line = prompted
		for strings.HasSuffix(line, "\\") && i+1 < len(lines) {
			i++
			line = strings.TrimSuffix(line, "\\") + " " + strings.TrimSpace(lines[i])
		}
		known = known || isKnown(strings.Fields(line))
		lists, err := split(placeholder.ReplaceAllString(elided.Replace(line), "placeholder"))
		if err != nil {
			problems = append(problems, b.errorf("line %d of the block: %w", at+1, err))
			continue
		}
		for _, words := range lists {
			found = append(found, command{line: b.line + at, words: words})
		}
	}
	if !transcript && !known && b.language == "" {
		return nil, nil
	}
	return found, problems
}

// split splits a line of a shell into the commands of its pipes and lists, without redirections and comments.
func split(line string) (commands [][]string, err error) {
	for _, inner := range nested.FindAllStringSubmatch(line, -1) {
		more, err := split(inner[1])
		if err != nil {
			return nil, err
		}
		commands = append(commands, more...)
	}
	line = nested.ReplaceAllString(line, "nested")
	var words []string
	var word strings.Builder
	inWord, redirected := false, false
	endWord := func() {
		if inWord && !redirected {
			words = append(words, word.String())
		}
		redirected = redirected && !inWord
		word.Reset()
		inWord = false
	}
	endCommand := func() {
		endWord()
		if len(words) > 0 {
			commands = append(commands, words)
		}
		words, redirected = nil, false
	}
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\'' || c == '"':
			end := strings.IndexByte(line[i+1:], c)
			if end < 0 {
				return nil, fmt.Errorf("%c isn't closed", c)
			}
			word.WriteString(line[i+1 : i+1+end])
			inWord = true
			i += end + 1
		case c == '\\' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
			inWord = true
		case c == '#' && !inWord:
			endCommand()
			return commands, nil
		case c == ' ' || c == '\t':
			endWord()
		case strings.IndexByte("|;&()", c) >= 0:
			endCommand()
		case c == '<' || c == '>':
			endWord()
			redirected = true
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	endCommand()
	return commands, nil
}

// stripped are the words without assignments of variables before a command, and without sudo.
func stripped(words []string) []string {
	for len(words) > 0 && (assignment.MatchString(words[0]) || words[0] == "sudo") {
		words = words[1:]
	}
	return words
}

func isKnown(words []string) bool {
	words = stripped(words)
	return len(words) > 0 && (words[0] == "kubectl" || words[0] == "make" || programs[filepath.Base(words[0])] != "")
}

// shell checks the commands of a page in a folder that has the files which the page shows.
type shell struct {
	dir string
	// plays: commands change what the API server has, as they would for a reader of the page.
	plays bool
	// generated is the file that the last clusterctl generate yaml has read.
	generated string
}

// check returns what is wrong with a command.
func (s *shell) check(ctx context.Context, words []string) error {
	words = stripped(words)
	if len(words) == 0 {
		return nil
	}
	switch name := words[0]; {
	case name == "kubectl" && len(words) > 1 && words[1] == "autonode":
		return ourProgram(ctx, s.dir, "autonode", words[2:])
	case name == "kubectl":
		return s.kubectl(ctx, words[1:])
	case name == "make":
		return checkMake(words[1:])
	case name == "clusterctl" && len(words) > 2 && words[1] == "generate" && words[2] == "yaml" && s.plays:
		return s.generate(words[3:])
	case programs[filepath.Base(name)] != "":
		name = filepath.Base(name)
		if name == "autonode-dev" && len(words) > 3 && words[1] == "world" && words[2] == "kubectl" {
			return s.kubectl(ctx, words[4:])
		}
		return ourProgram(ctx, s.dir, name, words[1:])
	case name == "go":
		module := "."
		if at := slices.Index(words, "-C"); at > 0 && at+1 < len(words) {
			module = words[at+1]
		}
		for _, word := range words {
			if folder := strings.TrimSuffix(word, "/..."); strings.HasPrefix(word, "./") {
				if _, err := os.Stat(filepath.Join(root, module, folder)); err != nil {
					return fmt.Errorf("there is no folder %s in %s", folder, module)
				}
			}
		}
	case metric.MatchString(name): // of Prometheus' language
	case !slices.Contains(tools, name):
		return fmt.Errorf("%s is no program that the documentation is known to use; see tools in commands_test.go", name)
	}
	return nil
}

// ourProgram checks whether a program has a command with such flags: with --help behind them it parses them and does nothing.
func ourProgram(ctx context.Context, dir, name string, args []string) error {
	if slices.Contains(args, "--version") {
		return nil
	}
	out, err := output(ctx, dir, cluster.programs[name], append(slices.Clone(args), "--help"))
	switch {
	case strings.Contains(out, "flag provided but not defined"), strings.Contains(out, "invalid value"):
		return fmt.Errorf("%s: %s", name, firstLine(out))
	case err != nil && name != "karpenter-clusterapi": // whose help is an error to Go's package flag
		return fmt.Errorf("%s: %s", name, firstLine(out))
	}
	return commandExists(out, name, args)
}

// commandExists reads a command's help. A command that only has others below it has to be followed by one of them.
func commandExists(help, name string, args []string) error {
	others := strings.Contains(help, "\nAvailable Commands:") || strings.Contains(help, "\nAdditional Commands:") // the latter beside groups
	if !others || len(args) == 0 || slices.Contains(args, "--help") {
		return nil
	}
	_, usage, _ := strings.Cut(help, "Usage:\n")
	path := strings.Fields(firstLine(usage))
	path = slices.DeleteFunc(path, func(word string) bool { return strings.HasPrefix(word, "[") || strings.ToUpper(word) == word })
	if len(args) < len(path) {
		return fmt.Errorf("%s needs one of its subcommands", strings.Join(path, " "))
	}
	return fmt.Errorf("%s has no subcommand %s", strings.Join(path, " "), args[len(path)-1])
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(line)
}

var (
	target   = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
	variable = regexp.MustCompile(`^([A-Z_]+)=`)
	uses     = regexp.MustCompile(`\$[({](?:or |if |foreach \w+,)?\$?[({]?([A-Z_]+)`)
)

// checkMake compares targets and variables with the Makefile.
func checkMake(words []string) error {
	raw, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return err
	}
	var targets, variables []string
	for _, found := range target.FindAllStringSubmatch(string(raw), -1) {
		targets = append(targets, found[1])
	}
	for _, found := range uses.FindAllStringSubmatch(string(raw), -1) {
		variables = append(variables, found[1])
	}
	for _, word := range words {
		if found := variable.FindStringSubmatch(word); found != nil {
			if !slices.Contains(variables, found[1]) {
				return fmt.Errorf("the Makefile uses no variable %s", found[1])
			}
		} else if !slices.Contains(targets, word) {
			return fmt.Errorf("the Makefile has no target %s", word)
		}
	}
	return nil
}

// Flags of kubectl whose value is the next word, before its verb.
var globalFlags = []string{"-n", "--namespace", "--context", "--kubeconfig", "--cluster", "--user", "--as"}

// How kubectl is asked: verbs that only read run as they are, those that write only try it unless the page is played, and others are parsed.
var (
	reads  = []string{"get", "describe", "logs", "auth", "api-resources", "explain", "config"}
	writes = []string{"annotate", "apply", "create", "delete", "label", "patch", "scale", "taint"}
	waits  = []string{"wait", "rollout"}
)

// missing is what the API server reports if nothing is wrong with a command but that it holds no such object. kubectl create secret leaves out the
// reason.
var missing = regexp.MustCompile(`\(NotFound\): .* not found|failed to create secret namespaces "[^"]+" not found|timed out waiting|no matching resources found|No resources found|No API token found`)

func (s *shell) kubectl(ctx context.Context, args []string) error {
	args = slices.Clone(args)
	verb := ""
	for i := 0; i < len(args) && verb == ""; i++ {
		switch {
		case slices.Contains(globalFlags, args[i]):
			if args[i] == "--kubeconfig" && i+1 < len(args) {
				args[i+1] = cluster.kubeconfig
			}
			i++
		case !strings.HasPrefix(args[i], "-"):
			verb = args[i]
		}
	}
	if at := slices.Index(args, "-f") + 1; at > 0 && at < len(args) && args[at] == "-" && s.generated != "" {
		args[at], s.generated = s.generated, ""
	}
	changing := slices.Contains(writes, verb)
	args = slices.DeleteFunc(args, func(arg string) bool { return slices.Contains([]string{"-w", "--watch", "--follow"}, arg) })
	runnable := s.filesExist(args)
	switch {
	case changing && (!s.plays || verb == "delete" && slices.Contains(args, "namespace")): // which nothing would finish here
		args = append(args, "--dry-run=server")
	case verb == "delete":
		args = append(args, "--wait=false")
	case slices.Contains(waits, verb):
		args = append(args, "--timeout=1s")
	case !slices.Contains(reads, verb) && !changing, verb == "config" && !slices.Contains(args, "view"): // the file is everybody's
		runnable = false
	}
	if !runnable {
		out, err := output(ctx, s.dir, cluster.kubectl, append(args, "--help"))
		if err != nil || verb == "" {
			return fmt.Errorf("kubectl: %s", firstLine(out))
		}
		if !changing {
			return commandExists(out, "kubectl", args)
		}
		return nil
	}
	out, err := output(ctx, s.dir, cluster.kubectl, args)
	if err == nil || missing.MatchString(out) || verb == "auth" && firstLine(out) == "no" {
		return nil
	}
	if verb == "create" && strings.Contains(out, "already exists") {
		return nil // another page has made it: they share an API server
	}
	return fmt.Errorf("kubectl: %s", strings.TrimSpace(out))
}

// filesExist reports whether the page shows every file that a command names. Files that a release or a reader makes aren't checked.
func (s *shell) filesExist(args []string) bool {
	for i, arg := range args {
		name := ""
		switch {
		case slices.Contains([]string{"-f", "--filename", "--patch-file", "-k", "--kustomize"}, arg) && i+1 < len(args):
			name = args[i+1]
		case strings.HasPrefix(arg, "--filename=") || strings.HasPrefix(arg, "--patch-file="):
			_, name, _ = strings.Cut(arg, "=")
		default:
			continue
		}
		for part := range strings.SplitSeq(name, ",") {
			if _, err := os.Stat(filepath.Join(s.dir, part)); err != nil || part == "." {
				return false
			}
		}
	}
	return true
}

// named is the file name that a block begins with, as in "# nodepool.yaml".
var named = regexp.MustCompile(`^# ([\w./-]+\.ya?ml)(?:,[^\n]*)?\n`)

// save writes a block that has a file's name where commands of its page find it.
func (s *shell) save(b block) error {
	found := named.FindStringSubmatch(b.text)
	if found == nil {
		return nil
	}
	write := func(path string) error {
		return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(elided.Replace(b.text)), 0o600))
	}
	if b.file != "" {
		if err := write(filepath.Join(s.dir, b.file)); err != nil {
			return err
		}
	}
	return write(filepath.Join(s.dir, found[1]))
}
