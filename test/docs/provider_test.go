// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// wholeObjects are the API objects that a page shows whole.
func (p page) wholeObjects() (objects []*unstructured.Unstructured) {
	if strings.HasPrefix(p.path, played) {
		p, _ = p.filled() // TestPages reports what is missing
	}
	for _, b := range p.blocks {
		if b.language != "yaml" || b.marker != "" {
			continue
		}
		for document := range strings.SplitSeq("\n"+elided.Replace(b.text), "\n---\n") {
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document), &object.Object); err == nil && object.GetKind() != "" && object.GetAPIVersion() != "" {
				objects = append(objects, object)
			}
		}
	}
	return objects
}

// value is a field of an object as text; empty without it.
func value(object *unstructured.Unstructured, path ...string) string {
	found, ok, err := unstructured.NestedFieldNoCopy(object.Object, path...)
	if !ok || err != nil {
		return ""
	}
	return fmt.Sprint(found)
}

// demands are what Kamaji's Cluster API provider v0.20.0 demands of a Cluster's infrastructure, by its kind: it writes the control plane's
// endpoint there, or compares it with what is there. No schema declares it. See patchCluster in its controllers, and its docs/providers-*.md.
var demands = map[string]func(infrastructure, cluster, controlPlane *unstructured.Unstructured) error{
	"AWSCluster":     func(_, _, _ *unstructured.Unstructured) error { return nil },
	"VSphereCluster": func(_, _, _ *unstructured.Unstructured) error { return nil },
	"KubevirtCluster": func(infrastructure, _, _ *unstructured.Unstructured) error {
		if infrastructure.GetAnnotations()["cluster.x-k8s.io/managed-by"] == "" {
			return fmt.Errorf("without the annotation cluster.x-k8s.io/managed-by its controller creates a Service for control plane machines, of which there are none")
		}
		return nil
	},
	"OpenStackCluster": func(infrastructure, _, _ *unstructured.Unstructured) error {
		if value(infrastructure, "spec", "disableAPIServerFloatingIP") != "true" || value(infrastructure, "spec", "apiServerLoadBalancer", "enabled") != "false" {
			return fmt.Errorf("the endpoint is Kamaji's only with disableAPIServerFloatingIP: true and without apiServerLoadBalancer")
		}
		return nil
	},
	"Metal3Cluster": func(infrastructure, cluster, controlPlane *unstructured.Unstructured) error {
		host, port := value(infrastructure, "spec", "controlPlaneEndpoint", "host"), value(infrastructure, "spec", "controlPlaneEndpoint", "port")
		if address := value(controlPlane, "spec", "network", "serviceAddress"); host == "" || host != address {
			return fmt.Errorf("controlPlaneEndpoint.host is %q, and the control plane's network.serviceAddress %q", host, address)
		}
		if wanted := value(cluster, "spec", "clusterNetwork", "apiServerPort"); port == "" || port != wanted {
			return fmt.Errorf("controlPlaneEndpoint.port is %q, and the Cluster's clusterNetwork.apiServerPort %q", port, wanted)
		}
		return nil
	},
}

