// SPDX-License-Identifier: Apache-2.0

package nodeupgrade

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/upgradeplan"
)

const (
	canary, rolling, halted = v1alpha1.NodeUpgradeCanary, v1alpha1.NodeUpgradeRolling, v1alpha1.NodeUpgradeHalted
	// none: no soak has begun.
	none = time.Duration(-1)
	soak = 10 * time.Minute
)

var now = time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)

// proving is a plan with canaries, with or without haltOn.
func proving(canaries int, haltOn ...v1beta1.NodeUpgradeHaltOn) upgradeplan.Plan {
	p := upgradeplan.Plan{Canaries: canaries, Soak: scalar.Duration{Duration: soak}, MaxFailures: 1}
	for _, halt := range haltOn {
		p.MaxFailures, p.MaxUnready = int(halt.FailedNodes), halt.UnavailablePods
	}
	return p
}

func resumed(p upgradeplan.Plan) upgradeplan.Plan {
	p.Resumed = true
	return p
}

// reported is a status whose soak has lasted so long.
func reported(phase v1alpha1.NodeUpgradePhase, soaking time.Duration, failed ...string) *v1alpha1.NodeUpgradeStatus {
	s := &v1alpha1.NodeUpgradeStatus{Phase: phase, FailedNodes: failed}
	if soaking != none {
		start := scalar.NewTime(now.Add(-soaking)).Stored()
		s.SoakStartTime = &start
	}
	return s
}

// placed are pods of one owner on nodes of the payload, or on others.
type placed struct {
	upgraded bool
	pods     []*corev1.Pod
}

// run returns an owner's pods: so many that are ready, and so many that aren't.
func run(upgraded bool, owner string, ready, unready int, changes ...func(*corev1.Pod)) placed {
	p := placed{upgraded: upgraded}
	for i := range ready + unready {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", CreationTimestamp: metav1.NewTime(now.Add(-minPodAge))}}
		kind, name, _ := strings.Cut(owner, " ")
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, Controller: new(true)}}
		if _, hash, ok := strings.Cut(name, "-"); ok {
			pod.Labels = map[string]string{"pod-template-hash": hash}
		}
		if i < ready {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		for _, change := range changes {
			change(pod)
		}
		p.pods = append(p.pods, pod)
	}
	return p
}

