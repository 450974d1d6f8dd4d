// SPDX-License-Identifier: Apache-2.0

// Package shutdown lets Karpenter end on request: its controllers get a queue that can be shut down (package manager reports why).
// They keep their rate limiters.
package shutdown

import (
	"github.com/awslabs/operatorpkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	autonodemanager "github.com/autonode-io/autonode/internal/manager"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

// Promptly wraps a controller.
func Promptly(c controller.Controller) controller.Controller {
	return reconciler.Wrap(c, func(of reconciler.Registered) (reconcile.Reconciler, error) {
		of.Queue(autonodemanager.Queue)
		return of.Inner, nil
	})
}
