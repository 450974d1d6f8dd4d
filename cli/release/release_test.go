// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/printer/printertest"
	"github.com/autonode-io/autonode/payload"
)

const someImage = "registry.example/karpenter-clusterapi@sha256:1111111111111111111111111111111111111111111111111111111111111111"

// release runs `autonode release` with the arguments.
func release(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	// Hide the developer's own registry credentials.
	t.Setenv("HOME", t.TempDir())
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	var out bytes.Buffer
	cmd := NewCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append([]string{}, args...)) // nil would be the arguments of the test's own process
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const nodePools = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: nodepools.karpenter.sh
spec:
  group: karpenter.sh
  names: {kind: NodePool, plural: nodepools}
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
  - {name: v1beta1, served: false, storage: false, schema: {openAPIV3Schema: {type: object}}}
`

// releases is a registry, and what `autonode release` needs to push a payload to it.
type releases struct {
	// host is the registry's.
	host string
	// dir holds config, the registry's credentials, and crds, a folder with a CustomResourceDefinition.
	dir, config, crds string
	// target is the image that payloads are pushed to.
	target string
}

// credentials are those that the registry requests.
var credentials = authn.AuthConfig{Username: "releaser", Password: "secret"}

// startRegistry starts a registry, and returns its host.
func startRegistry(t *testing.T) string {
	t.Helper()
	silent := log.New(io.Discard, "", 0) // clients that try HTTPS first
	handler := registry.New(registry.Logger(silent))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if username, password, _ := r.BasicAuth(); username != credentials.Username || password != credentials.Password {
			w.Header().Set("WWW-Authenticate", `Basic realm="releases"`)
			http.Error(w, "authentication required", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = silent
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func startReleases(t *testing.T) releases {
	t.Helper()
	host := startRegistry(t)
	config, err := json.Marshal(map[string]any{"auths": map[string]any{host: credentials}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	pullSecret := write(t, filepath.Join(dir, "pull-secret.json"), string(config))
	crds := filepath.Join(dir, "crds")
	if err := os.Mkdir(crds, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(crds, "nodepools.yaml"), nodePools)
	write(t, filepath.Join(crds, "README.md"), "not a manifest")
	return releases{host: host, dir: dir, config: pullSecret, crds: crds, target: host + "/autonode/release:1.36.3"}
}

// create runs `autonode release new` with two components and their CRDs.
func (r releases) create(t *testing.T, extra ...string) (stdout string, err error) {
	t.Helper()
	return release(t, append([]string{"new", "--version", "v1.36.3", "--previous", "1.36.2,1.36.1",
		"--component", "karpenter-clusterapi=" + someImage, "--component", "other=" + someImage,
		"--component-version", "karpenter-clusterapi:kubernetes=v1.36.3", "--component-version", "karpenter-clusterapi:karpenter=1.14.1",
		"--crds", "karpenter-clusterapi=" + r.crds, "--registry-config", r.config, r.target}, extra...)...)
}

func TestRelease(t *testing.T) {
	r := startReleases(t)

	t.Run("When a payload is made, it should print it by digest, and inspect should show it in each form", func(t *testing.T) {
		g := NewWithT(t)
		out, err := r.create(t)
		g.Expect(err).NotTo(HaveOccurred())
		ref := strings.TrimSpace(out)
		g.Expect(ref).To(MatchRegexp("^" + r.host + "/autonode/release@sha256:[0-9a-f]{64}$"))
		_, digest, _ := strings.Cut(ref, "@")

		out, err = release(t, "inspect", r.target, "--registry-config", r.config)
		g.Expect(err).NotTo(HaveOccurred())
		want := `Version:        1.36.3
Image:          ` + ref + `
Upgrades from:  1.36.1, 1.36.2

COMPONENT             VERSIONS                             CRDS  PLATFORMS  IMAGE
karpenter-clusterapi  karpenter 1.14.1, kubernetes 1.36.3  1     -          ` + someImage + `
other                 -                                    0     -          ` + someImage + `

