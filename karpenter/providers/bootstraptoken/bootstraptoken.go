// SPDX-License-Identifier: Apache-2.0

// Package bootstraptoken creates the bootstrap tokens that machines join a guest cluster with, one per machine.
package bootstraptoken

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

const (
	// Lifetime of a token: the default of Cluster API's kubeadm bootstrap provider, which extends it while the
	// Machine has no Node.
	Lifetime = 15 * time.Minute
	// MaxLifetime of a token. The guest's admission policy allows an hour; the difference covers clock skew.
	MaxLifetime = 50 * time.Minute
)

// attempts to find an unused ID among 36^6.
const attempts = 3

// Minter creates tokens in a guest cluster.
type Minter struct {
	// Guest creates Secrets in namespace kube-system. It needs no permission to read them.
	Guest client.Writer
	Clock clock.PassiveClock
}

// Mint creates a token for a NodeClaim's machine that expires after lifetime, and returns it as "<ID>.<secret>". Each
// call creates another token.
func (m Minter) Mint(ctx context.Context, nodeClaim string, lifetime time.Duration) (string, error) {
	for attempt := 1; ; attempt++ {
		token, err := bootstraputil.GenerateBootstrapToken()
		if err != nil {
			return "", fmt.Errorf("generating a bootstrap token: %w", err)
		}
		parts := bootstraputil.BootstrapTokenRegexp.FindStringSubmatch(token)
		if len(parts) != 3 {
			return "", fmt.Errorf("generating a bootstrap token: it isn't of the form %s", bootstrapapi.BootstrapTokenPattern)
		}
		err = m.Guest.Create(ctx, m.secret(parts[1], parts[2], nodeClaim, m.Clock.Now().Add(lifetime)))
		if err == nil {
			return token, nil
		}
		if !apierrors.IsAlreadyExists(err) || attempt == attempts {
			return "", fmt.Errorf("creating the Secret of a bootstrap token in the guest: %w", err)
		}
	}
}

// secret has exactly the content that the admission policy for Karpenter's bootstrap tokens allows.
func (m Minter) secret(id, secret, nodeClaim string, expiration time.Time) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstraputil.BootstrapTokenSecretName(id)},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			bootstrapapi.BootstrapTokenIDKey:               []byte(id),
			bootstrapapi.BootstrapTokenSecretKey:           []byte(secret),
			bootstrapapi.BootstrapTokenExpirationKey:       []byte(expiration.UTC().Format(time.RFC3339)),
			bootstrapapi.BootstrapTokenUsageSigningKey:     []byte("true"),
			bootstrapapi.BootstrapTokenUsageAuthentication: []byte("true"),
			bootstrapapi.BootstrapTokenExtraGroupsKey:      []byte(v1alpha1.BootstrapTokenGroups),
			bootstrapapi.BootstrapTokenDescriptionKey:      []byte("Karpenter's, for the machine of NodeClaim " + nodeClaim),
		},
	}
}

// ID returns the public part of a token, and false if it is malformed.
func ID(token string) (string, bool) {
	parts := bootstraputil.BootstrapTokenRegexp.FindStringSubmatch(token)
	if len(parts) != 3 {
		return "", false
	}
	return parts[1], true
}
