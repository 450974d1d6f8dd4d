// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/test/charts"
)

// Media types of a chart in a registry, which Helm defines.
const (
	chartConfigMediaType  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContentMediaType types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	// chartsFolder begins the names of the charts' repositories: helm pull oci://<prefix>/charts/autonode.
	chartsFolder = "charts"
)

// What clusterctl and the Cluster API Operator read.
const (
	componentsFile                       = "addon-components.yaml"
	metadataFile                         = "metadata.yaml"
	componentsRepository                 = "components"
	yamlMediaType        types.MediaType = "application/yaml"
	// componentsMediaType is of an artifact with these files. The Cluster API Operator looks at their titles alone.
	componentsMediaType types.MediaType = "application/vnd.autonode.components.v1"
)

// packCharts packs the charts with the release's version and the operator's image by digest.
func (r *release) packCharts(context.Context) error {
	ours := strings.TrimPrefix(r.Version, "v")
	values := []string{
		`repository: ""`, `repository: ` + r.Prefix + "/" + operatorProgram,
		`digest: ""`, `digest: ` + r.digestOf(operatorProgram).String(),
	}
	for _, chart := range []string{charts.CRDs, charts.Operator} {
		replaced := map[string][]string{
			"Chart.yaml": {"\nversion: 0.0.0\n", "\nversion: " + ours + "\n", "\nappVersion: v0.0.0\n", "\nappVersion: " + r.Version + "\n"},
		}
		if chart == charts.Operator {
			replaced["values.yaml"] = values
		}
		packed, metadata, err := readChart(filepath.Join(r.Source, "charts", chart), chart, replaced)
		if err != nil {
			return fmt.Errorf("chart %s: %w", chart, err)
		}
		var archive bytes.Buffer
		if err := tarred(&archive, packed); err != nil {
			return fmt.Errorf("packing chart %s: %w", chart, err)
		}
		if err := r.write(chart+"-"+ours+".tgz", archive.Bytes()); err != nil {
			return err
		}
		image, err := artifact{
			config: blob{mediaType: chartConfigMediaType, bytes: metadata}, annotations: r.labels(chart),
			files: []blob{{mediaType: chartContentMediaType, bytes: archive.Bytes()}},
		}.image()
		if err != nil {
			return fmt.Errorf("packing chart %s: %w", chart, err)
		}
		if err := r.add(path.Join(chartsFolder, chart), ours, image); err != nil {
			return err
		}
	}
	return nil
}

// readChart returns a chart's files and, as JSON, its Chart.yaml. In the files named, each odd text, which is there once, is replaced by the
// next.
func readChart(folder, name string, replaced map[string][]string) (files []packed, metadata []byte, err error) {
	source := os.DirFS(folder)
	err = fs.WalkDir(source, ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(source, file)
		if err != nil {
			return err
		}
		pairs := replaced[file]
		for i := 0; i < len(pairs); i += 2 {
			if n := bytes.Count(content, []byte(pairs[i])); n != 1 {
				return fmt.Errorf("%s has %q %d times, not once", file, pairs[i], n)
			}
			content = bytes.Replace(content, []byte(pairs[i]), []byte(pairs[i+1]), 1)
		}
		files = append(files, packed{path.Join(name, file), 0o644, content})
		if file == "Chart.yaml" {
			var about map[string]any
			if err := yaml.Unmarshal(content, &about); err != nil {
				return fmt.Errorf("reading %s: %w", file, err)
			}
			metadata, err = json.Marshal(about)
		}
		return err
	})
	return files, metadata, err
}

// writeComponents writes what clusterctl and the Cluster API Operator install: the manifests with what they need changed, under the name that they
// look for, with metadata.yaml, as files and as an artifact for registries.
func (r *release) writeComponents(context.Context) error {
	metadata, err := os.ReadFile(filepath.Join(r.Source, "manifests", "clusterctl", metadataFile))
	if err != nil {
		return fmt.Errorf("reading the metadata: %w", err)
	}
	var series struct {
		ReleaseSeries []struct{ Major, Minor uint } `json:"releaseSeries"`
	}
	if err := yaml.Unmarshal(metadata, &series); err != nil {
		return fmt.Errorf("reading manifests/clusterctl/%s: %w", metadataFile, err)
	}
	ours, err := utilversion.ParseSemantic(r.Version)
	if err != nil {
		return err
	}
	found := false
	for _, s := range series.ReleaseSeries {
		found = found || s.Major == ours.Major() && s.Minor == ours.Minor()
	}
	if !found {
		return fmt.Errorf("manifests/clusterctl/%s has no series %d.%d; add it", metadataFile, ours.Major(), ours.Minor())
	}
	components, err := r.render("clusterctl")
	if err != nil {
		return err
	}
	var contents []blob
	for _, file := range []struct {
		name  string
		bytes []byte
	}{{metadataFile, metadata}, {componentsFile, components}} {
		if err := r.write(file.name, file.bytes); err != nil {
			return err
		}
		title := strings.TrimPrefix(file.name, "addon-")
		contents = append(contents, blob{yamlMediaType, file.bytes, map[string]string{"org.opencontainers.image.title": title}})
	}
	image, err := artifact{
		artifactType: componentsMediaType, config: blob{mediaType: emptyMediaType, bytes: []byte("{}")}, annotations: r.labels("autonode"), files: contents,
	}.image()
	if err != nil {
		return fmt.Errorf("packing the components: %w", err)
	}
	return r.add(componentsRepository, r.Version, image)
}