CRD                     VERSIONS     COMPONENT
nodepools.karpenter.sh  v1, v1beta1  karpenter-clusterapi
`
		g.Expect(cmp.Diff(want, out)).To(BeEmpty())

		shown := view{Version: "1.36.3", Previous: []string{"1.36.1", "1.36.2"}, Image: ref, Digest: digest, Components: map[string]componentView{
			"karpenter-clusterapi": {Image: someImage, Versions: map[string]string{"karpenter": "1.14.1", "kubernetes": "1.36.3"},
				CRDs: []crdView{{Name: "nodepools.karpenter.sh", Versions: []string{"v1", "v1beta1"}}}},
			"other": {Image: someImage},
		}}
		var got view
		out, err = release(t, "inspect", ref, "--registry-config", r.config, "-o", "json")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(json.Unmarshal([]byte(out), &got)).To(Succeed())
		g.Expect(cmp.Diff(shown, got)).To(BeEmpty())
		got = view{}
		out, err = release(t, "inspect", ref, "--registry-config", r.config, "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(yaml.UnmarshalStrict([]byte(out), &got)).To(Succeed())
		g.Expect(cmp.Diff(shown, got)).To(BeEmpty())

		g.Expect(release(t, "inspect", r.target, "--registry-config", r.config, "-o", "name")).To(Equal(ref + "\n"))
	})

	t.Run("When a payload is made again, it should have the same digest", func(t *testing.T) {
		g := NewWithT(t)
		first, err := r.create(t)
		g.Expect(err).NotTo(HaveOccurred())
		second, err := r.create(t)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(second).To(Equal(first))
	})

	t.Run("When new is run with -o json, it should print the payload's contents", func(t *testing.T) {
		g := NewWithT(t)
		out, err := r.create(t, "-o", "json")
		g.Expect(err).NotTo(HaveOccurred())
		var got view
		g.Expect(json.Unmarshal([]byte(out), &got)).To(Succeed())
		g.Expect(got.Components).To(HaveKey("karpenter-clusterapi"))
	})

	t.Run("When node images are given, inspect should show them", func(t *testing.T) {
		g := NewWithT(t)
		ref, err := r.create(t, "--node-image", "amd64/aws/us-east-1=ami-1", "--node-image", "amd64/aws/us-west-2=ami-2",
			"--node-image", "arm64/kubevirt=quay.example/node:1")
		g.Expect(err).NotTo(HaveOccurred())
		out, err := release(t, "inspect", strings.TrimSpace(ref), "--registry-config", r.config)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(HaveSuffix(`
