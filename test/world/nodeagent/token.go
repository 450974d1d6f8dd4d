// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// token is a service-account token and when to replace it.
type token struct {
	value string
	renew time.Time
}

// tokens requests and keeps the service-account tokens of one pod. Only the pod's goroutine uses it.
type tokens struct {
	client kubernetes.Interface
	now    func() time.Time

	kept map[string]token
}

// renewAt is 80% of a token's life, at most a day, as in the kubelet.
func renewAt(issued, expires time.Time) time.Time {
	return issued.Add(min(expires.Sub(issued)*8/10, 24*time.Hour))
}

// get returns a token for a projection, a new one when the old is due.
func (t *tokens) get(ctx context.Context, pod *corev1.Pod, projection *corev1.ServiceAccountTokenProjection) (token, error) {
	key := fmt.Sprintf("%s %d", projection.Audience, ptr.Deref(projection.ExpirationSeconds, 0))
	have, ok := t.kept[key]
	if ok && t.now().Before(have.renew) {
		return have, nil
	}
	fresh, err := t.request(ctx, pod, projection)
	if err == nil {
		t.kept[key] = fresh
	}
	return fresh, err
}

func (t *tokens) request(ctx context.Context, pod *corev1.Pod, projection *corev1.ServiceAccountTokenProjection) (token, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: projection.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	if projection.Audience != "" {
		request.Spec.Audiences = []string{projection.Audience}
	}
	issued := t.now()
	answer, err := t.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return token{}, fmt.Errorf("requesting a token of service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, err)
	}
	return token{value: answer.Status.Token, renew: renewAt(issued, answer.Status.ExpirationTimestamp.Time)}, nil
}
