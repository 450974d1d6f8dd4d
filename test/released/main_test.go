// SPDX-License-Identifier: Apache-2.0

package released

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/test/release"
	localworld "github.com/autonode-io/autonode/test/world"
)

const (
	root  = "../.."
	guest = "blue"
	// The version before is built from the same source: the two have other programs, and so other images, manifests and payloads.
	before = "v0.1.0"
	after  = "v0.1.1"
)

// world is that of all steps.
var world *localworld.World

func TestMain(m *testing.M) {
	os.Exit(localworld.RunTests(m, "released", localworld.Config{Guests: []string{guest}, WithoutAutoNode: true}, &world))
}

func newClient(t *testing.T, config *rest.Config) client.WithWatch {
	t.Helper()
	c, err := localworld.NewClient(config, apiextensionsv1.AddToScheme, clusterctlv1.AddToScheme)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return c
}

// made is a release in a folder, with its images in the world's registry.
type made struct{ version, folder string }

// prefix of the images' names.
func prefix() string { return world.Registry().Host() + "/autonode" }

// releases makes both, for this machine's platform alone.
func releases(t *testing.T) (earlier, later made) {
	t.Helper()
	g := NewWithT(t)
	credentials := t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(credentials, "config.json"), world.Registry().DockerConfigJSON(), 0o600)).To(Succeed())
	t.Setenv("DOCKER_CONFIG", credentials)
	host := release.Platform{OS: "linux", Arch: goruntime.GOARCH}
	both := []made{{before, ""}, {after, ""}}
	for i := range both {
		both[i].folder = filepath.Join(t.TempDir(), both[i].version)
		g.Expect(release.Run(t.Context(), release.Config{
			Version: both[i].version, Source: root, Output: both[i].folder, Prefix: prefix(), Push: true, AllowChanges: true,
			Kubernetes: []string{localworld.InitialRelease}, Builder: release.BuilderByHand, Out: io.Discard,
			Platforms: &release.Platforms{Images: []release.Platform{host}, Tools: []release.Platform{host}},
		})).To(Succeed())
	}
	return both[0], both[1]
}

// image is the line of images.txt of a repository: what people copy into a HostedCluster.
func (m made) image(g Gomega, repository string) string {
	content, err := os.ReadFile(filepath.Join(m.folder, "images.txt"))
	g.Expect(err).NotTo(HaveOccurred())
	line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(prefix()+"/"+repository) + `:.*$`).Find(content)
	g.Expect(line).NotTo(BeEmpty(), "images.txt has no %s", repository)
	return string(line)
}

// command runs a program as an administrator of the management cluster, and returns what it prints.
func command(t *testing.T, environment []string, program string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...) // it describes failures after the test, too
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = slices.Concat(os.Environ(), []string{"KUBECONFIG=" + world.Kubeconfig(localworld.Management)}, environment)
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s %v: %w\n%s", filepath.Base(program), args, err, out.String())
	}
	return out.String(), err
}

// kubectl runs kubectl, which has to succeed.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := command(t, nil, world.Kubectl(), args...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return out
}
