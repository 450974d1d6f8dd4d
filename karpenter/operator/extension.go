// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	coreoperator "sigs.k8s.io/karpenter/pkg/operator"

	"github.com/autonode-io/autonode/karpenter/core/methods"
)

// Extend adds a feature that some platforms don't need. It may replace the Limiter, before the providers that ask it are made, and add to
// Providers.Extensions.
type Extend func(context.Context, *Environment) error

// Environment of an extension.
type Environment struct {
	*Providers
	Guest      *coreoperator.Operator
	Management *Management
	Options    Options
	// Simulated: the process launches nothing.
	Simulated bool
}

// Extensions are the parts of Karpenter that extensions add.
type Extensions struct {
	// Methods of disruption come before Karpenter core's. A nil one is left out.
	Methods []func(methods.Core) disruption.Method
	// Controllers of the elected process.
	Controllers []func(methods.Core) controller.Controller
	// Follow brings a process that launches nothing to where the elected one is. Its clock goes ahead by the argument of advance.
	Follow []func(ctx context.Context, advance func(time.Duration)) error
}
