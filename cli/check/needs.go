// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/internal/clusterstatus/kubeconfig"
)

// What AutoNode needs of a Cluster. `autonode hosted-cluster create` warns of the same before there is a HostedCluster.

// DefaultRelease checks the operators' release for HostedClusters without spec.release. A release that was built into an operator
// isn't known.
func (r *Report) DefaultRelease(ctx context.Context, management client.Reader, operatorNamespace string) {
	operators, _ := operatorsIn(ctx, management, operatorNamespace)
	for i := range operators {
		const subject, fix = "Default release", "set the operator's flag --karpenter-image, or spec.release.image of each HostedCluster"
		if value, set := flagOf(&operators[i], "karpenter-image"); set && value == "" {
			r.warn(subject, fix, "not set: the operator's --karpenter-image is empty")
		} else if set {
			r.ok(subject, "Karpenter %s", value)
		}
	}
}

// ControlPlane checks a Cluster's own state.
func (r *Report) ControlPlane(cluster *clusterv1.Cluster) {
	before, key := len(r.Checks), client.ObjectKeyFromObject(cluster)
	subject, see := "Cluster "+key.String(), fmt.Sprintf("see `kubectl -n %s describe cluster %s`, and the logs of its providers",
		key.Namespace, key.Name)
	if !cluster.DeletionTimestamp.IsZero() {
		r.wrong(subject, "wait until it is gone, or choose another Cluster", "it is being deleted")
		return
	}
	if annotations.IsPaused(cluster, cluster) {
		r.warn(subject, "remove spec.paused and the annotation "+clusterv1.PausedAnnotation, "it is paused, and so is AutoNode")
	}
	if notReady := clusterstatus.NotReady(cluster); notReady != "" {
		r.wrong(subject, "fix the problem that the infrastructure provider reports", "%s", notReady)
	} else if !clusterstatus.Provisioned(cluster) {
		r.wrong(subject, see, "its infrastructure isn't provisioned")
	}
	if !ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) {
		r.wrong(subject, see, "its control plane isn't initialized; AutoNode waits for it")
	}
	if len(r.Checks) == before {
		r.ok(subject, "%s, control plane initialized", cmp.Or(cluster.Status.Phase, "provisioned"))
	}
}

// Kubeconfig checks the guest's kubeconfig as the operator reads it.
func (r *Report) Kubeconfig(ctx context.Context, management client.Reader, cluster *clusterv1.Cluster) error {
	before, key := len(r.Checks), client.ObjectKey{Namespace: cluster.Namespace, Name: secret.Name(cluster.Name, secret.Kubeconfig)}
	subject, found := "Secret "+key.String(), &corev1.Secret{}
	switch err := management.Get(ctx, key, found); {
	case apierrors.IsNotFound(err):
		r.wrong(subject, "wait for the control plane provider, which writes it when the control plane is initialized; see its logs",
			"doesn't exist")
		return nil
	case err != nil:
		return fmt.Errorf("reading Secret %s: %w", key, err)
	}
	if found.Labels[clusterv1.ClusterNameLabel] != cluster.Name {
		r.wrong(subject, fmt.Sprintf("`kubectl -n %s label secret %s --overwrite %s=%s`", key.Namespace, key.Name,
			clusterv1.ClusterNameLabel, cluster.Name),
			"it lacks the label %s=%s, by which the operator finds it", clusterv1.ClusterNameLabel, cluster.Name)
	}
	if content, ok := found.Data[secret.KubeconfigDataName]; !ok {
		r.wrong(subject, "write the kubeconfig into that key", "it has no key %q", secret.KubeconfigDataName)
	} else if _, err := kubeconfig.Parse(content); err != nil {
		r.wrong(subject, "write a kubeconfig with one https server, its authority and a token or a client certificate, all inline",
			"the operator rejects the kubeconfig: %s", err)
	}
	if len(r.Checks) == before {
		r.ok(subject, "has a kubeconfig that the operator accepts")
	}
	return nil
}

