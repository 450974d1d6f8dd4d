// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/infrastructure/bootstrap"
)

// passingGrace is how long a machine may be on its way to something else before its status reports it. Most of what a starting machine
// waits for is over sooner, and every write costs an API server and all that watch.
const passingGrace = 5 * time.Second

// passingReasons are those of conditions that a machine which has nothing wrong with it goes through.
var passingReasons = []string{
	infrav1.ReasonWaitingForMachine, infrav1.ReasonWaitingForCluster, infrav1.ReasonWaitingForBootstrapData, infrav1.ReasonProvisioning,
	infrav1.ReasonWaitingForInstance, infrav1.ReasonBooting, infrav1.ReasonWaitingForCertificate,
}

// memory is what is known of a machine beside what the cache has. Only one reconciliation of a machine runs at a time, so that it needs
// no lock. It is lost when the provider ends, which costs a write or a read more.
type memory struct {
	uid types.UID
	// written is the machine as it was written last: the cache may not have that yet.
	written *infrav1.KwokMachine
	// passing is a status that isn't worth writing yet, since when there is one; nil where there is none.
	passing *infrav1.KwokMachineStatus
	since   time.Time
	// kubelet is what the bootstrap data said. A machine gets them once, when it starts.
	kubelet *bootstrap.Kubelet
}

// latest returns the newer one of what the cache has and what was written, as a copy.
func (m *memory) latest(cached *infrav1.KwokMachine) *infrav1.KwokMachine {
	if m.written != nil {
		if order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, m.written.ResourceVersion); err == nil && order < 0 {
			return m.written.DeepCopy()
		}
		m.written = nil
	}
	return cached.DeepCopy()
}

// hold returns for how long a change of the status need not be written, because it is about to change again.
func (m *memory) hold(before, after *infrav1.KwokMachineStatus, now time.Time) time.Duration {
	if !equality.Semantic.DeepEqual(lasting(before), lasting(after)) {
		m.passing = nil
		return 0
	}
	if m.passing == nil {
		m.since = now
	}
	m.passing = after.DeepCopy()
	return max(0, m.since.Add(passingGrace).Sub(now))
}

// lasting is a status without what passes.
func lasting(status *infrav1.KwokMachineStatus) *infrav1.KwokMachineStatus {
	status = status.DeepCopy()
	status.RequestTime, status.FailureDomain = metav1.MicroTime{}, ""
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c metav1.Condition) bool { return slices.Contains(passingReasons, c.Reason) })
	return status
}

// memoryOf returns the memory of a machine. Another one of that name is forgotten.
func (r *machineReconciler) memoryOf(machine client.Object) *memory {
	key := client.ObjectKeyFromObject(machine)
	if known, ok := r.memories.Load(key); ok && known.(*memory).uid == machine.GetUID() {
		return known.(*memory)
	}
	fresh := &memory{uid: machine.GetUID()}
	r.memories.Store(key, fresh)
	return fresh
}
