// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/test/world/process"
)

const (
	patched = `{"stage":"ResponseComplete","verb":"patch","requestURI":"/apis/autonode.io/v1beta1/namespaces/clusters/hostedclusters/blue/status?fieldManager=x","stageTimestamp":"2026-01-01T00:00:02.5Z","objectRef":{"resource":"hostedclusters","subresource":"status","name":"blue"}}` + "\n"
	lease   = `{"stage":"ResponseComplete","verb":"update","requestURI":"/apis/coordination.k8s.io/v1/namespaces/x/leases/y","stageTimestamp":"2026-01-01T00:00:09Z","objectRef":{"resource":"leases"}}` + "\n"
	review  = `{"stage":"ResponseComplete","verb":"create","requestURI":"/apis/authentication.k8s.io/v1/tokenreviews","stageTimestamp":"2026-01-01T00:00:09Z","objectRef":{"resource":"tokenreviews"}}` + "\n"
	probe   = `{"stage":"ResponseComplete","verb":"get","requestURI":"/?timeout=5s","stageTimestamp":"2026-01-01T00:00:09Z"}` + "\n"
	watch   = `{"stage":"ResponseStarted","verb":"watch","requestURI":"/api/v1/nodes?watch=true","stageTimestamp":"2026-01-01T00:00:09Z","objectRef":{"resource":"nodes"}}` + "\n"
	ended   = `{"stage":"ResponseComplete","verb":"watch","requestURI":"/api/v1/nodes?watch=true","stageTimestamp":"2026-01-01T00:05:09Z","objectRef":{"resource":"nodes"}}` + "\n"
	kinds   = `{"stage":"ResponseComplete","verb":"get","requestURI":"/apis/karpenter.sh/v1","stageTimestamp":"2026-01-01T00:00:09Z"}` + "\n"
)

func TestAuditLog(t *testing.T) {
	t.Run("When an API server writes on, it should count what is new, and a line when it is whole", func(t *testing.T) {
		g := NewWithT(t)
		path := filepath.Join(t.TempDir(), "audit.log")
		log := newAuditLog(path)
		none, err := log.next()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(none.of).To(BeEmpty())

		half := len(lease) / 2
		g.Expect(os.WriteFile(path, []byte(patched+patched+review+probe+kinds+watch+ended+lease[:half]), 0o600)).To(Succeed())
		first, err := log.next()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(first.of).To(Equal(map[request]int{
			{"patch", "hostedclusters/status"}: 2, {"create", "tokenreviews"}: 1, {"get", "probe"}: 1, {"get", "discovery"}: 1, {"watch", "nodes"}: 1,
		}))
		g.Expect(first.lastWrite).To(BeTemporally("==", time.Date(2026, 1, 1, 0, 0, 2, 5e8, time.UTC)))

		file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = file.WriteString(lease[half:])
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(file.Close()).To(Succeed())
		second, err := log.next()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(second.of).To(Equal(map[request]int{{"update", "leases"}: 1}))
		g.Expect(second.total(request.writes)).To(BeZero())
	})

	t.Run("When a line isn't an event, it should name the file", func(t *testing.T) {
		g := NewWithT(t)
		path := filepath.Join(t.TempDir(), "audit.log")
		g.Expect(os.WriteFile(path, []byte("nonsense\n"), 0o600)).To(Succeed())
		_, err := newAuditLog(path).next()
		g.Expect(err).To(MatchError(ContainSubstring(path)))
	})
}