// Karpenter checks that a replica of Karpenter's Deployment is ready, and that the Secrets exist that the next one mounts.
func (r *Report) Karpenter(ctx context.Context, management client.Reader, key client.ObjectKey) error {
	deployment, subject, see := &appsv1.Deployment{}, "Deployment "+key.String(), fmt.Sprintf("see `kubectl -n %s describe deployment %s`",
		key.Namespace, key.Name)
	if err := management.Get(ctx, key, deployment); err != nil {
		return client.IgnoreNotFound(err) // the ControlPlaneComponent reports a missing one
	}
	if deployment.Status.ReadyReplicas == 0 && ptr.Deref(deployment.Spec.Replicas, 1) > 0 { // else it is paused or asleep
		r.warn(subject, see, "Karpenter has no ready replica, so no node is launched or removed")
	}
	for _, volume := range deployment.Spec.Template.Spec.Volumes {
		if volume.Secret == nil || ptr.Deref(volume.Secret.Optional, false) {
			continue
		}
		found := &metav1.PartialObjectMetadata{}
		found.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
		secret := client.ObjectKey{Namespace: key.Namespace, Name: volume.Secret.SecretName}
		if err := management.Get(ctx, secret, found); apierrors.IsNotFound(err) {
			r.warn(subject, "restore it, or check the operator, which creates it",
				"Secret %s is missing; new replicas of Karpenter can't start without it", secret)
		}
	}
	return nil
}

// templates counts what Karpenter could launch from.
type templates struct {
	*Report
	management client.Client
	cluster    client.ObjectKey
}

// Templates checks what selectors find, and the bootstrap. An error means that a kind isn't served, or can't be read.
func (r *Report) Templates(ctx context.Context, management client.Client, cluster client.ObjectKey, clusterAPI *v1beta1.ClusterAPI) error {
	t := &templates{Report: r, management: management, cluster: cluster}
	if clusterAPI.ScalableResourceSelector != nil {
		if err := t.machineDeployments(ctx, clusterAPI.ScalableResourceSelector); err != nil {
			return err
		}
	}
	for i := range clusterAPI.InfrastructureTemplateSelectors {
		selector := &clusterAPI.InfrastructureTemplateSelectors[i]
		if err := t.count(ctx, schema.GroupKind{Group: selector.APIGroup, Kind: selector.Kind}, &selector.Selector); err != nil {
			return err
		}
	}
	for i := range clusterAPI.CatalogSelectors {
		if selector := &clusterAPI.CatalogSelectors[i]; selector.Scope != v1alpha1.CatalogScopeShared {
			if err := t.count(ctx, v1alpha1.GroupVersion.WithKind("InstanceTypeCatalog").GroupKind(), &selector.Selector); err != nil {
				return err
			}
		}
	}
	return t.bootstrap(ctx, clusterAPI)
}

// machineDeployments checks those that a selector matches: there is one of the Cluster, and what each refers to.
func (t *templates) machineDeployments(ctx context.Context, by *metav1.LabelSelector) error {
	list := &clusterv1.MachineDeploymentList{}
	if err := t.management.List(ctx, list, client.InNamespace(t.cluster.Namespace)); err != nil {
		return fmt.Errorf("listing MachineDeployments: %w", err)
	}
	var ours []client.Object
	for i := range list.Items {
		if d := &list.Items[i]; d.Spec.ClusterName == t.cluster.Name {
			ours = append(ours, d)
		}
	}
	matching, err := t.selected("MachineDeployment", by, ours)
	for _, d := range matching {
		machine := d.(*clusterv1.MachineDeployment).Spec.Template.Spec
		for _, ref := range []clusterv1.ContractVersionedObjectReference{machine.InfrastructureRef, machine.Bootstrap.ConfigRef} {
			if ref.IsDefined() {
				subject := "MachineDeployment " + client.ObjectKeyFromObject(d).String()
				t.exists(ctx, subject, schema.GroupKind{Group: ref.APIGroup, Kind: ref.Kind}, ref.Name)
			}
		}
	}
	return err
}

// exists adds that something refers to an object that isn't there, or whose kind isn't served.
func (t *templates) exists(ctx context.Context, subject string, kind schema.GroupKind, name string) {
	object, err := t.objectOf(kind)
	if err == nil {
		err = t.management.Get(ctx, client.ObjectKey{Namespace: t.cluster.Namespace, Name: name}, object)
	}
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		t.wrong(subject, "create it, or correct the name", "it refers to %s %s/%s, which doesn't exist", kind.Kind, t.cluster.Namespace, name)
	case meta.IsNoMatchError(err):
		t.wrong(subject, "install the provider of the kind, or correct the name",
			"it refers to kind %s, which the management cluster doesn't serve", kind)
	default:
		t.Unread(subject, err)
	}
}