func TestDecide(t *testing.T) {
	one, two := nodes{upgraded: []string{"a"}, former: 5}, nodes{upgraded: []string{"a", "b"}, former: 5}
	unready := func(of nodes, names ...string) nodes { of.notReady = names; return of }
	joining := func(of nodes, names ...string) nodes { of.joining = names; return of }
	pods := func(limit string) v1beta1.NodeUpgradeHaltOn {
		return v1beta1.NodeUpgradeHaltOn{FailedNodes: 1, UnavailablePods: limit}
	}
	young := func(p *corev1.Pod) { p.CreationTimestamp.Time = now.Add(time.Second - minPodAge) }
	terminating := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }
	finished := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	bare := func(p *corev1.Pod) { p.OwnerReferences = nil }
	const (
		stays  = "1 node has to stay healthy, until Mon 09:10:00 UTC"
		worse  = "less available than elsewhere: Deployment shop/web (1 of 2 pods ready)"
		failed = "failed: a"
	)
	former, healthy := run(false, "ReplicaSet web-1", 2, 0), run(true, "ReplicaSet web-1", 2, 0)
	for name, tc := range map[string]struct {
		plan    upgradeplan.Plan
		before  *v1alpha1.NodeUpgradeStatus
		nodes   nodes
		pods    []placed
		phase   v1alpha1.NodeUpgradePhase
		soaking time.Duration
		message string
	}{
		"When no canary is launched, it should wait":             {proving(1), reported(canary, none), nodes{former: 5}, nil, canary, none, "1 canary isn't launched yet"},
		"When canaries are missing, it should count them":        {proving(3), reported(canary, none), one, nil, canary, none, "2 canaries aren't launched yet"},
		"When a canary joins, it should name it":                 {proving(1), reported(canary, none), joining(one, "a"), nil, canary, none, "not initialized: a"},
		"When four nodes join, it should name three":             {proving(4), reported(canary, none), joining(nodes{upgraded: []string{"a", "b", "c", "d"}}, "a", "b", "c", "d"), nil, canary, none, "not initialized: a, b, c and 1 more"},
		"When the canary is healthy, the soak should begin":      {proving(1), reported(canary, none), one, []placed{former, healthy}, canary, 0, stays},
		"When the soak isn't over, it should wait":               {proving(1), reported(canary, soak-time.Second), one, nil, canary, soak - time.Second, "1 node has to stay healthy, until Mon 09:00:01 UTC"},
		"When the soak is over, nodes should be replaced":        {proving(1), reported(canary, soak), one, nil, rolling, none, ""},
		"When there are fewer nodes than canaries, all are some": {proving(3), reported(canary, soak), nodes{upgraded: []string{"a"}}, nil, rolling, none, ""},
		"When there is no node at all, it should wait":           {proving(3), reported(canary, none), nodes{}, nil, canary, none, "3 canaries aren't launched yet"},
		"When there are no canaries, it should keep rolling":     {proving(0), reported(rolling, none), joining(one, "a"), nil, rolling, none, ""},

		"When a canary isn't Ready but failures are allowed, the soak should begin again": {
			proving(1, v1beta1.NodeUpgradeHaltOn{FailedNodes: 2}), reported(canary, soak), unready(one, "a"), nil, canary, none, "not Ready: a"},
		"When a workload has fewer ready pods than elsewhere, the soak should begin again": {
			proving(1), reported(canary, soak), one, []placed{former, run(true, "ReplicaSet web-1", 1, 1)}, canary, none, worse},
		"When a workload is as bad elsewhere, the soak should go on": {
			proving(1), reported(canary, soak), one, []placed{run(false, "ReplicaSet web-1", 1, 1), run(true, "ReplicaSet web-1", 2, 2)}, rolling, none, ""},
		"When a Deployment has another ReplicaSet on new nodes, both should be compared": {
			proving(1), reported(canary, soak), one, []placed{former, run(true, "ReplicaSet web-2", 1, 1)}, canary, none, worse},
		"When a workload runs on new nodes alone, it shouldn't be compared": {
			proving(1), reported(canary, soak), one, []placed{run(true, "StatefulSet db", 0, 1)}, rolling, none, ""},
		"When a DaemonSet runs on new nodes alone, all its pods should be ready": {
			proving(1), reported(canary, soak), one, []placed{run(true, "DaemonSet cni", 0, 1)}, canary, none, "less available than elsewhere: DaemonSet shop/cni (0 of 1 pods ready)"},
		"When pods are young, terminating, finished or bare, they shouldn't count": {proving(1), reported(canary, soak), one, []placed{
			former, run(true, "ReplicaSet web-1", 0, 1, young), run(true, "ReplicaSet web-1", 0, 1, terminating), run(true, "ReplicaSet web-1", 0, 1, finished),
			run(true, "ReplicaSet web-1", 0, 1, bare),
		}, rolling, none, ""},

		"When a node failed, it should halt":                          {proving(1), reported(canary, soak, "a"), one, nil, halted, none, failed},
		"When a node failed without canaries, it should halt":         {proving(0), reported(rolling, soak, "a"), two, nil, halted, none, failed},
		"When one of two allowed failed, it should go on":             {proving(1, v1beta1.NodeUpgradeHaltOn{FailedNodes: 2}), reported(canary, soak, "a"), one, nil, rolling, none, ""},
		"When two of two allowed failed, it should halt":              {proving(1, v1beta1.NodeUpgradeHaltOn{FailedNodes: 2}), reported(rolling, soak, "a", "b"), two, nil, halted, none, "failed: a, b"},
		"When one failed and another isn't Ready, both should count":  {proving(1, v1beta1.NodeUpgradeHaltOn{FailedNodes: 2}), reported(rolling, soak, "a"), unready(two, "b"), nil, halted, none, "failed: a; not Ready: b"},
		"When a node isn't Ready while rolling, it should halt":       {proving(1), reported(rolling, soak), unready(two, "b"), nil, halted, none, "not Ready: b"},
		"When nodes are Ready again, it should stay halted":           {proving(1), reported(halted, none), one, nil, halted, 0, stays},
		"When they stayed healthy for the soak, it should roll again": {proving(1), reported(halted, soak), two, nil, rolling, none, ""},
		"When a node failed long ago, it should stay halted":          {proving(1), reported(halted, soak, "a"), two, nil, halted, none, failed},
		"When it is resumed, the soak should begin":                   {resumed(proving(1)), reported(halted, none, "b"), one, nil, halted, 0, stays},
		"When it is resumed without a canary, it should launch one":   {resumed(proving(1)), reported(halted, none, "b"), nodes{former: 5}, nil, canary, none, "1 canary isn't launched yet"},

		"When as many pods are unready as allowed, it should halt": {
			proving(1, pods("1")), reported(rolling, soak), one, []placed{former, run(true, "ReplicaSet web-1", 1, 1)}, halted, none, worse},
		"When fewer pods are unready, it should go on": {
			proving(1, pods("2")), reported(rolling, soak), one, []placed{former, run(true, "ReplicaSet web-1", 1, 1)}, rolling, none, ""},
		"When unready pods reach the percentage, rounded up, it should halt": { // 2 of 20 pods, and 21
			proving(1, pods("10%")), reported(rolling, soak), one, []placed{former, run(true, "ReplicaSet web-1", 18, 2)}, halted, none,
			"less available than elsewhere: Deployment shop/web (18 of 20 pods ready)"},
		"When unready pods are below the percentage, rounded up, it should go on": {
			proving(1, pods("10%")), reported(rolling, soak), one, []placed{former, run(true, "ReplicaSet web-1", 19, 2)}, rolling, none, ""},
	} {
		t.Run(name, func(t *testing.T) {
			counted := tc.nodes
			counted.workloads = map[string]*workload{}
			for _, p := range tc.pods {
				for _, pod := range p.pods {
					counted.addPod(pod, p.upgraded, now)
				}
			}
			before := tc.before.DeepCopy()
			want := reported(tc.phase, tc.soaking, tc.before.FailedNodes...)
			if want.Message = tc.message; tc.phase == canary {
				want.Canaries = slices.Clone(tc.nodes.upgraded)
			}
			if diff := cmp.Diff(want, decide(tc.plan, tc.before, counted, now)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.before); diff != "" {
				t.Errorf("it changed its argument:\n%s", diff)
			}
		})
	}
	t.Run("When names are as long as they may be, the message should fit the API", func(t *testing.T) {
		long := strings.Repeat("n", 253)
		if next := decide(proving(1), reported(canary, none, long, long), joining(one, long, long, long), now); len(next.Message) > 1024 {
			t.Errorf("%d bytes", len(next.Message))
		}
	})
}
