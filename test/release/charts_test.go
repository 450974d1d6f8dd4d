// SPDX-License-Identifier: Apache-2.0

package release

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	. "github.com/onsi/gomega"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/test/charts"
)

// testCharts is about the charts of a release that was pushed.
func testCharts(t *testing.T, m made) {
	operator := m.digest(t, operatorProgram, m.Version).Name()
	for _, program := range []string{charts.Helm4, charts.Helm3} {
		t.Run("When a chart is pulled by "+program+", it should be the release's, and name the operator's image by digest", func(t *testing.T) {
			g := NewWithT(t)
			helm, err := charts.NewHelm(t.Context(), sourceRoot, program, t.TempDir())
			g.Expect(err).NotTo(HaveOccurred())
			for _, chart := range []string{charts.CRDs, charts.Operator} {
				folder := t.TempDir()
				_, err := helm.Run(t.Context(), "pull", "oci://"+path.Join(m.Prefix, chartsFolder, chart), "--version", "0.1.0", "--plain-http", "--destination", folder)
				g.Expect(err).NotTo(HaveOccurred())
				file := filepath.Join(folder, chart+"-0.1.0.tgz")
				pulled, err := os.ReadFile(file)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(pulled).To(Equal(m.read(t, chart+"-0.1.0.tgz")))
				out, err := helm.Run(t.Context(), "lint", "--strict", charts.KubeVersion, file)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(out).To(ContainSubstring("0 chart(s) failed"))
				rendered, err := helm.Run(t.Context(), "template", "autonode", charts.KubeVersion, file)
				g.Expect(err).NotTo(HaveOccurred())
				if chart == charts.Operator {
					g.Expect(rendered).To(And(ContainSubstring("image: "+operator+"\n"), ContainSubstring("helm.sh/chart: autonode-0.1.0\n")))
				}
			}
		})
	}
}

// testComponents is about what clusterctl and the Cluster API Operator read.
func testComponents(t *testing.T, m made) {
	g := NewWithT(t)
	metadata := &clusterctlv1.Metadata{}
	g.Expect(yaml.UnmarshalStrict(m.read(t, metadataFile), metadata)).To(Succeed())
	series := metadata.GetReleaseSeriesForVersion(utilversion.MustParseSemantic(m.Version))
	g.Expect(series).To(HaveField("Contract", "v1beta2"))
	// What clusterctl is to delete has other names, and nothing else differs.
	components, install := string(m.read(t, componentsFile)), string(m.read(t, installFile))
	g.Expect(strings.Count(components, "name: autonode-system-operator\n")).To(Equal(3))
	g.Expect(strings.ReplaceAll(components, "autonode-system-operator", operatorProgram)).To(Equal(install))

	ref, err := name.ParseReference(m.Prefix + "/" + componentsRepository + ":" + m.Version)
	g.Expect(err).NotTo(HaveOccurred())
	manifest, files := pull(t, ref)
	// The operator of Cluster API takes files by these titles.
	got := map[string]string{}
	for i, content := range files {
		got[manifest.Layers[i].Annotations["org.opencontainers.image.title"]] = string(content)
	}
	g.Expect(got).To(Equal(map[string]string{"metadata.yaml": string(m.read(t, metadataFile)), "components.yaml": components}))
}

func TestSeries(t *testing.T) {
	t.Run("When metadata.yaml lacks the version's series, it should say what to add", func(t *testing.T) {
		c := config(t, "")
		c.Version = "v7.8.9"
		NewWithT(t).Expect(Run(t.Context(), c)).To(MatchError(ContainSubstring("manifests/clusterctl/metadata.yaml has no series 7.8; add it")))
	})
	t.Run("When a chart lacks what a release sets, it should name it", func(t *testing.T) {
		g := NewWithT(t)
		c := config(t, "")
		file := filepath.Join(c.Source, "charts", "autonode", "Chart.yaml")
		content, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(os.WriteFile(file, []byte(strings.ReplaceAll(string(content), "version: 0.0.0", "version: 1.0.0")), 0o600)).To(Succeed())
		c.AllowChanges = true
		g.Expect(Run(t.Context(), c)).To(MatchError(ContainSubstring("Chart.yaml has")))
	})
}
