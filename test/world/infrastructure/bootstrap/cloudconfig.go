// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	jinjaHeader       = "## template: jinja"
	cloudConfigHeader = "#cloud-config"
	// maxFileSize is the maximum size of an uncompressed file.
	maxFileSize = 4 << 20
)

type cloudConfig struct {
	WriteFiles []writeFile `json:"write_files"`
}

type writeFile struct {
	Path     string `json:"path"`
	Content  string `json:"content"`
	Encoding string `json:"encoding"`
	Append   bool   `json:"append"`
}

// readCloudConfig returns the files that cloud-init would write, by path.
func readCloudConfig(data []byte, instance Instance) (map[string]string, error) {
	text := string(data)
	if rest, ok := strings.CutPrefix(text, jinjaHeader); ok {
		var err error
		if text, err = render(strings.TrimLeft(rest, " \t\r\n"), instance); err != nil {
			return nil, fmt.Errorf("rendering the cloud-config: %w", err)
		}
	}
	if !strings.HasPrefix(text, cloudConfigHeader) {
		first, _, _ := strings.Cut(text, "\n")
		return nil, fmt.Errorf("not a cloud-config: it starts with %.60q instead of %q", first, cloudConfigHeader)
	}
	config := cloudConfig{}
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		return nil, fmt.Errorf("reading the cloud-config: %w", err)
	}
	files := map[string]string{}
	for i, file := range config.WriteFiles {
		if file.Path == "" {
			return nil, fmt.Errorf("write_files[%d]: path is missing", i)
		}
		content, err := decode(file.Content, file.Encoding)
		if err != nil {
			return nil, fmt.Errorf("write_files[%d] (%s): %w", i, file.Path, err)
		}
		if file.Append {
			content = files[file.Path] + content
		}
		files[file.Path] = content
	}
	return files, nil
}

// decode undoes the encodings that cloud-init knows.
func decode(content, encoding string) (string, error) {
	data := []byte(content)
	var steps []string
	switch encoding {
	case "", "text/plain":
	case "b64", "base64":
		steps = []string{"base64"}
	case "gz", "gzip":
		steps = []string{"gzip"}
	case "gz+b64", "gz+base64", "gzip+b64", "gzip+base64":
		steps = []string{"base64", "gzip"}
	default:
		return "", fmt.Errorf("encoding %q is unknown", encoding)
	}
	for _, step := range steps {
		var err error
		switch step {
		case "base64":
			data, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(string(data)), ""))
		case "gzip":
			data, err = gunzip(data)
		}
		if err != nil {
			return "", fmt.Errorf("decoding %s: %w", step, err)
		}
	}
	return string(data), nil
}

func gunzip(data []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(reader, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(out) > maxFileSize {
		return nil, errors.New("more than 4 MiB")
	}
	return out, nil
}

var (
	expression = regexp.MustCompile(`\{\{-?\s*(.*?)\s*-?\}\}`)
	subscript  = regexp.MustCompile(`\[\s*["']([^"']+)["']\s*\]`)
)

// render replaces the jinja expressions that read instance metadata, under the names that providers commonly use.
// Nothing else of jinja is known here; where cloud-init would put CI_MISSING_JINJA_VAR, this is an error.
func render(text string, instance Instance) (string, error) {
	var unknown []string
	out := expression.ReplaceAllStringFunc(text, func(match string) string {
		name := subscript.ReplaceAllString(expression.FindStringSubmatch(match)[1], ".$1")
		switch strings.TrimPrefix(strings.TrimPrefix(name, "ds.meta_data."), "v1.") {
		case "local_hostname", "hostname", "name":
			return instance.Hostname
		case "provider_id", "providerID":
			return instance.ProviderID
		case "instance_id", "instance-id":
			return instance.Hostname
		case "availability_zone", "failure_domain", "zone":
			return instance.Zone
		case "region":
			return instance.Region
		}
		unknown = append(unknown, name)
		return match
	})
	if len(unknown) > 0 {
		return "", fmt.Errorf("no such instance metadata: %s", strings.Join(unknown, ", "))
	}
	return out, nil
}
