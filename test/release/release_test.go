// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"context"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	provenancev1 "github.com/in-toto/attestation/go/predicates/provenance/v1"
	attestationv1 "github.com/in-toto/attestation/go/v1"
	. "github.com/onsi/gomega"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/autonode-io/autonode/payload"
	"github.com/autonode-io/autonode/test/world/programs"
)

const (
	sourceRoot = "../.."
	version    = "v0.1.0"
	password   = "a password"
	tag        = "1.36.3-autonode.0.1.0"
	// program stands for each of ours, which take minutes to build.
	program = `package main

import (
	"github.com/blang/semver/v4"

	_ "github.com/autonode-io/autonode/api"
)

var version, karpenterImage string

func main() { println(semver.MustParse(version[1:]).String(), karpenterImage) }
`
)

// source makes a clone with small programs. Two clones have one commit.
func source(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	for _, folder := range []string{"api", "charts", "manifests"} {
		g.Expect(os.CopyFS(filepath.Join(dir, folder), os.DirFS(filepath.Join(sourceRoot, folder)))).To(Succeed())
	}
	for _, file := range []string{"go.mod", "go.sum", "LICENSE"} {
		content, err := os.ReadFile(filepath.Join(sourceRoot, file))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(filepath.Join(dir, file), content, 0o600)).To(Succeed())
	}
	for _, of := range []string{operatorProgram, karpenterProgram, toolProgram} {
		folder := filepath.Join(dir, "cmd", of)
		g.Expect(os.MkdirAll(folder, 0o700)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(folder, "main.go"), []byte(program), 0o600)).To(Succeed())
	}
	identity := []string{
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b.example", "GIT_AUTHOR_DATE=1700000000 +0000", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b.example", "GIT_COMMITTER_DATE=1700000000 +0000", "GIT_CONFIG_SYSTEM=/dev/null",
	}
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--all"}, {"commit", "--quiet", "--message=all"}} {
		_, err := run(t.Context(), dir, identity, "git", args...)
		g.Expect(err).NotTo(HaveOccurred())
	}
	return dir
}

// start starts a registry.
func start(t *testing.T, referrers bool) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(referrers)))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// keyPair is a pair as cosign makes it.
func keyPair(t *testing.T) (*Signer, []byte) {
	t.Helper()
	g := NewWithT(t)
	private, public, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), cryptoutils.StaticPasswordFunc([]byte(password)))
	g.Expect(err).NotTo(HaveOccurred())
	signer, err := NewSigner(private, []byte(password))
	g.Expect(err).NotTo(HaveOccurred())
	return signer, public
}

// config is of a release for one platform.
func config(t *testing.T, prefix string) Config {
	t.Helper()
	return configOf(t, source(t), prefix)
}

func configOf(t *testing.T, source, prefix string) Config {
	host := Platform{"linux", goruntime.GOARCH}
	return Config{
		Version: version, Source: source, Output: t.TempDir(), Prefix: prefix, Kubernetes: []string{"1.36.3"}, Builder: BuilderByHand,
		Platforms: &Platforms{Images: []Platform{host}, Tools: []Platform{host}}, Out: io.Discard,
	}
}

// made is a release that was pushed.
type made struct {
	Config
	public []byte
}

func push(t *testing.T) made {
	t.Helper()
	c := config(t, start(t, true)+"/autonode")
	m := made{Config: c}
	m.Push = true
	m.Signer, m.public = keyPair(t)
	NewWithT(t).Expect(Run(t.Context(), m.Config)).To(Succeed())
	return m
}

func (m made) read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(m.Output, file))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return content
}

// files returns the digest of each file below a folder.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	NewWithT(t).Expect(filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		found[relative], err = sum(path)
		return err
	})).To(Succeed())
	return found
}

// digest of the image in the registry.
func (m made) digest(t *testing.T, repository, tag string) name.Digest {
	t.Helper()
	g := NewWithT(t)
	ref, err := name.NewTag(m.Prefix + "/" + repository + ":" + tag)
	g.Expect(err).NotTo(HaveOccurred())
	descriptor, err := remote.Head(ref)
	g.Expect(err).NotTo(HaveOccurred())
	return ref.Context().Digest(descriptor.Digest.String())
}