func TestReport(t *testing.T) {
	of := func(requests map[request]int) *counts { return &counts{of: requests} }
	r := &report{
		cfg: Config{APIServers: 2, Silent: 1, Slow: 3, Steady: time.Minute, Dir: "bin/bench"}, took: []time.Duration{time.Second, 2 * time.Second, 4 * time.Second},
		changed:         []time.Duration{time.Second, 3 * time.Second},
		firstManagement: newCounts(), firstGuest: of(map[request]int{{"patch", "customresourcedefinitions"}: 8, {"get", "discovery"}: 6}),
		management:       of(map[request]int{{"patch", "secrets"}: 6, {"get", "secrets"}: 3}),
		guests:           of(map[request]int{{"create", "serviceaccounts/token"}: 3, {"create", "tokenreviews"}: 3, {"watch", "nodes"}: 3}),
		steadyManagement: of(map[request]int{{"update", "leases"}: 30}), steadyGuests: of(map[request]int{{"get", "probe"}: 30}),
		idle:    memory{Usage: process.Usage{Resident: 40 << 20}, Heap: 10 << 20, Stacks: 1 << 20},
		settled: memory{Usage: process.Usage{Resident: 45 << 20, Peak: 60 << 20}, Heap: 13 << 20, Stacks: 4 << 20}, enabling: 3 * time.Second, steady: 600 * time.Millisecond,
	}

	t.Run("When all is measured, it should print figures for each hosted cluster", func(t *testing.T) {
		g := NewWithT(t)
		out := &strings.Builder{}
		g.Expect(r.print(out)).To(Succeed())
		var lines []string
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.TrimRight(line, " \n"))
		}
		golden, err := os.ReadFile(filepath.Join("testdata", "report.txt"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(cmp.Diff(string(golden), strings.Join(lines, "\n")+"\n")).To(BeEmpty())
		g.Expect(r.check()).To(Succeed())
	})

	t.Run("When a guest was hostile, it should print what the operator asked it for and reports about it", func(t *testing.T) {
		g := NewWithT(t)
		hostile := *r
		hostile.cfg.HostileNodes = 10_000
		hostile.steadyHostile = of(map[request]int{{"watch", "nodes"}: 6, {"patch", "clusterapinodeclasses"}: 30})
		hostile.hostileSays = "GuestReachable=True (GuestOverBudget): it sends more bytes than one guest may"
		out := &strings.Builder{}
		g.Expect(hostile.print(out)).To(Succeed())
		g.Expect(out.String()).To(ContainSubstring("Hostile guest with 10000 Nodes, meanwhile: 0.60 requests a second, of which 0.50 writes.\nGuestReachable=True (GuestOverBudget)"))
	})

	t.Run("When a guest is filled with Nodes, they should be of a NodePool, as those are that the operator watches", func(t *testing.T) {
		g := NewWithT(t)
		first, second := hostileNode(100), hostileNode(101)
		g.Expect(first.Labels).To(HaveKey(karpv1.NodePoolLabelKey))
		g.Expect(first.Annotations[hostileLabel]).To(HaveLen(hostileAnnotationBytes))
		g.Expect(first.Status.NodeInfo.KubeletVersion).NotTo(Equal(second.Status.NodeInfo.KubeletVersion))
	})

	t.Run("When a request is about the hostile guest, it should set it aside", func(t *testing.T) {
		g := NewWithT(t)
		path := filepath.Join(t.TempDir(), "audit.log")
		g.Expect(os.WriteFile(path, []byte(patched+strings.ReplaceAll(patched, "blue", hostileName)), 0o600)).To(Succeed())
		log := newAuditLog(path)
		log.aside = isHostile
		counted, err := log.next()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(counted.of).To(Equal(map[request]int{{"patch", "hostedclusters/status"}: 1}))
	})

	t.Run("When a hosted cluster costs more than the budget, it should fail, unless there are too few to measure", func(t *testing.T) {
		g := NewWithT(t)
		dear := *r
		dear.cfg.Clusters, dear.cfg.Budget = enough, 1
		g.Expect(dear.check()).To(Succeed())
		dear.cfg.Budget = 0.9
		g.Expect(dear.check()).To(MatchError(And(ContainSubstring("costs 1.00 MiB"), ContainSubstring("budget is 0.90"))))
		dear.cfg.Clusters--
		g.Expect(dear.check()).To(Succeed())
	})

	t.Run("When the operator's profile is read, it should find what is in use, and say if it isn't there", func(t *testing.T) {
		g := NewWithT(t)
		m, err := readMemory(strings.NewReader("heap profile: 1: 2\n# runtime.MemStats\n# HeapAlloc = 3000\n# HeapSys = 4000\n# Stack = 500 / 600\n"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(m).To(Equal(memory{Heap: 3000, Stacks: 500}))
		for _, other := range []string{"", "# HeapAlloc = much\n"} {
			_, err := readMemory(strings.NewReader(other))
			g.Expect(err).To(HaveOccurred())
		}
	})

	t.Run("When something was written at rest, it should fail and say where to look", func(t *testing.T) {
		g := NewWithT(t)
		r.steadyGuests.of[request{"patch", "clusterroles"}] = 2
		g.Expect(r.check()).To(MatchError(And(ContainSubstring("wrote 2 times"), ContainSubstring("bin/bench"))))
	})
}
