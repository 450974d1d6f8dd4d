// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	kustomizetypes "sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/autonode-io/autonode/manifests"
)

// The charts, which are folders of charts/.
const (
	Operator = "autonode"
	CRDs     = "autonode-crds"
)

// generatedMark begins every generated template.
const generatedMark = "{{- /* Made from manifests/ by make generate; edit those, or test/charts. */ -}}\n"

// namespace of the operator in manifests/.
const namespace = "autonode-system"

// dashboards are files in manifests/monitoring; in the ConfigMap, autonode stands for dashboard in their names.
var dashboards = []string{"dashboard-fleet.json", "dashboard-cluster.json"}

// Generate writes the templates and the files of both charts, in the repository at root. Generated templates of objects that manifests/ no
// longer has are removed.
func Generate(root string) error {
	files, err := Render(root)
	if err != nil {
		return err
	}
	templates, err := filepath.Glob(filepath.Join(root, "charts", "*", "templates", "*.yaml"))
	if err != nil {
		return fmt.Errorf("listing templates: %w", err)
	}
	for _, file := range templates {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("reading a template: %w", err)
		}
		if !bytes.HasPrefix(content, []byte(generatedMark)) {
			continue
		}
		if err := os.Remove(file); err != nil {
			return fmt.Errorf("removing a template: %w", err)
		}
	}
	for file, content := range files {
		to := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return fmt.Errorf("writing %s: %w", file, err)
		}
		if err := os.WriteFile(to, content, 0o644); err != nil {
			return fmt.Errorf("writing %s: %w", file, err)
		}
	}
	return nil
}

// Render returns what Generate writes: content by path below root.
func Render(root string) (map[string][]byte, error) {
	objects, err := build(root)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, object := range objects {
		chart, template, err := templateOf(object)
		if err != nil {
			return nil, fmt.Errorf("template of %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		if chart == "" {
			continue
		}
		file := path.Join("charts", chart, "templates", strings.ToLower(object.GetKind())+"-"+object.GetName()+".yaml")
		if object.GetName() == "autonode-operator" || object.GetName() == "autonode" {
			file = path.Join("charts", chart, "templates", strings.ToLower(object.GetKind())+".yaml")
		}
		// A Role and a ClusterRole have one name each; two objects of a kind and name would overwrite each other.
		if _, taken := files[file]; taken {
			return nil, fmt.Errorf("two objects make %s", file)
		}
		files[file] = []byte(generatedMark + template)
	}
	for _, dashboard := range dashboards {
		if files[path.Join("charts", Operator, "files", dashboard)], err = os.ReadFile(filepath.Join(root, "manifests", "monitoring", dashboard)); err != nil {
			return nil, fmt.Errorf("reading a dashboard: %w", err)
		}
	}
	return files, nil
}

// build is kustomize build of manifests/ with monitoring.
func build(root string) ([]*yaml.RNode, error) {
	built, err := manifests.Build(os.DirFS(filepath.Join(root, "manifests")), kustomizetypes.Kustomization{
		Resources: []string{"../base"}, Components: []string{"../base/monitoring"},
		Labels: []kustomizetypes.Label{{Pairs: map[string]string{"app.kubernetes.io/part-of": "autonode"}}},
	}, nil)
	if err != nil {
		return nil, err
	}
	return built.ToRNodeSlice(), nil
}