// pull returns the manifest of an artifact in the registry, and its files.
func pull(t *testing.T, ref name.Reference) (manifest artifactManifest, files [][]byte) {
	t.Helper()
	g := NewWithT(t)
	image, err := remote.Image(ref)
	g.Expect(err).NotTo(HaveOccurred())
	raw, err := image.RawManifest()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(raw, &manifest)).To(Succeed())
	layers, err := image.Layers()
	g.Expect(err).NotTo(HaveOccurred())
	for _, layer := range layers {
		stream, err := layer.Compressed()
		g.Expect(err).NotTo(HaveOccurred())
		content, err := io.ReadAll(stream)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(stream.Close()).To(Succeed())
		files = append(files, content)
	}
	return manifest, files
}

// referrers returns the contents of what refers to an image, by artifact type.
func referrers(t *testing.T, image name.Digest) map[string][][]byte {
	t.Helper()
	g := NewWithT(t)
	index, err := remote.Referrers(image)
	g.Expect(err).NotTo(HaveOccurred())
	list, err := index.IndexManifest()
	g.Expect(err).NotTo(HaveOccurred())
	found := map[string][][]byte{}
	for _, d := range list.Manifests {
		manifest, files := pull(t, image.Context().Digest(d.Digest.String()))
		g.Expect(files).To(HaveLen(1))
		g.Expect(manifest.Layers[0].MediaType).To(Equal(manifest.ArtifactType))
		found[string(manifest.ArtifactType)] = append(found[string(manifest.ArtifactType)], files[0])
	}
	return found
}

func hexadecimal(image name.Digest) string { return strings.TrimPrefix(image.DigestStr(), "sha256:") }

func TestRelease(t *testing.T) {
	m := push(t)
	t.Run("When the source is built in another folder, it should give the same bytes", func(t *testing.T) {
		again := config(t, m.Prefix)
		again.Signer = m.Signer
		g := NewWithT(t)
		g.Expect(again.Source).NotTo(Equal(m.Source))
		g.Expect(Run(t.Context(), again)).To(Succeed())
		want, got := files(t, m.Output), files(t, again.Output)
		g.Expect(cmp.Diff(want, got)).To(BeEmpty())
		g.Expect(len(got)).To(BeNumerically(">", 25), "files")
	})
	t.Run("When it was made, each OCI layout should hold its index, and what refers to it", func(t *testing.T) {
		g := NewWithT(t)
		for _, of := range []string{operatorProgram, karpenterProgram} {
			index, err := layout.ImageIndexFromPath(filepath.Join(m.Output, "images", of))
			g.Expect(err).NotTo(HaveOccurred())
			manifest, err := index.IndexManifest()
			g.Expect(err).NotTo(HaveOccurred())
			kinds := map[string]int{}
			for _, d := range manifest.Manifests {
				kinds[string(d.MediaType)+" "+d.ArtifactType]++
			}
			g.Expect(cmp.Diff(map[string]int{
				string(types.OCIImageIndex) + " ": 1, string(types.OCIManifestSchema1) + " " + bomMediaType: 1,
				string(types.OCIManifestSchema1) + " " + inTotoMediaType: 1, string(types.OCIManifestSchema1) + " " + bundleMediaType: 3,
			}, kinds)).To(BeEmpty())
			images, err := index.ImageIndex(manifest.Manifests[0].Digest)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(validate.Index(images)).To(Succeed())
			g.Expect(m.digest(t, of, version).DigestStr()).To(Equal(manifest.Manifests[0].Digest.String()))
		}
	})
	t.Run("When the operator's image is pulled, it should be the program for the platform", func(t *testing.T) {
		g := NewWithT(t)
		image, err := remote.Image(m.digest(t, operatorProgram, version), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: goruntime.GOARCH}))
		g.Expect(err).NotTo(HaveOccurred())
		config, err := image.ConfigFile()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(config.Config.Entrypoint).To(Equal([]string{"/" + operatorProgram}))
		g.Expect(config.Config.User).To(Equal("65532:65532"))
		g.Expect(config.Config.Labels).To(HaveKeyWithValue("org.opencontainers.image.version", version))
		g.Expect(config.Config.Labels["org.opencontainers.image.revision"]).To(HaveLen(40))
		files := mutate.Extract(image)
		content, err := io.ReadAll(files)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(files.Close()).To(Succeed())
		g.Expect(bytes.Contains(content, []byte(m.digest(t, karpenterProgram, version).Name()))).To(BeTrue(), "Karpenter of its default release")
	})
	t.Run("When install.yaml is read, it should name the operator's image by digest", func(t *testing.T) {
		g := NewWithT(t)
		install := string(m.read(t, installFile))
		g.Expect(strings.Count(install, "image: "+m.digest(t, operatorProgram, version).Name()+"\n")).To(Equal(1))
		g.Expect(install).To(ContainSubstring("kind: CustomResourceDefinition"))
		g.Expect(string(m.read(t, imagesFile))).To(ContainSubstring(fmt.Sprintf("%s/release:%s@%s\n", m.Prefix, tag, m.digest(t, "release", tag).DigestStr())))
	})
	t.Run("When charts were made, Helm should take them from the registry", func(t *testing.T) { testCharts(t, m) })
	t.Run("When components were made, clusterctl should find its files", func(t *testing.T) { testComponents(t, m) })
	t.Run("When a program links a module, its SBOM should list it", func(t *testing.T) { testBOM(t, m) })
	t.Run("When something was made, the provenance should have its digest", func(t *testing.T) { testProvenance(t, m) })
	t.Run("When files are checked, SHA256SUMS and its signature should fit", func(t *testing.T) { testSums(t, m) })
}

