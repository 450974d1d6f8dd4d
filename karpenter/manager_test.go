// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

func TestGuestManagers(t *testing.T) {
	var made []manager.Options
	original := ctrl.NewManager
	t.Cleanup(func() { ctrl.NewManager = original })
	ctrl.NewManager = func(_ *rest.Config, options manager.Options) (manager.Manager, error) {
		made = append(made, options)
		return nil, nil
	}
	restore := guestManagers()
	for range 2 {
		if _, err := ctrl.NewManager(&rest.Config{}, manager.Options{}); err != nil {
			t.Fatal(err)
		}
		restore()
	}

	t.Run("When Karpenter core makes its manager, its caches should hold no managed fields", func(t *testing.T) {
		g := NewWithT(t)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}}}
		g.Expect(made[0].Cache.DefaultTransform(node)).To(Equal(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}))
	})
	t.Run("When others make managers later, those should be as they are", func(t *testing.T) {
		NewWithT(t).Expect(made[1].Cache).To(BeZero())
	})
}
