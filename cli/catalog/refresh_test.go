// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/clitest"
)

var server clitest.Server

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// offered is a catalog with what no price list states: labels, overhead, and a reserved offering.
const offered = `
apiVersion: karpenter.cluster.x-k8s.io/v1alpha1
kind: InstanceTypeCatalog
metadata: {name: general, labels: {tier: general}}
spec:
  templateRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: TestMachineTemplate, name: general}
  patches: [{op: add, path: /spec/size, valueFrom: {variable: instanceType}}]
  instanceTypes:
    - name: small
      capacity: {cpu: 2, memory: 4Gi}
      labels: {example.com/rack: r1}
      overhead: {kubeReserved: {cpu: 70m}}
      offerings:
        - {zones: [a, b], capacityType: on-demand, price: "0.02"}
        - {zones: [a], capacityType: reserved, price: "0.01", reservation: {id: lease-7, count: 3}}
    - name: large
      capacity: {cpu: 8, memory: 32Gi}
      offerings: [{zones: [a], price: "0.2"}]
`

// refreshing is a catalog in a namespace of its own, and the command that refreshes it.
type refreshing struct{ namespace string }

func startRefreshing(t *testing.T, name string) refreshing {
	t.Helper()
	g := NewWithT(t)
	namespace := &corev1.Namespace{}
	namespace.Name = name
	g.Expect(server.Admin.Create(t.Context(), namespace)).To(Succeed())
	r := refreshing{namespace: name}
	r.create(t, "general")
	return r
}

func (r refreshing) create(t *testing.T, name string) {
	t.Helper()
	g := NewWithT(t)
	c := &v1alpha1.InstanceTypeCatalog{}
	g.Expect(yaml.UnmarshalStrict([]byte(offered), c)).To(Succeed())
	c.Namespace, c.Name = r.namespace, name
	g.Expect(server.Admin.Create(t.Context(), c)).To(Succeed())
}

func (r refreshing) catalog(t *testing.T) *v1alpha1.InstanceTypeCatalog {
	t.Helper()
	c := &v1alpha1.InstanceTypeCatalog{}
	NewWithT(t).Expect(server.Admin.Get(t.Context(), client.ObjectKey{Namespace: r.namespace, Name: "general"}, c)).To(Succeed())
	return c
}

// refresh imports a table into the catalog.
func (r refreshing) refresh(t *testing.T, table string, args ...string) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "types.csv")
	NewWithT(t).Expect(os.WriteFile(path, []byte("name,cpu,memory,zones,capacityType,price\n"+table), 0o600)).To(Succeed())
	out, _, err := catalogCommand(t, append([]string{"refresh", "csv", "--kubeconfig", server.Kubeconfig, "-n", r.namespace, "--name", "general", "-f", path}, args...)...)
	return out, err
}

const (
	samePrices = "small,2,4Gi,a b,on-demand,0.02\nlarge,8,32Gi,a,,0.2\n"
	newPrices  = "small,2,4Gi,a b,on-demand,0.03\nlarge,8,32Gi,a,,0.1\nhuge,64,256Gi,a,,1.6\n"
)

func TestCatalogRefresh(t *testing.T) {
	t.Run("When prices have changed, it should write those, and keep what the catalog declares itself", func(t *testing.T) {
		g := NewWithT(t)
		r := startRefreshing(t, "refresh-prices")
		out, err := r.refresh(t, newPrices)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(Equal("+ huge\n~ large: offerings: 1 cheaper\n~ small: offerings: 2 dearer\n1 added, 0 removed, 2 changed; no node is replaced\n" +
			"instancetypecatalog.karpenter.cluster.x-k8s.io/general patched\n"))
		want := &v1alpha1.InstanceTypeCatalog{}
		g.Expect(yaml.UnmarshalStrict([]byte(strings.NewReplacer(`"0.02"`, `"0.03"`, `"0.2"`, `"0.1", capacityType: on-demand`).Replace(offered)), want)).To(Succeed())
		got := r.catalog(t)
		g.Expect(got.Labels).To(Equal(want.Labels))
		g.Expect(got.Spec.TemplateRef).To(Equal(want.Spec.TemplateRef))
		g.Expect(got.Spec.Patches).To(Equal(want.Spec.Patches))
		byName := map[string]v1alpha1.CatalogInstanceType{}
		for _, entry := range got.Spec.InstanceTypes {
			byName[entry.Name] = entry
		}
		g.Expect(byName).To(HaveKeyWithValue("small", want.Spec.InstanceTypes[0]))
		g.Expect(byName).To(HaveKeyWithValue("large", want.Spec.InstanceTypes[1]))
		g.Expect(byName).To(And(HaveLen(3), HaveKey("huge")))

		out, err = r.refresh(t, newPrices)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(HaveSuffix("0 added, 0 removed, 0 changed; no node is replaced\ninstancetypecatalog.karpenter.cluster.x-k8s.io/general unchanged\n"))
		g.Expect(r.catalog(t).ResourceVersion).To(Equal(got.ResourceVersion), "the second time it writes nothing")
	})
	t.Run("When a price list lacks most of what is offered, it should write nothing until a flag confirms it", func(t *testing.T) {
		g := NewWithT(t)
		r := startRefreshing(t, "refresh-incomplete")
		before := r.catalog(t)
		_, err := r.refresh(t, "small,2,4Gi,a b,on-demand,0.02\n")
		g.Expect(err).To(MatchError("1 of 2 instance types with a price would lose it, and nothing would launch of them; check the price list, or raise --max-closed (10)"))
		g.Expect(r.catalog(t).ResourceVersion).To(Equal(before.ResourceVersion))
		_, err = r.refresh(t, "small,2,4Gi,a b,on-demand,0.02\n", "--max-closed", "50")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.catalog(t).Spec.InstanceTypes).To(HaveLen(1))
	})
	t.Run("When it is a dry run, it should say what would change and write nothing", func(t *testing.T) {
		g := NewWithT(t)
		r := startRefreshing(t, "refresh-dry")
		before := r.catalog(t)
		for dryRun, suffix := range map[string]string{"client": "(dry run)", "server": "(server dry run)"} {
			out, err := r.refresh(t, newPrices, "--dry-run", dryRun)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(HaveSuffix("/general patched " + suffix + "\n"))
		}
		g.Expect(r.catalog(t).ResourceVersion).To(Equal(before.ResourceVersion))
	})
	t.Run("When a part of the catalog is no longer needed, it should write nothing and name it", func(t *testing.T) {
		g := NewWithT(t)
		r := startRefreshing(t, "refresh-parts")
		r.create(t, "general-2")
		before := r.catalog(t)
		_, err := r.refresh(t, samePrices)
		g.Expect(err).To(MatchError("the instance types fit into 1 catalog: delete InstanceTypeCatalog refresh-parts/general-2, which would offer them at its old prices"))
		g.Expect(r.catalog(t).ResourceVersion).To(Equal(before.ResourceVersion))
	})
	r := startRefreshing(t, "refresh-mistakes")
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"the catalog doesn't exist": {[]string{"--name", "special"}, "InstanceTypeCatalog refresh-mistakes/special doesn't exist; create it with `autonode catalog import csv`"},
	} {
		t.Run("When "+name+", it should say what to do", func(t *testing.T) {
			_, err := r.refresh(t, samePrices, tc.args...)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(tc.want)))
		})
	}
}
