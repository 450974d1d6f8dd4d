// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// shop is a control-plane namespace with catalogs, and the platform's namespace of shared ones.
type shop struct {
	own, shared environment.Objects
	class       *v1alpha1.ClusterAPINodeClass
	resolver    *template.Resolver
}

const awsTemplate = `
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: AWSMachineTemplate
metadata: {namespace: clusters-blue, name: general, uid: t, generation: 1, resourceVersion: "1"}
spec: {template: {spec: {instanceType: any}}}
`

const awsCatalog = `
apiVersion: karpenter.cluster.x-k8s.io/v1alpha1
kind: InstanceTypeCatalog
metadata: {namespace: clusters-blue, name: general, uid: c, generation: 1, resourceVersion: "1", labels: {tier: general}}
spec:
  templateRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: AWSMachineTemplate, name: general}
  patches:
  - {op: replace, path: /spec/instanceType, valueFrom: {variable: instanceType}}
  - {op: add, path: /spec/spotMarketOptions, valueFrom: {template: '{{ if eq .capacityType "spot" }}{}{{ end }}'}}
  instanceTypes:
  - {name: m5.large, capacity: {cpu: 2, memory: 8Gi}, offerings: [{price: "0.096"}, {capacityType: spot, price: "0.03"}]}
  - {name: m5.xlarge, capacity: {cpu: 4, memory: 16Gi}, offerings: [{price: "0.192"}]}
`

func objectOf(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	object := &unstructured.Unstructured{}
	NewWithT(t).Expect(object.UnmarshalJSON(raw)).To(Succeed())
	return object
}

func newShop(t *testing.T, catalog string, replace ...string) *shop {
	t.Helper()
	return &shop{
		own:   environment.Objects{objectOf(t, awsTemplate), objectOf(t, strings.NewReplacer(replace...).Replace(catalog))},
		class: environment.CatalogNodeClass(),
	}
}

func (s *shop) find(t *testing.T) *template.Found {
	t.Helper()
	config := template.Config{Objects: s.own, ClusterName: "blue", Namespace: "clusters-blue", Secrets: environment.Secrets{}, Profiles: profile.Embedded()}
	if s.shared != nil {
		config.SharedCatalogs = s.shared
	}
	if s.resolver == nil {
		s.resolver = template.NewResolver(config)
	}
	found, err := s.resolver.Resolve(t.Context(), s.class)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return found
}

func TestCatalogDisk(t *testing.T) {
	for name, tc := range map[string]struct {
		replace    []string
		annotation string
		want       string
	}{
		"When nothing declares a disk, it should be the kind's default": {nil, "", "20Gi"},
		"When the template has a root volume, it should be that": {[]string{"instanceType: any",
			"instanceType: any, rootVolume: {size: 120}"}, "", "120Gi"},
		"When a patch of the type sets the root volume, it should be that": {[]string{`price: "0.03"}]`,
			`price: "0.03"}], patches: [{op: add, path: /spec/rootVolume, value: {size: 500}}]`}, "", "500Gi"},
		"When the template has the annotation, it should be that": {[]string{"instanceType: any",
			"instanceType: any, rootVolume: {size: 120}"}, "80Gi", "80Gi"},
		"When the annotation is no quantity, it should be unknown": {nil, "much", "0"},
		"When the catalog declares it, it should be that": {[]string{"memory: 8Gi",
			"memory: 8Gi, ephemeral-storage: 40Gi"}, "80Gi", "40Gi"},
		"When the kind has no profile, it should be unknown": {[]string{"AWSMachineTemplate",
			"OtherMachineTemplate"}, "", "0"},
		"When the type has no offering, it should be the default all the same": {[]string{`, offerings: [{price: "0.096"}, {capacityType: spot, price: "0.03"}]`, ""}, "", "20Gi"},
		"When a patch can't be applied to the template, it should be unknown there": {[]string{"op: replace, path: /spec/instanceType",
			"op: replace, path: /spec/size"}, "", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, awsCatalog, tc.replace...)
			s.own[0] = objectOf(t, strings.NewReplacer(tc.replace...).Replace(awsTemplate))
			if tc.annotation != "" {
				s.own[0].SetAnnotations(map[string]string{"capacity.cluster-autoscaler.kubernetes.io/ephemeral-disk": tc.annotation})
			}
			disk := s.find(t).Templates[0].Capacity["ephemeral-storage"]
			NewWithT(t).Expect(disk.String()).To(Equal(tc.want))
		})
	}
}