// checkKamaji checks the Clusters of a page that have a KamajiControlPlane, and returns how many there are.
func (p page) checkKamaji() (clusters int, err error) {
	byName := map[string]*unstructured.Unstructured{}
	objects := p.wholeObjects()
	for _, object := range objects {
		byName[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = object
	}
	for _, cluster := range objects {
		if cluster.GetKind() != "Cluster" || value(cluster, "spec", "controlPlaneRef", "kind") != "KamajiControlPlane" {
			continue
		}
		clusters++
		of := func(ref string) *unstructured.Unstructured {
			return byName[value(cluster, "spec", ref, "kind")+" "+cluster.GetNamespace()+"/"+value(cluster, "spec", ref, "name")]
		}
		controlPlane, infrastructure := of("controlPlaneRef"), of("infrastructureRef")
		if controlPlane == nil || infrastructure == nil {
			return clusters, fmt.Errorf("%s: Cluster %s refers to what the page doesn't show", p.path, cluster.GetName())
		}
		demand, known := demands[infrastructure.GetKind()]
		if !known {
			return clusters, fmt.Errorf("%s: no rule covers what Kamaji demands of %s", p.path, infrastructure.GetKind())
		}
		if err := demand(infrastructure, cluster, controlPlane); err != nil {
			return clusters, fmt.Errorf("%s: %s %s: %w", p.path, infrastructure.GetKind(), infrastructure.GetName(), err)
		}
	}
	return clusters, nil
}

func TestKamaji(t *testing.T) {
	t.Run("When a page shows a Cluster with Kamaji's control plane, its infrastructure should be as Kamaji's provider demands", func(t *testing.T) {
		g, shown := NewWithT(t), 0
		for _, p := range documentation(t) {
			clusters, err := p.checkKamaji()
			g.Expect(err).NotTo(HaveOccurred())
			shown += clusters
		}
		g.Expect(shown).To(BeNumerically(">=", 5))
	})
	const cluster = `
kind: Cluster
apiVersion: cluster.x-k8s.io/v1beta2
metadata: {name: blue}
spec:
  clusterNetwork: {apiServerPort: 6443}
  controlPlaneRef: {kind: KamajiControlPlane, name: blue}
  infrastructureRef: {kind: %s, name: blue}
---
kind: KamajiControlPlane
apiVersion: controlplane.cluster.x-k8s.io/v1alpha2
metadata: {name: blue}
spec: {network: {serviceAddress: 192.0.2.10}}
---
kind: %s
apiVersion: infrastructure.cluster.x-k8s.io/v1
metadata: {name: blue}
spec: %s
`
	for name, test := range map[string]struct{ kind, spec, want string }{
		"When KubevirtCluster isn't managed by others, it should be found":        {"KubevirtCluster", "{}", "cluster.x-k8s.io/managed-by"},
		"When OpenStackCluster has a floating IP, it should be found":             {"OpenStackCluster", "{apiServerLoadBalancer: {enabled: false}}", "disableAPIServerFloatingIP"},
		"When Metal3Cluster has no endpoint, it should be found":                  {"Metal3Cluster", "{}", "controlPlaneEndpoint.host"},
		"When Metal3Cluster has the endpoint of another port, it should be found": {"Metal3Cluster", "{controlPlaneEndpoint: {host: 192.0.2.10, port: 443}}", "controlPlaneEndpoint.port"},
		"When nothing is known of the infrastructure, it should be found":         {"OtherCluster", "{}", "no rule covers what Kamaji demands"},
	} {
		t.Run(name, func(t *testing.T) {
			p := parse("page.md", "```yaml"+fmt.Sprintf(cluster, test.kind, test.kind, test.spec)+"```\n")
			_, err := p.checkKamaji()
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

// source is the first line of a schema.
var source = regexp.MustCompile(`^# Names and types of the fields of (\w+) in github\.com/([\w/.-]+) (v[\w.-]+), `)

func TestProviderVersions(t *testing.T) {
	t.Run("When a schema is of a provider's version, the compatibility page should name both and the API version", func(t *testing.T) {
		g := NewWithT(t)
		page, err := os.ReadFile(filepath.Join(root, "docs/reference/compatibility.md"))
		g.Expect(err).NotTo(HaveOccurred())
		files, err := filepath.Glob(schemas + "/*.yaml")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(files)).To(BeNumerically(">", 10))
		rows := map[string]string{} // by the kind
		for _, path := range files {
			content, err := os.ReadFile(path)
			g.Expect(err).NotTo(HaveOccurred())
			found := source.FindStringSubmatch(string(content))
			g.Expect(found).NotTo(BeNil(), "%s doesn't name its source", path)
			definition := &unstructured.Unstructured{}
			g.Expect(yaml.Unmarshal(content, &definition.Object)).To(Succeed())
			g.Expect(value(definition, "spec", "names", "kind")).To(Equal(found[1]), path)
			row := ""
			for line := range strings.SplitSeq(string(page), "\n") {
				if strings.Contains(line, "github.com/"+found[2]+")") {
					row = line
				}
			}
			g.Expect(row).To(ContainSubstring("| "+found[3][1:]+" |"), "docs/reference/compatibility.md has no row for %s %s", found[2], found[3])
			rows[found[1]] = row
		}
		shown := 0
		for _, p := range documentation(t) {
			for _, object := range p.wholeObjects() {
				if row, ok := rows[object.GetKind()]; ok {
					version := object.GroupVersionKind().Version
					g.Expect(strings.TrimSpace(strings.Split(row, "|")[3])).To(MatchRegexp(`^%s\b`, version), "%s shows %s of %s", p.path, object.GetKind(), version)
					shown++
				}
			}
		}
		g.Expect(shown).To(BeNumerically(">", 10))
	})
}
