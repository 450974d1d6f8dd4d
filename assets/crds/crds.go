// SPDX-License-Identifier: Apache-2.0

// Package crds holds the CustomResourceDefinitions that a guest cluster gets where the payload ships none of that name:
// Karpenter's own, as its module embeds them, ClusterAPINodeClass and NodeRecord.
package crds

import (
	_ "embed"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/karpenter/pkg/apis"

	"github.com/autonode-io/autonode/assets/manifest"
)

//go:embed karpenter.cluster.x-k8s.io_clusterapinodeclasses.yaml
var clusterAPINodeClass []byte

//go:embed karpenter.cluster.x-k8s.io_noderecords.yaml
var nodeRecord []byte

// Embedded returns the definitions, freshly decoded: the caller may change them.
func Embedded() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return decode(apis.NodePoolCRD, apis.NodeClaimCRD, apis.NodeOverlayCRD, clusterAPINodeClass, nodeRecord)
}

// Gated returns those of kinds that a guest has only while a feature gate of Karpenter needs them, likewise. Their API may belong to
// another project, which may have defined the kind there first.
func Gated() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return decode(apis.CapacityBufferCRD)
}

// CapacityBuffer is the name of the definition of Karpenter's CapacityBuffers, which SIG Autoscaling's API has.
const CapacityBuffer = "capacitybuffers.autoscaling.x-k8s.io"

// Karpenter returns those that every provider has, likewise.
func Karpenter() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return decode(apis.NodePoolCRD, apis.NodeClaimCRD, apis.NodeOverlayCRD)
}

func decode(documents ...[]byte) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var definitions []*apiextensionsv1.CustomResourceDefinition
	for _, data := range documents {
		definition, err := manifest.Decode(data, &apiextensionsv1.CustomResourceDefinition{})
		if err != nil {
			return nil, fmt.Errorf("reading what is embedded: %w", err)
		}
		definitions = append(definitions, definition)
	}
	return definitions, nil
}