func sourcesOf(found *template.Found) (annotations []string) {
	for i := range found.Templates {
		annotations = append(annotations, found.Templates[i].Source.Annotation())
	}
	return annotations
}

func messages(found *template.Found) (texts []string) {
	for _, invalid := range found.Invalid {
		texts = append(texts, invalid.Error())
	}
	for _, err := range slices.Concat(found.Closed, found.SelectorErrs) {
		texts = append(texts, err.Error())
	}
	return texts
}

const own = "InstanceTypeCatalog.karpenter.cluster.x-k8s.io/general/"

func TestCatalog(t *testing.T) {
	t.Run("When a catalog is sound, it should make a template of each instance type", func(t *testing.T) {
		found := newShop(t, awsCatalog).find(t)
		if diff := cmp.Diff([]string{own + "m5.large", own + "m5.xlarge"}, sourcesOf(found)); diff != "" || len(messages(found)) > 0 {
			t.Fatalf("%s (-want +got):\n%s", messages(found), diff)
		}
		large := found.Templates[0]
		if large.InstanceType != "m5.large" || large.Arch != "amd64" || large.OS != "linux" || !large.DefaultPods || !large.NominalMemory ||
			large.Bootstrap.DataSecretName != "join" || len(large.Offerings) != 2 {
			t.Errorf("got %+v", large)
		}
		NewWithT(t).Expect(large.CapacityTypes()).To(Equal([]string{"on-demand", "spot"}))
		NewWithT(t).Expect(large.ContentHash).To(Equal(found.Templates[1].ContentHash), "types with the same patches make the same machines but for the variables")
	})
	t.Run("When nothing has changed, it should read the catalog once", func(t *testing.T) {
		s := newShop(t, awsCatalog)
		first := s.find(t)
		again := s.find(t)
		NewWithT(t).Expect(&first.Templates[0].Offerings[0]).To(BeIdenticalTo(&again.Templates[0].Offerings[0]), "it was read again")
	})
	t.Run("When a catalog is elsewhere, it should be out of reach but for the platform's", func(t *testing.T) {
		s := newShop(t, awsCatalog)
		s.class.Spec.CatalogSelectors[0].Scope = v1alpha1.CatalogScopeShared
		if found := s.find(t); len(found.Templates) > 0 || !strings.Contains(strings.Join(messages(found), ""), "the platform shares no catalogs") {
			t.Errorf("got %v, %v", sourcesOf(found), messages(found))
		}
		s = newShop(t, awsCatalog)
		s.class.Spec.CatalogSelectors[0].Scope = v1alpha1.CatalogScopeShared
		s.shared, s.own = environment.Objects{objectOf(t, strings.Replace(awsCatalog, "clusters-blue", "autonode-catalogs", 1))}, s.own[:1]
		want := []string{
			"InstanceTypeCatalog.karpenter.cluster.x-k8s.io/autonode-catalogs:general/m5.large", "InstanceTypeCatalog.karpenter.cluster.x-k8s.io/autonode-catalogs:general/m5.xlarge",
		}
		if found := s.find(t); !slices.Equal(sourcesOf(found), want) {
			t.Errorf("got %v, %v", sourcesOf(found), messages(found))
		}
	})
	t.Run("When the template declares which version its image has, it should be that of every instance type", func(t *testing.T) {
		s := newShop(t, awsCatalog)
		s.own[0].SetAnnotations(map[string]string{v1alpha1.KubernetesVersionAnnotation: "v1.36.3"})
		for _, tmpl := range s.find(t).Templates {
			NewWithT(t).Expect(tmpl.ImageVersion).To(Equal("1.36.3"))
		}
	})
	t.Run("When the template declares no version, it should use none and name the annotation", func(t *testing.T) {
		s := newShop(t, awsCatalog)
		s.own[0].SetAnnotations(map[string]string{v1alpha1.KubernetesVersionAnnotation: "newest"})
		if found := s.find(t); len(found.Templates) > 0 || !strings.Contains(strings.Join(messages(found), ""), `annotation karpenter.cluster.x-k8s.io/kubernetes-version: "newest" is not a version`) {
			t.Errorf("got %v, %v", sourcesOf(found), messages(found))
		}
	})
	t.Run("When the template is missing, it should name it once", func(t *testing.T) {
		s := newShop(t, awsCatalog)
		s.own = s.own[1:]
		found := s.find(t)
		if len(found.Templates) > 0 || len(found.Invalid) != 1 || !found.Invalid[0].Unresolved || !strings.Contains(found.Invalid[0].Error(), "InstanceTypeCatalog clusters-blue/general: AWSMachineTemplate general, which it refers to, doesn't exist") {
			t.Errorf("got %v", messages(found))
		}
		if gaps := found.Gaps(); !gaps.Has(own+"m5.large") || gaps.Has(own[:len(own)-1]+"-purpose/m5.large") {
			t.Errorf("gaps %+v: the catalog's entries may exist, and no other's", gaps)
		}
	})
}

