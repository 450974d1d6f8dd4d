// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/payload"
	"github.com/autonode-io/autonode/test/world/lock"
	"github.com/autonode-io/autonode/test/world/programs"
	"github.com/autonode-io/autonode/test/world/registry"
)

const (
	// OperatorNamespace is the operator's namespace.
	OperatorNamespace = "autonode-system"
	// operatorDeployment is the operator's Deployment, and operatorImage its image's name in manifests/.
	operatorDeployment = "autonode-operator"
	operatorImage      = "autonode-operator"
	// karpenterComponent is Karpenter's name in payloads.
	karpenterComponent = "karpenter-clusterapi"

	operatorProgram  = "autonode-operator"
	karpenterProgram = "karpenter-clusterapi"

	operatorPullSecret = "registry-credentials"
	// settingsFile has the settings of every Karpenter.
	settingsFile = "karpenter-settings.yaml"
	// worldNetwork is the network of all listeners of a world.
	worldNetwork = "127.0.0.0/8"
	// operatorVersion is part of the default release's version.
	operatorVersion = "world"
)

// DefaultRelease is the version of the operator's default release for nodes of a Kubernetes version.
func DefaultRelease(kubernetes string) string {
	return strings.TrimPrefix(kubernetes, "v") + "+autonode." + operatorVersion
}

// Kubernetes versions of a guest's control plane after an upgrade. Config.NextMinor gives a world the second.
const (
	UpgradedKubernetes  = programs.KubernetesUpgradedVersion
	NextMinorKubernetes = programs.KubernetesNextMinorVersion
)

// Versions of the payloads in the world's registry: each gives nodes the Kubernetes version of the same number. The last is there with
// Config.NextMinor.
const (
	InitialRelease   = "1.36.2"
	UpgradedRelease  = "1.36.3"
	NextMinorRelease = "1.37.2"
)

// HostedClusterFeatureGates are Karpenter's feature gates that the world's platform lets HostedClusters set.
var HostedClusterFeatureGates = []string{"CapacityBuffer", "DynamicResourceAllocation", "PodDeletionCostManagement"}

// autonode has the artifacts that the world builds from AutoNode's source.
type autonode struct {
	source string
	// versions are those of the payloads, in the order in which they follow each other.
	versions []string
	// bin is a folder in the cache, so that a world in a new folder links nothing again; unlock lets others build there.
	bin    string
	unlock func()

	operatorImage   string            // by digest
	defaultImage    string            // by digest: Karpenter of the operator's default release
	karpenterImages map[string]string // by digest, by release
	releases        map[string]string // by digest, by release
}

// build builds our two programs. What is up to date isn't linked again.
func (a *autonode) build(ctx context.Context) error {
	cache, err := programs.CacheDir()
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(a.source))
	a.bin = filepath.Join(cache, "autonode", hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(a.bin, 0o755); err != nil {
		return fmt.Errorf("making the cache folder: %w", err)
	}
	// Another world builds for some seconds at most, and then reads its programs: it may not have ours instead.
	if a.unlock, err = lock.Wait(ctx, filepath.Join(a.bin, "lock"), nil); err != nil {
		return err
	}
	if _, err := programs.Go(ctx, a.source, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X main.version="+operatorVersion,
		"-o", a.bin+string(filepath.Separator), "./cmd/"+operatorProgram, "./cmd/"+karpenterProgram); err != nil {
		return fmt.Errorf("building AutoNode from %s: %w", a.source, err)
	}
	return nil
}

// release lets other worlds build.
func (a *autonode) release() {
	if a.unlock != nil {
		a.unlock()
	}
}

// publish packs the programs into images and pushes them, and a payload for each version.
func (a *autonode) publish(ctx context.Context, registry *registry.Registry) error {
	defer a.release()
	a.karpenterImages, a.releases = map[string]string{}, map[string]string{}
	var err error
	if a.operatorImage, err = a.push(ctx, registry, operatorProgram, "autonode/operator", operatorVersion); err != nil {
		return err
	}
	if a.defaultImage, err = a.push(ctx, registry, karpenterProgram, "autonode/karpenter-clusterapi", operatorVersion); err != nil {
		return err
	}
	definitions, err := karpenterCRDs()
	if err != nil {
		return err
	}
	var previous []string
	for _, version := range a.versions {
		// One binary under two digests, as two builds of one source would be.
		image, err := a.push(ctx, registry, karpenterProgram, "autonode/karpenter-clusterapi", version)
		if err != nil {
			return err
		}
		release, err := payload.Build(payload.Spec{
			Version: version,
			// No machine of the world boots from one; that they reach Karpenter is what matters.
			NodeImages: payload.NodeImages{goruntime.GOARCH: {"kwok": {"raw": "kwok-" + version}}},
			Previous:   previous,
			Components: []payload.ComponentSpec{{
				Name: karpenterComponent, Image: image, Versions: map[string]string{payload.KubernetesVersion: version}, CRDs: definitions,
			}},
		})
		if err != nil {
			return fmt.Errorf("building payload %s: %w", version, err)
		}
		if a.releases[version], err = registry.Push(ctx, "autonode/release:"+version, release); err != nil {
			return err
		}
		a.karpenterImages[version] = image
		previous = append(previous, version)
	}
	return nil
}

