// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/operator/steps/component"
	"github.com/autonode-io/autonode/payload"
)

// Markers are HTML comments before a block that shows less than whole API objects:
//
//	<!-- part of: HostedCluster -->                 the block is merged into the specimen of that kind
//	<!-- part of: HostedCluster, at: spec.x.y -->   likewise, into that field of it
//	<!-- file: prices -->                           the block is a file that one of our programs reads: see files
//	<!-- other: clusterctl's configuration -->      the block is a file of another program's: it has to be YAML
//
// A block with a kind and no apiVersion is a part of that kind without a marker.
var (
	partOf   = regexp.MustCompile(`^part of: (\w+)(?:, at: ([\w.]+))?$`)
	fileMark = regexp.MustCompile(`^file: (\w[\w -]*)$`)
	other    = regexp.MustCompile(`^other: \w+`)
)

// specimens are the rest of what a part is a part of.
var specimens = map[string]string{
	"HostedCluster": `
apiVersion: autonode.io/v1beta1
kind: HostedCluster
metadata: {name: specimen, namespace: default}
spec:
  release: {image: registry.example/release:1.36.3}
  autoNode:
    provisionerConfig:
      name: Karpenter
      karpenter:
        platform: ClusterAPI
        clusterAPI: {scalableResourceSelector: {}}
`,
	"ClusterAPINodeClass": `
apiVersion: karpenter.cluster.x-k8s.io/v1alpha1
kind: ClusterAPINodeClass
metadata: {name: specimen}
`,
	"NodePool": `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: specimen}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.cluster.x-k8s.io, kind: ClusterAPINodeClass, name: default}
      requirements: []
`,
	"Deployment": `
apiVersion: apps/v1
kind: Deployment
metadata: {name: specimen, namespace: default}
spec:
  selector: {matchLabels: {app: specimen}}
  template:
    metadata: {labels: {app: specimen}}
    spec:
      containers: [{name: specimen, image: registry.example/specimen}]
`,
	"AWSMachineTemplate": `
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: AWSMachineTemplate
metadata: {name: specimen, namespace: default}
spec: {template: {spec: {instanceType: m5.large}}}
`,
	"VSphereMachineTemplate": `
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: VSphereMachineTemplate
metadata: {name: specimen, namespace: default}
spec: {template: {spec: {cloneMode: fullClone, template: image, network: {devices: [{networkName: nodes, dhcp4: true}]}, numCPUs: 4, memoryMiB: 8192, diskGiB: 40}}}
`,
	"KubevirtMachineTemplate": `
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: KubevirtMachineTemplate
metadata: {name: specimen, namespace: default}
spec: {template: {spec: {virtualMachineTemplate: {spec: {template: {spec: {domain: {devices: {}}}}}}}}}
`,
	"OpenStackMachineTemplate": `
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: OpenStackMachineTemplate
metadata: {name: specimen, namespace: default}
spec: {template: {spec: {image: {filter: {name: image}}}}}
`,
	"Metal3MachineTemplate": `
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: Metal3MachineTemplate
metadata: {name: specimen, namespace: default}
spec: {template: {spec: {image: {url: "https://images.example/image.raw", checksum: "https://images.example/image.raw.sha256"}}}}
`,
	"Kustomization": `
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: ["https://github.com/autonode-io/autonode/manifests?ref=v0.1.0"]
`,
}

// files are read by the code that reads them in our programs. path is a file with the content.
var files = map[string]func(path string, content []byte) error{
	"karpenter settings": func(path string, _ []byte) error {
		_, err := component.ReadSettings(path)
		return err
	},
	"profiles": func(_ string, content []byte) error {
		_, problems, err := infrastructure.Parse(content)
		return errors.Join(append(problems, err)...)
	},
	"prices": func(path string, _ []byte) error { return pricing.NewFile(path).Problem() },
	"identities": func(_ string, content []byte) error {
		// Without a trusted root there is no verifier, which is tried after the identities.
		_, err := payload.NewKeyless(content, nil)
		if err != nil && strings.HasPrefix(err.Error(), "trusted root:") {
			return nil
		}
		return err
	},
}

