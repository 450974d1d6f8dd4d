// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/fault"
)

const (
	// quiet is how long an operator whose work seems to be done may still find something to do.
	quiet = 2 * time.Second
	// mostLives bounds the lives of one phase: an operator that needs more gets nowhere.
	mostLives = 120
)

// leastKills are the steps that each phase has at least: docs/reference/faults.md names them. Fewer are a fault that doesn't match.
var leastKills = map[string]int{"enable": 20, "upgrade": 4, "disable": 10, "delete": 12}

// everyStep kills the operator at every step: each of its lives ends with the first write that changes something and that wasn't the last
// of an earlier life. It never learns that this write was stored, and the next life begins with it. Both clusters' writes count.
func (f *faults) everyStep(t *testing.T) {
	g := NewWithT(t)
	f.endsOff(t, f.off.without(func(object string) bool { return staysInGuest(object) && strings.Contains(object, "karpenter") })) // it ends with a deletion
	f.withOperator(t, func() {
		f.enable(t, initialRelease)
		f.runWeb(t, 2)
	})
	var table strings.Builder
	rows := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "PHASE\tLIFE\tKILLED AFTER")
	t.Cleanup(func() {
		_ = rows.Flush()
		t.Logf("the operator was killed after each of these writes:\n%s", table.String())
	})
	phase := func(name string, begin func(), done func(g Gomega, ctx context.Context)) {
		began := time.Now()
		begin()
		lives := f.liveThrough(t, name, rows, done)
		NewWithT(t).Expect(lives).To(BeNumerically(">", leastKills[name]), "lives of the %s: nothing killed the operator often enough", name)
		fmt.Fprintf(rows, "%s\t%d\tnothing: done in %s\n", name, lives, time.Since(began).Round(time.Second))
	}

	t.Run("When the operator is killed at every step of a disable, it should drain and remove everything", func(t *testing.T) {
		phase("disable", func() {
			f.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode = nil })
		}, func(g Gomega, ctx context.Context) {
			g.Expect(f.condition(g, ctx, v1beta1.AutoNodeEnabled).Reason).To(Equal(v1beta1.AutoNodeNotConfiguredReason))
			g.Expect(f.hostedCluster(g, ctx).Finalizers).To(BeEmpty())
		})
		f.waitNothingLeft(t)
		NewWithT(t).Expect(f.takeInventory(g, t.Context()).without(ofNodes)).To(Equal(f.off.without(ofNodes)))
	})

	t.Run("When the operator is killed at every step of an enable, it should complete it, and nodes should come again", func(t *testing.T) {
		phase("enable", func() {
			f.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode = autoNode() })
		}, f.runs(initialRelease))
		f.withOperator(t, func() {
			f.waitRunning(t, "web")
			f.waitSettled(t, initialRelease, f.on)
		})
	})

	t.Run("When the operator is killed at every step of an upgrade, it should complete it and disrupt no node", func(t *testing.T) {
		disrupted := f.watchDisruptions(t)
		phase("upgrade", func() { f.upgradeTo(t, upgradedRelease) }, f.runs(upgradedRelease))
		f.withOperator(t, func() { f.waitSettled(t, upgradedRelease, f.on) })
		expectUndisturbed(t, disrupted)
	})

	t.Run("When the operator is killed at every step of a deletion, it should leave nothing in either cluster", func(t *testing.T) {
		g := NewWithT(t)
		hosted := f.hostedCluster(g, t.Context())
		restored := &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: hosted.Namespace, Name: hosted.Name, Labels: hosted.Labels, Annotations: hosted.Annotations},
			Spec:       hosted.Spec,
		}
		restored.Spec.AutoNode = nil
		phase("delete", func() { g.Expect(f.management.Delete(t.Context(), hosted)).To(Succeed()) }, func(g Gomega, ctx context.Context) {
			err := f.management.Get(ctx, f.key(), &v1beta1.HostedCluster{})
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "HostedCluster: %v", err)
		})
		f.waitNothingLeft(t)
		left := func(object string) bool {
			return ofNodes(object) || staysInGuest(object) && strings.Contains(object, "karpenter") || strings.HasPrefix(object, "management HostedCluster ")
		}
		g.Eventually(func(g Gomega, ctx context.Context) {
			now := f.takeInventory(g, ctx)
			g.Expect(now.without(ofNodes)).To(Equal(f.off.without(left)), "nothing but what was there before AutoNode")
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(time.Second).Should(Succeed())
		g.Expect(f.management.Create(t.Context(), restored)).To(Succeed())
	})
}

