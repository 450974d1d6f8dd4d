// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/blang/semver/v4"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/autonode-io/autonode/test/world/progress"
)

// DefaultPrefix begins the names of images that weren't pushed. No host in that domain can have an owner.
const DefaultPrefix = "registry.example/autonode"

// Config is what to release.
type Config struct {
	// Version is a semantic version with a leading "v": "v0.1.0".
	Version string
	// Source is the folder of the source: a clone without changes.
	Source string
	// Output is the folder to write, which is empty or doesn't exist.
	Output string
	// Prefix begins the names of images in install.yaml and payloads: a registry, and usually a folder. Empty means DefaultPrefix.
	Prefix string
	// Push is whether to push the images to Prefix.
	Push bool
	// AllowChanges lets the source have changes that aren't committed; the provenance then names no commit.
	AllowChanges bool
	// Kubernetes are the versions of nodes, each with a payload of its own: "1.36.3".
	Kubernetes []string
	// Platforms are those of images and of the command-line tool; nil means all that are released.
	Platforms *Platforms
	// Builder is the URI of who builds, in the provenance.
	Builder string
	// Signer signs; nil leaves the release unsigned.
	Signer *Signer
	// Out gets a line for each step.
	Out io.Writer
}

// Platforms are what programs are built for.
type Platforms struct{ Images, Tools []Platform }

// Platform is an operating system and an architecture, as Go names them.
type Platform struct{ OS, Arch string }

// String is Go's form: "linux/amd64".
func (p Platform) String() string { return p.OS + "/" + p.Arch }

func released() *Platforms {
	return &Platforms{
		Images: []Platform{{"linux", "amd64"}, {"linux", "arm64"}},
		Tools: []Platform{
			{"darwin", "amd64"}, {"darwin", "arm64"}, {"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
		},
	}
}

// The programs in images, and the tool that people install.
const (
	operatorProgram  = "autonode-operator"
	karpenterProgram = "karpenter-clusterapi"
	toolProgram      = "autonode"
	// payloadRepository is the repository of payloads.
	payloadRepository = "release"
)

// release is one that is being made.
type release struct {
	Config
	commit string // of the source; empty if it has changes
	bin    string // folder of the programs that were built

	repositories []*repository
	subjects     []subject // what the provenance is of, by name
	boms         []bom
}

// subject is something that was made.
type subject struct{ name, sha256 string }

// Run makes a release, and pushes its images if that is asked for.
func Run(ctx context.Context, config Config) error {
	r := &release{Config: config}
	if err := r.complete(ctx); err != nil {
		return err
	}
	var err error
	if r.bin, err = os.MkdirTemp("", "autonode-release-"); err != nil {
		return fmt.Errorf("making a folder for the programs: %w", err)
	}
	defer func() { _ = os.RemoveAll(r.bin) }()
	if err := os.MkdirAll(r.Output, 0o755); err != nil {
		return fmt.Errorf("making the release's folder: %w", err)
	}
	type step struct {
		what string
		do   func(context.Context) error
	}
	steps := []step{
		{"building Karpenter", r.buildKarpenter},
		{"building the operator", r.buildOperator},
		{"building the payloads", r.buildPayloads},
		{"writing install.yaml", r.writeInstall},
		{"writing the components for clusterctl", r.writeComponents},
		{"packing the charts", r.packCharts},
		{"building the command-line tool", r.buildTools},
		{"packing the command-line tool", r.packTools},
		{"writing SBOMs, provenance and checksums", r.document},
	}
	if r.Push {
		steps = append(steps, step{"pushing the images", r.push})
	}
	for _, step := range steps {
		began := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		fmt.Fprintf(r.Out, "%-42s %s\n", step.what, progress.Duration(time.Since(began)))
	}
	return r.report()
}

// complete sets defaults and rejects what can't be released.
func (r *release) complete(ctx context.Context) error {
	plain, ok := strings.CutPrefix(r.Version, "v")
	version, err := semver.Parse(plain)
	switch {
	case !ok || err != nil:
		return fmt.Errorf("version %q isn't a semantic version with a leading v, like v0.1.0", r.Version)
	case len(version.Build) > 0:
		return fmt.Errorf("version %q has build metadata, which a tag of an image can't have", r.Version)
	}
	if r.Prefix == "" {
		if r.Push {
			return errors.New("no registry to push to")
		}
		r.Prefix = DefaultPrefix
	}
	if strings.Contains(r.Prefix, "://") || strings.HasSuffix(r.Prefix, "/") {
		return fmt.Errorf("prefix of images %q isn't a registry and a folder, like %s", r.Prefix, DefaultPrefix)
	}
	if _, err := name.NewRepository(r.Prefix+"/"+operatorProgram, name.StrictValidation); err != nil {
		return fmt.Errorf("prefix of images: %w", err)
	}
	if len(r.Kubernetes) == 0 {
		return errors.New("no Kubernetes version to make a payload for")
	}
	for _, kubernetes := range r.Kubernetes {
		if version, err := semver.Parse(kubernetes); err != nil || len(version.Build) > 0 {
			return fmt.Errorf("%q isn't a Kubernetes version like 1.36.3", kubernetes)
		}
	}
	if r.Builder == "" {
		return errors.New("the provenance needs the URI of a builder")
	}
	if r.Platforms == nil {
		r.Platforms = released()
	}
	entries, err := os.ReadDir(r.Output)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("looking into the release's folder: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("folder %s isn't empty; remove it or choose another", r.Output)
	}
	r.commit, err = commit(ctx, r.Source, r.AllowChanges)
	return err
}

// commit returns the source's commit, or nothing if the source differs from it and that is allowed.
func commit(ctx context.Context, source string, allowChanges bool) (string, error) {
	changes, err := run(ctx, source, nil, "git", "status", "--porcelain")
	if err != nil {
		return "", fmt.Errorf("looking for changes in the source: %w", err)
	}
	if changes != "" {
		if allowChanges {
			return "", nil
		}
		first, _, _ := strings.Cut(changes, "\n")
		return "", fmt.Errorf("the source has changes that aren't committed (%s); commit them, or allow them for a release that isn't published",
			strings.TrimSpace(first))
	}
	head, err := run(ctx, source, nil, "git", "rev-parse", "HEAD")
	if err != nil {
		return "", fmt.Errorf("reading the source's commit: %w", err)
	}
	return strings.TrimSpace(head), nil
}

// image returns the name of the only image in a repository, or of its index, by digest.
func (r *release) image(repository string) string {
	return path.Join(r.Prefix, repository) + "@" + r.digestOf(repository).String()
}

// report prints what people copy.
func (r *release) report() error {
	for _, line := range r.imageLines() {
		if _, err := fmt.Fprintln(r.Out, line); err != nil {
			return err
		}
	}
	if r.Prefix == DefaultPrefix {
		fmt.Fprintf(r.Out, "install.yaml and the payloads name images in %s, which doesn't exist; --push or --image-prefix names another registry\n", r.Prefix)
	}
	if r.Signer == nil {
		fmt.Fprintln(r.Out, "nothing is signed; --key names a private key")
	}
	fmt.Fprintln(r.Out, "release", r.Version, "is in", r.Output)
	return nil
}

// imageLines are the images by tag and digest.
func (r *release) imageLines() []string {
	var lines []string
	for _, repository := range r.repositories {
		for _, tagged := range repository.tagged {
			lines = append(lines, fmt.Sprintf("%s:%s@%s", path.Join(r.Prefix, repository.name), tagged.tag, tagged.descriptor.Digest))
		}
	}
	return lines
}
