// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"path/filepath"
)

// KarpenterAWSVersion is the version of Karpenter's AWS provider.
const KarpenterAWSVersion = "v1.14.1"

const (
	karpenterAWSName = "karpenter-aws"
	karpenterAWSPath = "github.com/aws/karpenter-provider-aws"
)

// karpenterAWS is a module of its own, with the versions that Karpenter's AWS provider is released with. Only Karpenter core is the release of the same
// number instead of a commit before it, which the module proxy doesn't have.
var karpenterAWS = collection{
	title: "Building Karpenter's AWS provider", about: "first time only, about 3 min on 2 cores",
	module: "karpenteraws",
	list: []program{{
		name: karpenterAWSName, pkg: karpenterAWSPath + "/cmd/controller",
		ldflags: "-X sigs.k8s.io/karpenter/pkg/operator.Version=" + KarpenterAWSVersion,
	}},
	source:    karpenterAWSPath,
	manifests: map[string]string{"pkg/apis/crds": "crds"},
}

// KarpenterAWS is a folder with Karpenter's AWS provider.
type KarpenterAWS struct {
	// Dir is the folder in the cache.
	Dir string
}

// EnsureKarpenterAWS is Ensure for Karpenter's AWS provider.
func EnsureKarpenterAWS(ctx context.Context, opts Options) (KarpenterAWS, error) {
	dir, err := karpenterAWS.ensure(ctx, opts)
	return KarpenterAWS{Dir: dir}, err
}

// Program is the path of the provider.
func (k KarpenterAWS) Program() string { return filepath.Join(k.Dir, binFolder, karpenterAWSName) }

// CRDs is a folder with its CRDs, and Karpenter core's.
func (k KarpenterAWS) CRDs() string { return filepath.Join(k.Dir, manifestsFolder, "crds") }
