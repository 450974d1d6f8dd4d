// SPDX-License-Identifier: Apache-2.0

package environment

import (
	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
)

// Settle waits until a cluster's cache has an object as the API server has it, and reads it.
func (s *Environment) Settle(c cluster.Cluster, object client.Object) {
	s.t.Helper()
	key, cached := client.ObjectKeyFromObject(object), object.DeepCopyObject().(client.Object)
	gomega.NewWithT(s.t).Eventually(func(g gomega.Gomega) {
		g.Expect(s.Admin.Get(s.t.Context(), key, object)).To(gomega.Succeed())
		g.Expect(c.GetClient().Get(s.t.Context(), key, cached)).To(gomega.Succeed())
		g.Expect(cached.GetResourceVersion()).To(gomega.Equal(object.GetResourceVersion()))
	}).Should(gomega.Succeed())
}

// SettleGone waits until a cluster's cache has an object no longer.
func (s *Environment) SettleGone(c cluster.Cluster, object client.Object) {
	s.t.Helper()
	gomega.NewWithT(s.t).Eventually(func() bool {
		return apierrors.IsNotFound(c.GetClient().Get(s.t.Context(), client.ObjectKeyFromObject(object), object))
	}).Should(gomega.BeTrue())
}
