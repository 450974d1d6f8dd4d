// SPDX-License-Identifier: Apache-2.0

package release

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"google.golang.org/protobuf/types/known/structpb"
	kustomizetypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/manifests"
	"github.com/autonode-io/autonode/payload"
)

// Names of files in a release.
const (
	installFile    = "install.yaml"
	imagesFile     = "images.txt"
	provenanceFile = "provenance.json"
	sumsFile       = "SHA256SUMS"
	bundleSuffix   = ".sigstore.json"
)

// write writes a file that the provenance is of.
func (r *release) write(file string, content []byte) error {
	if err := os.WriteFile(filepath.Join(r.Output, file), content, 0o644); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	digest := sha256.Sum256(content)
	r.subjects = append(r.subjects, subject{file, hex.EncodeToString(digest[:])})
	return nil
}

// sum returns the SHA-256 of a file.
func sum(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("digesting a file: %w", err)
	}
	defer file.Close()
	digest, _, err := v1.SHA256(file)
	if err != nil {
		return "", fmt.Errorf("digesting %s: %w", path, err)
	}
	return digest.Hex, nil
}

// digestOf returns the digest of the only image in a repository, or of its index.
func (r *release) digestOf(of string) v1.Hash {
	for _, repository := range r.repositories {
		if repository.name == of {
			return repository.tagged[0].descriptor.Digest
		}
	}
	return v1.Hash{}
}

// buildPayloads makes a release payload for each Kubernetes version of nodes.
func (r *release) buildPayloads(context.Context) error {
	definitions, err := crds.Embedded()
	if err != nil {
		return err
	}
	documents := make([][]byte, len(definitions))
	for i, definition := range definitions {
		if documents[i], err = yaml.Marshal(definition); err != nil {
			return fmt.Errorf("encoding CRD %s: %w", definition.Name, err)
		}
	}
	ours := strings.TrimPrefix(r.Version, "v")
	for _, kubernetes := range r.Kubernetes {
		built, err := payload.Build(payload.Spec{
			Version: kubernetes + "+autonode." + ours,
			Components: []payload.ComponentSpec{{
				Name: karpenterProgram, Image: r.image(karpenterProgram),
				Versions: map[string]string{payload.KubernetesVersion: kubernetes, "autonode": ours}, CRDs: documents,
			}},
		})
		if err != nil {
			return err
		}
		if err := r.add(payloadRepository, kubernetes+"-autonode."+ours, built); err != nil {
			return err
		}
	}
	return nil
}

// writeInstall renders what kubectl installs.
func (r *release) writeInstall(context.Context) error {
	content, err := r.render()
	if err != nil {
		return err
	}
	return r.write(installFile, content)
}

// render renders the kustomize base with the operator's image by digest, and with components, which are folders of the base's.
func (r *release) render(components ...string) ([]byte, error) {
	overlay := kustomizetypes.Kustomization{Resources: []string{"../base"}, Images: []kustomizetypes.Image{{
		Name: operatorProgram, NewName: r.Prefix + "/" + operatorProgram, Digest: r.digestOf(operatorProgram).String(),
	}}}
	for _, component := range components {
		overlay.Components = append(overlay.Components, "../base/"+component)
	}
	built, err := manifests.Build(os.DirFS(filepath.Join(r.Source, "manifests")), overlay, nil)
	if err != nil {
		return nil, err
	}
	content, err := built.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("encoding the manifests: %w", err)
	}
	return content, nil
}

// packTools makes an archive of the command-line tool for each platform.
func (r *release) packTools(context.Context) error {
	license, err := os.ReadFile(filepath.Join(r.Source, "LICENSE"))
	if err != nil {
		return fmt.Errorf("reading the license: %w", err)
	}
	for _, p := range r.Platforms.Tools {
		file := r.program(p, toolProgram)
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("reading the program for %s: %w", p, err)
		}
		pack, suffix := tarred, ".tar.gz"
		if p.OS == "windows" {
			pack, suffix = zipped, ".zip"
		}
		var archive bytes.Buffer
		if err := pack(&archive, []packed{{"LICENSE", 0o644, license}, {filepath.Base(file), 0o755, content}}); err != nil {
			return fmt.Errorf("packing %s for %s: %w", toolProgram, p, err)
		}
		name := fmt.Sprintf("%s_%s_%s_%s%s", toolProgram, strings.TrimPrefix(r.Version, "v"), p.OS, p.Arch, suffix)
		if err := r.write(name, archive.Bytes()); err != nil {
			return err
		}
		r.boms = append(r.boms, bom{program: toolProgram, platform: p, file: file})
	}
	return nil
}

