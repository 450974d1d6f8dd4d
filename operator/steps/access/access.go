// SPDX-License-Identifier: Apache-2.0

// Package access gives Karpenter an identity of its own in the guest cluster: a ServiceAccount with a ClusterRole there, and in
// the control-plane namespace a Secret with a kubeconfig and short-lived tokens, which are renewed before they expire. The
// kubeconfig names the token's file and the CA's, so that a renewal of either changes the Secret and nothing else. Beside the token
// for the guest's API server there are those that the provider needs for others, such as AWS's.
package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/apis"

	"github.com/autonode-io/autonode/api/v1beta1"
	guestassets "github.com/autonode-io/autonode/assets/guest"
	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/featuregate"
)

const (
	// KubeconfigKey is the Secret's key of the kubeconfig.
	KubeconfigKey = "kubeconfig"
	// TokenKey is the Secret's key of the token for the guest's API server. The kubeconfig names it as a file in its own directory.
	TokenKey = "token"
	// CAKey is the Secret's key of the certificates that the guest's API server is known by; the kubeconfig names it likewise.
	CAKey = "ca.crt"
	// DefaultTokenLifetime is the requested lifetime; the guest's API server may grant less. With renewAfter,
	// Karpenter keeps working for at least seven hours without the operator. See docs/internals/threat-model.md for the use of
	// a stolen token.
	DefaultTokenLifetime = 8 * time.Hour
	// renewAfter is how old a token gets that lives long.
	renewAfter = time.Hour

	// reviewEvery is the interval between reviews of an unchanged token by the guest's API server: no watch shows
	// that its clock was set or its keys were replaced.
	reviewEvery = 10 * time.Minute
	// newborn is how long a token counts as just issued: if the guest rejects it, another one would fail too.
	newborn = time.Minute
	// imprecision is the tolerance between two measurements of a guest's clock offset.
	imprecision = time.Minute
)

// Config is the input of New.
type Config struct {
	// Management is the management cluster.
	Management client.Client
	// Secrets reads the guest access Secrets, from a watch.
	Secrets client.Reader
	// Live reads the management cluster's API server. It is asked before a token is replaced, because Secrets may lag.
	Live  client.Reader
	Apply *apply.Applier
	Clock clock.PassiveClock
	// SpreadsByDefault: Karpenter applies default topology spread constraints.
	SpreadsByDefault bool
	// TokenLifetime to ask for, ten minutes at least; zero is DefaultTokenLifetime.
	TokenLifetime time.Duration
}

// Access is the step.
type Access struct {
	Config
	// reviewed remembers which tokens the guest's API server has accepted, by the Secret.
	reviewed lru.Cache[types.UID, reviewed]
	// issued remembers the tokens that this process was given last.
	issued lru.Cache[issue, string]
	// ahead remembers each guest's clock offset, by the HostedCluster.
	ahead lru.Cache[types.UID, time.Duration]
}

// issue names a token of a HostedCluster.
type issue struct {
	hostedCluster types.UID
	key           string
}

// reviewed is a review that the guest accepted, and its time.
type reviewed struct {
	review
	at time.Time
}

// review names one state of a Secret, and the connection on which it was asked about: a guest's API server that came back may have
// other keys.
type review struct {
	account         types.UID
	resourceVersion string
	connection      *rest.Config
}

var _ scope.Step = (*Access)(nil)

// New returns the step.
func New(config Config) *Access {
	if config.TokenLifetime == 0 {
		config.TokenLifetime = DefaultTokenLifetime
	}
	return &Access{
		Config:   config,
		reviewed: lru.New[types.UID, reviewed](1 << 14),
		issued:   lru.New[issue, string](1 << 14),
		ahead:    lru.New[types.UID, time.Duration](1 << 14),
	}
}

// Name implements scope.Step.
func (a *Access) Name() string { return "access" }

// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=karpenter-guest-access,verbs=create;patch