// objectOf returns an object to read metadata into, of a kind in the version that the management cluster prefers.
func (t *templates) objectOf(kind schema.GroupKind) (*metav1.PartialObjectMetadata, error) {
	mapping, err := t.management.RESTMapper().RESTMapping(kind)
	if err != nil {
		return nil, err
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(mapping.GroupVersionKind)
	return object, nil
}

// notServed reports why there is no object of a kind.
func notServed(kind schema.GroupKind, err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("the management cluster serves no %s; install its provider, or correct the name", kind)
	}
	return fmt.Errorf("looking up kind %s: %w", kind, err)
}

// count lists the objects of a kind.
func (t *templates) count(ctx context.Context, kind schema.GroupKind, by *metav1.LabelSelector) error {
	object, err := t.objectOf(kind)
	if err != nil {
		return notServed(kind, err)
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(object.GroupVersionKind().GroupVersion().WithKind(object.Kind + "List"))
	if err := t.management.List(ctx, list, client.InNamespace(t.cluster.Namespace)); err != nil {
		return fmt.Errorf("listing objects of kind %s: %w", kind.Kind, err)
	}
	all := make([]client.Object, len(list.Items))
	for i := range list.Items {
		all[i] = &list.Items[i]
	}
	_, err = t.selected(kind.Kind, by, all)
	return err
}

// selected adds what a selector matches, of how many, and returns it.
func (t *templates) selected(kind string, by *metav1.LabelSelector, all []client.Object) (matching []client.Object, err error) {
	selector, err := metav1.LabelSelectorAsSelector(by)
	if err != nil {
		return nil, fmt.Errorf("parsing the selector of %s: %w", kind, err)
	}
	var names []string
	for _, object := range all {
		if selector.Matches(labels.Set(object.GetLabels())) {
			matching, names = append(matching, object), append(names, object.GetName())
		}
	}
	subject, namespace := kind+"s", t.cluster.Namespace
	slices.Sort(names)
	switch {
	case len(all) == 0:
		t.wrong(subject, fmt.Sprintf("create one in namespace %s, or select another kind", namespace),
			"none exists in namespace %s, so nothing launches", namespace)
	case len(matching) == 0:
		fix := fmt.Sprintf("label one, or correct the selector: `kubectl -n %s get %s --show-labels`", namespace, strings.ToLower(kind))
		t.wrong(subject, fix, "none of %d in namespace %s matches %s, so nothing launches", len(all), namespace, selector)
	case selector.Empty():
		t.ok(subject, "all %d are selected: %s", len(names), some(names))
	default:
		t.ok(subject, "%d of %d match %s: %s", len(names), len(all), selector, some(names))
	}
	return matching, nil
}

// bootstrap checks how machines of templates join. MachineDeployments have their own bootstrap, and the operator checks the Secret.
func (t *templates) bootstrap(ctx context.Context, clusterAPI *v1beta1.ClusterAPI) error {
	const subject = "Bootstrap"
	bootstrap := clusterAPI.Bootstrap
	switch {
	case bootstrap != nil && bootstrap.ConfigTemplateRef != nil:
		ref := bootstrap.ConfigTemplateRef
		kind := schema.GroupKind{Group: ref.APIGroup, Kind: ref.Kind}
		object, err := t.objectOf(kind)
		if err != nil {
			return notServed(kind, err)
		}
		switch err := t.management.Get(ctx, client.ObjectKey{Namespace: t.cluster.Namespace, Name: ref.Name}, object); {
		case apierrors.IsNotFound(err):
			t.wrong(subject, "create it, or correct bootstrap.configTemplateRef.name", "there is no %s %s/%s, so nothing launches", ref.Kind,
				t.cluster.Namespace, ref.Name)
		case err != nil:
			t.Unread(subject, err)
		default:
			t.ok(subject, "%s %s/%s exists", ref.Kind, t.cluster.Namespace, ref.Name)
		}
	case bootstrap != nil && bootstrap.DataSecretName != "":
	case len(clusterAPI.InfrastructureTemplateSelectors) > 0:
		t.warn(subject, "set spec.autoNode…clusterAPI.bootstrap, unless the guest's node classes do",
			"not set, and a machine template doesn't define how its machines join")
	}
	return nil
}