// elided is how the documentation leaves out what differs everywhere.
var elided = strings.NewReplacer("sha256:…", "sha256:"+strings.Repeat("0", 64), "<tag>", "v0.1.0")

// yaml checks a block and returns the objects that it shows whole.
func (b block) yaml(ctx context.Context, dir string) (objects []*unstructured.Unstructured, problems []error) {
	text := elided.Replace(b.text)
	if found := fileMark.FindStringSubmatch(b.marker); found != nil {
		read, ok := files[found[1]]
		if !ok {
			return nil, []error{b.errorf("marker %q: no program reads such a file; there are %v", b.marker, slices.Sorted(maps.Keys(files)))}
		}
		path := filepath.Join(dir, "file.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, []error{err}
		}
		if err := read(path, []byte(text)); err != nil {
			problems = append(problems, b.errorf("%w", err))
		}
		return nil, problems
	}
	if other.MatchString(b.marker) {
		var content any
		if err := yaml.UnmarshalStrict([]byte(text), &content); err != nil {
			problems = append(problems, b.errorf("%w", err))
		}
		return nil, problems
	}
	part := partOf.FindStringSubmatch(b.marker)
	if b.marker != "" && part == nil {
		return nil, []error{b.errorf("marker %q is none of \"part of: KIND\", \"file: NAME\" and \"other: WHAT\"", b.marker)}
	}
	for _, document := range strings.Split("\n"+text, "\n---\n") {
		var content map[string]any
		if err := yaml.UnmarshalStrict([]byte(document), &content); err != nil {
			problems = append(problems, b.errorf("%w", err))
			continue
		}
		if len(content) == 0 {
			continue
		}
		kind, _ := content["kind"].(string)
		_, whole := content["apiVersion"]
		whole = whole && kind != "" && part == nil
		if !whole {
			at := ""
			if part != nil {
				kind, at = part[1], part[2]
			}
			merged, err := merge(kind, at, content)
			if err != nil {
				problems = append(problems, b.errorf("%w", err))
				continue
			}
			content = merged
		}
		object := &unstructured.Unstructured{Object: content}
		if err := check(ctx, object, dir); err != nil {
			problems = append(problems, b.errorf("%s %s: %w", object.GetKind(), object.GetName(), err))
			continue
		}
		if whole {
			objects = append(objects, object)
		}
	}
	return objects, problems
}

// merge puts a part into the specimen of its kind.
func merge(kind, at string, part map[string]any) (map[string]any, error) {
	specimen, ok := specimens[kind]
	if !ok {
		return nil, fmt.Errorf("it has no apiVersion and kind, and no marker declares what it is a part of; there are specimens of %v",
			slices.Sorted(maps.Keys(specimens)))
	}
	var whole map[string]any
	if err := yaml.UnmarshalStrict([]byte(specimen), &whole); err != nil {
		return nil, err
	}
	into := whole
	if at != "" {
		for step := range strings.SplitSeq(at, ".") {
			next, ok := into[step].(map[string]any)
			if !ok {
				return nil, fmt.Errorf("the specimen of %s has no %s in %s", kind, step, at)
			}
			into = next
		}
	}
	overlay(into, part)
	return whole, nil
}

// overlay merges objects. A union's members exclude each other, so the part's replaces the specimen's.
func overlay(into, part map[string]any) {
	for key, value := range part {
		inner, isObject := value.(map[string]any)
		if existing, ok := into[key].(map[string]any); ok && isObject && key != "provisionerConfig" {
			overlay(existing, inner)
			continue
		}
		into[key] = value
	}
}

// check has the program that reads such an object check it.
func check(ctx context.Context, object *unstructured.Unstructured, dir string) error {
	if object.GetKind() == "Kustomization" || object.GetKind() == "Component" {
		return buildKustomization(ctx, object.Object, dir)
	}
	object = object.DeepCopy()
	var err error
	switch kind := object.GetKind(); {
	case strings.HasSuffix(kind, "MachineTemplate"):
		err = checkTemplate(ctx, object)
	case kind == "HostedCluster", kind == "ClusterAPINodeClass":
		err = checkPatches(object)
	}
	return errors.Join(err, serverAccepts(ctx, object))
}