func testBOM(t *testing.T, m made) {
	g := NewWithT(t)
	file := m.read(t, bom{program: operatorProgram, platform: m.Platforms.Images[0]}.name(version))
	var document cyclonedx.BOM
	g.Expect(cyclonedx.NewBOMDecoder(bytes.NewReader(file), cyclonedx.BOMFileFormatJSON).Decode(&document)).To(Succeed())
	g.Expect(document.Metadata.Component.Name).To(Equal(operatorProgram))
	g.Expect(document.Metadata.Component.Version).To(Equal(version))
	var urls []string
	for _, component := range *document.Components {
		urls = append(urls, component.PackageURL)
	}
	g.Expect(urls).To(ConsistOf(HavePrefix("pkg:golang/std@1."), "pkg:golang/github.com/autonode-io/autonode/api@v0.1.0", "pkg:golang/github.com/blang/semver/v4@v4.0.0"))
	g.Expect(*document.Dependencies).To(HaveLen(1))

	index, err := remote.Index(m.digest(t, operatorProgram, version))
	g.Expect(err).NotTo(HaveOccurred())
	manifest, err := index.IndexManifest()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(manifest.Manifests).To(HaveLen(1))
	image := m.digest(t, operatorProgram, version).Context().Digest(manifest.Manifests[0].Digest.String())
	attached := referrers(t, image)
	g.Expect(attached[bomMediaType]).To(Equal([][]byte{file}))
	g.Expect(attached[bundleMediaType]).To(HaveLen(1))
	stated := verified(t, m.public, attached[bundleMediaType][0], verify.WithArtifactDigest("sha256", decode(t, hexadecimal(image))))
	g.Expect(stated.GetPredicateType()).To(Equal(bomPredicate))
	g.Expect(stated.GetPredicate().GetFields()["bomFormat"].GetStringValue()).To(Equal("CycloneDX"))
}

func decode(t *testing.T, digest string) []byte {
	t.Helper()
	decoded, err := hex.DecodeString(digest)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return decoded
}

// verified returns the statement of a bundle that the key signed, of that artifact; nil for a bundle without one.
func verified(t *testing.T, public, content []byte, of verify.ArtifactPolicyOption) *attestationv1.Statement {
	t.Helper()
	g := NewWithT(t)
	key, err := cryptoutils.UnmarshalPEMToPublicKey(public)
	g.Expect(err).NotTo(HaveOccurred())
	loaded, err := signature.LoadDefaultVerifier(key)
	g.Expect(err).NotTo(HaveOccurred())
	verifier, err := verify.NewVerifier(root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) {
		return root.NewExpiringKey(loaded, time.Time{}, time.Time{}), nil
	}), verify.WithNoObserverTimestamps())
	g.Expect(err).NotTo(HaveOccurred())
	var signed bundle.Bundle
	g.Expect(signed.UnmarshalJSON(content)).To(Succeed())
	result, err := verifier.Verify(&signed, verify.NewPolicy(of, verify.WithKey()))
	g.Expect(err).NotTo(HaveOccurred())
	return result.Statement
}

