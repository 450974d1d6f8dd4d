// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestPulls(t *testing.T) {
	t.Run("When many clusters want the same payload at once, it should be pulled once", func(t *testing.T) {
		g, source := NewWithT(t), newOrigin(t)
		r := New(Config{PullSecrets: &secrets{}})
		tag := source.push(t, "3", karpenter("1.36.3"))
		reconciled(t, r, scopeOf(tag))
		once := source.manifests.Load()

		r = New(Config{PullSecrets: &secrets{}})
		source.manifests.Store(0)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				s := scopeOf(tag)
				s.HostedCluster.Name = fmt.Sprint("blue", i)
				if i%2 == 0 { // other mirrors are another request, but the digest is the same
					s.HostedCluster.Spec.ImageContentSources = []v1beta1.ImageContentSource{{Source: "elsewhere.example", Mirrors: []string{"mirror.example"}}}
				}
				if _, err := r.Reconcile(context.WithoutCancel(t.Context()), s); err != nil || s.Release == nil {
					t.Errorf("reconciling: %v, %+v", err, s.HostedCluster.Status)
				}
			})
		}
		all.Wait()
		g.Expect(source.manifests.Load()).To(Equal(once))
	})

	t.Run("When a pull fails, it should be tried again later each time, or at once with other credentials", func(t *testing.T) {
		g, source := NewWithT(t), newOrigin(t)
		clock := clocktesting.NewFakePassiveClock(time.Now())
		pull := &secrets{secret: dockerConfig("old")}
		r := New(Config{PullSecrets: pull, Clock: clock})
		s := scopeOf(source.push(t, "3", karpenter("1.36.3")))
		s.HostedCluster.Spec.PullSecret = &corev1.LocalObjectReference{Name: "pull-secret"}
		source.status.Store(http.StatusUnauthorized)

		requests := func() int64 {
			source.requests.Store(0)
			reconciled(t, r, s)
			g.Expect(resolvedReason(s)).To(Equal("False/ImagePullUnauthorized"))
			return source.requests.Load()
		}
		g.Expect(requests()).To(BeNumerically(">", 0))
		g.Expect(meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.ReleaseResolved).Message).To(And(
			ContainSubstring("/release:3"), ContainSubstring("401"), ContainSubstring("spec.pullSecret clusters/pull-secret has no entry for "+source.host)))
		g.Expect(requests()).To(BeZero())
		clock.SetTime(clock.Now().Add(minBackoff))
		g.Expect(requests()).To(BeNumerically(">", 0))
		clock.SetTime(clock.Now().Add(minBackoff))
		g.Expect(requests()).To(BeZero(), "the second pause is longer")
		pull.secret = dockerConfig("new")
		g.Expect(requests()).To(BeNumerically(">", 0))

		source.status.Store(0)
		clock.SetTime(clock.Now().Add(minBackoff))
		reconciled(t, r, s)
		g.Expect(resolvedReason(s)).To(Equal("True/AsExpected"))
	})

	t.Run("When a pull takes long, it should not hold the reconciler, and wake it when it ends", func(t *testing.T) {
		g, source := NewWithT(t), newOrigin(t)
		r := New(Config{PullSecrets: &secrets{}})
		r.puller.waitTimeout = 10 * time.Millisecond
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer queue.ShutDown()
		g.Expect(r.Source().Start(t.Context(), queue)).To(Succeed())
		s := scopeOf(source.push(t, "3", karpenter("1.36.3")))
		hold := make(chan struct{})
		source.hold.Store(&hold)
		result := reconciled(t, r, s)
		g.Expect(result.Wait).To(BeTrue())
		g.Expect(result.Message).To(ContainSubstring("pulling"))
		close(hold)
		who, _ := queue.Get()
		g.Expect(who.Name).To(Equal("blue"))
		source.requests.Store(0)
		reconciled(t, r, s)
		g.Expect(s.Release).NotTo(BeNil())
		g.Expect(source.requests.Load()).To(BeZero(), "it must not repeat the request that it waited for")
	})
}

func dockerConfig(password string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "pull-secret"},
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"elsewhere.example":{"username":"u","password":"` + password + `"}}}`)},
	}
}
