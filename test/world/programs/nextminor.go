// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"path/filepath"
)

// KubernetesNextMinorVersion is a version of the minor after that of KubernetesVersion.
const KubernetesNextMinorVersion = "v1.37.2"

// nextMinor is a control plane that only the tests of minor upgrades run: it is another source, so it costs another build.
var nextMinor = collection{
	title: "Building a control plane of Kubernetes " + KubernetesNextMinorVersion, about: "first time only, about 8 min on 2 cores",
	module: "nextminor",
	list: []program{
		{name: nextMinorName("kube-apiserver"), pkg: apiServer, ldflags: kubernetesStamp(KubernetesNextMinorVersion)},
		{name: nextMinorName(controllerManager), pkg: "k8s.io/kubernetes/cmd/kube-controller-manager", ldflags: kubernetesStamp(KubernetesNextMinorVersion)},
		{name: nextMinorName(scheduler), pkg: "k8s.io/kubernetes/cmd/kube-scheduler", ldflags: kubernetesStamp(KubernetesNextMinorVersion)},
	},
}

func nextMinorName(program string) string { return program + "-" + KubernetesNextMinorVersion }

// WithNextMinor returns the set with a control plane of KubernetesNextMinorVersion as well. It builds what isn't in the cache, as Ensure does.
func (s Set) WithNextMinor(ctx context.Context, opts Options) (Set, error) {
	dir, err := nextMinor.ensure(ctx, opts)
	if err != nil {
		return Set{}, err
	}
	s.nextMinor = filepath.Join(dir, binFolder)
	return s, nil
}
