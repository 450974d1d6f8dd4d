// SPDX-License-Identifier: Apache-2.0

package clusterctl

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/autonode-io/autonode/internal/scopetest"
)

// Addon is AutoNode's name for clusterctl, and Core what `clusterctl init --core` takes.
const (
	Addon = "autonode"
	Core  = "cluster-api:" + coreVersion

	coreVersion    = "v1.14.2" // any of a series with the contract that AutoNode's metadata.yaml names
	componentsFile = "addon-components.yaml"
	metadataFile   = "metadata.yaml"
)

// Repository is a folder that clusterctl installs AutoNode from, without the internet.
//
// Cluster API itself runs already where it is used, so its components are here but a namespace: `clusterctl init --core` makes clusterctl believe
// that it installed it. clusterctl also checks that cert-manager works, by creating an Issuer and a Certificate: CertManager has their CRDs.
type Repository struct{ source, folder string }

// NewRepository makes one in an empty folder. source is the root of AutoNode's source.
func NewRepository(source, folder string) (Repository, error) {
	r := Repository{source, folder}
	config := fmt.Sprintf(`cert-manager: {externallyProvisioned: "true", timeout: 2m}
providers:
  - {name: cluster-api, type: CoreProvider, url: %[1]s/cluster-api/%[2]s/core-components.yaml}
  - {name: %[3]s, type: AddonProvider, url: %[1]s/addon-%[3]s/latest/%[4]s}
`, folder, coreVersion, Addon, componentsFile)
	core := filepath.Join(folder, "cluster-api", coreVersion)
	for file, content := range map[string]string{
		r.config(): config,
		filepath.Join(core, "core-components.yaml"): "apiVersion: v1\nkind: Namespace\nmetadata: {name: capi-system}\n",
		filepath.Join(core, metadataFile): "apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3\nkind: Metadata\n" +
			"releaseSeries: [{major: 1, minor: 14, contract: v1beta2}]\n",
	} {
		if err := write(file, []byte(content)); err != nil {
			return r, err
		}
	}
	return r, nil
}

// Add puts a version of AutoNode into the repository.
func (r Repository) Add(version string, components, metadata []byte) error {
	folder := filepath.Join(r.folder, "addon-"+Addon, version)
	for file, content := range map[string][]byte{componentsFile: components, metadataFile: metadata} {
		if err := write(filepath.Join(folder, file), content); err != nil {
			return err
		}
	}
	return nil
}

// Run runs clusterctl with this repository, against the management cluster of a kubeconfig.
func (r Repository) Run(ctx context.Context, kubeconfig string, args ...string) error {
	return Run(ctx, r.source, r.folder, append(args, "--config", r.config(), "--kubeconfig", kubeconfig)...)
}

func (r Repository) config() string { return filepath.Join(r.folder, "clusterctl.yaml") }

func write(file string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("making a folder of clusterctl's repository: %w", err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return fmt.Errorf("writing clusterctl's repository: %w", err)
	}
	return nil
}

// CertManager are the CRDs of what clusterctl creates to see whether cert-manager works.
func CertManager() []*apiextensionsv1.CustomResourceDefinition {
	return []*apiextensionsv1.CustomResourceDefinition{
		scopetest.Definition("cert-manager.io", "Issuer", "issuers", "v1"), scopetest.Definition("cert-manager.io", "Certificate", "certificates", "v1"),
	}
}
