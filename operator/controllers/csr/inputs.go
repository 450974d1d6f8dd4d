// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"context"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// gather reads the inputs of a request's validation: from the caches, or fresh from the API servers.
func (a *Approver) gather(ctx context.Context, j *evaluation, fresh bool) (inputs, error) {
	e := inputs{kinds: a.Infrastructure}
	settings := settingsOf(j.hostedCluster)
	e.karpentersOnly = settings.Scope == v1beta1.CertificateApprovalScopeKarpenter
	requester, byNode := j.request.requester()
	subject, isNode := j.request.subject()
	var err error
	if e.madeWith, err = a.requesting(ctx, j, subject, fresh); err != nil {
		return e, err
	}
	if isNode {
		if e.subject, err = a.party(ctx, j, subject, fresh); err != nil {
			return e, err
		}
	}
	switch {
	case byNode && isNode && requester == subject:
		e.requester = e.subject
		if e.others, err = a.others(ctx, j, requester); err != nil {
			return e, err
		}
	case byNode:
		if e.requester, err = a.party(ctx, j, requester, fresh); err != nil {
			return e, err
		}
	}
	if len(e.subject.machines) == 1 {
		if e.holders, err = a.holders(ctx, j, &e.subject.machines[0]); err != nil {
			return e, err
		}
		cluster := &clusterv1.Cluster{}
		if err := a.Management.Get(ctx, j.cluster, cluster); client.IgnoreNotFound(err) != nil {
			return e, fmt.Errorf("reading the Cluster: %w", err)
		}
		e.network = networkOf(cluster, j.guest.Config.Host)
		e.network.nodes = prefixes(settings.AdditionalNodeCIDRs)
	}
	if !j.request.bootstraps() || len(e.subject.machines) != 1 || !e.subject.ours() {
		return e, nil
	}
	if !e.subject.karpenters() { // the cache lacks the condition that forMachine reads
		machines, err := a.freshMachines(ctx, j.cluster, subject, e.subject.machines)
		if err != nil {
			return e, err
		}
		if e.subject.machines = called(machines, subject); len(e.subject.machines) != 1 {
			return e, nil
		}
	}
	return e, a.gatherFirst(ctx, j, subject, &e)
}

// settingsOf returns the platform's settings; while AutoNode is off and its nodes drain, the defaults.
func settingsOf(hostedCluster *v1beta1.HostedCluster) v1beta1.CertificateApproval {
	if autoNode := hostedCluster.Spec.AutoNode; autoNode != nil && autoNode.CertificateApproval != nil {
		return *autoNode.CertificateApproval
	}
	return v1beta1.CertificateApproval{}
}

// requesting returns the Machine that was made with the requester's bootstrap token; nil for none.
func (a *Approver) requesting(ctx context.Context, j *evaluation, node string, fresh bool) (*clusterv1.Machine, error) {
	token, byToken := j.request.token()
	if !byToken || !j.request.bootstraps() {
		return nil, nil
	}
	machine, err := a.madeWith(ctx, j.cluster, token, node)
	if err != nil || machine == nil || !fresh {
		return machine, err
	}
	switch err := a.Live.Get(ctx, client.ObjectKeyFromObject(machine), machine); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading Machine %s/%s: %w", machine.Namespace, machine.Name, err)
	}
	if !slices.Contains(tokens(machine), token) {
		return nil, nil
	}
	return machine, nil
}

// gatherFirst reads the inputs for a node's first certificate, always fresh.
func (a *Approver) gatherFirst(ctx context.Context, j *evaluation, name string, e *inputs) error {
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	switch err := j.guest.Live.Get(ctx, client.ObjectKey{Name: name}, node); {
	case err == nil:
		e.joined = true
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("looking for Node %s in the guest: %w", name, err)
	}
	existing, err := requests(ctx, j, firstCertificate(name))
	if err != nil {
		return err
	}
	for i := range existing {
		if mayBeOf(&e.subject.machines[0], &existing[i]) {
			e.conflicting = existing[i].Name
		}
	}
	return nil
}

