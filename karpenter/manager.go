// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/autonode-io/autonode/lenient"
)

// guestManagers makes the managers that controller-runtime makes from now on read the guest with a Decoder, and cache no managed fields, which
// nobody reads. It returns what ends that. Karpenter core makes its own manager from a variable of controller-runtime's, and takes no options
// for it (docs/upstream/undecodable-objects.md).
func guestManagers(objects *lenient.Decoder) (restore func()) {
	before := ctrl.NewManager
	ctrl.NewManager = func(config *rest.Config, options manager.Options) (manager.Manager, error) {
		config = rest.CopyConfig(config)
		objects.Wrap(config)
		options.Cache.NewInformer = objects.NewInformer
		options.Cache.DefaultTransform = cache.TransformStripManagedFields()
		return before(config, options)
	}
	return func() { ctrl.NewManager = before }
}