NODE IMAGE  INFRASTRUCTURE  IMAGE
amd64       aws             2, by region or format; see -o yaml
arm64       kubevirt        quay.example/node:1
`))
		out, err = release(t, "inspect", strings.TrimSpace(ref), "--registry-config", r.config, "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		var got view
		g.Expect(yaml.UnmarshalStrict([]byte(out), &got)).To(Succeed())
		g.Expect(got.NodeImages).To(Equal(payload.NodeImages{
			"amd64": {"aws": {"us-east-1": "ami-1", "us-west-2": "ami-2"}}, "arm64": {"kubevirt": {"": "quay.example/node:1"}},
		}))
	})

	t.Run("When a component is given by tag, it should be pinned to its digest, and inspect should show its platform", func(t *testing.T) {
		g := NewWithT(t)
		img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "arm64"})
		g.Expect(err).NotTo(HaveOccurred())
		tag, err := name.NewTag(r.host + "/autonode/karpenter-clusterapi:dev")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(remote.Write(tag, img, remote.WithContext(t.Context()), remote.WithAuth(authn.FromConfig(credentials)))).To(Succeed())
		digest, err := img.Digest()
		g.Expect(err).NotTo(HaveOccurred())
		out, err := release(t, "new", "--version", "1.0.0", "--component", "a="+tag.Name(), "--registry-config", r.config, r.target, "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("image: " + tag.Digest(digest.String()).Name()))
		out, err = release(t, "inspect", "--registry-config", r.config, r.target, "-o", "yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("- linux/arm64\n"))
	})
}

func TestReleaseErrors(t *testing.T) {
	r := startReleases(t)
	target, dir, config, crds := r.target, r.dir, r.config, r.crds
	minimal := []string{"--version", "1.0.0", "--component", "a=" + someImage}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"When new has no target, it should say what that is": {append([]string{"new"}, minimal...), "TARGET is missing: the image to push to"},
		"When there is no component, it should say so":       {[]string{"new", "--version", "1.0.0", target}, `--component is missing`},
		"When the version is none, it should say so": {[]string{"new", "--version", "new", "--component", "a=" + someImage,
			target}, `version "new" is no semantic version`},
		"When a component is given twice, it should say which": {append([]string{"new", "--component", "a=" + someImage, target}, minimal...), "--component a is given twice"},
		"When a version is given twice, it should say which": {append([]string{"new", "--component-version", "a:b=1.0.0",
			"--component-version", "a:b=1.0.1", target}, minimal...), "a:b is given twice"},
		"When a version is of another component, it should say so": {append([]string{"new", "--component-version", "b:c=1.0.0", target}, minimal...), "there is no --component b="},
		"When CRDs are of another component, it should say so":     {append([]string{"new", "--crds", "b=" + crds, target}, minimal...), "there is no --component b="},
		"When a node image is given twice, it should say which": {append([]string{"new", "--node-image", "amd64/aws/a=1",
			"--node-image", "amd64/aws/a=2", target}, minimal...), "amd64/aws/a is given twice"},
		"When a node image can't be said in a payload, it should say so": {append([]string{"new", "--node-image", "amd64/kubevirt/eu=node:1", target}, minimal...), "kubevirt one image"},
		"When CRDs have no path, it should show the form":                {append([]string{"new", "--crds", "b", target}, minimal...), "must be NAME=PATH"},
		"When a folder has no CRDs, it should say so":                    {append([]string{"new", "--crds", "a=" + t.TempDir(), target}, minimal...), "has no .yaml, .yml or .json file"},
		"When new's output has no such form, it should say so":           {append([]string{"new", target, "-o", "table"}, minimal...), `the output format "table", allowed formats are: json,yaml,name,wide`},
		"When there are no credentials, it should say how to get them":   {[]string{"inspect", target}, "docker login " + r.host},
		"When the registry config isn't there, it should name it":        {[]string{"inspect", target, "--registry-config", "/nowhere"}, "--registry-config: open /nowhere"},
		"When the registry config lacks the registry, it should name both": {[]string{"inspect", target, "--registry-config", write(t, filepath.Join(dir, "empty.json"), `{"auths":{}}`)},
			"add or correct the entry for " + r.host + " in " + filepath.Join(dir, "empty.json")},
		"When the payload isn't there, it should say so": {[]string{"inspect", target + "4", "--registry-config", config}, "404 Not Found"},
		"When the timeout is none, it should say so":     {[]string{"inspect", target, "--timeout", "0s"}, "--timeout must be more than 0"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := release(t, c.args...)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(c.want)))
		})
	}
}

func TestReleaseHelp(t *testing.T) {
	t.Run("When a command is run with --help, it should have an example", func(t *testing.T) {
		g := NewWithT(t)
		for _, cmd := range NewCommand().Commands() {
			g.Expect(cmd.Example).To(ContainSubstring("autonode release "+cmd.Name()), cmd.Name())
		}
		out, err := release(t)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("inspect"))
	})
}

func TestHostileOutput(t *testing.T) {
	const hostile = printertest.Hostile
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: hostile},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: hostile}}}}
	release := &payload.Release{Version: hostile, Previous: []string{hostile}, Image: hostile, Digest: hostile,
		Components: map[string]payload.Component{hostile: {Image: hostile, Versions: map[string]string{hostile: hostile}, CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}}},
		NodeImages: payload.NodeImages{hostile: {hostile: {hostile: hostile}}}}
	for _, output := range append(printer.Formats, "") {
		printertest.Harmless(t, "release inspect -o "+output, func(out io.Writer) error { return viewOf(release).print(out, output) })
	}
}