// withOperator has an operator that nothing happens to, for as long as do lasts: nodes join with certificates that it approves.
func (f *faults) withOperator(t *testing.T, do func()) {
	t.Helper()
	operator := f.startOperator(t)
	defer operator.Kill()
	do()
}

// runs is done when Karpenter of a payload runs, AutoNode reports it, and its default node class can be used.
func (f *faults) runs(release string) func(g Gomega, ctx context.Context) {
	return func(g Gomega, ctx context.Context) {
		hosted := f.hostedCluster(g, ctx)
		g.Expect(hosted.Status.Conditions).To(ContainElement(And(
			HaveField("Type", v1beta1.AutoNodeEnabled), HaveField("Status", metav1.ConditionTrue),
			HaveField("ObservedGeneration", hosted.Generation), HaveField("Message", ContainSubstring(release)))))
		component := &v1beta1.ControlPlaneComponent{}
		g.Expect(f.management.Get(ctx, client.ObjectKey{Namespace: f.namespace(), Name: v1beta1.KarpenterComponent}, component)).To(Succeed())
		g.Expect(component.Status.Version).To(Equal(release))
	}
}

// liveThrough lets operators live and die until one is done and finds nothing more to do. It returns how many there were.
func (f *faults) liveThrough(t *testing.T, phase string, rows *tabwriter.Writer, done func(g Gomega, ctx context.Context)) int {
	t.Helper()
	steps := fault.NewSteps()
	for life := 1; life <= mostLives; life++ {
		step, killed := f.live(t, steps, done)
		if !killed {
			return life
		}
		fmt.Fprintf(rows, "%s\t%d\t%s\n", phase, life, step)
	}
	t.Fatalf("after %d lives the operator isn't done with the %s: %v", mostLives, phase, unmet(t.Context(), done))
	return 0
}

// live is one life of an operator: until it has changed something, or is done.
func (f *faults) live(t *testing.T, steps *fault.Steps, done func(g Gomega, ctx context.Context)) (step fault.Step, killed bool) {
	t.Helper()
	last := fault.NewLastWrite(steps, ofOperator)
	f.managementProxy.Use(last.Fault("management"))
	f.guestProxy.Use(last.Fault("guest"))
	operator := f.startOperator(t)
	defer func() {
		operator.Kill()
		f.managementProxy.Use(nil)
		f.guestProxy.Use(nil)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var since time.Time // when it was done
	for {
		select {
		case step := <-last.Stored():
			return step, true
		case <-operator.Done():
			t.Fatalf("the operator ended by itself; see %s", operator.LogFile)
		case <-ctx.Done():
			t.Fatalf("the operator neither changes anything nor is done: %v", unmet(t.Context(), done))
		case <-ticker.C:
			switch {
			case unmet(ctx, done) != nil:
				since = time.Time{}
			case since.IsZero():
				since = time.Now()
			case time.Since(since) >= quiet:
				return fault.Step{}, false
			}
		}
	}
}

// unmet returns what doesn't hold yet.
func unmet(ctx context.Context, done func(g Gomega, ctx context.Context)) error {
	var errs []error
	done(NewGomega(func(message string, _ ...int) { errs = append(errs, errors.New(message)) }), ctx)
	return errors.Join(errs...)
}
