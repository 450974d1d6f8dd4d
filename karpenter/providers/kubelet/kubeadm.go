// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// maxFile is the largest content of a file that is read, in bytes.
const maxFile = 1 << 20

// config is the part of a KubeadmConfig that decides the kubelet's settings.
type config struct {
	JoinConfiguration struct {
		NodeRegistration struct {
			KubeletExtraArgs any `json:"kubeletExtraArgs"`
			Taints           any `json:"taints"`
		} `json:"nodeRegistration"`
		Patches struct {
			Directory string `json:"directory"`
		} `json:"patches"`
	} `json:"joinConfiguration"`
	Files               []file   `json:"files"`
	BootCommands        []string `json:"bootCommands"`
	PreKubeadmCommands  []string `json:"preKubeadmCommands"`
	PostKubeadmCommands []string `json:"postKubeadmCommands"`
	Ignition            struct {
		ContainerLinuxConfig struct {
			AdditionalConfig string `json:"additionalConfig"`
		} `json:"containerLinuxConfig"`
	} `json:"ignition"`
}

type file struct {
	Path          string         `json:"path"`
	Content       string         `json:"content"`
	ContentFrom   map[string]any `json:"contentFrom"`
	ContentFormat string         `json:"contentFormat"`
	Encoding      string         `json:"encoding"`
	Append        bool           `json:"append"`
}

// mention matches the names of settings in scripts and files that are otherwise not understood.
var mention = regexp.MustCompile(`(?i)\b(max-?pods|pods-?per-?core|kube-?reserved|system-?reserved|eviction-?hard|reserved-?cpus|` +
	`reservedSystemCPUs|register-?with-?taints|merge-?default-?eviction-?settings|allocatable-ignore-eviction|` +
	`local-?storage-?capacity-?isolation|topology-?manager-?policy|full-pcpus-only)\b`)

// reader reads one template.
type reader struct {
	place    string
	config   config
	settings Settings
	// contents of the template's files by path, and those that decide the kubelet's settings.
	contents map[string]string
	used     map[string]bool
	// The kubelet's settings that findUnplanned needs.
	topology, cpuPolicy, staticPods, staticPodURL string
	cpuOptions                                    map[string]string
}

func (r *reader) unread(where, why string) {
	r.settings.Unread = append(r.settings.Unread, fmt.Sprintf("%s, %s: %s", r.place, where, why))
}

func (r *reader) read() Settings {
	node := r.config.JoinConfiguration.NodeRegistration
	args, err := Args(node.KubeletExtraArgs)
	if err != nil {
		r.unread("kubeletExtraArgs", err.Error())
	}
	if r.settings.Taints, err = Taints(node.Taints); err != nil {
		r.unread("taints", err.Error())
	}
	r.readFiles(args)
	r.setDocument(r.document(args))
	r.setFlags(args)
	r.findUnplanned()
	r.findMentions()
	return r.settings
}

// readFiles decodes the files, with those that are appended to. A file from a Secret can't be read; it matters if it is one of
// the kubelet's.
func (r *reader) readFiles(args map[string]string) {
	r.contents, r.used = map[string]string{}, map[string]bool{}
	for _, f := range r.config.Files {
		name := path.Clean(f.Path)
		content, err := f.decode()
		if err != nil {
			if strings.Contains(name, "kubelet") || r.isPatch(name) || isDropIn(name, args) || name == args["config"] {
				r.unread("file "+f.Path, err.Error())
				r.used[name] = true
			}
			continue
		}
		if f.Append {
			content = r.contents[name] + content
		}
		r.contents[name] = content
	}
}

func (f file) decode() (string, error) {
	switch {
	case len(f.ContentFrom) > 0:
		return "", errors.New("its content is in a Secret")
	case f.ContentFormat != "":
		return "", errors.New("its content is a template")
	}
	content := []byte(f.Content)
	var err error
	if strings.HasSuffix(f.Encoding, "base64") {
		if content, err = base64.StdEncoding.DecodeString(f.Content); err != nil {
			return "", fmt.Errorf("its content isn't base64: %w", err)
		}
	}
	if strings.HasPrefix(f.Encoding, "gzip") {
		unpacked, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			return "", fmt.Errorf("its content isn't gzip: %w", err)
		}
		if content, err = io.ReadAll(io.LimitReader(unpacked, maxFile+1)); err != nil {
			return "", fmt.Errorf("its content isn't gzip: %w", err)
		}
	}
	if len(content) > maxFile {
		return "", fmt.Errorf("it is larger than %d bytes", maxFile)
	}
	return string(content), nil
}

