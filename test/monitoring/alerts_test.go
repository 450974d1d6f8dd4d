// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/template"

	"github.com/autonode-io/autonode/test/monitoring/recording"
)

// record returns series with a sample a minute, as Prometheus' own tests write them: `metric{label="value"} 1x10 0x10`.
func record(t *testing.T, series ...string) recording.Series {
	t.Helper()
	var all recording.Series
	for _, line := range series {
		lset, values, err := parser.ParseSeriesDesc(line)
		NewWithT(t).Expect(err).NotTo(HaveOccurred(), line)
		one := promql.Series{Metric: lset}
		for minute, value := range values {
			if !value.Omitted {
				one.Floats = append(one.Floats, promql.FPoint{T: int64(minute) * time.Minute.Milliseconds(), F: value.Value})
			}
		}
		all = append(all, one)
	}
	return all
}

// firing evaluates an alert every minute, as Prometheus does, for as long as anything was recorded. It returns what fires, by the minute
// in which that begins, and checks that what it reports can be read.
func firing(t *testing.T, alert rule, series recording.Series, minutes int) map[string]int {
	t.Helper()
	g := NewWithT(t)
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
	defer engine.Close()
	hold, err := model.ParseDuration(alert.For)
	g.Expect(err).NotTo(HaveOccurred(), alert.Alert)
	active, fires := map[string]int{}, map[string]int{}
	for minute := range minutes {
		at := time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)
		asked, err := engine.NewInstantQuery(t.Context(), series, nil, alert.Expr, at)
		g.Expect(err).NotTo(HaveOccurred(), alert.Alert)
		result := asked.Exec(t.Context())
		vector, err := result.Vector()
		g.Expect(err).NotTo(HaveOccurred(), alert.Alert)
		now := map[string]int{}
		for _, sample := range vector {
			name := sample.Metric.String()
			now[name] = minute
			if since, ok := active[name]; ok {
				now[name] = since
			}
			if _, already := fires[name]; !already && time.Duration(minute-now[name])*time.Minute >= time.Duration(hold) {
				fires[name] = minute
				expectReadable(t, alert, sample, at)
			}
		}
		active = now
		asked.Close()
	}
	return fires
}

// expectReadable expands what an alert reports.
func expectReadable(t *testing.T, alert rule, sample promql.Sample, at time.Time) {
	t.Helper()
	data := template.AlertTemplateData(sample.Metric.Map(), nil, "", sample)
	for name, text := range alert.Annotations {
		expander := template.NewTemplateExpander(t.Context(), "{{$labels := .Labels}}{{$value := .Value}}"+text, name, data,
			model.Time(timestamp.FromTime(at)), nil, &url.URL{}, nil)
		said, err := expander.Expand()
		if err != nil || strings.Contains(said, "<no value>") || strings.Contains(said, "{{") {
			t.Errorf("%s: its %s is %q: %v", alert.Alert, name, said, err)
		}
	}
}

// never is when an alert fires that doesn't.
const never = -1

