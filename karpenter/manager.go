// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// guestManagers replaces the function ctrl.NewManager, until the caller calls restore. The managers that it makes cache the guest's objects
// without managed fields, because no controller reads those. Karpenter core creates its manager by ctrl.NewManager, and offers no option
// for its caches.
func guestManagers() (restore func()) {
	before := ctrl.NewManager
	ctrl.NewManager = func(config *rest.Config, options manager.Options) (manager.Manager, error) {
		options.Cache.DefaultTransform = cache.TransformStripManagedFields()
		return before(config, options)
	}
	return func() { ctrl.NewManager = before }
}
