// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"path/filepath"
)

// ClusterAPIProviderAWSVersion is the version of Cluster API Provider AWS.
const ClusterAPIProviderAWSVersion = "v2.13.0"

const (
	clusterAPIProviderAWS     = "cluster-api-provider-aws"
	clusterAPIProviderAWSPath = "sigs.k8s.io/cluster-api-provider-aws/v2"
)

// aws is what a world with AWS runs besides.
var aws = collection{
	title: "Building Cluster API Provider AWS", about: "first time only, about 6 min on 2 cores",
	module: "aws",
	list: []program{{
		name: clusterAPIProviderAWS, pkg: clusterAPIProviderAWSPath,
		ldflags: "-X " + clusterAPIProviderAWSPath + "/version.gitVersion=" + ClusterAPIProviderAWSVersion,
	}},
	source: clusterAPIProviderAWSPath,
	manifests: map[string]string{
		"config/crd/bases":              "crds",
		"config/webhook/manifests.yaml": "webhooks.yaml",
	},
}

// AWS is a folder with what only a world with AWS runs.
type AWS struct {
	// Dir is the folder in the cache.
	Dir string
}

// EnsureAWS is Ensure for what only a world with AWS runs.
func EnsureAWS(ctx context.Context, opts Options) (AWS, error) {
	dir, err := aws.ensure(ctx, opts)
	return AWS{Dir: dir}, err
}

// ClusterAPIProvider is the path of Cluster API Provider AWS' manager.
func (a AWS) ClusterAPIProvider() string {
	return filepath.Join(a.Dir, binFolder, clusterAPIProviderAWS)
}

// ClusterAPIProviderManifests is a folder with crds/ and webhooks.yaml of Cluster API Provider AWS.
func (a AWS) ClusterAPIProviderManifests() string { return filepath.Join(a.Dir, manifestsFolder) }
