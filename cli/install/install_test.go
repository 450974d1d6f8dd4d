// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/clitest"
	"github.com/autonode-io/autonode/cli/install"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/manifests"
	"github.com/autonode-io/autonode/operator"
)

var server clitest.Server

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// newCommand returns the command of a build for development.
func newCommand() *cobra.Command {
	return install.NewCommand("", install.Operator{CheckArguments: operator.CheckArguments, CheckSettings: operator.CheckSettings})
}

func TestInstallRender(t *testing.T) {
	settings := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(settings, []byte("logLevel: debug\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(t.TempDir(), "wrong.yaml")
	if err := os.WriteFile(wrong, []byte("logs: debug\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("When it renders, it should print what an overlay makes, and connect to nothing", func(t *testing.T) {
		g := NewWithT(t)
		out, err := clitest.Run(t, newCommand(), "--render", "--kubeconfig", "none", "--image",
			"registry.example/operator@sha256:"+strings.Repeat("0123", 16), "--karpenter-settings", settings,
			"--operator-arg=--registry-networks=10.20.0.0/16", "--pull-secret=registry", "--monitoring")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(And(
			ContainSubstring("name: hostedclusters.autonode.io"), ContainSubstring("image: registry.example/operator@sha256:"+strings.Repeat("0123", 16)),
			ContainSubstring("- --registry-networks=10.20.0.0/16"), ContainSubstring("- --karpenter-settings=/etc/karpenter/settings.yaml"),
			MatchRegexp(`imagePullSecrets:\n +- name: registry\n`), ContainSubstring("logLevel: debug"),
			MatchRegexp(`configMap:\n +name: karpenter-settings-`), ContainSubstring("kind: PrometheusRule"),
		))
	})
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"When the name of a pull secret can't be one, it should say so": {[]string{"--pull-secret=a,b"}, `pull secret "a,b": a lowercase RFC 1123 subdomain`},
		"When an argument has two flags, it should reject it":           {[]string{"--operator-arg=--log-level debug"}, `isn't a flag of the operator`},
		"When the settings are an argument, it should name the flag": {[]string{"--operator-arg=--karpenter-settings=x"},
			"name the file with `autonode install --karpenter-settings`"},
		"When the operator has no such flag, it should say so": {[]string{"--operator-arg=--registry-network=10.0.0.0/8"},
			"the operator would reject it: unknown flag: --registry-network; docs/platform/settings.md has its flags"},
		"When the operator would reject settings, it should say why": {[]string{"--karpenter-settings", wrong}, wrong + `: unknown field "logs"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := clitest.Run(t, newCommand(), append([]string{"--render", "--image", "registry.example/operator:v1"}, test.args...)...)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

func TestUninstallRefusal(t *testing.T) {
	g := NewWithT(t)
	server.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "clusters"}})
	server.MakeCluster(t, "clusters-blue", "blue")
	_, _, err := server.CreateHostedCluster(t, "--cluster", "clusters-blue/blue", "--namespace", "clusters", "--release", clitest.PayloadImage)
	g.Expect(err).NotTo(HaveOccurred())
	hc := &v1beta1.HostedCluster{}
	g.Expect(server.Admin.Get(t.Context(), client.ObjectKey{Namespace: "clusters", Name: "blue"}, hc)).To(Succeed())
	uninstall := func(args ...string) error {
		_, err := clitest.Run(t, install.NewUninstallCommand(), append([]string{"--kubeconfig", server.Kubeconfig}, args...)...)
		return err
	}
	t.Run("When the number of nodes isn't known, it should refuse", func(t *testing.T) {
		NewWithT(t).Expect(uninstall()).To(MatchError(ContainSubstring("clusters/blue (unknown)")))
	})
	hc.Status.AutoNode = &v1beta1.AutoNodeStatus{NodeCount: ptr.To(int32(3)), NodeClaimCount: ptr.To(int32(4))}
	g.Expect(server.Admin.Status().Update(t.Context(), hc)).To(Succeed())
	t.Run("When there are nodes, it should refuse as the documentation shows", func(t *testing.T) {
		var out strings.Builder
		printer.Error(&out, uninstall())
		clitest.Shown(t, "docs/reference/cli/install.md", "autonode uninstall", out.String())
	})
	t.Run("When the CRDs are to go and HostedClusters exist, no flag should help", func(t *testing.T) {
		NewWithT(t).Expect(uninstall("--delete-crds", "--leave-nodes")).To(MatchError(ContainSubstring("leave out --delete-crds")))
	})
}

func TestUninstallElsewhere(t *testing.T) {
	g := NewWithT(t)
	objects, err := manifests.Render(manifests.Options{Image: manifests.Operator + ":any"})
	g.Expect(err).NotTo(HaveOccurred())
	installer := &install.Installer{Management: server.Admin, Out: io.Discard}
	t.Run("When a cluster has HostedClusters' CRD, it should be a management cluster", func(t *testing.T) {
		NewWithT(t).Expect(installer.Found(t.Context(), objects)).To(BeTrue())
	})
	t.Run("When it has neither that nor the operator's Deployment, it should be none, and uninstall not claim success", func(t *testing.T) {
		// This API server has the CRD, which a guest's hasn't.
		others := slices.DeleteFunc(objects, func(object *unstructured.Unstructured) bool { return object.GetKind() == "CustomResourceDefinition" })
		NewWithT(t).Expect(installer.Found(t.Context(), others)).To(BeFalse())
	})
}
