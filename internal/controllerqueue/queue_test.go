// SPDX-License-Identifier: Apache-2.0

package controllerqueue

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/util/workqueue"
)

func TestQueue(t *testing.T) {
	t.Run("When the controller hasn't started, it should queue nothing and say so", func(t *testing.T) {
		g, q := NewWithT(t), &Queue[string]{}
		g.Expect(q.Add("early")).To(BeFalse())
		g.Expect(q.AddAfter("early", time.Second)).To(BeFalse())
	})

	t.Run("When it has started, it should queue each request after its delay", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, q := NewWithT(t), &Queue[string]{}
			g.Expect(q.Add("early")).To(BeFalse())
			queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
			defer queue.ShutDown()
			g.Expect(q.Start(t.Context(), queue)).To(Succeed())

			g.Expect(q.AddAfter("later", time.Minute)).To(BeTrue())
			g.Expect(q.Add("now")).To(BeTrue())
			g.Expect(queue.Len()).To(Equal(1))
			began := time.Now()
			request, _ := queue.Get()
			g.Expect(request).To(Equal("now"))
			queue.Done(request)
			request, _ = queue.Get()
			g.Expect(request).To(Equal("later"))
			g.Expect(time.Since(began)).To(Equal(time.Minute))
		})
	})
}
