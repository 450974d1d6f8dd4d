// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"io"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/audit"
)

func TestBudget(t *testing.T) {
	created := audit.Request{User: "system:serviceaccount:clusters-blue:karpenter", Verb: "create", Resource: "machines", Code: 201}
	stale := audit.Request{User: "cluster-api", Verb: "patch", Resource: "machines/status", Code: 409}
	patched := audit.Request{User: "cluster-api", Verb: "patch", Resource: "machines/status", Code: 200}
	report := func(management, guest audit.Traffic, cpuSeconds float64) *ScaleReport {
		ours := Measurement{Contestant: Contestant{Provider: ClusterAPI}, Size: apart(BudgetPods)}
		ours.Up.Management, ours.Up.Guest = newRequests(management, BudgetPods), newRequests(guest, BudgetPods)
		ours.Up.Processes = []ProcessUsage{{Name: "etcd", CPUSeconds: cpuSeconds}}
		kwok := Measurement{Contestant: Contestant{Provider: Kwok}, Size: apart(BudgetPods)}
		kwok.Up.Guest = newRequests(audit.Traffic{patched: 50 * BudgetPods}, BudgetPods)
		return &ScaleReport{Measurements: []Measurement{ours, kwok}}
	}

	t.Run("When all is within the budget, it should find nothing", func(t *testing.T) {
		g := NewWithT(t)
		findings, err := checkBudget(io.Discard, report(
			audit.Traffic{created: 5 * BudgetPods, stale: BudgetPods, patched: 13 * BudgetPods}, audit.Traffic{patched: 44 * BudgetPods, stale: 6 * BudgetPods}, 1.1*BudgetPods))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(findings).To(BeEmpty())
	})

	t.Run("When a node costs more, it should name each row", func(t *testing.T) {
		g := NewWithT(t)
		findings, err := checkBudget(io.Discard, report(
			audit.Traffic{created: 6 * BudgetPods, stale: 2 * BudgetPods, patched: 13 * BudgetPods}, audit.Traffic{patched: 44 * BudgetPods, stale: 7 * BudgetPods}, 1.5*BudgetPods))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(findings).To(Equal([]string{
			"management: all requests: 21.0 for each node, and 19.0 are the budget",
			"management: conflicts: 2.0 for each node, and 1.0 are the budget",
			"management: Karpenter's requests: 6.0 for each node, and 5.0 are the budget",
			"guest: all requests, as many as with the kwok provider: 51.0 for each node, and 50.0 are the budget",
			"guest: conflicts: 7.0 for each node, and 6.0 are the budget",
			"CPU time of all processes, in seconds: 1.5 for each node, and 1.1 are the budget",
		}))
	})

	t.Run("When one provider wasn't measured, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		r := report(audit.Traffic{}, audit.Traffic{}, 0)
		r.Measurements = r.Measurements[:1]
		_, err := checkBudget(io.Discard, r)
		g.Expect(err).To(MatchError(ContainSubstring("both providers")))
	})
}