func testProvenance(t *testing.T, m made) {
	g := NewWithT(t)
	file := m.read(t, provenanceFile)
	var stated attestationv1.Statement
	g.Expect(protojson.Unmarshal(file, &stated)).To(Succeed())
	g.Expect(stated.Validate()).To(Succeed())
	subjects := map[string][]string{}
	for _, s := range stated.GetSubject() {
		subjects[s.GetName()] = append(subjects[s.GetName()], s.GetDigest()["sha256"])
	}
	for _, image := range []name.Digest{m.digest(t, operatorProgram, version), m.digest(t, karpenterProgram, version), m.digest(t, payloadRepository, tag)} {
		g.Expect(subjects[image.Context().Name()]).To(ContainElement(hexadecimal(image)))
		attached := referrers(t, image)
		g.Expect(attached[inTotoMediaType]).To(Equal([][]byte{file}))
		var predicates []string
		for _, content := range attached[bundleMediaType] {
			predicates = append(predicates, verified(t, m.public, content, verify.WithArtifactDigest("sha256", decode(t, hexadecimal(image)))).GetPredicateType())
		}
		g.Expect(predicates).To(ConsistOf(provenancePredicate, signPredicate))
	}
	for file, digest := range files(t, m.Output) {
		if !strings.Contains(file, "/") && !strings.HasPrefix(file, provenanceFile) && !strings.HasPrefix(file, sumsFile) {
			g.Expect(subjects[file]).To(Equal([]string{digest}), file)
		}
	}
	encoded, err := protojson.Marshal(stated.GetPredicate())
	g.Expect(err).NotTo(HaveOccurred())
	var predicate provenancev1.Provenance
	g.Expect(protojson.Unmarshal(encoded, &predicate)).To(Succeed())
	g.Expect(predicate.Validate()).To(Succeed())
	head, err := run(t.Context(), m.Source, nil, "git", "rev-parse", "HEAD")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(predicate.GetBuildDefinition().GetResolvedDependencies()[0].GetDigest()).To(Equal(map[string]string{"gitCommit": strings.TrimSpace(head)}))
	g.Expect(predicate.GetBuildDefinition().GetInternalParameters().GetFields()["go"].GetStringValue()).To(HavePrefix("go1."))
}

func testSums(t *testing.T, m made) {
	g := NewWithT(t)
	file := m.read(t, sumsFile)
	want := map[string]string{}
	for name, digest := range files(t, m.Output) {
		if !strings.Contains(name, "/") && !strings.HasPrefix(name, sumsFile) {
			want[name] = digest
		}
	}
	got := map[string]string{}
	for line := range strings.Lines(string(file)) {
		digest, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		got[name] = digest
	}
	g.Expect(cmp.Diff(want, got)).To(BeEmpty())
	digest := sha256.Sum256(file)
	g.Expect(verified(t, m.public, m.read(t, sumsFile+bundleSuffix), verify.WithArtifactDigest("sha256", digest[:]))).To(BeNil())
}

func TestPayload(t *testing.T) {
	for name, withReferrers := range map[string]bool{"with referrers": true, "without referrers": false} {
		t.Run("When it is pushed to a registry "+name+", the operator should accept its payload by the key alone", func(t *testing.T) {
			g := NewWithT(t)
			c := config(t, start(t, withReferrers)+"/autonode")
			c.Push = true
			var public []byte
			c.Signer, public = keyPair(t)
			_, stranger := keyPair(t)
			g.Expect(Run(t.Context(), c)).To(Succeed())
			m := made{Config: c}
			ref := c.Prefix + "/release:" + tag
			read := func(ctx context.Context, key []byte) (*payload.Release, error) {
				verifier, err := payload.NewVerifier(key, nil, true)
				g.Expect(err).NotTo(HaveOccurred())
				return payload.Read(ctx, ref, payload.Options{Verifier: verifier})
			}
			got, err := read(t.Context(), public)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got.Unverified).To(BeEmpty())
			g.Expect(got.Version).To(Equal("1.36.3+autonode.0.1.0"))
			component, err := got.Component(karpenterProgram)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(component.NodeVersion()).To(Equal("1.36.3"))
			g.Expect(component.CRDs).NotTo(BeEmpty())
			g.Expect(component.Image).To(Equal(m.digest(t, karpenterProgram, version).Name()))
			_, err = read(t.Context(), stranger)
			g.Expect(payload.ReasonFor(err)).To(Equal(payload.ReasonPayloadUnsigned))

			// What signs a payload signs the images, for who verifies those.
			verifier, err := payload.NewVerifier(public, nil, true)
			g.Expect(err).NotTo(HaveOccurred())
			for _, of := range []string{operatorProgram, karpenterProgram} {
				g.Expect(payload.Verify(t.Context(), m.digest(t, of, version).Name(), payload.Options{Verifier: verifier})).To(Succeed())
			}
		})
	}
}

