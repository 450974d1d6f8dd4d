// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/test/audit"
	localworld "github.com/autonode-io/autonode/test/world"
)

func TestScaleConfig(t *testing.T) {
	providers := []string{ClusterAPI, Kwok}
	tuned := []string{localworld.ClusterAPITuned}
	for name, c := range map[string]struct {
		cfg  ScaleConfig
		want string
	}{
		"no size":           {ScaleConfig{Providers: providers, ClusterAPI: tuned}, "no size"},
		"no provider":       {ScaleConfig{Sizes: sizes(3), ClusterAPI: tuned}, "no provider"},
		"a size of nothing": {ScaleConfig{Sizes: sizes(3, 0), Providers: providers, ClusterAPI: tuned}, "from 1 to 1000"},
		"too large a size":  {ScaleConfig{Sizes: sizes(1001), Providers: providers, ClusterAPI: tuned}, "from 1 to 1000"},
		"a delay before nothing": {
			ScaleConfig{Sizes: sizes(3), Providers: providers, ClusterAPI: tuned, KwokDelays: []time.Duration{-time.Second}}, "-1s",
		},
		"a delay that no KWOKNodeClass has": {
			ScaleConfig{Sizes: sizes(3), Providers: providers, ClusterAPI: tuned, KwokDelays: []time.Duration{time.Second / 2}}, "whole seconds",
		},
		"less than no node before": {ScaleConfig{Sizes: sizes(3), Providers: providers, ClusterAPI: tuned, Residents: -1}, "from 0 to 1000"},
		"no Cluster API":           {ScaleConfig{Sizes: sizes(3), Providers: providers}, "no way for Cluster API to run"},
		"a Cluster API that isn't known": {
			ScaleConfig{Sizes: sizes(3), Providers: providers, ClusterAPI: []string{"slow"}}, "tuned, unlimited, defaults",
		},
	} {
		t.Run("When there is "+name+", it should say at once what is allowed", func(t *testing.T) {
			g := NewWithT(t)
			_, err := Scale(t.Context(), c.cfg)
			g.Expect(err).To(MatchError(ContainSubstring(c.want)))
		})
	}

	t.Run("When the results can't be written, it should say so before it measures", func(t *testing.T) {
		g := NewWithT(t)
		file := filepath.Join(t.TempDir(), "missing", "results.json")
		_, err := Scale(t.Context(), ScaleConfig{Sizes: sizes(3), Providers: providers, ClusterAPI: tuned, JSON: file, Out: io.Discard})
		g.Expect(err).To(MatchError(ContainSubstring(file)))
	})
}

func sizes(pods ...int) []Size {
	var all []Size
	for _, count := range pods {
		all = append(all, apart(count))
	}
	return all
}

func TestContestants(t *testing.T) {
	t.Run("When Cluster API runs in several ways, our provider should be measured with each, and the kwok provider once", func(t *testing.T) {
		g := NewWithT(t)
		cfg := ScaleConfig{Providers: []string{ClusterAPI, Kwok}, Operator: true, ClusterAPI: []string{localworld.ClusterAPITuned, localworld.ClusterAPIDefaults}}
		var names []string
		for _, c := range cfg.contestants() {
			names = append(names, c.String())
			g.Expect(c.Operator).To(Equal(c.Provider == ClusterAPI))
		}
		g.Expect(names).To(Equal([]string{"clusterapi", "clusterapi, defaults", "kwok"}))
	})

	t.Run("When a MachineDeployment is measured, it should run with each way of Cluster API, and never with the operator", func(t *testing.T) {
		g := NewWithT(t)
		cfg := ScaleConfig{Providers: []string{MachineDeployment}, Operator: true, ClusterAPI: []string{localworld.ClusterAPITuned, localworld.ClusterAPIDefaults}}
		g.Expect(cfg.contestants()).To(Equal([]Contestant{
			{Provider: MachineDeployment, ClusterAPI: localworld.ClusterAPITuned}, {Provider: MachineDeployment, ClusterAPI: localworld.ClusterAPIDefaults},
		}))
	})

	t.Run("When the kwok provider's nodes join after several times, it should be measured with each", func(t *testing.T) {
		g := NewWithT(t)
		var names []string
		for _, c := range (ScaleConfig{Providers: []string{Kwok}, KwokDelays: []time.Duration{0, time.Second}}).contestants() {
			names = append(names, c.String())
		}
		g.Expect(names).To(Equal([]string{"kwok", "kwok, 1s"}))
	})
}

