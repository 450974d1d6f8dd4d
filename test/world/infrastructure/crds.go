// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"embed"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/autonode-io/autonode/test/world/crd"
)

//go:embed crds/*.yaml
var crdFiles embed.FS

// CRDs returns the custom resource definitions of the provider and of HostedControlPlane, sorted by name.
func CRDs() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return crd.ReadFS(crdFiles, "crds")
}