// mayBeOf reports whether a request for a Machine's node may have been the Machine's own. Where nodes are named after addresses, an
// earlier machine may have had the name; a Machine that was made with a token requests with that token only, and none requests before
// it exists.
func mayBeOf(machine *clusterv1.Machine, r *certificatesv1.CertificateSigningRequest) bool {
	token, fixed := machine.Annotations[v1alpha1.BootstrapTokenIDAnnotation]
	if !fixed {
		return !r.CreationTimestamp.Before(&machine.CreationTimestamp)
	}
	return r.Spec.Username == bootstrapTokenPrefix+token
}

// others returns the node's other requests to the same signer.
func (a *Approver) others(ctx context.Context, j *evaluation, node string) ([]other, error) {
	found, err := requests(ctx, j, ownRequest(j.request.Spec.SignerName, node))
	if err != nil {
		return nil, err
	}
	others := make([]other, 0, len(found))
	for i := range found {
		others = append(others, other{
			name: found[i].Name, made: found[i].CreationTimestamp.Time,
			approved: hasCondition(&found[i], certificatesv1.CertificateApproved), issued: len(found[i].Status.Certificate) > 0,
		})
	}
	return others, nil
}

// requests returns the requests of an index value from the cache. Don't modify them.
func requests(ctx context.Context, j *evaluation, index string) ([]certificatesv1.CertificateSigningRequest, error) {
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := j.guest.Cached.List(ctx, list, client.MatchingFields{requestIndex: index}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("looking for other certificate requests like %s: %w", j.request.Name, err)
	}
	return slices.DeleteFunc(list.Items, func(r certificatesv1.CertificateSigningRequest) bool { return r.UID == j.request.UID }), nil
}

// party returns the Machine and the NodeClaim that a node's name stands for.
func (a *Approver) party(ctx context.Context, j *evaluation, name string, fresh bool) (party, error) {
	machines, err := a.machines(ctx, j.cluster, name)
	if err != nil {
		return party{}, err
	}
	if fresh {
		if machines, err = a.freshMachines(ctx, j.cluster, name, machines); err != nil {
			return party{}, err
		}
	}
	p := party{machines: called(machines, name)}
	machines = p.machines
	claimName := name
	if len(machines) > 0 && karpenters(machines[0]) {
		claimName = v1alpha1.NodeClaimOf(&machines[0])
	}
	reader := client.Reader(j.guest.Cached)
	if fresh {
		reader = j.guest.Live
	}
	claim := &karpv1.NodeClaim{}
	switch err := reader.Get(ctx, client.ObjectKey{Name: claimName}, claim); {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
	case err != nil:
		return party{}, fmt.Errorf("reading NodeClaim %s in the guest: %w", claimName, err)
	case claim.Spec.NodeClassRef != nil && a.groups.Has(claim.Spec.NodeClassRef.Group): // else another provider's
		p.claim = claim
	}
	return p, nil
}

// freshMachines reads a node's Machines from the API server, including the one of its name that the cache may lack.
func (a *Approver) freshMachines(
	ctx context.Context, cluster client.ObjectKey, node string, cached []clusterv1.Machine,
) ([]clusterv1.Machine, error) {
	names := []string{node}
	for i := range cached {
		if cached[i].Name != node {
			names = append(names, cached[i].Name)
		}
	}
	var machines []clusterv1.Machine
	for _, name := range names {
		machine := &clusterv1.Machine{}
		switch err := a.Live.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, machine); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("reading Machine %s/%s: %w", cluster.Namespace, name, err)
		case machine.Labels[clusterv1.ClusterNameLabel] == cluster.Name && slices.Contains(nodeNames(a.Infrastructure)(machine), node):
			machines = append(machines, *machine)
		}
	}
	return machines, nil
}
