// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"encoding/json"
	"math"
	"testing"
	"unicode/utf8"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
)

// FuzzAccounts decodes the spec of a CapacityAccount, which its author writes, and a CapacityLease, whose status any Karpenter writes.
func FuzzAccounts(f *testing.F) {
	for _, spec := range []string{
		`{"reservations":[{"id":"cr-1","instanceType":"m5.large","zone":"a","count":3,"expires":"2026-12-01T06:00:00Z"}]}`,
		`{"quotas":[{"name":"q","limits":{"cpu":"64","memory":"1Ti","machines":12,"gpus":"1e3"},"selector":{"zones":["a"]}}]}`,
		`{"quotas":[{"name":"q","limits":{"memory":"1099511627776","cpu":"-1","machines":"9e99","gpus":"0.5"}}]}`,
		`{"commitments":[{"name":"c","kind":"SavingsPlan","hourlySpend":"1.5","discountPercent":"30","starts":"2026-01-01T00:00:00Z","ends":"2040-01-01T00:00:00Z"},{"name":"d","kind":"ReservedInstance","instanceType":"m5.large","instances":3,"price":"0"}]}`,
		`{"members":[{"hostedCluster":{"namespace":"a","name":"b"},"limits":{"cpu":"4"},"guaranteed":[{"quota":"q","amounts":{"cpu":2}}],"maximum":[{"reservation":"r","amounts":{"machines":1}}]}]}`,
		`{"members":[{"namespaceSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]},"priority":7}]}`,
	} {
		f.Add([]byte(spec), []byte(`{}`))
	}
	for _, lease := range []string{
		`{"spec":{"sequence":3,"pools":[{"name":"p","resource":"Machines","limit":5,"granted":7,"available":9}]},"status":{"acknowledgedSequence":3,
			"reserved":[{"pool":"p","amount":9223372036854775807}],"used":[{"pool":"x","amount":1}],"requests":[{"charges":[{"pool":"p","amount":2}],"count":400},{"charges":[{"pool":"p","amount":1}],"count":400}]}}`,
		`{"spec":{"commitments":[{"name":"c","kind":"SavingsPlan","hourlySpend":"1e308","packedRates":"H4sI","others":"-1"},{"name":"d","instances":1}],"machines":[{"instanceType":"a","price":"1e400","count":-1}]}}`,
		`{"status":{"unavailable":[{"instanceType":"m5.large","zone":"a","capacityType":"spot","until":"2026-12-01T06:00:00Z"}]}}`,
	} {
		f.Add([]byte(`{}`), []byte(lease))
	}
	f.Fuzz(func(t *testing.T, account, lease []byte) {
		var spec autonodev1alpha1.CapacityAccountSpec
		if json.Unmarshal(account, &spec) == nil {
			checkAccount(t, &spec)
		}
		var leased autonodev1alpha1.CapacityLease
		if json.Unmarshal(lease, &leased) == nil {
			checkLease(t, &leased)
		}
	})
}

func checkAccount(t *testing.T, spec *autonodev1alpha1.CapacityAccountSpec) {
	t.Helper()
	a := parseSpec(spec, nil, noon)
	for name, limit := range a.limits {
		// The count of a reservation is an int32 that the API server bounds.
		if limit > autonodev1alpha1.MaxAmount || limit < math.MinInt32 {
			t.Errorf("pool %q has %d", name, limit)
		}
	}
	for _, m := range a.members {
		for pool, amount := range m.guaranteed {
			if amount < 0 || amount > autonodev1alpha1.MaxAmount {
				t.Errorf("%s guarantees %d of %q", m.field, amount, pool)
			}
		}
	}
	for _, c := range a.commitments {
		if !finite(c.HourlySpend) || c.Discount < 0 || c.Discount > 1 {
			t.Errorf("commitment %q of %v with discount %v", c.Name, c.HourlySpend, c.Discount)
		}
	}
	for _, u := range a.unusable {
		if len(u.Message) > maxMessage || !utf8.ValidString(u.Message) {
			t.Errorf("unfit for a status: %q", u.Message)
		}
	}
	conversion.ReservationsAt(spec, noon)
}

func checkLease(t *testing.T, lease *autonodev1alpha1.CapacityLease) {
	t.Helper()
	named := map[string]bool{}
	for _, pool := range lease.Spec.Pools {
		named[pool.Name] = true
	}
	amounts := func(amounts map[string]int64, limit int64) {
		for pool, amount := range amounts {
			if !named[pool] || amount <= 0 || amount > limit {
				t.Errorf("the report has %d of pool %q", amount, pool)
			}
		}
	}
	report := conversion.BoundedReport(lease)
	amounts(report.Reserved, autonodev1alpha1.MaxAmount)
	amounts(report.Used, autonodev1alpha1.MaxAmount)
	launches := int64(0)
	for _, request := range report.Requests {
		amounts(request.Charges, autonodev1alpha1.MaxCharge)
		launches += request.Count
	}
	if len(report.Requests) > autonodev1alpha1.MaxRequests || launches > autonodev1alpha1.MaxRequestedLaunches {
		t.Errorf("%d requests for %d launches", len(report.Requests), launches)
	}
	committed := conversion.CommittedTo(lease)
	all := division.NewCommitments(committed.Commitments)
	for _, g := range committed.Machines {
		all.Add(g)
	}
	m := capacity.Priced{Machine: capacity.Machine{Offering: capacity.Offering{InstanceType: "m5.large", CapacityType: "on-demand"}}, Price: 0.1}
	if price, saving := all.MarginalPrice(&m), all.Saving(&m); !finite(price) || !finite(saving) {
		t.Errorf("one more costs %v, and one less saves %v", price, saving)
	}
	conversion.Lease(lease)
	unavailableReports{}.post("clusters/blue", lease.Status.Unavailable, noon)
}

func finite(value float64) bool { return value >= 0 && !math.IsInf(value, 0) && !math.IsNaN(value) }
