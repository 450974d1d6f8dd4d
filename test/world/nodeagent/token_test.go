// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

func TestTokens(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var failing error
	requests := 0
	client := fake.NewClientset()
	client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if failing != nil {
			return true, nil, failing
		}
		requests++
		request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
		request.Status = authenticationv1.TokenRequestStatus{
			Token:               fmt.Sprintf("%s-%d", request.Spec.BoundObjectRef.UID, requests),
			ExpirationTimestamp: metav1.NewTime(now.Add(time.Duration(*request.Spec.ExpirationSeconds) * time.Second)),
		}
		return true, request, nil
	})
	tokens := &tokens{client: client, now: func() time.Time { return now }, kept: map[string]token{}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "uid"}}
	projection := &corev1.ServiceAccountTokenProjection{ExpirationSeconds: ptr.To[int64](1000)}
	get := func(t *testing.T) token {
		t.Helper()
		got, err := tokens.get(t.Context(), pod, projection)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	t.Run("When a token is fresh, it should be kept until 80% of its life", func(t *testing.T) {
		g := NewWithT(t)
		first := get(t)
		g.Expect(first.value).To(Equal("uid-1"))
		g.Expect(first.renew).To(Equal(now.Add(800 * time.Second)))
		now = now.Add(799 * time.Second)
		g.Expect(get(t).value).To(Equal("uid-1"))
		now = now.Add(time.Second)
		g.Expect(get(t).value).To(Equal("uid-2"))
	})
	t.Run("When a renewal fails, it should say so", func(t *testing.T) {
		failing = errors.New("no answer")
		now = now.Add(900 * time.Second)
		_, err := tokens.get(t.Context(), pod, projection)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("no answer")))
	})
	t.Run("When a token lives long, it should be renewed daily", func(t *testing.T) {
		NewWithT(t).Expect(renewAt(now, now.AddDate(1, 0, 0))).To(Equal(now.Add(24 * time.Hour)))
	})
}