func TestMalformedCatalog(t *testing.T) {
	for name, tc := range map[string]struct {
		replace []string
		want    string
		usable  int
	}{
		"When an entry isn't of its type, it should name that entry":         {[]string{"name: m5.xlarge, capacity: {cpu: 4,", "name: m5.xlarge, memoryOverhead: [4], capacity: {cpu: 4,"}, "general: m5.xlarge: can't be read", 1},
		"When a quantity is a list, it should name that entry":               {[]string{"name: m5.xlarge, capacity: {cpu: 4,", "name: m5.xlarge, capacity: {cpu: [4],"}, `general: m5.xlarge: capacity.cpu: "[4]" is not a quantity`, 1},
		"When an entry is there twice, it should keep the first one":         {[]string{"m5.xlarge", "m5.large"}, "general: m5.large[1]: instanceTypes[0] has the same name", 1},
		"When a patch is malformed, it should use none of the catalog":       {[]string{"op: replace", "op: guess"}, "InstanceTypeCatalog clusters-blue/general: spec.patches: patch 0", 0},
		"When the reference is incomplete, it should use none":               {[]string{"kind: AWSMachineTemplate, name", "name"}, "spec.templateRef is incomplete", 0},
		"When the template belongs to another Cluster, it should use none":   {nil, "belongs to another Cluster", 0},
		"When spot isn't written by a patch, it should close spot offerings": {[]string{"/spec/spotMarketOptions", "/spec/other", "if eq .capacityType", "if eq .zone"}, "general: m5.large: its spot offerings are closed: no patch writes the capacity type", 2},
		"When a patch writes it to no effect, it should close what it isn't": {[]string{"/spec/spotMarketOptions", "/spec/other"}, "m5.large: its spot offerings are closed: a patch refers to the variable capacityType, and the machine is nevertheless on-demand", 2},
		"When machines are spot, it should close the others":                 {[]string{`'{{ if eq .capacityType "spot" }}{}{{ end }}'`, `'{}'`}, "m5.large, m5.xlarge: its on-demand offerings are closed: no patch writes the capacity type into the machine, which is spot by spec.template.spec.spotMarketOptions", 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, awsCatalog, tc.replace...)
			if tc.replace == nil {
				s.own[0].SetLabels(map[string]string{"cluster.x-k8s.io/cluster-name": "green"})
			}
			found := s.find(t)
			if len(found.Templates) != tc.usable || !strings.Contains(strings.Join(messages(found), "\n"), tc.want) {
				t.Errorf("%d usable; got %s; want %s", len(found.Templates), messages(found), tc.want)
			}
		})
	}
}