// cases of alerts. Each alert has one in which it fires and one in which it doesn't.
var cases = []struct {
	alert, name string
	series      []string
	// fires from this minute on, or never; with these labels.
	fires int
	as    string
}{
	{alert: "AutoNodeOperatorAbsent", name: "When no operator serves anything, it should fire after five minutes",
		series: []string{`autonode_enabled{namespace="clusters", name="blue"} 1x60`}, fires: 5, as: `{}`},
	{alert: "AutoNodeOperatorAbsent", name: "When replicas wait and none holds the Lease, it should fire",
		series: []string{
			`leader_election_master_status{name="autonode-operator", pod="a"} 0x60`, `leader_election_master_status{name="autonode-operator", pod="b"} 0x60`,
			`leader_election_master_status{name="autonode-operator-1a2b3c4d", pod="c"} 1x60`,
		}, fires: 5, as: `{name="autonode-operator"}`},
	{alert: "AutoNodeOperatorAbsent", name: "When another replica takes over within five minutes, it should not fire",
		series: []string{
			`leader_election_master_status{name="autonode-operator", pod="a"} 1x10 0x50`, `leader_election_master_status{name="autonode-operator", pod="b"} 0x14 1x46`,
		}, fires: never},
	{alert: "AutoNodeDegraded", name: "When Karpenter isn't available, it should fire after ten minutes, whoever is the operator's leader",
		series: []string{
			`autonode_condition{namespace="clusters", name="blue", type="AutoNodeEnabled", status="False", reason="AutoNodeDegraded", pod="a"} 1x6 stale`,
			`autonode_condition{namespace="clusters", name="blue", type="AutoNodeEnabled", status="False", reason="AutoNodeDegraded", pod="b"} _x6 1x60`,
		}, fires: 10, as: `{name="blue", namespace="clusters"}`},
	{alert: "AutoNodeDegraded", name: "When AutoNode is merely being started, it should not fire",
		series: []string{`autonode_condition{namespace="clusters", name="blue", type="AutoNodeEnabled", status="False", reason="AutoNodeProgressing"} 1x60`}, fires: never},
	{alert: "AutoNodeEvaluationFailed", name: "When the operator fails for a quarter of an hour, it should fire",
		series: []string{`autonode_condition{namespace="clusters", name="blue", type="AutoNodeEnabled", status="Unknown", reason="AutoNodeEvaluationFailed"} 1x60`},
		fires:  15, as: `{name="blue", namespace="clusters"}`},
	{alert: "AutoNodeEvaluationFailed", name: "When the operator fails now and then, it should not fire",
		series: []string{`autonode_condition{namespace="clusters", name="blue", type="AutoNodeEnabled", status="Unknown", reason="AutoNodeEvaluationFailed"} 1x10 _x10 1x10`},
		fires:  never},
	{alert: "AutoNodeObjectUndecodable", name: "When an object can't be decoded for a quarter of an hour, it should fire",
		series: []string{`autonode_undecodable_objects{kind="Machine", pod="a"} _x10 1x50`}, fires: 25, as: `{kind="Machine"}`},
	{alert: "AutoNodeObjectUndecodable", name: "When it is corrected after ten minutes, it should not fire",
		series: []string{`autonode_undecodable_objects{kind="Machine", pod="a"} 1x10 stale`}, fires: never},
	{alert: "AutoNodeRolloutStuck", name: "When a rollout takes longer than half an hour, it should fire five minutes later",
		series: []string{`autonode_progressing_seconds{namespace="clusters", name="blue"} 0+60x60`, `autonode_state{namespace="clusters", name="blue", state="Progressing"} 1x60`},
		fires:  36, as: `{name="blue", namespace="clusters"}`},
	{alert: "AutoNodeRolloutStuck", name: "When an input is missing, it should leave that to other alerts",
		series: []string{`autonode_progressing_seconds{namespace="clusters", name="blue"} 0+60x60`, `autonode_state{namespace="clusters", name="blue", state="Waiting"} 1x60`},
		fires:  never},
	{alert: "AutoNodeRolloutStuck", name: "When a rollout takes twenty minutes, it should not fire",
		series: []string{`autonode_progressing_seconds{namespace="clusters", name="blue"} 0+60x20 0x40`, `autonode_state{namespace="clusters", name="blue", state="Progressing"} 1x60`},
		fires:  never},
	{alert: "AutoNodeUpdateSlow", name: "When an update takes longer than a day, it should fire",
		series: []string{`autonode_updating_seconds{namespace="clusters", name="blue"} 86400+60x60`, `autonode_state{namespace="clusters", name="blue", state="Upgrading"} 1x60`},
		fires:  16, as: `{name="blue", namespace="clusters"}`},
	{alert: "AutoNodeUpdateSlow", name: "When nodes wait for their maintenance window, it should not fire",
		series: []string{
			`autonode_updating_seconds{namespace="clusters", name="blue"} 90000+60x60`, `autonode_state{namespace="clusters", name="blue", state="Upgrading"} 1x60`,
			`autonode_condition{namespace="clusters", name="blue", type="NodesUpToDate", status="False", reason="NodeUpgradeHeld"} 1x60`,
		}, fires: never},
	{alert: "AutoNodeUpdateSlow", name: "When an upgrade has halted, proves itself or waits for a ring, it should not fire",
		series: []string{
			`autonode_updating_seconds{namespace="clusters", name="blue"} 90000+60x60`,
			`autonode_condition{namespace="clusters", name="blue", type="NodesUpToDate", status="False", reason="UpgradeHalted"} 1x30 stale`,
			`autonode_condition{namespace="clusters", name="blue", type="NodesUpToDate", status="False", reason="UpgradeProving"} _x30 1x15 stale`,
			`autonode_condition{namespace="clusters", name="blue", type="NodesUpToDate", status="False", reason="WaitsForRing"} _x45 1x15`,
		}, fires: never},
	{alert: "AutoNodeUpgradeHalted", name: "When an upgrade has halted, it should fire after five minutes",
		series: []string{`autonode_condition{namespace="clusters", name="blue", type="NodesUpToDate", status="False", reason="UpgradeHalted"} _x10 1x50`},
		fires:  15, as: `{name="blue", namespace="clusters"}`},
	{alert: "AutoNodeUpgradeHalted", name: "When an upgrade proves itself, it should not fire",
		series: []string{`autonode_condition{namespace="clusters", name="blue", type="NodesUpToDate", status="False", reason="UpgradeProving"} 1x60`}, fires: never},
	{alert: "AutoNodeWaiting", name: "When an input is missing for half an hour, it should fire",
		series: []string{
			`autonode_state{namespace="clusters", name="blue", state="Waiting"} 1x60`,
			`autonode_condition{namespace="clusters", name="blue", type="AutoNodeEnabled", status="False", reason="AutoNodeWaiting"} 1x60`,
			`autonode_condition{namespace="clusters", name="blue", type="ReleaseResolved", status="True", reason="AsExpected"} 1x60`,
		}, fires: 30, as: `{name="blue", namespace="clusters"}`},
	{alert: "AutoNodeWaiting", name: "When the payload is what is missing, it should leave that to AutoNodeReleaseUnresolved",
		series: []string{
			`autonode_state{namespace="clusters", name="blue", state="Waiting"} 1x60`,
			`autonode_condition{namespace="clusters", name="blue", type="ReleaseResolved", status="False", reason="ImageNotFound"} 1x60`,
		}, fires: never},
	{alert: "AutoNodeWaiting", name: "When the operator's own failure is why, it should leave that to AutoNodeEvaluationFailed",
		series: []string{
			`autonode_state{namespace="clusters", name="blue", state="Waiting"} 1x60`,
			`autonode_condition{namespace="clusters", name="blue", type="AutoNodeEnabled", status="Unknown", reason="AutoNodeEvaluationFailed"} 1x60`,
		}, fires: never},
	{alert: "AutoNodeReleaseUnresolved", name: "When the payload can't be pulled for a quarter of an hour, it should fire and name the reason",
		series: []string{`autonode_condition{namespace="clusters", name="blue", type="ReleaseResolved", status="False", reason="ImagePullUnauthorized"} 1x60`},
		fires:  15, as: `{name="blue", namespace="clusters", reason="ImagePullUnauthorized"}`},
	{alert: "AutoNodeReleaseUnresolved", name: "When the cluster is paused, it should not fire",
		series: []string{
			`autonode_condition{namespace="clusters", name="blue", type="ReleaseResolved", status="False", reason="ImagePullUnauthorized"} 1x60`,
			`autonode_state{namespace="clusters", name="blue", state="Paused"} 1x60`,
		}, fires: never},
	{alert: "AutoNodeGuestUnreachable", name: "When a guest doesn't answer for ten minutes, it should fire",
		series: []string{
			`autonode_condition{namespace="clusters", name="blue", type="GuestReachable", status="False", reason="Unreachable"} 1x60`,
			`autonode_state{namespace="clusters", name="blue", state="Degraded"} 1x60`,
		}, fires: 10, as: `{name="blue", namespace="clusters"}`},
	{alert: "AutoNodeGuestUnreachable", name: "When a guest is away for five minutes, or another cluster is paused, it should not fire",
		series: []string{
			`autonode_condition{namespace="clusters", name="blue", type="GuestReachable", status="False", reason="Unreachable"} 1x5 stale`,
			`autonode_condition{namespace="clusters", name="green", type="GuestReachable", status="False", reason="Unreachable"} 1x60`,
			`autonode_state{namespace="clusters", name="green", state="Paused"} 1x60`,
		}, fires: never},
	{alert: "AutoNodeCertificateRequestsDenied", name: "When a forged request is denied, it should fire",
		series: []string{`autonode_certificate_requests_total{signer="kubernetes.io/kubelet-serving", decision="denied", reason="AddressMismatch"} 0x10 1x50`},
		fires:  12, as: `{reason="AddressMismatch", signer="kubernetes.io/kubelet-serving"}`},
	{alert: "AutoNodeCertificateRequestsDenied", name: "When a request is denied because its Machine has gone, or is approved, it should not fire",
		series: []string{
			`autonode_certificate_requests_total{signer="kubernetes.io/kubelet-serving", decision="denied", reason="MachineMissing"} 0x10 1x50`,
			`autonode_certificate_requests_total{signer="kubernetes.io/kubelet-serving", decision="approved", reason="NodeIdentityConfirmed"} 0+1x60`,
		}, fires: never},
	{alert: "AutoNodeDrainOverdue", name: "When a drain isn't done a quarter of an hour after its deadline, it should fire",
		series: []string{`autonode_drain_deadline_timestamp_seconds{namespace="clusters", name="blue"} 600x60`}, // ten minutes
		fires:  31, as: `{name="blue", namespace="clusters"}`},
	{alert: "AutoNodeDrainOverdue", name: "When nothing may be forced, or the guest is off, or the drain is done in time, it should not fire",
		series: []string{
			`autonode_drain_deadline_timestamp_seconds{namespace="clusters", name="blue"} 600x60`,
			`autonode_condition{namespace="clusters", name="blue", type="AutoNodeEnabled", status="False", reason="AutoNodeDrainStopped"} 1x60`,
			`autonode_drain_deadline_timestamp_seconds{namespace="clusters", name="green"} 600x60`,
			`autonode_condition{namespace="clusters", name="green", type="GuestReachable", status="False", reason="Unreachable"} 1x60`,
			`autonode_drain_deadline_timestamp_seconds{namespace="clusters", name="red"} 600x12 stale`,
		}, fires: never},
	{alert: "AutoNodeDrainStopped", name: "When a drain is stopped at its deadline, it should fire",
		series: []string{`autonode_condition{namespace="clusters", name="blue", type="AutoNodeEnabled", status="False", reason="AutoNodeDrainStopped"} 1x60`},
		fires:  5, as: `{name="blue", namespace="clusters"}`},
	{alert: "AutoNodeDrainStopped", name: "When a drain goes on, it should not fire",
		series: []string{`autonode_condition{namespace="clusters", name="blue", type="AutoNodeEnabled", status="False", reason="AutoNodeDraining"} 1x60`}, fires: never},
	{alert: "AutoNodeDrainUnconfirmed", name: "When a HostedCluster is deleted with its CRD without confirmation, it should fire",
		series: []string{`autonode_condition{namespace="clusters", name="blue", type="AutoNodeEnabled", status="False", reason="AutoNodeDrainUnconfirmed"} 1x60`},
		fires:  1, as: `{name="blue", namespace="clusters"}`},
	{alert: "AutoNodeDrainUnconfirmed", name: "When a HostedCluster is deleted by itself, it should not fire",
		series: []string{`autonode_condition{namespace="clusters", name="blue", type="AutoNodeEnabled", status="False", reason="AutoNodeDraining"} 1x60`}, fires: never},
	{alert: "AutoNodeCapacityNearlyUsed", name: "When machines take 90 % of a quota for ten minutes, it should fire",
		series: []string{
			`autonode_capacity_pool_limit{account="production", pool="quota/k/cpu"} 100x60`,
			`autonode_capacity_pool_used{account="production", pool="quota/k/cpu"} 90x60`,
			`autonode_capacity_pool_limit{account="production", pool="quota/g/gpus"} 10x60`,
			`autonode_capacity_pool_used{account="production", pool="quota/g/gpus"} 8x60`,
		}, fires: 10, as: `{account="production", pool="quota/k/cpu"}`},
	{alert: "AutoNodeCapacityNearlyUsed", name: "When a reservation is used up, or a quota is zero on purpose, it should not fire",
		series: []string{
			`autonode_capacity_pool_limit{account="production", pool="reservation/cr-1"} 10x60`,
			`autonode_capacity_pool_used{account="production", pool="reservation/cr-1"} 10x60`,
			`autonode_capacity_pool_limit{account="production", pool="quota/k/cpu"} 0x60`,
			`autonode_capacity_pool_used{account="production", pool="quota/k/cpu"} 0x60`,
		}, fires: never},
	{alert: "AutoNodeCapacityLimitsUnusable", name: "When a limit of an account can't be read for ten minutes, it should fire",
		series: []string{
			`autonode_capacity_account_condition{account="production", type="EntriesUsable", status="False", reason="LimitsUnusable"} 1x60`,
			`autonode_capacity_account_condition{account="staging", type="EntriesUsable", status="True", reason="SomeUnusable"} 1x60`,
		}, fires: 10, as: `{account="production"}`},
	{alert: "AutoNodeCapacityLimitsUnusable", name: "When it is corrected within ten minutes, it should not fire",
		series: []string{
			`autonode_capacity_account_condition{account="production", type="EntriesUsable", status="False", reason="LimitsUnusable"} 1x5 _x55`,
			`autonode_capacity_account_condition{account="production", type="EntriesUsable", status="True", reason="AsExpected"} _x6 1x54`,
		}, fires: never},
	{alert: "AutoNodeCapacityWaiting", name: "When clusters wait for more of a quota for ten minutes, it should fire",
		series: []string{
			`autonode_capacity_pool_waiting{account="production", pool="quota/k/cpu"} 0x5 4x55`,
			`autonode_capacity_pool_waiting{account="production", pool="reservation/cr-1"} 4x60`,
		}, fires: 16, as: `{account="production", pool="quota/k/cpu"}`},
	{alert: "AutoNodeCapacityWaiting", name: "When they get it within ten minutes, it should not fire",
		series: []string{`autonode_capacity_pool_waiting{account="production", pool="quota/k/cpu"} 4x5 0x55`}, fires: never},
	{alert: "AutoNodeCapacityReclaimOverdue", name: "When clusters don't return guaranteed capacity, it should fire ten minutes after the account says so",
		series: []string{
			`autonode_capacity_account_condition{account="production", type="MembersGranted", status="True", reason="AsExpected"} 1x5 _x55`,
			`autonode_capacity_account_condition{account="production", type="MembersGranted", status="False", reason="ReclaimOverdue"} _x6 1x54`,
			`autonode_capacity_account_condition{account="staging", type="MembersGranted", status="False", reason="NotAcknowledged"} 1x60`,
		}, fires: 16, as: `{account="production"}`},
	{alert: "AutoNodeCapacityReclaimOverdue", name: "When they return it within ten minutes, it should not fire",
		series: []string{`autonode_capacity_account_condition{account="production", type="MembersGranted", status="False", reason="ReclaimOverdue"} 1x5 _x55`}, fires: never},
	{alert: "AutoNodeCommitmentUnused", name: "When a fifth of a commitment is unused for half an hour, it should fire",
		series: []string{
			`autonode_commitment_used_ratio{account="production", commitment="plan"} 0.95x5 0.8x54`,
			`autonode_commitment_used_ratio{account="production", commitment="instances"} 0.81x60`,
		}, fires: 36, as: `{account="production", commitment="plan"}`},
	{alert: "AutoNodeCommitmentUnused", name: "When machines use it again within half an hour, it should not fire",
		series: []string{`autonode_commitment_used_ratio{account="production", commitment="plan"} 0x25 1x34`}, fires: never},
	{alert: "AutoNodeReservationExpiring", name: "When a reservation that machines use ends within a week, it should fire, and go on when it has ended",
		series: []string{
			`autonode_capacity_pool_expiry_timestamp_seconds{account="production", pool="reservation/cr-1"} 606600x60`,
			`autonode_capacity_pool_used{account="production", pool="reservation/cr-1"} 3x60`,
			`autonode_capacity_pool_expiry_timestamp_seconds{account="production", pool="reservation/cr-2"} 700000x60`,
			`autonode_capacity_pool_used{account="production", pool="reservation/cr-2"} 3x60`,
		}, fires: 40, as: `{account="production", pool="reservation/cr-1"}`},
	{alert: "AutoNodeReservationExpiring", name: "When no machine uses a reservation that has ended, it should not fire",
		series: []string{
			`autonode_capacity_pool_expiry_timestamp_seconds{account="production", pool="reservation/cr-1"} 60x60`,
			`autonode_capacity_pool_used{account="production", pool="reservation/cr-1"} 0x60`,
		}, fires: never},
	{alert: "KarpenterWithoutLeader", name: "When no replica of a cluster's Karpenter is active for five minutes, it should fire",
		series: []string{
			`leader_election_master_status{name="karpenter-leader-election", namespace="clusters-blue", pod="a"} 0x60`,
			`leader_election_master_status{name="karpenter-leader-election", namespace="clusters-blue", pod="b"} 0x60`,
			`leader_election_master_status{name="karpenter-leader-election", namespace="clusters-green", pod="c"} 1x60`,
		}, fires: 5, as: `{name="karpenter-leader-election", namespace="clusters-blue"}`},
	{alert: "KarpenterWithoutLeader", name: "When clusters share a namespace and one has no active replica, it should fire for that one",
		series: []string{
			`leader_election_master_status{name="karpenter-leader-election-blue", namespace="team", pod="a"} 0x60`,
			`leader_election_master_status{name="karpenter-leader-election-green", namespace="team", pod="b"} 1x60`,
		}, fires: 5, as: `{name="karpenter-leader-election-blue", namespace="team"}`},
	{alert: "KarpenterWithoutLeader", name: "When one replica is active, or the operator is what has no leader, it should not fire",
		series: []string{
			`leader_election_master_status{name="karpenter-leader-election", namespace="clusters-blue", pod="a"} 0x60`,
			`leader_election_master_status{name="karpenter-leader-election", namespace="clusters-blue", pod="b"} 1x60`,
			`leader_election_master_status{name="autonode-operator", namespace="autonode-system", pod="c"} 0x60`,
		}, fires: never},
	{alert: "KarpenterSuspended", name: "When the management cluster doesn't answer Karpenter for five minutes, it should fire",
		series: []string{`karpenter_clusterapi_suspended{namespace="clusters-blue", pod="a"} 0x10 1x50`}, fires: 16, as: `{namespace="clusters-blue"}`},
	{alert: "KarpenterSuspended", name: "When it answers again after three minutes, it should not fire",
		series: []string{`karpenter_clusterapi_suspended{namespace="clusters-blue", pod="a"} 0x10 1x3 0x40`}, fires: never},
	{alert: "KarpenterMachinesNotJoining", name: "When Machines follow one another for half an hour and none becomes a node, it should fire",
		series: []string{
			`karpenter_clusterapi_machines{namespace="clusters-blue", nodepool="general", phase="Provisioning"} 3x10 stale _x5 3x80`,
			`karpenter_clusterapi_machine_launch_duration_seconds_count{namespace="clusters-blue", stage="ready"} 7x100`,
			`karpenter_clusterapi_machine_launch_duration_seconds_count{namespace="clusters-blue", stage="provisioned"} 0+1x100`,
		}, fires: 30, as: `{namespace="clusters-blue", nodepool="general"}`},
	{alert: "KarpenterMachinesNotJoining", name: "When some Machine becomes a node every quarter of an hour, it should not fire",
		series: []string{
			`karpenter_clusterapi_machines{namespace="clusters-blue", nodepool="general", phase="Provisioning"} 3x100`,
			`karpenter_clusterapi_machine_launch_duration_seconds_count{namespace="clusters-blue", stage="ready"} 7x14 8x15 9x15 10x15 11x15 12x15`,
		}, fires: never},
	{alert: "KarpenterMachinesNotJoining", name: "When all Machines run, it should not fire",
		series: []string{`karpenter_clusterapi_machines{namespace="clusters-blue", nodepool="general", phase="Running"} 3x100`}, fires: never},
	{alert: "KarpenterOfferingsUnavailable", name: "When pods wait while an offering rests, though it is tried now and then, it should fire",
		series: []string{
			`karpenter_clusterapi_offering_unavailable{namespace="clusters-blue", instance_type="c4", zone="a", reason="InsufficientCapacity"} 1x10 stale _x3 1x60`,
			`karpenter_pods_state{namespace="clusters-blue", phase="Pending", scheduled="false", name="web-1"} 1x100`,
		}, fires: 15, as: `{namespace="clusters-blue", reason="InsufficientCapacity"}`},
	{alert: "KarpenterOfferingsUnavailable", name: "When no pod waits, or those of another cluster do, it should not fire",
		series: []string{
			`karpenter_clusterapi_offering_unavailable{namespace="clusters-blue", instance_type="c4", zone="a", reason="InsufficientCapacity"} 1x60`,
			`karpenter_pods_state{namespace="clusters-blue", phase="Running", scheduled="true", name="web-1"} 1x60`,
			`karpenter_pods_state{namespace="clusters-green", phase="Pending", scheduled="false", name="web-1"} 1x60`,
		}, fires: never},
	{alert: "KarpenterDeletionHangs", name: "When machines hang in deletion for a quarter of an hour, it should fire for the cluster",
		series: []string{
			`karpenter_clusterapi_machines_deletion_hanging{namespace="clusters-blue", nodepool="general"} 2x60`,
			`karpenter_clusterapi_machines_deletion_hanging{namespace="clusters-blue", nodepool="batch"} 1x60`,
			`karpenter_clusterapi_machines_deletion_hanging{namespace="clusters-green", nodepool="general"} 0x60`,
		}, fires: 15, as: `{namespace="clusters-blue"}`},
	{alert: "KarpenterDeletionHangs", name: "When the last of them is gone after ten minutes, it should not fire",
		series: []string{`karpenter_clusterapi_machines_deletion_hanging{namespace="clusters-blue", nodepool="general"} 2x10 0x50`}, fires: never},
	{alert: "KarpenterRepairsHeld", name: "When unhealthy machines aren't replaced for a quarter of an hour, it should fire",
		series: []string{`karpenter_clusterapi_machine_repairs_held{namespace="clusters-blue", nodepool="general"} 4x60`},
		fires:  15, as: `{namespace="clusters-blue", nodepool="general"}`},
	{alert: "KarpenterRepairsHeld", name: "When none is held, it should not fire",
		series: []string{`karpenter_clusterapi_machine_repairs_held{namespace="clusters-blue", nodepool="general"} 0x60`}, fires: never},
}

