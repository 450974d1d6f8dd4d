// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// member is a hosted cluster that belongs to an account.
type member struct {
	home
	entry     *memberEntry
	component *v1beta1.ControlPlaneComponent
}

// claims are the hosted clusters that an account's members match.
type claims struct {
	// members by namespace and name of the HostedCluster.
	members map[string]*member
	// others are clusters that an older account claims, with its name, and excess the number of those beyond an account's limit.
	others map[string]string
	excess int
	// accounts that exist, by UID.
	accounts map[string]string
}

// claimed finds the clusters of an account. Their ControlPlaneComponents name which hosted cluster has which control-plane namespace: every
// operator sees all of them, and no tenant writes them.
func (c *Controller) claimed(ctx context.Context, found *autonodev1alpha1.CapacityAccount, understood *account) (*claims, error) {
	accounts, components := &autonodev1alpha1.CapacityAccountList{}, &v1beta1.ControlPlaneComponentList{}
	for _, list := range []client.ObjectList{accounts, components} {
		if err := c.Management.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("finding the clusters of the account: %w", err)
		}
	}
	all := &claims{members: map[string]*member{}, others: map[string]string{}, accounts: map[string]string{}}
	var older []*account
	var names []string
	for i := range accounts.Items {
		other := &accounts.Items[i]
		all.accounts[string(other.UID)] = other.Name
		if other.UID != found.UID && before(other, found) {
			older, names = append(older, parseSpec(&other.Spec, nil, c.Clock.Now())), append(names, other.Name)
		}
	}
	recorded, served := map[client.ObjectKey]int{}, map[client.ObjectKey]*autonodev1alpha1.CapacityGrant{}
	for i := range found.Status.Clusters {
		grant := &found.Status.Clusters[i]
		key := client.ObjectKey{Namespace: grant.Namespace, Name: grant.Name}
		recorded[key], served[recordedHome(grant).leaseKey()] = 1, grant
	}
	var candidates []candidate
	for i := range components.Items {
		component := &components.Items[i]
		if candidate, ok := limited(component, served[client.ObjectKeyFromObject(component)]); ok {
			candidates = append(candidates, candidate)
		}
	}
	// Whoever is served stays so; then those that came first.
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(recorded[b.hostedCluster], recorded[a.hostedCluster]), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, candidate := range candidates {
		namespace, name := candidate.hostedCluster.Namespace, candidate.hostedCluster.Name
		namespaceLabels, err := c.namespaceLabels(ctx, namespace)
		if err != nil {
			return nil, err
		}
		key := candidate.hostedCluster.String()
		entry := understood.entryOf(namespace, name, namespaceLabels)
		understood.match(entry, namespace, name, namespaceLabels)
		if entry == nil || all.members[key] != nil {
			continue
		}
		if i := slices.IndexFunc(older, func(a *account) bool { return a.entryOf(namespace, name, namespaceLabels) != nil }); i >= 0 {
			all.others[key] = names[i]
			continue
		}
		if recorded[candidate.hostedCluster] == 0 && (len(all.members) >= maxClusters || !found.DeletionTimestamp.IsZero()) {
			all.excess++
			continue
		}
		all.members[key] = &member{home: candidate.home, entry: entry, component: candidate.ControlPlaneComponent}
	}
	return all, nil
}

// before reports whether an account came first.
func before(a, b *autonodev1alpha1.CapacityAccount) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// candidate is a component with the name of its HostedCluster.
type candidate struct {
	*v1beta1.ControlPlaneComponent
	home
	hostedCluster client.ObjectKey
}

// limited reports whether a component is a Karpenter that reads leases, in a namespace that its HostedCluster may have. Of a cluster that
// has a grant, a component without labels means nothing: the operator is about to put them back.
func limited(component *v1beta1.ControlPlaneComponent, grant *autonodev1alpha1.CapacityGrant) (candidate, bool) {
	recorded := client.ObjectKey{}
	at, ok := homeOf(component)
	if grant != nil {
		recorded = client.ObjectKey{Namespace: grant.Namespace, Name: grant.Name}
		at, ok = recordedHome(grant), true
	}
	key := client.ObjectKey{
		Namespace: cmp.Or(component.Labels[v1beta1.HostedClusterNamespaceLabel], recorded.Namespace),
		Name:      cmp.Or(component.Labels[v1beta1.HostedClusterLabel], recorded.Name),
	}
	platform := component.Labels[v1beta1.PlatformLabel]
	ok = ok && key.Name != "" && key.Namespace != "" &&
		(platform == string(v1beta1.PlatformClusterAPI) || platform == "" && key == recorded) &&
		(component.Namespace == key.Namespace || at.cluster == "" && component.Namespace == v1beta1.DedicatedNamespace(key.Namespace, key.Name))
	return candidate{component, at, key}, ok
}

// entryOf returns the first entry that matches a hosted cluster.
func (a *account) entryOf(namespace, name string, namespaceLabels labels.Set) *memberEntry {
	for i := range a.members {
		if a.members[i].matches(namespace, name, namespaceLabels) {
			return &a.members[i]
		}
	}
	return nil
}

// match records that an entry applies to a hosted cluster, and which others match it too.
func (a *account) match(applies *memberEntry, namespace, name string, namespaceLabels labels.Set) {
	if applies == nil {
		return
	}
	applies.applies = true
	for i := range a.members {
		if e := &a.members[i]; !e.found {
			e.found = e.matches(namespace, name, namespaceLabels)
		}
	}
}

func (c *Controller) namespaceLabels(ctx context.Context, name string) (labels.Set, error) {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := c.Management.Get(ctx, client.ObjectKey{Name: name}, namespace); apierrors.IsNotFound(err) {
		return labels.Set{}, nil
	} else if err != nil {
		return nil, fmt.Errorf("reading namespace %s: %w", name, err)
	}
	return namespace.Labels, nil
}