func TestScaleReport(t *testing.T) {
	patched := audit.Request{Agent: "cluster-api-core", User: "cluster-api", Verb: "patch", Resource: "machines/status", Code: 200}
	stale := patched
	stale.Code = 409
	ours := Measurement{Contestant: Contestant{Provider: ClusterAPI}, Size: apart(10), First: 1, Half: 2, All: 6, Gone: 4, NodeClaims: 11, Machines: 11}
	ours.Up = Cost{
		Management: newRequests(audit.Traffic{patched: 30, stale: 15}, 10), Guest: newRequests(audit.Traffic{}, 10),
		Processes: []ProcessUsage{{"etcd", 5, 80}, {"karpenter-clusterapi", 10, 150}},
	}
	measure := Measurement{Contestant: Contestant{Provider: Kwok}, Size: apart(10), First: 1, Half: 2, All: 4, Gone: 2, NodeClaims: 10}
	measure.Up.Processes = []ProcessUsage{{"karpenter-kwok", 5, 100}}
	lines := func(r *ScaleReport) []string {
		out := &strings.Builder{}
		NewWithT(t).Expect(r.print(out)).To(Succeed())
		var lines []string
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return lines
	}

	t.Run("When both providers were measured, it should print a line for each size and provider, and the ratio", func(t *testing.T) {
		g := NewWithT(t)
		larger := measure
		larger.Size = apart(20)
		g.Expect(lines(&ScaleReport{Measurements: []Measurement{ours, measure, larger}})).To(ContainElements(
			"10 clusterapi 1.0 s 1.00 2.0 s 6.0 s 1.50 4.0 s 2.00 11 11 4.5 1.5 0.0 0.0 1.50 s 150 MiB 1.50",
			"10 kwok 1.0 s 2.0 s 4.0 s 2.0 s 10 0 0.0 0.0 0.0 0.0 0.50 s 100 MiB",
			"karpenter-clusterapi 10.0 s 150 MiB",
			"Requests in the management cluster for each of 10 nodes, clusterapi: 4.5, of which conflicts 1.5",
			"3.00 patch machines/status 200 cluster-api-core cluster-api",
		))
	})

	t.Run("When a MachineDeployment was measured too, it should print the ratio to that with the same Cluster API", func(t *testing.T) {
		g := NewWithT(t)
		workers := Measurement{Contestant: Contestant{Provider: MachineDeployment}, Size: apart(10), First: 2, Half: 3, All: 8, Gone: 2, Machines: 10}
		shipped := workers
		shipped.ClusterAPI = localworld.ClusterAPIDefaults
		g.Expect(lines(&ScaleReport{Measurements: []Measurement{ours, workers, shipped, measure}})).To(ContainElements(
			"10 clusterapi 1.0 s 1.00 2.0 s 6.0 s 1.50 0.75 4.0 s 2.00 2.00 11 11 4.5 1.5 0.0 0.0 1.50 s 150 MiB 1.50",
			"10 machinedeployment 2.0 s 2.00 3.0 s 8.0 s 2.00 2.0 s 1.00 0 10 0.0 0.0 0.0 0.0 0.00 s 0 MiB -",
			"10 kwok 1.0 s 2.0 s 4.0 s 2.0 s 10 0 0.0 0.0 0.0 0.0 0.50 s 100 MiB",
		))
	})

	t.Run("When the kwok provider was measured with several delays, it should print the ratio to each", func(t *testing.T) {
		g := NewWithT(t)
		delayed := measure
		delayed.KwokDelay, delayed.First = time.Second, 2
		g.Expect(lines(&ScaleReport{Measurements: []Measurement{ours, measure, delayed}})).To(ContainElements(
			"10 clusterapi 1.0 s 1.00, 0.50 2.0 s 6.0 s 1.50, 1.50 4.0 s 2.00, 2.00 11 11 4.5 1.5 0.0 0.0 1.50 s 150 MiB 1.50, 1.50",
			"10 kwok, 1s 2.0 s 2.0 s 4.0 s 2.0 s 10 0 0.0 0.0 0.0 0.0 0.50 s 100 MiB",
		))
	})

	t.Run("When pods share nodes, it should print both numbers, and the cost of a node", func(t *testing.T) {
		g := NewWithT(t)
		dense := ours
		dense.Pods = 40
		g.Expect(lines(&ScaleReport{Measurements: []Measurement{dense}})).To(ContainElement(
			"40/10 clusterapi 1.0 s 2.0 s 6.0 s 4.0 s 11 11 4.5 1.5 0.0 0.0 1.50 s 150 MiB"))
	})

	t.Run("When nodes were removed, it should print what that cost too", func(t *testing.T) {
		g := NewWithT(t)
		removed := ours
		removed.Down = Cost{
			Management: newRequests(audit.Traffic{patched: 20}, 10), Guest: newRequests(audit.Traffic{}, 10),
			Processes: []ProcessUsage{{"etcd", 3, 90}},
		}
		g.Expect(lines(&ScaleReport{Measurements: []Measurement{removed}})).To(ContainElements(
			"CPU time until all nodes and Machines were gone, and the peak of resident memory until then:",
			"etcd 3.0 s 90 MiB",
			"Requests in the management cluster for the removal of each of 10 nodes, clusterapi: 2.0, of which conflicts 0.0",
		))
	})

	t.Run("When our provider made more NodeClaims than there are pods, it should fail, and not when Karpenter's did", func(t *testing.T) {
		g := NewWithT(t)
		theirs := measure
		theirs.NodeClaims = 12
		report := &ScaleReport{Measurements: []Measurement{ours, theirs}}
		g.Expect(report.overProvisioned(theirs.Contestant)).To(Succeed())
		g.Expect(report.overProvisioned(ours.Contestant)).To(MatchError("clusterapi: 11 NodeClaims for 10 pods that need 10 nodes"))
	})

	t.Run("When a size wasn't completed, it should say why and compare nothing with it", func(t *testing.T) {
		g := NewWithT(t)
		failed := measure
		failed.All, failed.Failure = 0, "9 of 10 run"
		g.Expect(lines(&ScaleReport{Measurements: []Measurement{ours, failed}})).To(ContainElements(
			"10 clusterapi 1.0 s 2.0 s 6.0 s 4.0 s 11 11 4.5 1.5 0.0 0.0 1.50 s 150 MiB",
			"10 kwok 1.0 s 2.0 s - 2.0 s 10 0 0.0 0.0 0.0 0.0 0.50 s 100 MiB",
			"kwok, 10 pods: 9 of 10 run",
		))
	})

	t.Run("When fewer pods ran than were created, it should show only the known times", func(t *testing.T) {
		g := NewWithT(t)
		m, started := Measurement{Size: apart(3)}, time.Now()
		m.times(started, []time.Time{started.Add(time.Second), started.Add(2 * time.Second)})
		g.Expect([]float64{m.First, m.Half, m.All}).To(Equal([]float64{1, 2, 0}))
	})
}