func (a *autonode) push(ctx context.Context, r *registry.Registry, program, repository, version string) (string, error) {
	image, err := registry.PackProgram(filepath.Join(a.bin, program), program, map[string]string{
		"org.opencontainers.image.title": program, "org.opencontainers.image.version": version,
	})
	if err != nil {
		return "", err
	}
	return r.Push(ctx, repository+":"+version, image)
}

func karpenterCRDs() ([][]byte, error) {
	definitions, err := crds.Embedded()
	if err != nil {
		return nil, err
	}
	documents := make([][]byte, 0, len(definitions))
	for _, definition := range definitions {
		document, err := yaml.Marshal(definition)
		if err != nil {
			return nil, fmt.Errorf("encoding CRD %s: %w", definition.Name, err)
		}
		documents = append(documents, document)
	}
	return documents, nil
}

// install applies manifests/ as an installation on a real management cluster would: an overlay names the image.
func (a *autonode) install(ctx context.Context, w *World) error {
	base, overlay := filepath.Join(w.dir.manifests(), "base"), filepath.Join(w.dir.manifests(), "overlay")
	if err := copyTree(filepath.Join(a.source, "manifests"), base); err != nil {
		return err
	}
	if err := os.MkdirAll(overlay, 0o755); err != nil {
		return fmt.Errorf("writing the operator's overlay: %w", err)
	}
	repository, digest, _ := strings.Cut(a.operatorImage, "@")
	for name, content := range map[string]any{
		"kustomization.yaml": map[string]any{
			"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
			"resources": []string{"../base", "pull-secret.yaml"},
			"configMapGenerator": []any{map[string]any{
				"name": "karpenter-settings", "namespace": OperatorNamespace, "files": []string{"settings.yaml=" + settingsFile},
			}},
			"images": []map[string]string{{"name": operatorImage, "newName": repository, "digest": digest}},
			"patches": []any{
				map[string]string{"path": "deployment.yaml"},
				map[string]any{
					"target": map[string]string{"kind": "Deployment", "name": operatorDeployment},
					"patch": `[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--guest-networks=` + worldNetwork + `"},
						{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--registry-networks=` + worldNetwork + `"},
						{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--karpenter-image=` + a.defaultImage + `"},
						{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--karpenter-settings=/etc/karpenter/settings.yaml"},
						{"op": "add", "path": "/spec/template/spec/volumes/-", "value": {"name": "settings", "configMap": {"name": "karpenter-settings"}}},
						{"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-", "value": {"name": "settings", "mountPath": "/etc/karpenter"}}]`,
				},
			},
		},
		settingsFile: map[string]any{"hostedClusterFeatureGates": HostedClusterFeatureGates},
		"pull-secret.yaml": corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: OperatorNamespace, Name: operatorPullSecret},
			Type:       corev1.SecretTypeDockerConfigJson,
			Data:       map[string][]byte{corev1.DockerConfigJsonKey: w.registry.DockerConfigJSON()},
		},
		"deployment.yaml": map[string]any{
			"apiVersion": "apps/v1", "kind": "Deployment",
			"metadata": map[string]any{"namespace": OperatorNamespace, "name": operatorDeployment},
			"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
				"imagePullSecrets": []map[string]string{{"name": operatorPullSecret}},
			}}},
		},
	} {
		data, err := yaml.Marshal(content)
		if err != nil {
			return fmt.Errorf("writing the operator's overlay: %w", err)
		}
		if err := os.WriteFile(filepath.Join(overlay, name), data, 0o600); err != nil {
			return fmt.Errorf("writing the operator's overlay: %w", err)
		}
	}
	if _, err := w.kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-k", overlay); err != nil {
		return fmt.Errorf("installing the operator: %w", err)
	}
	return nil
}

// waitAvailable returns when the operator's Deployment is rolled out.
func (a *autonode) waitAvailable(ctx context.Context, w *World) error {
	_, err := w.kubectl(ctx, "-n", OperatorNamespace, "rollout", "status", "deployment/"+operatorDeployment, "--timeout="+operatorTimeout.String())
	if err != nil {
		pods, podsErr := w.kubectl(ctx, "-n", OperatorNamespace, "get", "pods", "-o", "custom-columns=POD:.metadata.name,STATE:.status.containerStatuses[*].state")
		return errors.Join(fmt.Errorf("waiting for the operator: %w\n%s", err, pods), podsErr)
	}
	return nil
}

// kubectl runs kubectl as an administrator of the management cluster, and returns what it prints.
func (w *World) kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, w.programs.Kubectl(), append([]string{"--kubeconfig", w.dir.kubeconfig(Management)}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, bytes.TrimSpace(out))
	}
	return string(bytes.TrimSpace(out)), nil
}

func copyTree(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("copying %s: %w", from, err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("AutoNode's source lacks %s", from)
		}
		return fmt.Errorf("copying %s: %w", from, err)
	}
	return nil
}