func TestAlertsFire(t *testing.T) {
	rules := map[string]rule{}
	for _, alert := range alerts(t) {
		rules[alert.Alert] = alert
	}
	told := map[string][]bool{}
	for _, tc := range cases {
		told[tc.alert] = append(told[tc.alert], tc.fires != never)
		t.Run(tc.alert+": "+tc.name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(rules).To(HaveKey(tc.alert))
			want := map[string]int{}
			if tc.fires != never {
				want[tc.as] = tc.fires
			}
			g.Expect(firing(t, rules[tc.alert], record(t, tc.series...), 60)).To(Equal(want), "the minute from which it fires, by labels")
		})
	}
	t.Run("When there is an alert, there should be a case in which it fires and one in which it doesn't", func(t *testing.T) {
		for name := range rules {
			if !slices.Contains(told[name], true) || !slices.Contains(told[name], false) {
				t.Errorf("%s has cases that fire: %v", name, told[name])
			}
		}
	})
	t.Run("When a case has a series, a program should serve it", func(t *testing.T) {
		g := NewWithT(t)
		p := served(t)
		for _, tc := range cases {
			for _, series := range record(t, tc.series...) {
				metric := series.Metric.Get(metricName)
				g.Expect(p.has(metric)).To(BeTrue(), "%s of a case of %s", metric, tc.alert)
			}
		}
	})
}