func TestUnsigned(t *testing.T) {
	t.Run("When there is no key, it should have SBOM, provenance and checksums without signatures", func(t *testing.T) {
		g := NewWithT(t)
		c := config(t, "")
		var out bytes.Buffer
		c.Out = &out
		g.Expect(Run(t.Context(), c)).To(Succeed())
		for file := range files(t, c.Output) {
			g.Expect(file).NotTo(HaveSuffix(bundleSuffix))
		}
		g.Expect(out.String()).To(And(ContainSubstring("nothing is signed"), ContainSubstring("registry.example/autonode, which doesn't exist")))
	})
	t.Run("When the source has changes that are allowed, the provenance should name no commit", func(t *testing.T) {
		g := NewWithT(t)
		c := config(t, "")
		g.Expect(os.WriteFile(filepath.Join(c.Source, "new"), nil, 0o600)).To(Succeed())
		c.AllowChanges = true
		g.Expect(Run(t.Context(), c)).To(Succeed())
		g.Expect(string(made{Config: c}.read(t, provenanceFile))).NotTo(ContainSubstring("gitCommit"))
	})
}

func TestRejected(t *testing.T) {
	clean := source(t)
	changed := source(t)
	if err := os.WriteFile(filepath.Join(changed, "new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"When the version has no v, it should say so":               {func(c *Config) { c.Version = "0.1.0" }, "isn't a semantic version with a leading v"},
		"When the version has build metadata, it should say so":     {func(c *Config) { c.Version = "v0.1.0+1" }, "has build metadata"},
		"When there is no registry to push to, it should say so":    {func(c *Config) { c.Push, c.Prefix = true, "" }, "no registry to push to"},
		"When the prefix is a URL, it should say so":                {func(c *Config) { c.Prefix = "https://registry.example" }, "isn't a registry and a folder"},
		"When the prefix isn't a name, it should say so":            {func(c *Config) { c.Prefix = "registry.example/Auto Node" }, "prefix of images"},
		"When a Kubernetes version isn't one, it should say so":     {func(c *Config) { c.Kubernetes = []string{"v1.36"} }, "isn't a Kubernetes version"},
		"When there is no Kubernetes version, it should say so":     {func(c *Config) { c.Kubernetes = nil }, "no Kubernetes version"},
		"When the folder isn't empty, it should leave it as it is":  {func(c *Config) { c.Output = clean }, "isn't empty"},
		"When the source has changes, it should name the first one": {func(c *Config) { c.Source = changed }, "?? new"},
		"When the source isn't a clone, it should say so":           {func(c *Config) { c.Source = c.Output }, "looking for changes in the source"},
	} {
		t.Run(name, func(t *testing.T) {
			c := configOf(t, clean, "registry.example/autonode")
			test.change(&c)
			NewWithT(t).Expect(Run(t.Context(), c)).To(MatchError(ContainSubstring(test.want)))
		})
	}
	t.Run("When the registry has another image of that version, it should push nothing", func(t *testing.T) {
		g := NewWithT(t)
		c := config(t, start(t, true)+"/autonode")
		c.Push = true
		other, err := random.Image(16, 1)
		g.Expect(err).NotTo(HaveOccurred())
		ref, err := name.NewTag(c.Prefix + "/" + karpenterProgram + ":" + version)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(remote.Write(ref, other)).To(Succeed())
		g.Expect(Run(t.Context(), c)).To(MatchError(ContainSubstring("choose another version")))
		_, err = remote.Catalog(t.Context(), ref.Registry)
		g.Expect(err).NotTo(HaveOccurred())
		operator, err := name.NewTag(c.Prefix + "/" + operatorProgram + ":" + version)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = remote.Head(operator)
		g.Expect(err).To(HaveOccurred())
	})
}

func TestSigner(t *testing.T) {
	private, _, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), cryptoutils.StaticPasswordFunc([]byte(password)))
	if err != nil {
		t.Fatal(err)
	}
	long, _, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P384(), cryptoutils.StaticPasswordFunc([]byte(password)))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		key            []byte
		password, want string
	}{
		"When the password is wrong, it should say so":      {private, "wrong", "decryption failed"},
		"When the file has no key, it should say so":        {[]byte("key"), password, "PEM decoding failed"},
		"When the key is of another kind, it should say so": {long, password, "isn't an ECDSA key of the curve P-256"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewSigner(test.key, []byte(test.password))
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

func TestDefaults(t *testing.T) {
	t.Run("When no Kubernetes version is given, the flag's should be one that a payload may have", func(t *testing.T) {
		g := NewWithT(t)
		c := config(t, "")
		c.Kubernetes, c.Platforms = []string{strings.TrimPrefix(programs.KubernetesUpgradedVersion, "v")}, nil
		r := release{Config: c}
		g.Expect(r.complete(t.Context())).To(Succeed())
		g.Expect(r.Platforms.Images).To(HaveLen(2))
		g.Expect(r.Platforms.Tools).To(HaveLen(6))
	})
}
