// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/autonode-io/autonode/lenient"
)

// guestManagers replaces the function ctrl.NewManager, until the caller calls restore. The managers that it makes decode the guest's objects
// with the Decoder, and cache them without managed fields, because no controller reads those. Karpenter core creates its manager by
// ctrl.NewManager, and offers no option for its caches (docs/upstream/undecodable-objects.md).
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
