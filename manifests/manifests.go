// SPDX-License-Identifier: Apache-2.0

// Package manifests embeds the kustomize base that installs the operator, and renders it as `kubectl kustomize` does.
package manifests

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	kustomizetypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// Folders are those of the base, and the component for monitoring.
//
//go:embed kustomization.yaml crds operator rbac policy monitoring
var Folders embed.FS

const (
	// Operator is the name of the operator's Deployment and of its image in the base.
	Operator = "autonode-operator"
	// Namespace of the operator.
	Namespace = "autonode-system"
	// Guard is the name of the policy that keeps the CRDs, and of its binding.
	Guard = "deletion.autonode.io"

	// settings is the ConfigMap of every Karpenter's settings, and settingsFile its key.
	settings     = "karpenter-settings"
	settingsFile = "settings.yaml"
	mountPath    = "/etc/karpenter"
)

// Options of an installation, as an overlay of the base would set them.
type Options struct {
	// Image of the operator, with a tag or a digest.
	Image string
	// Args are further arguments of the operator.
	Args []string
	// PullSecrets are names of Secrets in Namespace that the operator's image is pulled with.
	PullSecrets []string
	// Settings of every Karpenter: the content of the file; empty for none.
	Settings []byte
	// Monitoring adds the objects of the Prometheus operator, and the dashboards.
	Monitoring bool
}

// Render returns the objects in the order in which they are to be applied.
func Render(options Options) ([]*unstructured.Unstructured, error) {
	overlay, err := options.overlay()
	if err != nil {
		return nil, err
	}
	built, err := Build(Folders, *overlay, map[string][]byte{settingsFile: options.Settings})
	if err != nil {
		return nil, err
	}
	objects := make([]*unstructured.Unstructured, 0, built.Size())
	for _, resource := range built.Resources() {
		raw, err := resource.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("encoding %s %s: %w", resource.GetKind(), resource.GetName(), err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw); err != nil {
			return nil, fmt.Errorf("decoding %s %s: %w", resource.GetKind(), resource.GetName(), err)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// Build builds an overlay of a base, which it refers to as "../base". Files are those beside its kustomization.yaml.
func Build(base fs.FS, overlay kustomizetypes.Kustomization, files map[string][]byte) (resmap.ResMap, error) {
	memory := filesys.MakeFsInMemory()
	if err := fs.WalkDir(base, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(base, path)
		if err != nil {
			return err
		}
		return memory.WriteFile("/base/"+path, content)
	}); err != nil {
		return nil, fmt.Errorf("reading the manifests: %w", err)
	}
	overlay.TypeMeta = kustomizetypes.TypeMeta{APIVersion: kustomizetypes.KustomizationVersion, Kind: kustomizetypes.KustomizationKind}
	content, err := yaml.Marshal(overlay)
	if err != nil {
		return nil, fmt.Errorf("encoding the overlay: %w", err)
	}
	for path, content := range files {
		if err := memory.WriteFile("/overlay/"+path, content); err != nil {
			return nil, fmt.Errorf("writing the overlay: %w", err)
		}
	}
	if err := memory.WriteFile("/overlay/kustomization.yaml", content); err != nil {
		return nil, fmt.Errorf("writing the overlay: %w", err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(memory, "/overlay")
	if err != nil {
		return nil, fmt.Errorf("rendering the manifests: %w", err)
	}
	return built, nil
}

// overlay is the one of docs/platform/install.md and docs/platform/settings.md.
func (o Options) overlay() (*kustomizetypes.Kustomization, error) {
	image, err := o.image()
	if err != nil {
		return nil, err
	}
	overlay := &kustomizetypes.Kustomization{
		Resources: []string{"../base"}, Images: []kustomizetypes.Image{image},
	}
	if o.Monitoring {
		overlay.Components = []string{"../base/monitoring"}
	}
	add := func(path string, value any) map[string]any {
		return map[string]any{"op": "add", "path": "/spec/template/spec/" + path + "/-", "value": value}
	}
	var operations []map[string]any
	for _, arg := range o.Args {
		operations = append(operations, add("containers/0/args", arg))
	}
	if len(o.PullSecrets) > 0 {
		secrets := make([]map[string]string, len(o.PullSecrets))
		for i, name := range o.PullSecrets {
			if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
				return nil, fmt.Errorf("pull secret %q: %s", name, strings.Join(problems, "; "))
			}
			secrets[i] = map[string]string{"name": name}
		}
		operations = append(operations, map[string]any{"op": "add", "path": "/spec/template/spec/imagePullSecrets", "value": secrets})
	}
	if len(o.Settings) > 0 {
		overlay.ConfigMapGenerator = []kustomizetypes.ConfigMapArgs{{GeneratorArgs: kustomizetypes.GeneratorArgs{
			Namespace: Namespace, Name: settings, KvPairSources: kustomizetypes.KvPairSources{FileSources: []string{settingsFile}},
		}}}
		operations = append(operations,
			add("containers/0/args", "--karpenter-settings="+mountPath+"/"+settingsFile),
			add("volumes", map[string]any{"name": "settings", "configMap": map[string]any{"name": settings}}),
			add("containers/0/volumeMounts", map[string]any{"name": "settings", "mountPath": mountPath}))
	}
	if len(operations) > 0 {
		patch, err := yaml.Marshal(operations)
		if err != nil {
			return nil, fmt.Errorf("encoding the operator's arguments: %w", err)
		}
		target := &kustomizetypes.Selector{}
		target.Kind, target.Name = "Deployment", Operator
		overlay.Patches = []kustomizetypes.Patch{{Patch: string(patch), Target: target}}
	}
	return overlay, nil
}

// image splits the reference into the parts that kustomize replaces.
func (o Options) image() (kustomizetypes.Image, error) {
	if o.Image == "" {
		return kustomizetypes.Image{}, fmt.Errorf("the operator's image is missing")
	}
	if name, digest, found := strings.Cut(o.Image, "@"); found {
		return kustomizetypes.Image{Name: Operator, NewName: name, Digest: digest}, nil
	}
	name, tag := o.Image, ""
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		name, tag = name[:colon], name[colon+1:]
	}
	if tag == "" {
		return kustomizetypes.Image{}, fmt.Errorf("image %q has neither a digest nor a tag", o.Image)
	}
	return kustomizetypes.Image{Name: Operator, NewName: name, NewTag: tag}, nil
}
