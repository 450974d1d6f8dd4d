// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/v1beta1"
	guestassets "github.com/autonode-io/autonode/assets/guest"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

// tokens are Karpenter's, by their key in the Secret.
type tokens map[string]token

// renewAt is when the first of them is to be renewed.
func (t tokens) renewAt() time.Time {
	var first time.Time
	for _, token := range t {
		if at := token.renewAt(); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// expiresAt is when the first of them expires, as the Secret's annotation says it.
func (t tokens) expiresAt() string {
	var first time.Time
	for _, token := range t {
		if first.IsZero() || token.expiresAt.Before(first) {
			first = token.expiresAt
		}
	}
	return first.UTC().Format(time.RFC3339)
}

// tokens returns the Secret's tokens, or a new one where one is about to expire, belongs to a ServiceAccount that is no more, is for
// somebody else, or isn't accepted by the guest.
func (a *Access) tokens(ctx context.Context, s *scope.Scope, account types.UID) (tokens, error) {
	key := client.ObjectKey{Namespace: s.ControlPlaneNamespace, Name: v1beta1.GuestAccessSecret}
	var current tokens
	var why map[string]string
	for _, reader := range []client.Reader{a.Secrets, a.Live} {
		secret := &corev1.Secret{}
		if err := reader.Get(ctx, key, secret); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading Secret %s: %w", key, err)
		} else if apierrors.IsNotFound(err) {
			secret = nil
		}
		var err error
		if current, why, err = a.examine(ctx, s, secret, account); err != nil {
			return nil, err
		}
		if len(why) == 0 {
			return current, nil
		}
	}
	for _, wanted := range s.Profile.Tokens {
		because, missing := why[wanted.Key]
		if !missing {
			continue
		}
		fresh, err := a.request(ctx, s.Guest, wanted)
		if err != nil {
			return nil, err
		}
		current[wanted.Key] = fresh
		log.FromContext(ctx).Info("Issued a guest token for Karpenter", "Secret", klog.KRef(key.Namespace, key.Name), "key", wanted.Key,
			"because", because, "expiresAt", fresh.expiresAt)
	}
	return current, nil
}

// examine returns the tokens of a Secret, which may be nil, that can stay, and why each of the others can't.
func (a *Access) examine(ctx context.Context, s *scope.Scope, secret *corev1.Secret, account types.UID) (tokens, map[string]string, error) {
	current, why := tokens{}, map[string]string{}
	for _, wanted := range s.Profile.Tokens {
		if secret == nil || len(secret.Data[wanted.Key]) == 0 {
			why[wanted.Key] = "there is none"
			continue
		}
		found, complaint := a.judge(secret, wanted, account)
		if complaint != "" {
			why[wanted.Key] = complaint
			continue
		}
		current[wanted.Key] = found
	}
	if secret != nil && len(current) > 0 && secret.Annotations[v1beta1.TokenExpiresAtAnnotation] != current.expiresAt() && len(why) == 0 {
		for key := range current {
			why[key] = "their annotation of when they expire was changed"
		}
		return tokens{}, why, nil
	}
	return current, why, a.review(ctx, s, secret, account, current, why)
}

// judge says why a token is to be replaced, or nothing.
func (a *Access) judge(secret *corev1.Secret, wanted provider.Token, account types.UID) (token, string) {
	current, err := parse(string(secret.Data[wanted.Key]))
	switch {
	case err != nil:
		return token{}, err.Error()
	case current.account != account || secret.Annotations[v1beta1.TokenServiceAccountUIDAnnotation] != string(account):
		return token{}, "its ServiceAccount was recreated"
	case wanted.Audience != "" && !slices.Equal(current.audiences, []string{wanted.Audience}):
		return token{}, "it isn't for " + wanted.Audience
	case !a.Clock.Now().Before(current.renewAt()):
		return token{}, "it expires soon"
	}
	return current, ""
}

// review asks the guest's API server about tokens that came from a Secret that it hasn't been asked about: an edit may have
// broken one, and the key that it was signed with may be gone. It moves those that aren't accepted from current to why.
func (a *Access) review(ctx context.Context, s *scope.Scope, secret *corev1.Secret, account types.UID, current tokens, why map[string]string) error {
	if len(current) == 0 {
		return nil
	}
	state := review{account: account, resourceVersion: secret.ResourceVersion, connection: s.Guest.Config}
	if known, ok := a.reviewed.Get(secret.UID); ok && known == state {
		return nil
	}
	for _, wanted := range s.Profile.Tokens {
		if _, ok := current[wanted.Key]; !ok {
			continue
		}
		question := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{
			Token: string(secret.Data[wanted.Key]), Audiences: wanted.Audiences(),
		}}
		if err := s.Guest.Live.Create(ctx, question); err != nil {
			return fmt.Errorf("reviewing Karpenter's token in the guest: %w", err)
		}
		if !question.Status.Authenticated {
			delete(current, wanted.Key)
			why[wanted.Key] = "the guest doesn't accept it"
		}
	}
	if len(why) == 0 {
		a.reviewed.Add(secret.UID, state)
	}
	return nil
}

func (a *Access) request(ctx context.Context, guest *scope.Guest, wanted provider.Token) (token, error) {
	account, err := guestassets.ServiceAccount()
	if err != nil {
		return token{}, err
	}
	seconds := int64(a.TokenLifetime / time.Second)
	answer := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, Audiences: wanted.Audiences()}}
	if err := guest.Live.SubResource("token").Create(ctx, account, answer); err != nil {
		return token{}, fmt.Errorf("requesting a token of ServiceAccount %s in the guest: %w", klog.KObj(account), err)
	}
	fresh, err := parse(answer.Status.Token)
	if err != nil {
		return token{}, fmt.Errorf("requesting a token of ServiceAccount %s in the guest: %w", klog.KObj(account), err)
	}
	return fresh, nil
}