// isPatch reports whether kubeadm applies a file to the kubelet's configuration.
// https://kubernetes.io/docs/setup/production-environment/tools/kubeadm/control-plane-flags/#patches
func (r *reader) isPatch(name string) bool {
	directory := r.config.JoinConfiguration.Patches.Directory
	return directory != "" && path.Dir(name) == path.Clean(directory) && strings.HasPrefix(path.Base(name), "kubeletconfiguration")
}

// isDropIn reports whether the kubelet reads a file from its --config-dir.
func isDropIn(name string, args map[string]string) bool {
	directory := args["config-dir"]
	return directory != "" && strings.HasPrefix(name, path.Clean(directory)+"/") && path.Ext(name) == ".conf"
}

// document returns the kubelet's configuration: the file that a flag names, or otherwise kubeadm's, of which only the patches
// are known; over that, the drop-ins. A KubeletConfiguration that nothing names is taken for one that a command puts in place.
// merged reports that the kubelet fills its hard eviction thresholds with the default ones: it does that to the first file, if
// this has none or requests it, and not to the thresholds of drop-ins and flags.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/cmd/kubelet/app/server.go#L469
func (r *reader) document(args map[string]string) (document map[string]any, merged bool) {
	var named, loose, patches, dropIns []string
	for name, content := range r.contents {
		switch {
		case args["config"] != "" && name == path.Clean(args["config"]):
			named = append(named, name)
		case r.isPatch(name):
			patches = append(patches, name)
		case isDropIn(name, args):
			dropIns = append(dropIns, name)
		case isKubeletConfiguration(content):
			loose = append(loose, name)
		}
	}
	order := named
	if len(named) == 0 {
		slices.Sort(loose)
		slices.Sort(patches)
		order = slices.Concat(loose, patches)
	}
	slices.Sort(dropIns)
	document = map[string]any{}
	r.apply(document, order)
	const merges = "mergeDefaultEvictionSettings"
	asked, isBool := document[merges].(bool)
	if document[merges] != nil && !isBool {
		r.unread("KubeletConfiguration, "+merges, "it is neither true nor false")
	}
	merged = asked || document["evictionHard"] == nil
	r.apply(document, dropIns)
	return document, merged
}

// apply merges files into a document.
func (r *reader) apply(document map[string]any, names []string) {
	for _, name := range names {
		r.used[name] = true
		if _, kind, _ := strings.Cut(strings.TrimSuffix(path.Base(name), path.Ext(name)), "+"); r.isPatch(name) && kind == "json" {
			r.unread("file "+name, "JSON patches of the kubelet's configuration aren't read")
			continue
		}
		var content map[string]any
		if err := yaml.Unmarshal([]byte(r.contents[name]), &content); err != nil {
			r.unread("file "+name, err.Error())
			continue
		}
		merge(document, content)
	}
}

func isKubeletConfiguration(content string) bool {
	var document struct {
		Kind string `json:"kind"`
	}
	return strings.Contains(content, "KubeletConfiguration") && yaml.Unmarshal([]byte(content), &document) == nil &&
		document.Kind == "KubeletConfiguration"
}

// merge applies a JSON merge patch.
func merge(document, patch map[string]any) {
	for key, value := range patch {
		before, isMap := document[key].(map[string]any)
		after, toMap := value.(map[string]any)
		switch {
		case value == nil:
			delete(document, key)
		case isMap && toMap:
			merge(before, after)
		default:
			document[key] = value
		}
	}
}

// findMentions reports commands and other files that name one of the settings, such as a command that edits the kubelet's
// configuration.
func (r *reader) findMentions() {
	for _, field := range []struct {
		name     string
		commands []string
	}{
		{"bootCommands", r.config.BootCommands}, {"preKubeadmCommands", r.config.PreKubeadmCommands},
		{"postKubeadmCommands", r.config.PostKubeadmCommands},
	} {
		for i, command := range field.commands {
			if found := mention.FindString(command); found != "" {
				r.unread(fmt.Sprintf("%s[%d]", field.name, i), "it mentions "+found)
			}
		}
	}
	if found := mention.FindString(r.config.Ignition.ContainerLinuxConfig.AdditionalConfig); found != "" {
		r.unread("ignition.containerLinuxConfig.additionalConfig", "it mentions "+found)
	}
	for _, f := range r.config.Files {
		name := path.Clean(f.Path)
		if r.used[name] {
			continue
		}
		if found := mention.FindString(r.contents[name]); found != "" {
			r.used[name] = true
			r.unread("file "+f.Path, "it mentions "+found)
		}
	}
}
