// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"path/filepath"
)

// KubernetesNextMinorVersion is a version of the minor after that of KubernetesVersion.
const KubernetesNextMinorVersion = "v1.37.2"

// nextMinor is an API server that only the tests of minor upgrades run: it is another source, so it costs another build. The controller manager
// and the scheduler stay: Kubernetes supports them one minor version behind the API server.
var nextMinor = collection{
	title: "Building kube-apiserver " + KubernetesNextMinorVersion, about: "first time only, about 6 min on 2 cores",
	module: "nextminor",
	list:   []program{{name: apiServerName(KubernetesNextMinorVersion), pkg: apiServer, ldflags: kubernetesStamp(KubernetesNextMinorVersion)}},
}

// WithNextMinor returns the set with an API server of KubernetesNextMinorVersion as well. It builds what isn't in the cache, as Ensure does.
func (s Set) WithNextMinor(ctx context.Context, opts Options) (Set, error) {
	dir, err := nextMinor.ensure(ctx, opts)
	if err != nil {
		return Set{}, err
	}
	s.nextMinor = filepath.Join(dir, binFolder)
	return s, nil
}
