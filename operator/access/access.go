// SPDX-License-Identifier: Apache-2.0

// Package access gives Karpenter an identity of its own in the guest cluster: a ServiceAccount with a ClusterRole there, and in
// the control-plane namespace a Secret with a kubeconfig and a short-lived token, which is renewed before it expires. The
// kubeconfig names the token's file and the CA's, so that a renewal of either changes the Secret and nothing else.
package access

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/v1beta1"
	guestassets "github.com/autonode-io/autonode/assets/guest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/scope"
)

const (
	// KubeconfigKey is the Secret's key of the kubeconfig.
	KubeconfigKey = "kubeconfig"
	// TokenKey is the Secret's key of the token. The kubeconfig names it as a file in its own directory.
	TokenKey = "token"
	// CAKey is the Secret's key of the certificates that the guest's API server is known by; the kubeconfig names it likewise.
	CAKey = "ca.crt"
	// DefaultTokenLifetime is what is asked for; the guest's API server may grant less.
	DefaultTokenLifetime = time.Hour
)

// Config is what New needs.
type Config struct {
	// Management is the management cluster.
	Management client.Client
	// Secrets reads the guest access Secrets, from a watch.
	Secrets client.Reader
	// Live reads the management cluster's API server. It is asked before a token is replaced, because Secrets may lag.
	Live  client.Reader
	Apply *apply.Applier
	Clock clock.PassiveClock
	// TokenLifetime to ask for, ten minutes at least; zero is DefaultTokenLifetime.
	TokenLifetime time.Duration
}

// Access is the step.
type Access struct {
	Config
	// reviewed remembers which tokens the guest's API server has accepted: of types.UID (the ServiceAccount's) by review.
	reviewed *lru.Cache
}

// review names one state of a Secret, and the connection on which it was asked about: a guest's API server that came back may have
// other keys.
type review struct {
	secret          types.UID
	resourceVersion string
	connection      *rest.Config
}

var _ scope.Step = (*Access)(nil)

// New returns the step.
func New(config Config) *Access {
	if config.TokenLifetime == 0 {
		config.TokenLifetime = DefaultTokenLifetime
	}
	return &Access{Config: config, reviewed: lru.New(1 << 14)}
}

// Name implements scope.Step.
func (a *Access) Name() string { return "access" }

// Reconcile applies the identity, then sees to the token. It asks to be woken when the token is to be renewed.
func (a *Access) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	account, err := a.identity(ctx, s.Guest)
	if err != nil {
		return scope.Result{}, err
	}
	token, err := a.token(ctx, s, account)
	if err != nil {
		return scope.Result{}, err
	}
	desired, err := a.secret(s, account, token)
	if err != nil {
		return scope.Result{}, err
	}
	if err := a.Apply.Objects(ctx, a.Management, s.Component, desired); err != nil {
		return scope.Result{}, err
	}
	return scope.Result{RequeueAfter: max(token.renewAt().Sub(a.Clock.Now()), time.Second)}, nil
}

// identity applies the ServiceAccount and what it may do, and returns the ServiceAccount's UID.
func (a *Access) identity(ctx context.Context, guest *scope.Guest) (types.UID, error) {
	account, role, binding, err := guestassets.Access()
	if err != nil {
		return "", err
	}
	if err := a.Apply.Objects(ctx, guest.Cached, nil, account, role, binding); err != nil {
		return "", fmt.Errorf("in the guest: %w", err)
	}
	for _, reader := range []client.Reader{guest.Cached, guest.Live} {
		live := &metav1.PartialObjectMetadata{}
		live.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceAccount"))
		err = reader.Get(ctx, client.ObjectKeyFromObject(account), live)
		if err == nil {
			return live.UID, nil
		}
		if !apierrors.IsNotFound(err) { // the cache lags behind a ServiceAccount that was just made
			break
		}
	}
	return "", fmt.Errorf("reading ServiceAccount %s in the guest: %w", klog.KObj(account), err)
}

