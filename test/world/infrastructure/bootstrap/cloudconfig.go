// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	jinjaHeader       = "## template: jinja"
	cloudConfigHeader = "#cloud-config"
)

type cloudConfig struct {
	WriteFiles []File `json:"write_files"`
}

// File is one that cloud-init writes.
type File struct {
	Path        string `json:"path"`
	Content     string `json:"content"`
	Encoding    string `json:"encoding,omitempty"`
	Owner       string `json:"owner,omitempty"`
	Permissions string `json:"permissions,omitempty"`
	Append      bool   `json:"append,omitempty"`
}

// Script is what a machine does with its bootstrap data: it writes the files and then runs the commands, in their order.
type Script struct {
	Files []File
	// Commands are words, or one line for a shell.
	Commands [][]string
}

// ReadScript returns what bootstrap data ask of a machine. A module of cloud-init other than write_files and runcmd is an error.
func ReadScript(data []byte, instance Instance) (*Script, error) {
	text, err := renderCloudConfig(data, instance)
	if err != nil {
		return nil, err
	}
	config := struct {
		WriteFiles []File `json:"write_files"`
		RunCmd     []any  `json:"runcmd"`
	}{}
	if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
		return nil, fmt.Errorf("reading the cloud-config: %w", err)
	}
	script := &Script{Files: config.WriteFiles}
	for i, command := range config.RunCmd {
		switch command := command.(type) {
		case string:
			script.Commands = append(script.Commands, []string{command})
		case []any:
			var words []string
			for _, word := range command {
				words = append(words, fmt.Sprint(word))
			}
			script.Commands = append(script.Commands, words)
		default:
			return nil, fmt.Errorf("runcmd[%d] is neither a line nor a list of words", i)
		}
	}
	return script, nil
}

// renderCloudConfig returns the YAML of a cloud-config.
func renderCloudConfig(data []byte, instance Instance) (string, error) {
	text := string(data)
	if rest, ok := strings.CutPrefix(text, jinjaHeader); ok {
		var err error
		if text, err = render(strings.TrimLeft(rest, " \t\r\n"), instance); err != nil {
			return "", fmt.Errorf("rendering the cloud-config: %w", err)
		}
	}
	if !strings.HasPrefix(text, cloudConfigHeader) {
		first, _, _ := strings.Cut(text, "\n")
		return "", fmt.Errorf("not a cloud-config: it starts with %.60q instead of %q", first, cloudConfigHeader)
	}
	return text, nil
}

// readCloudConfig returns the content of a file that cloud-init would write. Of two by that path the last one counts.
func readCloudConfig(data []byte, path string, instance Instance) (string, error) {
	text, err := renderCloudConfig(data, instance)
	if err != nil {
		return "", err
	}
	config := cloudConfig{}
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		return "", fmt.Errorf("reading the cloud-config: %w", err)
	}
	for _, file := range slices.Backward(config.WriteFiles) {
		switch {
		case file.Path != path:
		case file.Encoding != "": // Cluster API writes this file as it is
			return "", fmt.Errorf("write_files: %s has the encoding %q; none is wanted", path, file.Encoding)
		default:
			return file.Content, nil
		}
	}
	return "", fmt.Errorf("write_files has no %s, so kubeadm can't join", path)
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
			return cmp.Or(instance.ID, instance.Hostname)
		case "availability_zone", "placement.availability_zone", "failure_domain", "zone":
			return instance.Zone
		case "region", "placement.region":
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