// Reconcile applies the identity, then renews the tokens. It requeues when the first of them has to be renewed or
// reviewed.
func (a *Access) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	account, err := a.identity(ctx, s)
	if err != nil {
		return scope.Result{}, err
	}
	tokens, err := a.tokens(ctx, s, account)
	if err != nil {
		return scope.Result{}, err
	}
	desired, err := a.secret(s, account, tokens)
	if err != nil {
		return scope.Result{}, err
	}
	if err := a.Apply.Objects(ctx, a.Management, s.Component, desired); err != nil {
		return scope.Result{}, err
	}
	return scope.Result{RequeueAfter: min(max(tokens.renewAt().Sub(a.Clock.Now()), time.Second), reviewEvery)}, nil
}

// identity applies the ServiceAccount and its permissions, and returns the ServiceAccount's UID.
func (a *Access) identity(ctx context.Context, s *scope.Scope) (types.UID, error) {
	if s.FeatureGates == nil {
		return "", errors.New("the feature gates aren't known, and so not what Karpenter may do in the guest")
	}
	account, objects, err := identityOf(s.Profile, s.FeatureGates.InUse, a.SpreadsByDefault,
		s.Draining() && s.Profile.NodeClass.DrainingAnnotation == "")
	if err != nil {
		return "", err
	}
	if err := a.Apply.Objects(ctx, s.Guest.Cached, nil, objects...); err != nil {
		return "", fmt.Errorf("in the guest: %w", err)
	}
	for _, reader := range []client.Reader{s.Guest.Cached, s.Guest.Live} {
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

// identityOf returns the ServiceAccount, and it together with all that it may do with some feature gates on, and where pods spread by
// default: all but to launch nodes where that is held back.
func identityOf(
	profile *provider.Profile, gates sets.Set[string], spreads, withhold bool,
) (*corev1.ServiceAccount, []client.Object, error) {
	account, err := guestassets.ServiceAccount()
	if err != nil {
		return nil, nil, err
	}
	role, err := profile.ClusterRole()
	if err != nil {
		return nil, nil, err
	}
	rules, err := featuregate.Rules(gates)
	if err != nil {
		return nil, nil, err
	}
	role.Rules = append(role.Rules, rules...)
	if spreads {
		rules, err := guestassets.TopologySpreadRules()
		if err != nil {
			return nil, nil, err
		}
		role.Rules = append(role.Rules, rules...)
	}
	if withhold {
		withholdLaunch(role)
	}
	binding, err := guestassets.ClusterRoleBinding()
	if err != nil {
		return nil, nil, err
	}
	objects := []client.Object{account, role, binding}
	if profile.Roles != nil {
		roles, err := profile.Roles()
		if err != nil {
			return nil, nil, err
		}
		objects = append(objects, roles...)
	}
	return account, objects, nil
}

// withholdLaunch removes the permission to create NodeClaims from a role. Karpenter would launch nodes for the pods
// that it evicts in a drain.
func withholdLaunch(role *rbacv1.ClusterRole) {
	for i := range role.Rules {
		if rule := &role.Rules[i]; slices.Contains(rule.APIGroups, apis.Group) && slices.Contains(rule.Resources, "nodeclaims") {
			rule.Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool { return verb == "create" })
		}
	}
}

// secret renders the Secret.
func (a *Access) secret(s *scope.Scope, account types.UID, tokens tokens) (*corev1.Secret, error) {
	kubeconfig, ca, err := Kubeconfig(s.Guest.Config)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{KubeconfigKey: kubeconfig}
	for key, token := range tokens {
		data[key] = []byte(token.raw)
	}
	if len(ca) > 0 {
		data[CAKey] = ca
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.ControlPlaneNamespace,
			Name:      s.Names().GuestAccess,
			Labels: map[string]string{
				clusterv1.ClusterNameLabel:          s.ClusterKey().Name, // what Config.Secrets watches
				v1beta1.HostedClusterLabel:          s.HostedCluster.Name,
				v1beta1.HostedClusterNamespaceLabel: s.HostedCluster.Namespace,
			},
			Annotations: map[string]string{
				v1beta1.TokenExpiresAtAnnotation:         tokens.until(),
				v1beta1.TokenServiceAccountUIDAnnotation: string(account),
			},
		},
		Type: corev1.SecretTypeOpaque,
		Data: data,
	}, nil
}