// serverAccepts queries the API server, which stores nothing.
func serverAccepts(ctx context.Context, object *unstructured.Unstructured) error {
	namespaced, err := cluster.admin.IsObjectNamespaced(object)
	if err != nil {
		return err
	}
	if namespaced {
		if object.GetNamespace() == "" {
			object.SetNamespace(corev1.NamespaceDefault)
		}
		namespace := &corev1.Namespace{}
		namespace.Name = object.GetNamespace()
		if err := cluster.admin.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	if object.GetName() == "" {
		object.SetName("specimen")
	}
	err = cluster.admin.Create(ctx, object, client.DryRunAll)
	if apierrors.IsAlreadyExists(err) {
		return nil // a built-in, which has passed validation
	}
	return err
}

// buildKustomization builds an overlay of manifests/ and has the operator check the flags that it sets.
func buildKustomization(ctx context.Context, content map[string]any, dir string) error {
	overlays := filesys.MakeFsInMemory()
	if err := copyManifests(overlays); err != nil {
		return err
	}
	resources, _ := content["resources"].([]any)
	if resources == nil {
		resources = []any{"https://github.com/autonode-io/autonode/manifests?ref=v0.1.0"}
	}
	for i, resource := range resources {
		name, _ := resource.(string)
		local, ok := remote(name)
		if !ok {
			// Another overlay of the page, which is checked by itself.
			local = "../manifests"
		}
		resources[i] = local
	}
	content["resources"] = slices.Compact(resources)
	if components, ok := content["components"].([]any); ok {
		for i, each := range components {
			name, _ := each.(string)
			local, ok := remote(name)
			if !ok {
				return fmt.Errorf("component %s isn't in manifests/", name)
			}
			components[i] = local
		}
	}
	raw, err := yaml.Marshal(content)
	if err != nil {
		return err
	}
	if err := overlays.WriteFile("/overlay/kustomization.yaml", raw); err != nil {
		return err
	}
	for _, generator := range generatedFiles(content) {
		if err := overlays.WriteFile("/overlay/"+generator, []byte("{}")); err != nil {
			return err
		}
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(overlays, "/overlay")
	if err != nil {
		return err
	}
	for _, resource := range built.Resources() {
		if resource.GetKind() != "Deployment" {
			continue
		}
		raw, err := resource.MarshalJSON()
		if err != nil {
			return err
		}
		deployment := &appsv1.Deployment{}
		if err := yaml.UnmarshalStrict(raw, deployment); err != nil {
			return err
		}
		for _, container := range deployment.Spec.Template.Spec.Containers {
			if err := ourProgram(ctx, dir, "autonode-operator", container.Args); err != nil {
				return err
			}
		}
	}
	return nil
}

// remote returns the local folder that a URL of this repository means.
func remote(url string) (string, bool) {
	path, ok := strings.CutPrefix(url, "https://github.com/autonode-io/autonode/")
	path, _, _ = strings.Cut(path, "?")
	return "../" + path, ok
}

// generatedFiles are those that the kustomization's generators read.
func generatedFiles(content map[string]any) (names []string) {
	generators, _ := content["configMapGenerator"].([]any)
	for _, each := range generators {
		generator, _ := each.(map[string]any)
		list, _ := generator["files"].([]any)
		for _, file := range list {
			text, _ := file.(string)
			names = append(names, text[strings.Index(text, "=")+1:])
		}
	}
	return names
}

func copyManifests(to filesys.FileSystem) error {
	return filepath.WalkDir(filepath.Join(root, "manifests"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return to.WriteFile("/"+filepath.ToSlash(relative), content)
	})
}

// output runs a program in a folder and returns what it prints.
func output(ctx context.Context, dir, program string, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.kubeconfig, "HOME="+dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
