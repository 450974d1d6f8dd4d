// SPDX-License-Identifier: Apache-2.0

package infrastructure_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/autonode-io/autonode/test/world/infrastructure"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// writes counts what a provider requests the management cluster to change, and what it reads past its caches.
type writes struct {
	next http.RoundTripper
	// namespace has the machines that count.
	namespace string

	mutex sync.Mutex
	seen  map[string]int
}

func (w *writes) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := w.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	for i, part := range parts {
		if part == "namespaces" && len(parts) > i+2 && parts[i+1] == w.namespace {
			kind := request.Method + " " + parts[i+2]
			if len(parts) > i+4 {
				kind += "/" + parts[i+4]
			}
			if response.StatusCode >= http.StatusBadRequest {
				kind += fmt.Sprintf(" %d", response.StatusCode)
			}
			w.mutex.Lock()
			w.seen[kind]++
			w.mutex.Unlock()
		}
	}
	return response, nil
}

func (w *writes) take() map[string]int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	seen := w.seen
	w.seen = map[string]int{}
	return seen
}

func TestWrites(t *testing.T) {
	ns := newClusterWithoutProvider(t)
	counted := &writes{namespace: ns, seen: map[string]int{}}
	config := rest.CopyConfig(managementConfig)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		counted.next = next
		return counted
	})
	provider, err := infrastructure.Start(t.Context(), infrastructure.Config{
		Management: config, Logger: ctrl.Log, ProvisioningDelay: provisioningDelay, RegistrationDelay: registrationDelay,
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(provider.Stop()).To(Succeed()) })
	provisionCluster(t, ns)

	t.Run("When a machine with a finalizer joins, it should cost one write of it, two of its status, and no conflict", func(t *testing.T) {
		g := NewWithT(t)
		counted.take()
		machine := newMachine(t, ns, "complete", machineOptions{edit: func(m *infrav1.KwokMachine) {
			m.Finalizers = []string{infrav1.MachineFinalizer} // which leaves the provider ID
		}})
		eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)
		eventuallyReady(t, "complete")
		seen := counted.take()
		delete(seen, "POST events") // sent later or sooner
		delete(seen, "GET secrets") // one more where the guest's kubeconfig is read for the first time
		g.Expect(seen).To(Equal(map[string]int{"PATCH kwokmachines": 1, "PATCH kwokmachines/status": 2}))
	})

	t.Run("When many machines join at once, each should cost as much and no more", func(t *testing.T) {
		g := NewWithT(t)
		const count = 30
		counted.take()
		var machines []*infrav1.KwokMachine
		for n := range count {
			machines = append(machines, newMachine(t, ns, fmt.Sprintf("each-%d", n), machineOptions{}))
		}
		for _, machine := range machines {
			eventuallyCondition(t, machine, infrav1.ConditionJoined, infrav1.ReasonJoined)
		}
		seen := counted.take()
		delete(seen, "POST events")
		g.Expect(seen).To(Equal(map[string]int{"PATCH kwokmachines": count, "PATCH kwokmachines/status": 2 * count, "GET secrets": count}))
	})
}