func TestFollower(t *testing.T) {
	machine := func(name string, joined bool) *clusterv1.Machine {
		m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		if joined {
			m.Status.NodeRef.Name = name
		}
		return m
	}
	t.Run("When machines come and go, it should know how many there were, which didn't join and which are left", func(t *testing.T) {
		g := NewWithT(t)
		f := newFollower()
		see, lose := f.see(kindMachine), f.lose(kindMachine)
		see(machine("a", false))
		see(machine("a", true))
		see(machine("b", false))
		see(machine("c", false))
		lose(machine("c", false))
		g.Expect(f.made(kindMachine)).To(Equal(3))
		g.Expect(f.astray()).To(Equal([]string{"Machine b"}))
		g.Expect(f.left()).To(Equal([]string{"Machine a", "Machine b"}))
		g.Expect(f.present()).To(Equal(2))
		f.reset()
		g.Expect(f.made(kindMachine)).To(Equal(2))
	})

	t.Run("When there are machines before a burst, it should count only those of the burst", func(t *testing.T) {
		g := NewWithT(t)
		f := newFollower()
		see := f.see(kindMachine)
		see(machine("before", true))
		f.keep()
		f.reset()
		see(machine("before", true))
		see(machine("burst", false))
		g.Expect(f.keeps("before")).To(BeTrue())
		g.Expect(f.keeps("burst")).To(BeFalse())
		g.Expect(f.made(kindMachine)).To(Equal(1))
		g.Expect(f.left()).To(Equal([]string{"Machine burst"}))
	})

	t.Run("When Nodes are what is waited for, it should count the ready ones", func(t *testing.T) {
		g := NewWithT(t)
		f := newFollower()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "a"}}
		f.seePod(node)
		g.Expect(f.running()).To(BeZero())
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		f.seePod(node)
		g.Expect(f.running()).To(Equal(1))
	})

	t.Run("When a pod that ran is replaced, it should count the pods that there are", func(t *testing.T) {
		g := NewWithT(t)
		f := newFollower()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}}
		f.seePod(pod)
		g.Expect(f.readyTimes()).To(BeEmpty())
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		f.seePod(pod)
		g.Expect(f.readyTimes()).To(HaveLen(1))
		g.Expect(f.running()).To(Equal(1))
		f.losePod(pod.UID)
		g.Expect(f.readyTimes()).To(BeEmpty())
		g.Expect(f.running()).To(BeZero())
	})
}
