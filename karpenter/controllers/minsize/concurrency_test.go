// SPDX-License-Identifier: Apache-2.0

package minsize_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/controllers/minsize"
)

// run starts the controller in a manager, whose cached client it returns: the one that Karpenter core would read from.
func (f *fixture) run() client.Client {
	f.t.Helper()
	m := f.Manager()
	cfg := f.config(m.GetClient())
	cfg.Machines = f.Machines(nil)
	f.Expect(minsize.New(cfg).Register(f.t.Context(), m)).To(Succeed())
	f.Run(f.t.Context(), m)
	return m.GetClient()
}

// together runs do with each name at once.
func together(names []string, do func(name string)) {
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() { do(name) })
	}
	all.Wait()
}

func names(from, to int) (all []string) {
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprintf("n%02d", i))
	}
	return all
}

func TestEvents(t *testing.T) {
	t.Run("When anything changes that matters, it should follow", func(t *testing.T) {
		f := newFixture(t)
		f.run()
		f.nodes("a", "b")
		f.minimum(1)
		f.Eventually(f.held).Should(Equal("a"))
		f.drifted("a", true)
		f.Eventually(f.held).Should(Equal("b"))
		f.annotate("b", karpv1.DoNotDisruptAnnotationKey, nil)
		f.Eventually(f.held).Should(Equal("b"))
		f.minimum(2)
		f.node("c")
		f.Eventually(f.held).Should(Equal("b c"))
		f.minimum(1)
		f.Eventually(f.held).Should(Equal("b"))
		f.Expect(f.Admin.Delete(t.Context(), &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: f.key("b").Name}})).To(Succeed())
		f.Expect(f.Admin.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.key("b").Name}})).To(Succeed())
		f.Eventually(f.held).Should(Equal("c"))
		// As when the node class goes: the store forgets it before the cache does.
		f.store.Delete(f.nodeClass.Name)
		f.Expect(f.Admin.Delete(t.Context(), f.nodeClass)).To(Succeed())
		f.Eventually(f.held).Should(BeEmpty())
	})
}

func TestConcurrency(t *testing.T) {
	t.Run("When many nodes drift at once, while others write to them, there should be as many marks as the minimum at every moment", func(t *testing.T) {
		const minimum = 4
		f := newFixture(t)
		f.minimum(minimum)
		all := names(0, 12)
		for _, name := range all {
			f.node(name)
		}
		f.run()
		f.Eventually(f.held).Should(Equal("n00 n01 n02 n03"))
		fewest := f.fewestMarks()

		end := f.repeat(func(round int) { f.annotate(all[round%len(all)], "example.com/noise", fmt.Sprint(round)) })
		for range 3 {
			together(names(0, 4), func(name string) { f.drifted(name, true) })
			f.Eventually(f.held).Should(Equal("n04 n05 n06 n07"))
			together(names(0, 8), func(name string) { f.drifted(name, name >= "n04") })
			f.Eventually(f.held).Should(Equal("n00 n01 n02 n03"))
			together(names(4, 8), func(name string) { f.drifted(name, false) })
		}
		end()
		f.Expect(fewest()).To(Equal(minimum))
	})
	t.Run("When nodes join at once and Karpenter removes whatever it may, the minimum should be left", func(t *testing.T) {
		const minimum = 3
		f := newFixture(t)
		f.minimum(minimum)
		cached := f.run()
		together(names(0, minimum), f.node)
		f.Eventually(f.held).Should(Equal("n00 n01 n02"))

		end := f.repeat(func(int) { f.remove(cached) })
		together(names(minimum, 23), f.node)
		running := func() (int, error) {
			nodes := &corev1.NodeList{}
			err := f.Admin.List(t.Context(), nodes)
			return len(nodes.Items), err
		}
		f.Eventually(running).Should(Equal(minimum))
		f.Expect(f.held()).To(Equal("n00 n01 n02"))
		f.minimum(1)
		f.Eventually(running).Should(Equal(1))
		f.Expect(f.held()).To(MatchRegexp("^n0[012]$"))
		end()
	})
}

// repeat does something over and over, until the function that it returns is called, or the test ends.
func (f *fixture) repeat(do func(round int)) (end func()) {
	ctx, stop := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for round := 0; ctx.Err() == nil; round++ {
			do(round)
		}
	}()
	end = func() {
		stop()
		<-done
	}
	f.t.Cleanup(end)
	return end
}

// remove removes every node that Karpenter core would take for disruptable, by what it reads.
func (f *fixture) remove(cached client.Client) {
	ctx := f.t.Context()
	nodeClaims := &karpv1.NodeClaimList{}
	if err := cached.List(ctx, nodeClaims); err != nil {
		f.t.Error(err)
		return
	}
	for i := range nodeClaims.Items {
		stateNode := state.NewNode()
		stateNode.Node, stateNode.NodeClaim = &corev1.Node{}, &nodeClaims.Items[i]
		if stateNode.NodeClaim.Status.NodeName == "" || cached.Get(ctx, client.ObjectKey{Name: stateNode.NodeClaim.Status.NodeName}, stateNode.Node) != nil ||
			stateNode.ValidateNodeDisruptable(clock.RealClock{}) != nil {
			continue
		}
		for _, object := range []client.Object{stateNode.NodeClaim, stateNode.Node} {
			if err := client.IgnoreNotFound(f.Admin.Delete(ctx, object)); err != nil {
				f.t.Error(err)
			}
		}
	}
}

// fewestMarks watches the nodes, and returns a function that ends that and reports how many were marked when it were the fewest.
func (f *fixture) fewestMarks() func() int {
	f.t.Helper()
	watcher, err := client.NewWithWatch(f.Guest.GetConfig(), client.Options{Scheme: f.Guest.GetScheme()})
	f.Expect(err).NotTo(HaveOccurred())
	nodes := &corev1.NodeList{}
	f.Expect(watcher.List(f.t.Context(), nodes)).To(Succeed())
	marked := map[string]bool{}
	observe := func(node *corev1.Node) int {
		delete(marked, node.Name)
		if node.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true" && node.Annotations[v1alpha1.KeptForMinimumAnnotation] != "" {
			marked[node.Name] = true
		}
		return len(marked)
	}
	for i := range nodes.Items {
		observe(&nodes.Items[i])
	}
	fewest := len(marked)
	events, err := watcher.Watch(f.t.Context(), nodes, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: nodes.ResourceVersion}})
	f.Expect(err).NotTo(HaveOccurred())
	const last = "example.com/last"
	seen := make(chan int, 1)
	go func() {
		for e := range events.ResultChan() {
			node, ok := e.Object.(*corev1.Node)
			if !ok || e.Type != watch.Modified {
				f.t.Errorf("watching Nodes: %s %T", e.Type, e.Object)
				break
			}
			fewest = min(fewest, observe(node))
			if node.Annotations[last] != "" {
				break
			}
		}
		seen <- fewest
	}()
	return func() int {
		f.t.Helper()
		f.annotate("n00", last, "true")
		defer events.Stop()
		return <-seen
	}
}
