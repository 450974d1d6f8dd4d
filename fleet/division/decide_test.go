// SPDX-License-Identifier: Apache-2.0

package division

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/autonode-io/autonode/capacity"
)

// lease that carries a grant, which its holder has acknowledged.
func lease(grant Grant, reserved Amounts, requests ...Request) *Lease {
	return &Lease{ID: grant.Lease, Sequence: grant.Sequence, Limit: grant.Limit, Report: Report{Sequence: grant.Sequence, Reserved: reserved, Requests: requests}}
}

func TestJoin(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lease Lease
		want  Grant
	}{
		{
			"When a cluster joins, it should have a sequence that its holder hasn't observed, and what its machines take",
			Lease{ID: "new"}, Grant{Lease: "new", Sequence: 1001, Limit: Amounts{pool: 2}, Granted: Amounts{pool: 2}},
		},
		{
			"When the lease has a grant of an account that is lost, it should count until it is acknowledged to be void",
			Lease{ID: "old", Sequence: 2000, Limit: Amounts{pool: 3}, Granted: Amounts{pool: 5}, Report: Report{Sequence: 2000, Reserved: Amounts{pool: 3}}},
			Grant{Lease: "old", Sequence: 2001, Limit: Amounts{pool: 2}, Granted: Amounts{pool: 5}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			decision := Decide(Account{Limits: Amounts{pool: 10}, First: 1000, Members: map[string]Member{"blue": {Used: Amounts{pool: 2}, Lease: &tc.lease}}})
			if diff := cmp.Diff(tc.want, decision.Record["blue"]); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	t.Run("When a holder has spent more than its Machines take, it should be granted what it requests beyond that", func(t *testing.T) {
		granted := Grant{Lease: "blue-lease", Sequence: 3, Limit: Amounts{pool: 6}, Granted: Amounts{pool: 6}}
		reported := lease(granted, granted.Limit, Request{one, 1})
		reported.Report.Used = Amounts{pool: 6}
		decision := Decide(Account{
			Limits: Amounts{pool: 10}, Record: map[string]Grant{"blue": granted}, Members: map[string]Member{"blue": {Used: Amounts{pool: 5}, Lease: reported}},
		})
		want := Grant{Lease: "blue-lease", Sequence: 4, Limit: Amounts{pool: 7}, Granted: Amounts{pool: 7}}
		if diff := cmp.Diff(want, decision.Record["blue"]); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
	t.Run("When more is guaranteed than there is, the higher priority should have its own first", func(t *testing.T) {
		requested := Report{Requests: []Request{{one, 8}}}
		members := map[string]Member{
			"blue":  {Guaranteed: Amounts{pool: 8}, Lease: &Lease{ID: "blue-lease", Report: requested}},
			"green": {Guaranteed: Amounts{pool: 8}, Lease: &Lease{ID: "green-lease", Report: requested}, Priority: 1},
		}
		decision := Decide(Account{Limits: Amounts{pool: 10}, First: 1000, Members: members})
		for name, want := range map[string]int64{"blue": 2, "green": 8} {
			if got := decision.Record[name].Granted[pool]; got != want {
				t.Errorf("%s is granted %d, want %d", name, got, want)
			}
		}
	})
	t.Run("When more is granted than there is, what was asked back should stay asked back", func(t *testing.T) {
		blue := Grant{Lease: "blue-lease", Sequence: 3, Limit: Amounts{pool: 10}, Granted: Amounts{pool: 10}}
		green := Grant{Lease: "green-lease", Sequence: 4, Limit: Amounts{}, Granted: Amounts{pool: 1}} // of a record that was lost
		decision := Decide(Account{
			Limits: Amounts{pool: 10}, Record: map[string]Grant{"blue": blue, "green": green},
			Members: map[string]Member{
				"blue":  {Used: Amounts{pool: 10}, Lease: lease(blue, blue.Limit)},
				"green": {Used: Amounts{pool: 1}, Lease: &Lease{ID: "green-lease", Sequence: 4, Report: Report{Sequence: 3, Requests: []Request{{one, 1}}}}},
			},
		})
		if asked := decision.Record["green"].Limit; len(asked) > 0 {
			t.Errorf("got %v, want nothing", asked)
		}
	})
	t.Run("When a cluster's maximum is lowered, it should be asked for the rest although no cluster waits", func(t *testing.T) {
		granted := Grant{Lease: "blue-lease", Sequence: 3, Limit: Amounts{pool: 6}, Granted: Amounts{pool: 6}}
		decision := Decide(Account{
			Limits: Amounts{pool: 10}, Record: map[string]Grant{"blue": granted},
			Members: map[string]Member{"blue": {Used: Amounts{pool: 1}, Maximum: Amounts{pool: 4}, Lease: lease(granted, granted.Limit)}},
		})
		want := Grant{Lease: "blue-lease", Sequence: 4, Limit: Amounts{pool: 1}, Granted: Amounts{pool: 6}}
		if diff := cmp.Diff(want, decision.Record["blue"]); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

func TestDecide(t *testing.T) {
	const ownLimit = "limit/cpu"
	machine := one
	granted := Grant{Lease: "blue-lease", Sequence: 3, Limit: Amounts{pool: 6}, Granted: Amounts{pool: 6}}
	none := Grant{Lease: "green-lease", Sequence: 1, Limit: Amounts{}, Granted: Amounts{}}
	returned := Grant{Lease: "blue-lease", Sequence: 4, Limit: Amounts{pool: 2}, Granted: Amounts{pool: 2}}
	rest := Grant{Lease: "green-lease", Sequence: 2, Limit: Amounts{pool: 8}, Granted: Amounts{pool: 8}}
	asked := Grant{Lease: "blue-lease", Sequence: 4, Limit: Amounts{pool: 2}, Granted: Amounts{pool: 6}}
	for _, tc := range []struct {
		name    string
		account Account
		want    map[string]Grant
	}{
		{
			"When a cluster requests what is free, it should grant it at once",
			Account{Record: map[string]Grant{"green": none}, Members: map[string]Member{"green": {Lease: lease(none, nil, Request{machine, 4})}}},
			map[string]Grant{"green": {Lease: "green-lease", Sequence: 2, Limit: Amounts{pool: 4}, Granted: Amounts{pool: 4}}},
		},
		{
			"When another cluster holds what is requested and doesn't use it, it should ask for it and not grant it yet",
			Account{Record: map[string]Grant{"blue": granted, "green": none}, Members: map[string]Member{
				"blue": {Lease: lease(granted, granted.Limit), Used: Amounts{pool: 2}}, "green": {Lease: lease(none, nil, Request{machine, 8})},
			}},
			map[string]Grant{"blue": asked, "green": {Lease: "green-lease", Sequence: 2, Limit: Amounts{pool: 4}, Granted: Amounts{pool: 4}}},
		},
		{
			"When the holder has acknowledged an earlier grant only, it should count what it may still spend",
			Account{Record: map[string]Grant{"blue": asked, "green": none}, Members: map[string]Member{
				"blue": {Lease: lease(granted, granted.Limit), Used: Amounts{pool: 2}}, "green": {Lease: lease(none, nil, Request{machine, 8})},
			}},
			map[string]Grant{"blue": asked, "green": {Lease: "green-lease", Sequence: 2, Limit: Amounts{pool: 4}, Granted: Amounts{pool: 4}}},
		},
		{
			"When the holder has acknowledged, it should grant what it has returned, and keep what machines may still come for",
			Account{Record: map[string]Grant{"blue": asked, "green": none}, Members: map[string]Member{
				"blue": {Lease: lease(asked, Amounts{pool: 3}), Used: Amounts{pool: 2}}, "green": {Lease: lease(none, nil, Request{machine, 8})},
			}},
			map[string]Grant{
				"blue":  {Lease: "blue-lease", Sequence: 4, Limit: Amounts{pool: 2}, Granted: Amounts{pool: 3}},
				"green": {Lease: "green-lease", Sequence: 2, Limit: Amounts{pool: 7}, Granted: Amounts{pool: 7}},
			},
		},
		{
			"When an old acknowledgement reports more than a newer one that was counted, it should grant others no more, and its cluster neither",
			Account{Record: map[string]Grant{"blue": returned, "green": rest}, Members: map[string]Member{
				"blue": {Lease: lease(asked, Amounts{pool: 6}), Used: Amounts{pool: 2}}, "green": {Lease: lease(rest, rest.Limit), Used: Amounts{pool: 8}},
			}},
			map[string]Grant{"blue": returned, "green": rest},
		},
		{
			"When a holder reports that it takes more than it is granted, it should count no more than was granted and its Machines take",
			Account{Record: map[string]Grant{"blue": returned, "green": none}, Members: map[string]Member{
				"blue": {Lease: lease(asked, Amounts{pool: 6})}, "green": {Lease: lease(none, nil, Request{machine, 8})},
			}},
			map[string]Grant{
				"blue":  {Lease: "blue-lease", Sequence: 4, Limit: Amounts{pool: 2}, Granted: Amounts{pool: 2}},
				"green": {Lease: "green-lease", Sequence: 2, Limit: Amounts{pool: 8}, Granted: Amounts{pool: 8}},
			},
		},
		{
			"When no other cluster needs what one doesn't use, it should leave it there",
			Account{Record: map[string]Grant{"blue": granted}, Members: map[string]Member{"blue": {Lease: lease(granted, granted.Limit)}}},
			map[string]Grant{"blue": granted},
		},
		{
			"When a lease object was replaced, it should count what was granted by the old one",
			Account{Record: map[string]Grant{"blue": granted}, Members: map[string]Member{"blue": {Lease: &Lease{ID: "new"}}}},
			map[string]Grant{"blue": {Lease: "new", Sequence: 4, Limit: Amounts{pool: 6}, Granted: Amounts{pool: 6}}},
		},
		{
			"When a cluster is gone, it should return what it had",
			Account{Record: map[string]Grant{"blue": granted, "green": none}, Members: map[string]Member{"blue": {Gone: true}, "green": {Lease: lease(none, nil, Request{machine, 10})}}},
			map[string]Grant{"green": {Lease: "green-lease", Sequence: 2, Limit: Amounts{pool: 10}, Granted: Amounts{pool: 10}}},
		},
		{
			"When a cluster isn't seen, it should count what it was granted",
			Account{Record: map[string]Grant{"blue": granted, "green": none}, Members: map[string]Member{"green": {Lease: lease(none, nil, Request{machine, 10})}}},
			map[string]Grant{"blue": granted, "green": {Lease: "green-lease", Sequence: 2, Limit: Amounts{pool: 4}, Granted: Amounts{pool: 4}}},
		},
		{
			"When a cluster's own limit is guaranteed to it, it should grant all of it at once",
			Account{Members: map[string]Member{"blue": {Guaranteed: Amounts{ownLimit: 3}, Maximum: Amounts{ownLimit: 3}, Lease: &Lease{ID: "blue-lease"}}}},
			map[string]Grant{"blue": {Lease: "blue-lease", Sequence: 1, Limit: Amounts{ownLimit: 3}, Granted: Amounts{ownLimit: 3}}},
		},
		{
			"When a cluster may have no more, it should grant no more",
			Account{Record: map[string]Grant{"green": none}, Members: map[string]Member{"green": {Maximum: Amounts{pool: 2}, Lease: lease(none, nil, Request{machine, 10})}}},
			map[string]Grant{"green": {Lease: "green-lease", Sequence: 2, Limit: Amounts{pool: 2}, Granted: Amounts{pool: 2}}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.account.Limits = Amounts{pool: 10, ownLimit: Unbounded}
			if diff := cmp.Diff(tc.want, Decide(tc.account).Record); diff != "" {
				t.Errorf("record (-want +got):\n%s", diff)
			}
		})
	}
}

func TestShares(t *testing.T) {
	const pool = "quota/all/machines"
	request := Request{Amounts{pool: 1}, 10}
	granted := func(members map[string]Member) map[string]int64 {
		for name, member := range members {
			member.Lease = &Lease{ID: name, Report: Report{Requests: []Request{request}}}
			members[name] = member
		}
		amounts := map[string]int64{}
		for name, grant := range Decide(Account{Limits: Amounts{pool: 9}, Members: members}).Record {
			amounts[name] = grant.Granted[pool]
		}
		return amounts
	}
	for _, tc := range []struct {
		name    string
		members map[string]Member
		want    map[string]int64
	}{
		{"When clusters request more than there is, it should divide it equally",
			map[string]Member{"blue": {}, "green": {}, "red": {}}, map[string]int64{"blue": 3, "green": 3, "red": 3}},
		{"When one has more machines than its share, it should grant the others first",
			map[string]Member{"blue": {Used: Amounts{pool: 5}}, "green": {}, "red": {}}, map[string]int64{"blue": 5, "green": 2, "red": 2}},
		{"When one has a higher priority, it should serve it first",
			map[string]Member{"blue": {}, "green": {Priority: 1, Maximum: Amounts{pool: 7}}, "red": {}}, map[string]int64{"blue": 1, "green": 7, "red": 1}},
		{"When an amount is guaranteed to one, it should divide the rest equally",
			map[string]Member{"blue": {Guaranteed: Amounts{pool: 3}}, "green": {}, "red": {}}, map[string]int64{"blue": 5, "green": 2, "red": 2}},
		{"When more is guaranteed than there is, it should grant no more than there is",
			map[string]Member{"blue": {Guaranteed: Amounts{pool: 8}}, "green": {Guaranteed: Amounts{pool: 8}}}, map[string]int64{"blue": 8, "green": 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, granted(tc.members)); diff != "" {
				t.Errorf("granted (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("When a launch takes from two pools, it should grant both or none", func(t *testing.T) {
		launch := Amounts{"gpus": 1, "vcpus": 8}
		d := Decide(Account{Limits: Amounts{"gpus": 4, "vcpus": 20}, Members: map[string]Member{
			"blue": {Lease: &Lease{ID: "blue", Report: Report{Requests: []Request{{launch, 4}}}}},
		}})
		if diff := cmp.Diff(Amounts{"gpus": 2, "vcpus": 16}, d.Record["blue"].Granted); diff != "" {
			t.Errorf("granted (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(launch.times(2), d.Waiting); diff != "" {
			t.Errorf("waiting (-want +got):\n%s", diff)
		}
	})
	t.Run("When something is left, it should inform each cluster about how much it may request", func(t *testing.T) {
		d := Decide(Account{Limits: Amounts{pool: 9}, Members: map[string]Member{
			"blue": {Used: Amounts{pool: 2}, Lease: &Lease{ID: "blue"}}, "green": {Maximum: Amounts{pool: 3}, Lease: &Lease{ID: "green"}},
		}})
		if diff := cmp.Diff(map[string]Amounts{"blue": {pool: 6}, "green": {pool: 3}}, d.Available); diff != "" {
			t.Errorf("hints (-want +got):\n%s", diff)
		}
	})
}

// times is a multiple.
func (a Amounts) times(n int64) Amounts {
	product := Amounts{}
	for pool, amount := range a {
		product[pool] = n * amount
	}
	return product
}

func TestCharges(t *testing.T) {
	rules := []Rule{
		{Pool: "reservation/cr-1", Resource: capacity.Machines, Reservation: "cr-1"},
		{Pool: "quota/standard/vcpus", Resource: capacity.VCPUs, Selector: Selector{InstanceTypes: []string{"m5.*", "c5.large"}, CapacityTypes: []string{"on-demand", "reserved"}}},
		{Pool: "quota/zone/memory", Resource: capacity.Memory, Selector: Selector{Zones: []string{"a"}}},
		{Pool: "quota/all/gpus", Resource: capacity.GPUs},
		{Pool: "quota/account/machines", Resource: capacity.Machines, Selector: Selector{Catalogs: []string{"general", "gpu-*"}}},
	}
	machineOf := func(instanceType, zone, capacityType, reservation, catalog string, gpus int64) capacity.Machine {
		return capacity.Machine{VCPUs: 2000, Memory: 8 << 30, GPUs: gpus, Offering: capacity.Offering{
			InstanceType: instanceType, Zone: zone, CapacityType: capacityType, Reservation: reservation, Catalog: catalog,
		}}
	}
	for _, tc := range []struct {
		name    string
		machine capacity.Machine
		want    Amounts
	}{
		{"When a machine uses a reservation, it should take from it and from the quotas that select it",
			machineOf("m5.large", "a", "reserved", "cr-1", "", 0), Amounts{"reservation/cr-1": 1, "quota/standard/vcpus": 2000, "quota/zone/memory": 8 << 30}},
		{"When a machine uses another reservation, it should take nothing from this one",
			machineOf("m5.large", "b", "reserved", "cr-2", "", 0), Amounts{"quota/standard/vcpus": 2000}},
		{"When a pattern only resembles a type, it should not select it",
			machineOf("m50.large", "b", "on-demand", "", "", 1), Amounts{"quota/all/gpus": 1}},
		{"When a catalog is selected, its machines should take from the pool",
			machineOf("r5.large", "b", "spot", "", "gpu-a10", 0), Amounts{"quota/account/machines": 1}},
		{"When a catalog isn't selected, its machines should take nothing",
			machineOf("r5.large", "b", "spot", "", "gpu", 0), Amounts{}},
		{"When a capacity type isn't selected, it should take nothing",
			machineOf("c5.large", "b", "spot", "", "", 0), Amounts{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Charges(rules, tc.machine)); diff != "" {
				t.Errorf("charges (-want +got):\n%s", diff)
			}
		})
	}
}
