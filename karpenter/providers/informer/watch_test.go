// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/karpenter/providers/informer"
)

// interrupted is a cache that may neither be read nor watched, and whose informer may miss deletions.
type interrupted struct {
	cache.Cache
	unread, stopped error
	handler         toolscache.ResourceEventHandler
}

func (i *interrupted) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return interruptedInformer{of: i}, i.unread
}

type interruptedInformer struct {
	cache.Informer
	of *interrupted
}

func (i interruptedInformer) AddEventHandler(handler toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	i.of.handler = handler
	return nil, i.of.stopped
}

func TestWatchMachines(t *testing.T) {
	machine := func(name string) *clusterv1.Machine {
		return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	watch := func(objects *interrupted, seen *[]string) error {
		_, err := informer.WatchMachines(t.Context(), objects, func(m client.Object) bool { return m.GetName() != "other" },
			func(m *clusterv1.Machine) { *seen = append(*seen, "observed "+m.Name) },
			func(m *clusterv1.Machine) { *seen = append(*seen, "deleted "+m.Name) })
		return err
	}

	for name, tc := range map[string]struct {
		event func(toolscache.ResourceEventHandler)
		want  []string
	}{
		"When a Machine is added, it should observe it": {
			func(h toolscache.ResourceEventHandler) { h.OnAdd(machine("own"), false) }, []string{"observed own"}},
		"When a Machine is updated, it should observe the new one": {
			func(h toolscache.ResourceEventHandler) { h.OnUpdate(machine("before"), machine("own")) }, []string{"observed own"}},
		"When a Machine is deleted, it should forget it": {
			func(h toolscache.ResourceEventHandler) { h.OnDelete(machine("own")) }, []string{"deleted own"}},
		"When a Machine is deleted while the watch is interrupted, it should forget what was last seen": {
			func(h toolscache.ResourceEventHandler) {
				h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "own", Obj: machine("own")})
			}, []string{"deleted own"}},
		"When it isn't a Machine of its own, it should ignore it": {
			func(h toolscache.ResourceEventHandler) {
				for _, object := range []any{machine("other"), &corev1.Node{}, toolscache.DeletedFinalStateUnknown{Key: "own"}} {
					h.OnAdd(object, true)
					h.OnUpdate(object, object)
					h.OnDelete(object)
				}
			}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g, objects, seen := NewWithT(t), &interrupted{}, []string(nil)
			g.Expect(watch(objects, &seen)).To(Succeed())
			tc.event(objects.handler)
			g.Expect(seen).To(Equal(tc.want))
		})
	}

	t.Run("When the kind can't be cached or watched, it should say which", func(t *testing.T) {
		g, seen := NewWithT(t), []string(nil)
		g.Expect(watch(&interrupted{unread: errors.New("forbidden")}, &seen)).To(MatchError("caching *v1beta2.Machine: forbidden"))
		g.Expect(watch(&interrupted{stopped: errors.New("stopped")}, &seen)).To(MatchError("watching *v1beta2.Machine: stopped"))
	})
}