// token returns the Secret's token, or a new one where that is about to expire, belongs to a ServiceAccount that is no more, or
// isn't accepted by the guest.
func (a *Access) token(ctx context.Context, s *scope.Scope, account types.UID) (token, error) {
	key := client.ObjectKey{Namespace: s.ControlPlaneNamespace, Name: v1beta1.GuestAccessSecret}
	why := ""
	for _, reader := range []client.Reader{a.Secrets, a.Live} {
		secret := &corev1.Secret{}
		if err := reader.Get(ctx, key, secret); err != nil {
			if !apierrors.IsNotFound(err) {
				return token{}, fmt.Errorf("reading Secret %s: %w", key, err)
			}
			why = "there is none"
			continue
		}
		var current token
		current, why = a.judge(secret, account)
		if why == "" {
			var err error
			if why, err = a.review(ctx, s.Guest, secret, account); err != nil {
				return token{}, err
			}
		}
		if why == "" {
			return current, nil
		}
	}
	fresh, err := a.request(ctx, s.Guest)
	if err != nil {
		return token{}, err
	}
	log.FromContext(ctx).Info("Issued a guest token for Karpenter", "Secret", klog.KRef(key.Namespace, key.Name), "because", why, "expiresAt", fresh.expiresAt)
	return fresh, nil
}

// judge says why a Secret's token is to be replaced, or nothing.
func (a *Access) judge(secret *corev1.Secret, account types.UID) (token, string) {
	current, err := parse(string(secret.Data[TokenKey]))
	switch {
	case err != nil:
		return token{}, err.Error()
	case secret.Annotations[v1beta1.TokenExpiresAtAnnotation] != current.expiresAt.UTC().Format(time.RFC3339):
		return token{}, "its annotation of when it expires was changed"
	case current.account != account || secret.Annotations[v1beta1.TokenServiceAccountUIDAnnotation] != string(account):
		return token{}, "its ServiceAccount was recreated"
	case !a.Clock.Now().Before(current.renewAt()):
		return token{}, "it expires soon"
	}
	return current, ""
}

// review asks the guest's API server about a token that came from a Secret that it hasn't been asked about: an edit may have
// broken it, and the key that it was signed with may be gone.
func (a *Access) review(ctx context.Context, guest *scope.Guest, secret *corev1.Secret, account types.UID) (string, error) {
	state := review{secret: secret.UID, resourceVersion: secret.ResourceVersion, connection: guest.Config}
	if known, ok := a.reviewed.Get(account); ok && known == state {
		return "", nil
	}
	question := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: string(secret.Data[TokenKey])}}
	if err := guest.Live.Create(ctx, question); err != nil {
		return "", fmt.Errorf("reviewing Karpenter's token in the guest: %w", err)
	}
	if !question.Status.Authenticated {
		return "the guest doesn't accept it", nil
	}
	a.reviewed.Add(account, state)
	return "", nil
}

func (a *Access) request(ctx context.Context, guest *scope.Guest) (token, error) {
	account, err := guestassets.ServiceAccount()
	if err != nil {
		return token{}, err
	}
	seconds := int64(a.TokenLifetime / time.Second)
	answer := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if err := guest.Live.SubResource("token").Create(ctx, account, answer); err != nil {
		return token{}, fmt.Errorf("requesting a token of ServiceAccount %s in the guest: %w", klog.KObj(account), err)
	}
	fresh, err := parse(answer.Status.Token)
	if err != nil {
		return token{}, fmt.Errorf("requesting a token of ServiceAccount %s in the guest: %w", klog.KObj(account), err)
	}
	return fresh, nil
}

// secret renders the Secret.
func (a *Access) secret(s *scope.Scope, account types.UID, t token) (*corev1.Secret, error) {
	kubeconfig, ca, err := Kubeconfig(s.Guest.Config)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{KubeconfigKey: kubeconfig, TokenKey: []byte(t.raw)}
	if len(ca) > 0 {
		data[CAKey] = ca
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.ControlPlaneNamespace,
			Name:      v1beta1.GuestAccessSecret,
			Labels: map[string]string{
				clusterv1.ClusterNameLabel:          s.ClusterKey().Name, // what Config.Secrets watches
				v1beta1.HostedClusterLabel:          s.HostedCluster.Name,
				v1beta1.HostedClusterNamespaceLabel: s.HostedCluster.Namespace,
			},
			Annotations: map[string]string{
				v1beta1.TokenExpiresAtAnnotation:         t.expiresAt.UTC().Format(time.RFC3339),
				v1beta1.TokenServiceAccountUIDAnnotation: string(account),
			},
		},
		Type: corev1.SecretTypeOpaque,
		Data: data,
	}, nil
}
