// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/internal/lenient"
)

// specimen is an image that a registry could serve.
type specimen struct {
	// layers make an ordinary image, the lowest first.
	layers func(testing.TB) []v1.Layer
	// mediaType and manifest are served as they are instead. In the manifest, LAYER, SIZE and CHILD stand for the digest and
	// the size of a good layer, and for the digest of an image that has it.
	mediaType types.MediaType
	manifest  string
	// child is the image that CHILD stands for, a good one if it is empty.
	child string
	// maxBytes is Options.MaxBytes.
	maxBytes int64
}

const (
	imageManifest = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",` +
		`"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"LAYER","size":2},"layers":[%s]}`
	goodLayer = `{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"LAYER","size":SIZE}`
	indexOf   = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}`
	goodChild = `{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"CHILD","size":2,"platform":{"os":"linux","architecture":"amd64"}}`
)

// files is the layer of a good release, with some of its files replaced.
func files(replace map[string]string) func(testing.TB) []v1.Layer {
	return entries(releaseFiles(replace)...)
}

// beside is the layer of a good release with one more file of the component's.
func beside(content func() string) func(testing.TB) []v1.Layer {
	return func(t testing.TB) []v1.Layer {
		return files(map[string]string{"0000_50_karpenter-clusterapi_x.yaml": content()})(t)
	}
}

// aCRD is beside with a CustomResourceDefinition that has one more field.
func aCRD(field func() string) func(testing.TB) []v1.Layer {
	return beside(func() string { return string(crd("xs")) + field() })
}

func entries(entries ...tarEntry) func(testing.TB) []v1.Layer {
	return func(t testing.TB) []v1.Layer { return []v1.Layer{layerOf(t, entries...)} }
}

func raw(mediaType types.MediaType, content func(testing.TB) []byte) func(testing.TB) []v1.Layer {
	return func(t testing.TB) []v1.Layer { return []v1.Layer{static.NewLayer(content(t), mediaType)} }
}

// instead is a good release whose image-references is some other kind of entry.
func instead(kind byte, link string) func(testing.TB) []v1.Layer {
	return entries(append(releaseFiles(map[string]string{imageReferences: ""}), tarEntry{name: "release-manifests/image-references", kind: kind, link: link})...)
}

// elsewhere is a good release under other names.
func elsewhere(prefix string) func(testing.TB) []v1.Layer {
	var moved []tarEntry
	for _, e := range releaseFiles(nil) {
		e.name = prefix + e.name
		moved = append(moved, e)
	}
	return entries(moved...)
}

func repeat(text string, times int) func() string {
	return func() string { return strings.Repeat(text, times) }
}

// specimens are the good, the bad and the hostile, each by what it is. What a person sees of each is in testdata/hostile.golden.
func specimens() map[string]specimen {
	return map[string]specimen{
		"a good release":                     {layers: files(nil)},
		"a good release by its manifest":     {mediaType: types.OCIManifestSchema1, manifest: fmt.Sprintf(imageManifest, goodLayer)},
		"a good release in an index":         {mediaType: types.OCIImageIndex, manifest: fmt.Sprintf(indexOf, goodChild)},
		"a CRD that uses a YAML alias":       {layers: aCRD(func() string { return "x: &x [a, b]\ny: *x\n" })},
		"other YAML than CRDs, deep":         {layers: beside(func() string { return "kind: Other\nx: " + strings.Repeat("[", 500) + strings.Repeat("]", 500) })},
		"another component's broken YAML":    {layers: files(map[string]string{"0000_50_unheard-of_x.yaml": "a: ]"})},
		"no component's versions":            {layers: files(map[string]string{imageReferences: stream(tag(component, ""))})},
		"all files twice":                    {layers: entries(append(releaseFiles(nil), releaseFiles(nil)...)...)},
		"a file with a name of a kilobyte":   {layers: entries(append(releaseFiles(nil), tarEntry{name: "release-manifests/" + strings.Repeat("x", 1024)})...)},
		"a release whose layer is a foreign": {mediaType: types.OCIManifestSchema1, manifest: fmt.Sprintf(imageManifest, strings.Replace(goodLayer, "image.layer.v1.tar", "image.layer.nondistributable.v1.tar", 1))},

		// Archives.
		"a gzip bomb":                  {layers: raw(types.OCILayer, func(t testing.TB) []byte { return bomb(t, 16<<20) }), maxBytes: 4 << 20},
		"a zstd bomb":                  {layers: raw(types.OCILayerZStd, func(t testing.TB) []byte { return zstdOf(t, make([]byte, 16<<20)) }), maxBytes: 4 << 20},
		"gzip within gzip":             {layers: raw(types.OCILayer, func(t testing.TB) []byte { return gzipped(t, gzipped(t, tarOf(t, releaseFiles(nil)...))) })},
		"gzip members without content": {layers: raw(types.OCILayer, func(t testing.TB) []byte { return bytes.Repeat(gzipped(t, nil), 100_000) })},
		"a sparse bomb":                {layers: raw(types.OCIUncompressedLayer, func(testing.TB) []byte { return sparse(9, 8<<20) })},
		"a huge manifest":              {layers: beside(repeat("#", maxFileBytes+1))},
		"a huge image-references":      {layers: files(map[string]string{imageReferences: strings.Repeat(" ", maxReferencesBytes+1)})},
		"thousands of files":           {layers: func(t testing.TB) []v1.Layer { return []v1.Layer{manyFiles(t, maxFiles+1)} }},
		"a symbolic link":              {layers: instead(tar.TypeSymlink, "/etc/passwd")},
		"a hard link":                  {layers: instead(tar.TypeLink, "release-manifests/release-metadata")},
		"a device":                     {layers: instead(tar.TypeChar, "")},
		"a pipe":                       {layers: instead(tar.TypeFifo, "")},
		"a directory":                  {layers: instead(tar.TypeDir, "")},
		"paths that lead out":          {layers: elsewhere("../")},
		"paths that lead out and back": {layers: elsewhere("release-manifests/../")},
		"paths elsewhere":              {layers: elsewhere("/var/lib/")},
		"no archive":                   {layers: raw(types.OCIUncompressedLayer, func(testing.TB) []byte { return bytes.Repeat([]byte("no tar"), 200) })},
		"half an archive":              {layers: raw(types.OCIUncompressedLayer, func(t testing.TB) []byte { return tarOf(t, releaseFiles(nil)...)[:700] })},
		"a layer of another type":      {layers: raw("application/wasm", func(testing.TB) []byte { return []byte("wasm") })},

		// Files.
		"no files":                                {layers: entries()},
		"no metadata":                             {layers: files(map[string]string{releaseMetadata: ""})},
		"a list instead of an ImageStream":        {layers: files(map[string]string{imageReferences: `{"kind":"List","apiVersion":"v1"}`})},
		"an ImageStream of thousands of tags":     {layers: files(map[string]string{imageReferences: stream(strings.Split(strings.Repeat("{}|", lenient.MaxElements)+"{}", "|")...)})},
		"an ImageStream of half a million tags":   {layers: files(map[string]string{imageReferences: `{"spec":{"Tags":[{}` + strings.Repeat(",{}", 500_000) + `]}}`})},
		"JSON that never ends its lists":          {layers: files(map[string]string{imageReferences: strings.Repeat("[", 1<<20)})},
		"text that isn't UTF-8 in JSON":           {layers: files(map[string]string{imageReferences: strings.Replace(stream(), "1.36.3", "1.36\xff", 1)})},
		"a version as long as a book":             {layers: files(map[string]string{releaseMetadata: `{"kind":"cincinnati-metadata-v0","version":"1.0.0-` + strings.Repeat("a", 1<<20) + `"}`})},
		"a kind as long as a book":                {layers: files(map[string]string{releaseMetadata: `{"kind":"` + strings.Repeat("x", 1<<20) + `"}`})},
		"a tag's name as long as a book":          {layers: files(map[string]string{imageReferences: strings.ReplaceAll(stream(tag(component, "")), component, strings.Repeat("x", 1<<20))})},
		"a component's version as long as a book": {layers: files(map[string]string{imageReferences: stream(tag(component, "kubernetes=1.0.0-"+strings.Repeat("a", 1<<20)))})},
		"a component's image as long as a book":   {layers: files(map[string]string{imageReferences: strings.Replace(stream(tag(component, "")), "registry.example", strings.Repeat("r", 1<<20), 1)})},
		"text that isn't UTF-8 in YAML":           {layers: beside(func() string { return "kind: \xff\n" })},
		"UTF-16 in YAML":                          {layers: beside(func() string { return "\xff\xfek\x00i\x00n\x00d\x00:\x00 \x00x" })},
		"a billion laughs":                        {layers: aCRD(laughs)},
		"a long laugh, often": {layers: aCRD(func() string {
			return "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [*a" + strings.Repeat(",*a", 1000) + "]\n"
		})},
		"an alias of itself":          {layers: beside(func() string { return "a: &a [*a]" })},
		"a CRD that nests deep":       {layers: aCRD(func() string { return "x: " + strings.Repeat("[", 500) + strings.Repeat("]", 500) + "\n" })},
		"YAML that nests without end": {layers: beside(repeat("[", 1<<20))},
		"a CRD of very many fields":   {layers: aCRD(func() string { return "x: [[" + strings.Repeat("[],[],\n", 60_000) + "]]" })},
		"CRDs of many fields": {layers: beside(func() string {
			return strings.Repeat("---\n"+string(crd("xs"))+"x: ["+strings.Repeat("[],", 30_000)+"]\n", 9)
		})},
		"a document too large to apply":    {layers: beside(func() string { return "kind: x\ny: " + strings.Repeat("y", maxDocumentBytes) })},
		"thousands of documents":           {layers: beside(repeat("a: b\n---\n", maxDocuments+1))},
		"too many CRDs":                    {layers: beside(tooManyCRDs)},
		"half a million previous versions": {layers: files(map[string]string{releaseMetadata: `{"kind":"cincinnati-metadata-v0","version":"1.36.3","previous":[""` + strings.Repeat(`,""`, 500_000) + `]}`})},
		"no mapping":                       {layers: beside(func() string { return "[]" })},

		// Node images.
		"node images":                         {layers: imaging(`{"architectures":{"x86_64":{"images":{"aws":{"regions":{"us-east-1":{"image":"ami-1"}}}}}}}`)},
		"node images twice":                   {layers: files(map[string]string{"0000_50_a_coreos-bootimages.yaml": "#", "0000_50_b_coreos-bootimages.yaml": "#"})},
		"node images that are no YAML":        {layers: files(map[string]string{bootImagesFile: "a: ]"})},
		"node images that are no JSON":        {layers: imaging("<html>")},
		"node images of another shape":        {layers: imaging(`{"architectures":[]}`)},
		"node images without end":             {layers: imaging(strings.Repeat("[", 1<<20))},
		"very many node images":               {layers: imaging(`{"architectures":{` + strings.Repeat(`"a":{},`, maxStreamFields) + `"b":{}}}`)},
		"a node image as long as a book":      {layers: imaging(region("us-east-1", strings.Repeat("a", 1<<20)))},
		"a node image with a line break":      {layers: imaging(region("us-east-1", `ami-1\n- evil`))},
		"a region that is a path":             {layers: imaging(region("../../etc", "ami-1"))},
		"node images too many for an object":  {layers: imaging(manyRegions())},
		"node images in a document of a bomb": {layers: files(map[string]string{bootImagesFile: "kind: ConfigMap\n" + laughs()})},

		// Manifests.
		"a manifest of schema 1":              {mediaType: types.DockerManifestSchema1Signed, manifest: `{"schemaVersion":1}`},
		"a Helm chart":                        {mediaType: types.OCIManifestSchema1, manifest: `{"schemaVersion":2,"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json"}}`},
		"a manifest of an unheard-of type":    {mediaType: "application/json", manifest: "{}"},
		"an index of another shape":           {mediaType: types.OCIImageIndex, manifest: `{"manifests":1}`},
		"an index that calls itself an image": {mediaType: types.OCIManifestSchema1, manifest: fmt.Sprintf(indexOf, goodChild)},
		"an index for other machines":         {mediaType: types.OCIImageIndex, manifest: fmt.Sprintf(indexOf, strings.ReplaceAll(goodChild, "amd64", "s390x")+","+strings.NewReplacer("amd64", "unknown", "linux", "unknown").Replace(goodChild))},
		"an index of nothing":                 {mediaType: types.OCIImageIndex, manifest: fmt.Sprintf(indexOf, "")},
		"an index of a million images":        {mediaType: types.OCIImageIndex, manifest: fmt.Sprintf(indexOf, "{}"+strings.Repeat(",{}", 1_000_000))},
		"an index whose image has no digest":  {mediaType: types.OCIImageIndex, manifest: fmt.Sprintf(indexOf, strings.ReplaceAll(goodChild, `"digest":"CHILD",`, ""))},
		"an index of what isn't there":        {mediaType: types.OCIImageIndex, manifest: fmt.Sprintf(indexOf, strings.ReplaceAll(goodChild, "CHILD", "LAYER"))},
		"an index of an index":                {mediaType: types.OCIImageIndex, manifest: fmt.Sprintf(indexOf, goodChild), child: fmt.Sprintf(indexOf, goodChild)},
		"a million layers":                    {mediaType: types.OCIManifestSchema1, manifest: fmt.Sprintf(imageManifest, "{}"+strings.Repeat(",{}", 1_000_000))},
		"two hundred layers":                  {mediaType: types.OCIManifestSchema1, manifest: fmt.Sprintf(imageManifest, goodLayer+strings.Repeat(","+goodLayer, 199))},
		"a layer without a digest":            {mediaType: types.OCIManifestSchema1, manifest: fmt.Sprintf(imageManifest, strings.Replace(goodLayer, `"digest":"LAYER",`, "", 1))},
		"a layer whose digest is a path":      {mediaType: types.OCIManifestSchema1, manifest: fmt.Sprintf(imageManifest, strings.Replace(goodLayer, "LAYER", "sha256:../../../token", 1))},
		"a layer with other content":          {mediaType: types.OCIManifestSchema1, manifest: fmt.Sprintf(imageManifest, strings.Replace(goodLayer, "LAYER", "sha256:"+strings.Repeat("0", 64), 1))},
		"a layer of less than nothing":        {mediaType: types.OCIManifestSchema1, manifest: fmt.Sprintf(imageManifest, strings.Replace(goodLayer, "SIZE", "-1", 1))},
		"a layer of an exabyte":               {mediaType: types.OCIManifestSchema1, manifest: fmt.Sprintf(imageManifest, strings.Replace(goodLayer, "SIZE", "1152921504606846976", 1))},
		"no JSON":                             {mediaType: types.OCIManifestSchema1, manifest: "<html>"},
		"JSON that nests without end":         {mediaType: types.OCIManifestSchema1, manifest: strings.Repeat("[", 1<<20)},
		"a manifest that is too long":         {mediaType: types.OCIManifestSchema1, manifest: "{}" + strings.Repeat(" ", maxManifestBytes)},
	}
}

// imaging is the layer of a good release with that stream metadata.
func imaging(stream string) func(testing.TB) []v1.Layer {
	return files(map[string]string{bootImagesFile: bootImagesOf(stream)})
}

// bootImagesOf is the file that holds stream metadata.
func bootImagesOf(stream string) string {
	return fmt.Sprintf("kind: ConfigMap\napiVersion: v1\nmetadata: {name: coreos-bootimages}\ndata:\n  stream: %q\n", stream)
}

func region(name, image string) string {
	return fmt.Sprintf(`{"architectures":{"x86_64":{"images":{"aws":{"regions":{%q:{"image":"%s"}}}}}}}`, name, image)
}

func manyRegions() string {
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, `"r%d":{"image":"%s"},`, i, strings.Repeat("a", 200))
	}
	return `{"architectures":{"x86_64":{"images":{"aws":{"regions":{` + b.String() + `"last":{"image":"ami-1"}}}}}}}`
}

func laughs() string {
	var b strings.Builder
	b.WriteString("l0: &l0 [ha, ha]\n")
	for i := 1; i < 30; i++ {
		fmt.Fprintf(&b, "l%d: &l%d [*l%d, *l%d]\n", i, i, i-1, i-1)
	}
	return b.String()
}

func tooManyCRDs() string {
	var b strings.Builder
	for i := range maxCRDs + 1 {
		fmt.Fprintf(&b, "---\n%s", crd(fmt.Sprintf("x%03d", i)))
	}
	return b.String()
}

func manyFiles(t testing.TB, n int) v1.Layer {
	t.Helper()
	many := make([]tarEntry, n)
	for i := range many {
		many[i].name = fmt.Sprintf("release-manifests/%d", i)
	}
	return layerOf(t, many...)
}

// sparse is an archive of files that are nothing but a hole, which takes no bytes there. archive/tar reads such, but doesn't write them.
func sparse(files int, size int64) []byte {
	var b bytes.Buffer
	entry := func(name string, kind byte, content string) {
		block := make([]byte, 512)
		copy(block, name)
		copy(block[100:], "0000644\x00")
		copy(block[124:], fmt.Sprintf("%011o\x00", len(content)))
		copy(block[148:], strings.Repeat(" ", 8))
		block[156] = kind
		copy(block[257:], "ustar\x0000")
		sum := 0
		for _, c := range block {
			sum += int(c)
		}
		copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
		b.Write(block)
		b.WriteString(content)
		b.Write(make([]byte, (512-len(content)%512)%512))
	}
	for i := range files {
		var records strings.Builder
		for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", fmt.Sprintf("GNU.sparse.name=release-manifests/0000_50_a_%d.yaml", i), fmt.Sprintf("GNU.sparse.realsize=%d", size)} {
			n := len(r) + 2 // the blank and the newline
			for length := n; ; length++ {
				if line := fmt.Sprintf("%d %s\n", length, r); len(line) == length {
					records.WriteString(line)
					break
				}
			}
		}
		entry("x", tar.TypeXHeader, records.String())
		entry("hole", tar.TypeReg, "0\n"+strings.Repeat("\x00", 510)) // a map of no data
	}
	b.Write(make([]byte, 1024))
	return b.Bytes()
}

// fill writes digests and sizes into a specimen's manifests.
func (c specimen) fill(layer []byte) (top, child []byte) {
	if c.child == "" {
		c.child = fmt.Sprintf(imageManifest, goodLayer)
	}
	about := []string{"LAYER", digestOf(layer), "SIZE", fmt.Sprint(len(layer))}
	child = []byte(strings.NewReplacer(about...).Replace(c.child))
	return []byte(strings.NewReplacer(append(about, "CHILD", digestOf(child))...).Replace(c.manifest)), child
}

func digestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// serve puts the specimen into a registry, which serves some of them only unwillingly.
func (c specimen) serve(t testing.TB, s *server) (ref string) {
	t.Helper()
	ref = s.host + "/release:1"
	if c.layers != nil {
		tag, err := name.NewTag(ref)
		if err == nil {
			err = remote.Write(tag, imageOf(t, c.layers(t)...), remote.WithNondistributable)
		}
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	layer := tarOf(t, releaseFiles(nil)...)
	top, child := c.fill(layer)
	s.onRequest(func(w http.ResponseWriter, req *http.Request) bool {
		switch {
		case strings.HasSuffix(req.URL.Path, "/manifests/1"):
			w.Header().Set("Content-Type", string(c.mediaType))
			_, _ = w.Write(top)
		case strings.HasSuffix(req.URL.Path, "/manifests/"+digestOf(child)):
			w.Header().Set("Content-Type", "application/json") // it declares itself what it is
			_, _ = w.Write(child)
		case strings.Contains(req.URL.Path, "/blobs/"):
			_, _ = w.Write(layer)
		default:
			return false
		}
		return true
	})
	return ref
}

const golden = "testdata/hostile.golden"

var (
	update    = flag.Bool("update", false, "write the golden file")
	anyDigest = regexp.MustCompile(`[0-9a-f]{64}`)
)

// TestHostile shows what a person sees of every specimen, and that none takes more memory than a good release may.
func TestHostile(t *testing.T) {
	// What is allocated in all, garbage and the test's own registry included; those that are stopped by a bound come near to it.
	const maxAllocated = 256 << 20

	want, got := map[string]string{}, map[string]string{}
	if content, err := os.ReadFile(golden); err == nil {
		for line := range strings.Lines(string(content)) {
			name, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			want[name] = text
		}
	} else if !*update {
		t.Fatal(err)
	}
	all := specimens()
	for name, c := range all {
		t.Run("When it is "+name+", it should be read, or refused within the bounds", func(t *testing.T) {
			g := NewWithT(t)
			s := newServer(t, nil)
			ref := c.serve(t, s)
			var before, after goruntime.MemStats
			goruntime.ReadMemStats(&before)
			release, err := Read(t.Context(), ref, Options{MaxBytes: c.maxBytes, Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}})
			goruntime.ReadMemStats(&after)
			g.Expect(after.TotalAlloc-before.TotalAlloc).To(BeNumerically("<", maxAllocated), "bytes allocated")
			text := ""
			if err != nil {
				text = fmt.Sprintf("%s: %s", ReasonFor(err), err)
				text = anyDigest.ReplaceAllString(strings.ReplaceAll(text, s.host, "registry.example"), "…")
			} else {
				text = "release " + release.Version
				_, missing := release.Component("missing")
				g.Expect(missing).To(MatchError(Not(MatchRegexp("x{201}"))))
			}
			g.Expect(text).NotTo(MatchRegexp("a{201}|r{201}|x{201}"), "a message quotes at most 200 bytes of a payload's words")
			got[name] = text
			if !*update {
				g.Expect(cmp.Diff(want[name], text)).To(BeEmpty())
			}
		})
	}
	for name := range want {
		if _, ok := all[name]; !ok && !*update {
			t.Errorf("%s has %q, which is no specimen", golden, name)
		}
	}
	if *update {
		var lines strings.Builder
		for _, name := range slices.Sorted(maps.Keys(got)) {
			fmt.Fprintf(&lines, "%s: %s\n", name, got[name])
		}
		if err := os.WriteFile(golden, []byte(lines.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// FuzzRead reads an image of one layer from a registry that serves whatever it likes.
func FuzzRead(f *testing.F) {
	good := tarOf(f, releaseFiles(nil)...)
	for _, c := range specimens() {
		if c.layers == nil && len(c.manifest) < 16<<10 {
			f.Add(string(c.mediaType), c.manifest, good)
		}
		if c.layers == nil {
			continue
		}
		for _, layer := range c.layers(f) {
			blob, err := layer.Compressed()
			if err != nil {
				f.Fatal(err)
			}
			content, err := io.ReadAll(blob)
			if err != nil {
				f.Fatal(err)
			}
			if len(content) < 16<<10 {
				f.Add(string(types.OCIManifestSchema1), fmt.Sprintf(imageManifest, goodLayer), content)
			}
		}
	}
	known := []Reason{ReasonImageNotFound, ReasonRegistryUnreachable, ReasonPayloadMalformed, ReasonPayloadTooLarge}
	f.Fuzz(func(t *testing.T, mediaType, manifest string, layer []byte) {
		top, child := specimen{manifest: manifest}.fill(layer)
		shelf := &shelf{mediaType: mediaType, top: top, child: child, layer: layer}
		release, err := Read(t.Context(), "registry.example/release:1", Options{Transport: shelf, MaxBytes: 1 << 20})
		// To know whether its digest is right, a little more is read of a layer than is used.
		if shelf.pulled > maxManifestBytes {
			t.Errorf("pulled %d bytes of layers", shelf.pulled)
		}
		var e *Error
		switch {
		case err == nil:
			checkRelease(t, release)
		case !errors.As(err, &e) || !strings.Contains(fmt.Sprint(known), string(e.Reason)):
			t.Errorf("unexpected kind of error: %v", err)
		case len(err.Error()) > 2000 || !utf8.ValidString(err.Error()) || strings.Contains(err.Error(), "\n"):
			t.Errorf("unfit for a condition: %q", err)
		}
	})
}

func checkRelease(t *testing.T, release *Release) {
	t.Helper()
	if len(release.Version) > maxVersionBytes || len(release.Names) > lenient.MaxElements {
		t.Errorf("version %q, %d names", release.Version, len(release.Names))
	}
	if err := release.NodeImages.check(); err != nil {
		t.Errorf("node images: %v", err)
	}
	for name, c := range release.Components {
		if len(c.Image) > maxReferenceBytes || !strings.Contains(c.Image, "@sha256:") {
			t.Errorf("component %q has image %q", name, c.Image)
		}
		if len(c.CRDs) > maxCRDs {
			t.Errorf("component %q has %d CRDs", name, len(c.CRDs))
		}
		if version, err := c.NodeVersion(); err == nil && len(version) > maxVersionBytes {
			t.Errorf("component %q has version %q", name, version)
		}
	}
}

// shelf is a registry with one image, without a network.
type shelf struct {
	mediaType         string
	top, child, layer []byte
	pulled            int
}

func (s *shelf) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := &http.Response{Request: req, Header: http.Header{}, StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	var content []byte
	switch {
	case req.URL.Path == "/v2/":
	case strings.HasSuffix(req.URL.Path, "/manifests/1"):
		resp.Header.Set("Content-Type", s.mediaType)
		content = s.top
	case strings.HasSuffix(req.URL.Path, "/manifests/"+digestOf(s.child)):
		resp.Header.Set("Content-Type", string(types.OCIManifestSchema1))
		content = s.child
	case strings.Contains(req.URL.Path, "/blobs/"):
		resp.Body = io.NopCloser(io.TeeReader(bytes.NewReader(s.layer), s))
		return resp, nil
	default:
		resp.StatusCode = http.StatusNotFound
	}
	resp.Body = io.NopCloser(bytes.NewReader(content))
	return resp, nil
}

// Write counts what is read of the layer.
func (s *shelf) Write(p []byte) (int, error) {
	s.pulled += len(p)
	return len(p), nil
}