// packed is a file in an archive.
type packed struct {
	name    string
	mode    os.FileMode
	content []byte
}

func tarred(w io.Writer, files []packed) error {
	compressed := gzip.NewWriter(w)
	archive := tar.NewWriter(compressed)
	for _, file := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: file.name, Mode: int64(file.mode), Size: int64(len(file.content)), Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(file.content); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return compressed.Close()
}

func zipped(w io.Writer, files []packed) error {
	archive := zip.NewWriter(w)
	for _, file := range files {
		header := &zip.FileHeader{Name: file.name, Method: zip.Deflate}
		header.SetMode(file.mode)
		entry, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := entry.Write(file.content); err != nil {
			return err
		}
	}
	return archive.Close()
}

// document writes SBOMs, the provenance of everything and the checksums, attaches the first two to images, and signs.
func (r *release) document(context.Context) error {
	var built *debug.BuildInfo
	for _, b := range r.boms {
		content, info, err := b.encode(r.Version)
		if err != nil {
			return err
		}
		built = info
		if err := r.write(b.name(r.Version), content); err != nil {
			return err
		}
		if b.image == nil {
			continue
		}
		if err := r.attachBOM(b, content); err != nil {
			return err
		}
	}
	if err := r.write(imagesFile, []byte(strings.Join(r.imageLines(), "\n")+"\n")); err != nil {
		return err
	}
	provenance, err := r.provenance(built)
	if err != nil {
		return err
	}
	if err := r.write(provenanceFile, provenance); err != nil {
		return err
	}
	var signed []byte
	if r.Signer != nil {
		if signed, err = r.Signer.statement(provenance); err != nil {
			return err
		}
		if err := r.write(provenanceFile+bundleSuffix, signed); err != nil {
			return err
		}
	}
	for _, repository := range r.repositories {
		for _, t := range repository.tagged {
			if err := r.attachProvenance(repository, t.descriptor, provenance, signed); err != nil {
				return err
			}
		}
	}
	return r.writeSums()
}

func (r *release) attachBOM(b bom, content []byte) error {
	to, err := r.repository(b.program)
	if err != nil {
		return err
	}
	if err := to.attach(*b.image, bomMediaType, bomMediaType, content, nil); err != nil {
		return err
	}
	predicate, err := asStruct(content)
	if err != nil {
		return err
	}
	return r.sign(to, *b.image, bomPredicate, predicate)
}

// attachProvenance attaches the provenance to an image and, with a key, the bundle of it and a signature of the image.
func (r *release) attachProvenance(to *repository, image v1.Descriptor, provenance, signed []byte) error {
	annotations := map[string]string{"in-toto.io/predicate-type": provenancePredicate}
	if err := to.attach(image, inTotoMediaType, inTotoMediaType, provenance, annotations); err != nil || signed == nil {
		return err
	}
	if err := to.attachBundle(image, signed, provenancePredicate); err != nil {
		return err
	}
	return r.sign(to, image, signPredicate, &structpb.Struct{})
}

// sign attaches a signed statement about one image, if there is a key.
func (r *release) sign(to *repository, image v1.Descriptor, predicateType string, predicate *structpb.Struct) error {
	if r.Signer == nil {
		return nil
	}
	content, err := statement([]subject{{sha256: image.Digest.Hex}}, predicateType, predicate)
	if err != nil {
		return err
	}
	bundle, err := r.Signer.statement(content)
	if err != nil {
		return err
	}
	return to.attachBundle(image, bundle, predicateType)
}

// attachBundle attaches a bundle with the annotations that cosign writes.
func (repo *repository) attachBundle(image v1.Descriptor, bundle []byte, predicateType string) error {
	return repo.attach(image, emptyMediaType, types.MediaType(bundleMediaType), bundle, map[string]string{
		"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": predicateType,
	})
}

// writeSums writes the checksums of all files, as sha256sum reads them, and signs them.
func (r *release) writeSums() error {
	var sums strings.Builder
	slices.SortFunc(r.subjects, func(a, b subject) int { return strings.Compare(a.name, b.name) })
	for _, s := range r.subjects {
		if !strings.Contains(s.name, "/") { // it is no image
			fmt.Fprintf(&sums, "%s  %s\n", s.sha256, s.name)
		}
	}
	if err := r.write(sumsFile, []byte(sums.String())); err != nil || r.Signer == nil {
		return err
	}
	bundle, err := r.Signer.file([]byte(sums.String()))
	if err != nil {
		return err
	}
	return r.write(sumsFile+bundleSuffix, bundle)
}
