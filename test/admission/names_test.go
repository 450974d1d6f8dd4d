// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"
)

// taken are the short names of kinds that a management cluster may serve beside ours, by project. kubectl takes either of two kinds
// that share a short name.
var taken = map[string]sets.Set[string]{
	"HyperShift":  sets.New("hc", "hcs", "hcp", "hcps", "np", "nps", "cpc", "cpcs"),
	"Cluster API": sets.New("cl", "cc", "ma", "md", "mdrain", "mhc", "mp", "ms", "caip", "caprov"),
	"Kubernetes": sets.New("cm", "cs", "csr", "crd", "crds", "cj", "deploy", "ds", "ep", "ev", "hpa", "ing", "limits", "netpol", "no", "ns", "pc", "pdb",
		"po", "pv", "pvc", "quota", "rc", "rs", "sa", "sc", "sts", "svc"),
}

func TestShortNames(t *testing.T) {
	var files []string
	for _, folder := range []string{"../../manifests/crds", "../../assets/crds"} {
		found, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(found).NotTo(BeEmpty(), folder)
		files = append(files, found...)
	}
	for _, file := range files {
		t.Run("When "+filepath.Base(file)+" is installed beside another project, its short names should be its own", func(t *testing.T) {
			g := NewWithT(t)
			content, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			crd := apiextensionsv1.CustomResourceDefinition{}
			g.Expect(yaml.Unmarshal(content, &crd)).To(Succeed())
			g.Expect(crd.Kind).To(Equal("CustomResourceDefinition"))
			for _, name := range crd.Spec.Names.ShortNames {
				for project, names := range taken {
					g.Expect(names.Has(name)).To(BeFalse(), "%s is %s's", name, project)
				}
			}
		})
	}
}
