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
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

// tokens are Karpenter's, by their key in the Secret.
type tokens map[string]token

// first is the earliest of their times; zero without tokens.
func (t tokens) first(at func(token) time.Time) time.Time {
	var first time.Time
	for _, token := range t {
		if at := at(token); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// renewAt is when the first of them is to be renewed.
func (t tokens) renewAt() time.Time { return t.first(token.renewAt) }

// until is when the first of them expires by the operator's clock, as the Secret's annotation declares it.
func (t tokens) until() string {
	return t.first(func(t token) time.Time { return t.until }).UTC().Format(time.RFC3339)
}

// read returns the tokens of a Secret, which may be nil, and the problems of the others. The tokens' own times are the guest's, whose
// clock may be any, and the annotation's are the operator's: how far they are apart was measured when the tokens were issued.
func (a *Access) read(hostedCluster types.UID, secret *corev1.Secret, wanted []provider.Token) (tokens, map[string]string) {
	current, why := tokens{}, map[string]string{}
	for _, wanted := range wanted {
		if secret == nil || len(secret.Data[wanted.Key]) == 0 {
			why[wanted.Key] = "there is none"
			continue
		}
		found, err := parse(string(secret.Data[wanted.Key]))
		if err != nil {
			why[wanted.Key] = err.Error()
			continue
		}
		current[wanted.Key] = found
	}
	if len(current) == 0 {
		return current, why
	}
	ahead, measured := a.ahead.Get(hostedCluster)
	if len(why) == 0 {
		first := current.first(func(t token) time.Time { return t.expiresAt })
		until, err := time.Parse(time.RFC3339, secret.Annotations[v1beta1.TokenExpiresAtAnnotation])
		if noted := first.Sub(until); err != nil || measured && (noted-ahead).Abs() > imprecision {
			for key := range current {
				why[key] = "their annotation of when they expire was changed, or a clock was set"
			}
			return tokens{}, why
		}
		ahead = first.Sub(until)
	}
	for key, token := range current {
		token.until = token.expiresAt.Add(-ahead)
		current[key] = token
	}
	return current, why
}

// tokens returns the Secret's tokens. It replaces a token that is about to expire, belongs to a deleted
// ServiceAccount, has another audience, or is rejected by the guest.
func (a *Access) tokens(ctx context.Context, s *scope.Scope, account types.UID) (tokens, error) {
	key := client.ObjectKey{Namespace: s.ControlPlaneNamespace, Name: s.Names().GuestAccess}
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
		ahead := fresh.expiresAt.Sub(fresh.until)
		a.ahead.Add(s.HostedCluster.UID, ahead)
		a.issued.Add(issue{s.HostedCluster.UID, wanted.Key}, fresh.raw)
		log.FromContext(ctx).Info("Issued a guest token for Karpenter", "Secret", klog.KRef(key.Namespace, key.Name), "key", wanted.Key,
			"because", because, "expiresAt", fresh.until, "guestAheadBy", ahead.Round(time.Second))
	}
	return current, nil
}

// examine returns the tokens of a Secret, which may be nil, that can stay, and why each of the others can't.
func (a *Access) examine(ctx context.Context, s *scope.Scope, secret *corev1.Secret, account types.UID) (tokens, map[string]string, error) {
	current, why := a.read(s.HostedCluster.UID, secret, s.Profile.Tokens)
	for _, wanted := range s.Profile.Tokens {
		if found, ok := current[wanted.Key]; ok {
			if invalid := a.validate(secret, found, wanted, account); invalid != "" {
				delete(current, wanted.Key)
				why[wanted.Key] = invalid
			}
		}
	}
	return current, why, a.review(ctx, s, secret, account, current, why)
}

// validate returns why a token has to be replaced, or "".
func (a *Access) validate(secret *corev1.Secret, current token, wanted provider.Token, account types.UID) string {
	now := a.Clock.Now()
	switch {
	case current.account != account || secret.Annotations[v1beta1.TokenServiceAccountUIDAnnotation] != string(account):
		return "its ServiceAccount was recreated"
	case wanted.Audience != "" && !slices.Equal(current.audiences, []string{wanted.Audience}):
		return "it isn't for " + wanted.Audience
	case current.until.Sub(now) > current.lifetime()+imprecision:
		return "it would last longer than it was issued for: a clock was set"
	case !now.Before(current.renewAt()):
		return "it expires soon"
	}
	return ""
}

// review submits tokens from a Secret to the guest's API server, if their last review is old: an edit may have
// damaged one, its signing key may be gone, or the clock may have been set. It moves rejected tokens from current to
// why.
func (a *Access) review(
	ctx context.Context, s *scope.Scope, secret *corev1.Secret, account types.UID, current tokens, why map[string]string,
) error {
	if len(current) == 0 {
		return nil
	}
	now := a.Clock.Now()
	state := review{account: account, resourceVersion: secret.ResourceVersion, connection: s.Guest.Config}
	if known, ok := a.reviewed.Get(secret.UID); ok && known.review == state && now.Sub(known.at).Abs() < reviewEvery {
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
			if found := current[wanted.Key]; found.until.Sub(now) > found.lifetime()-newborn {
				if last, ok := a.issued.Get(issue{s.HostedCluster.UID, wanted.Key}); ok && last == found.raw {
					return fmt.Errorf("the guest refuses the token that it has just issued for Karpenter (%s); "+
						"see that its API servers have the same time and the same signing keys",
						refusedBecause(question.Status.Error))
				}
			}
			delete(current, wanted.Key)
			why[wanted.Key] = "the guest doesn't accept it"
		}
	}
	if len(why) == 0 {
		a.reviewed.Add(secret.UID, reviewed{state, now})
	}
	return nil
}

// refusedBecause quotes why a guest doesn't accept a token.
func refusedBecause(why string) string {
	if why == "" {
		return "without saying why"
	}
	return message.Quoted(why)
}

func (a *Access) request(ctx context.Context, guest *scope.Guest, wanted provider.Token) (token, error) {
	account, err := guestassets.ServiceAccount()
	if err != nil {
		return token{}, err
	}
	seconds := int64(a.TokenLifetime / time.Second)
	asked := a.Clock.Now()
	answer := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, Audiences: wanted.Audiences()},
	}
	if err := guest.Live.SubResource("token").Create(ctx, account, answer); err != nil {
		return token{}, fmt.Errorf("requesting a token of ServiceAccount %s in the guest: %w", klog.KObj(account), err)
	}
	fresh, err := parse(answer.Status.Token)
	if err != nil {
		return token{}, fmt.Errorf("requesting a token of ServiceAccount %s in the guest: %w", klog.KObj(account), err)
	}
	fresh.until = asked.Add(fresh.lifetime()).Truncate(time.Second) // which the annotation has, too
	return fresh, nil
}