func TestCatalogHashes(t *testing.T) {
	hashes := func(t *testing.T, replace ...string) (content, revision []string) {
		found := newShop(t, awsCatalog, replace...).find(t)
		for i := range found.Templates {
			content, revision = append(content, found.Templates[i].ContentHash), append(revision, found.Templates[i].Revision())
		}
		return content, revision
	}
	content, revision := hashes(t)
	for name, tc := range map[string]struct {
		replace []string
		changed []bool
	}{
		"When a price changes, no node should drift":                             {[]string{`"0.096"`, `"0.1"`}, []bool{false, false}},
		"When the capacity changes, no node should drift":                        {[]string{"8Gi", "7Gi"}, []bool{false, false}},
		"When an instance type gets a patch, its nodes should drift":             {[]string{"memory: 8Gi},", "memory: 8Gi}, patches: [{op: add, path: /spec/sshKeyName, value: ops}],"}, []bool{true, false}},
		"When an instance type gets an overhead, its nodes should drift":         {[]string{"memory: 8Gi},", "memory: 8Gi}, overhead: {kubeReserved: {cpu: 70m}},"}, []bool{true, false}},
		"When the catalog's patches change, the nodes of all of it should drift": {[]string{"/spec/spotMarketOptions", "/spec/spotMarketOptions/maxPrice"}, []bool{true, true}},
		"When a memory overhead changes, which is for planning, none should":     {[]string{"memory: 8Gi},", "memory: 8Gi}, memoryOverhead: 5%,"}, []bool{false, false}},
		"When offerings go, which closes them, none should":                      {[]string{`, {capacityType: spot, price: "0.03"}`, ""}, []bool{false, false}},
		"When labels change, which new nodes get, none should":                   {[]string{"memory: 8Gi},", "memory: 8Gi}, labels: {team: web},"}, []bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			nowContent, nowRevision := hashes(t, tc.replace...)
			for i, want := range tc.changed {
				if (content[i] != nowContent[i]) != want || (revision[i] != nowRevision[i]) != want {
					t.Errorf("type %d: content %s → %s, revision %s → %s; want a change: %t", i, content[i], nowContent[i], revision[i], nowRevision[i], want)
				}
			}
		})
	}
}

func TestCatalogKubelet(t *testing.T) {
	s := newShop(t, awsCatalog, "memory: 8Gi},", "memory: 8Gi}, overhead: {kubeReserved: {cpu: 70m}, systemReserved: {memory: 100Mi}},")
	tmpl := s.find(t).Templates[0]
	t.Run("When the instance type reserves, it should be planned with and written", func(t *testing.T) {
		if got := tmpl.Kubelet(nil); got.KubeReserved["cpu"] != "70m" || tmpl.Bootstrap.Kubelet.KubeReserved["cpu"] != "70m" {
			t.Errorf("written %+v, planned with %+v", got, tmpl.Bootstrap.Kubelet)
		}
	})
	t.Run("When the node class reserves too, it should win", func(t *testing.T) {
		got := tmpl.Kubelet(&v1alpha1.KubeletConfiguration{KubeReserved: map[string]v1alpha1.ReservedQuantity{"cpu": "1"}})
		if got.KubeReserved["cpu"] != "1" || got.SystemReserved["memory"] != "100Mi" {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("When an annotation names an entry, its catalog should cover it and no other", func(t *testing.T) {
		source := template.Source{GroupKind: schema.GroupKind{Group: v1alpha1.Group, Kind: "InstanceTypeCatalog"}, Name: "general"}
		for annotation, want := range map[string]bool{own + "m5.large": true, own[:len(own)-1]: true, own[:len(own)-1] + "-2/m5.large": false} {
			NewWithT(t).Expect(source.Covers(annotation)).To(Equal(want))
		}
	})
}
