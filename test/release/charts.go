// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
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
	for _, chart := range []string{charts.CRDs, charts.Operator} {
		files, metadata, err := r.readChart(chart)
		if err != nil {
			return fmt.Errorf("chart %s: %w", chart, err)
		}
		var archive bytes.Buffer
		if err := tarred(&archive, files); err != nil {
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

// readChart returns a chart's files and, as JSON, its Chart.yaml.
func (r *release) readChart(chart string) (files []packed, metadata []byte, err error) {
	source := os.DirFS(filepath.Join(r.Source, "charts", chart))
	err = fs.WalkDir(source, ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(source, file)
		if err != nil {
			return err
		}
		replace := func(from, to string) {
			if n := bytes.Count(content, []byte(from)); n != 1 && err == nil {
				err = fmt.Errorf("%s has %q %d times, not once", file, from, n)
			}
			content = bytes.Replace(content, []byte(from), []byte(to), 1)
		}
		switch {
		case file == "Chart.yaml":
			replace("\nversion: 0.0.0\n", "\nversion: "+strings.TrimPrefix(r.Version, "v")+"\n")
			replace("\nappVersion: v0.0.0\n", "\nappVersion: "+r.Version+"\n")
			if err == nil {
				metadata, err = yaml.YAMLToJSON(content)
			}
		case file == "values.yaml" && chart == charts.Operator:
			replace(`repository: ""`, `repository: `+r.Prefix+"/"+operatorProgram)
			replace(`digest: ""`, `digest: `+r.digestOf(operatorProgram).String())
		}
		files = append(files, packed{path.Join(chart, file), 0o644, content})
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
	var known clusterctlv1.Metadata
	if err := yaml.Unmarshal(metadata, &known); err != nil {
		return fmt.Errorf("reading manifests/clusterctl/%s: %w", metadataFile, err)
	}
	ours, err := utilversion.ParseSemantic(r.Version)
	if err != nil {
		return err
	}
	if known.GetReleaseSeriesForVersion(ours) == nil {
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
