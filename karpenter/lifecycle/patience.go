// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"errors"
	"sync"
	"time"

	operatorcontroller "github.com/awslabs/operatorpkg/controller"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/machine"
)

// Patient returns Karpenter's own controller of NodeClaims' lifecycle so that it gives up a NodeClaim that has a Machine only when our
// deadline says so. It counts from times in the NodeClaim's status, and so it also counts the time in which no Karpenter ran or the
// management cluster was away; and when that ends, nothing says whether it or we look at a NodeClaim first. Therefore the controller
// itself reads times that are moved. Nothing is written for it, and nothing but that controller sees it.
func Patient(core operatorcontroller.Controller, config Config) operatorcontroller.Controller {
	return patient{Controller: core, config: config}
}

type patient struct {
	operatorcontroller.Controller
	config Config
}

// Register adds the controller to the guest's manager.
func (p patient) Register(ctx context.Context, m manager.Manager) error {
	return p.Controller.Register(ctx, patientManager{m, &patience{Client: m.GetClient(), config: p.config}})
}

// patientManager hands out the client that controllers read what they reconcile with.
type patientManager struct {
	manager.Manager
	guest client.Client
}

// GetClient implements manager.Manager.
func (m patientManager) GetClient() client.Client { return m.guest }

type patience struct {
	client.Client
	config Config

	mu sync.Mutex
	// since is from when on somebody could act: the first read, or the last one while the management cluster was away.
	since time.Time
}

// Get implements client.Client.
func (p *patience) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if err := p.Client.Get(ctx, key, object, opts...); err != nil {
		return err
	}
	if nodeClaim, ok := object.(*karpv1.NodeClaim); ok && nodeClaim.DeletionTimestamp == nil {
		p.grant(ctx, nodeClaim)
	}
	return nil
}

// grant moves the times from which Karpenter counts until it gives a NodeClaim up.
func (p *patience) grant(ctx context.Context, nodeClaim *karpv1.NodeClaim) {
	launched := false
	for _, condition := range nodeClaim.Status.Conditions {
		launched = launched || condition.Type == karpv1.ConditionTypeLaunched && condition.Status == metav1.ConditionTrue
	}
	from := p.acting()
	if launched && !p.config.Suspended() {
		if _, err := p.config.Machines.ForNodeClaim(ctx, nodeClaim.UID); errors.Is(err, machine.ErrNotFound) {
			// There is no deadline for what isn't there: Karpenter's own timeout ends it.
			return
		}
		from = p.config.Clock.Now()
	}
	for i := range nodeClaim.Status.Conditions {
		condition := &nodeClaim.Status.Conditions[i]
		counted := condition.Type == karpv1.ConditionTypeLaunched || condition.Type == karpv1.ConditionTypeRegistered
		passed := condition.Reason == LaunchTimeoutReason || condition.Reason == RegistrationTimeoutReason
		if counted && !passed && condition.Status != metav1.ConditionTrue && condition.LastTransitionTime.Time.Before(from) {
			condition.LastTransitionTime = metav1.NewTime(from)
		}
	}
}

// acting returns since when somebody can act.
func (p *patience) acting() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() || p.config.Suspended() {
		p.since = p.config.Clock.Now()
	}
	return p.since
}
