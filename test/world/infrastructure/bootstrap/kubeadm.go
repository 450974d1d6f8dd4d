// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// joinConfiguration is the part of kubeadm's JoinConfiguration that affects a Node; v1beta3 and v1beta4.
type joinConfiguration struct {
	Discovery        discovery        `json:"discovery"`
	NodeRegistration nodeRegistration `json:"nodeRegistration"`
	Patches          struct {
		Directory string `json:"directory"`
	} `json:"patches"`
}

type nodeRegistration struct {
	Name             string         `json:"name"`
	Taints           []corev1.Taint `json:"taints"`
	KubeletExtraArgs extraArgs      `json:"kubeletExtraArgs"`
}

// extraArgs are a component's flags: a map up to kubeadm's v1beta3, a list of name and value from v1beta4 on. Of a flag
// that is given twice, the last value counts, as it does for the kubelet.
type extraArgs map[string]string

func (a *extraArgs) UnmarshalJSON(data []byte) error {
	*a = extraArgs{}
	if trimmed := strings.TrimSpace(string(data)); !strings.HasPrefix(trimmed, "[") {
		return json.Unmarshal(data, (*map[string]string)(a))
	}
	var list []struct {
		Name  string  `json:"name"`
		Value *string `json:"value"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	for i, arg := range list {
		if arg.Name == "" || arg.Value == nil {
			return fmt.Errorf("kubeletExtraArgs[%d]: name and value are needed", i)
		}
		(*a)[arg.Name] = *arg.Value
	}
	return nil
}

// kubeletConfiguration is the part of a KubeletConfiguration that affects a Node.
type kubeletConfiguration struct {
	MaxPods            *int64            `json:"maxPods,omitempty"`
	SystemReserved     map[string]string `json:"systemReserved,omitempty"`
	KubeReserved       map[string]string `json:"kubeReserved,omitempty"`
	EvictionHard       map[string]string `json:"evictionHard,omitempty"`
	RegisterWithTaints []corev1.Taint    `json:"registerWithTaints,omitempty"`
	ServerTLSBootstrap bool              `json:"serverTLSBootstrap,omitempty"`
}

// readJoinConfiguration reads kubeadm's configuration file: documents of which one is a JoinConfiguration and
// another may be a KubeletConfiguration.
func readJoinConfiguration(content string) (*joinConfiguration, *kubeletConfiguration, error) {
	var join *joinConfiguration
	config := &kubeletConfiguration{}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(content)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, err
		}
		if len(strings.TrimSpace(string(document))) == 0 {
			continue
		}
		kind := struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
		}{}
		if err := yaml.Unmarshal(document, &kind); err != nil {
			return nil, nil, err
		}
		switch kind.Kind {
		case "JoinConfiguration":
			if !strings.HasPrefix(kind.APIVersion, "kubeadm.k8s.io/") {
				return nil, nil, fmt.Errorf("JoinConfiguration has apiVersion %q", kind.APIVersion)
			}
			if join != nil {
				return nil, nil, errors.New("more than one JoinConfiguration")
			}
			join = &joinConfiguration{}
			if err := yaml.Unmarshal(document, join); err != nil {
				return nil, nil, fmt.Errorf("JoinConfiguration: %w", err)
			}
		case "KubeletConfiguration":
			if err := yaml.Unmarshal(document, config); err != nil {
				return nil, nil, fmt.Errorf("KubeletConfiguration: %w", err)
			}
		}
	}
	if join == nil {
		return nil, nil, errors.New("no JoinConfiguration")
	}
	return join, config, nil
}

// applyPatches applies kubeadm's patches of the kubelet's configuration: files of the patch directory named
// `kubeletconfiguration[suffix][+strategic|+merge].(yaml|json)`, in the order of their names.
func applyPatches(config *kubeletConfiguration, files map[string]string, directory string) error {
	document, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encoding the kubelet's configuration: %w", err)
	}
	names := map[string]string{}
	for file := range files {
		if path.Dir(file) == path.Clean(directory) && strings.HasPrefix(path.Base(file), "kubeletconfiguration") {
			names[file] = ""
		}
	}
	for _, file := range sortedKeys(names) {
		base := strings.TrimSuffix(path.Base(file), path.Ext(file))
		if _, kind, found := strings.Cut(base, "+"); found && kind != "strategic" && kind != "merge" {
			return fmt.Errorf("%s: patches of type %q are not understood; strategic and merge are", file, kind)
		}
		patch, err := yaml.YAMLToJSON([]byte(files[file]))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if document, err = strategicpatch.StrategicMergePatch(document, patch, kubeletConfiguration{}); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	*config = kubeletConfiguration{}
	if err := json.Unmarshal(document, config); err != nil {
		return fmt.Errorf("reading the patched configuration of the kubelet: %w", err)
	}
	return nil
}
