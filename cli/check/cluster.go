// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/condition"
	"github.com/autonode-io/autonode/internal/clusterstatus/consent"
	"github.com/autonode-io/autonode/manifests"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
)

// clusterCheck checks one Cluster.
type clusterCheck struct {
	client.Client
	*Report
	operatorNamespace string

	// key of the Cluster, whether it exists or not.
	key client.ObjectKey
	// hostedCluster and cluster are nil if there is none.
	hostedCluster *v1beta1.HostedCluster
	cluster       *clusterv1.Cluster
	operators     []appsv1.Deployment
}

// run checks one thing after the other, causes first. An error means that there is nothing to check.
func (c *clusterCheck) run(ctx context.Context, named client.ObjectKey) error {
	if err := c.find(ctx, named); err != nil {
		return err
	}
	// Their flags say which kinds they allow; without them the defaults do.
	c.operators, _ = operatorsIn(ctx, c.Client, c.operatorNamespace)
	c.namespace(ctx)
	if c.hostedCluster != nil && c.hostedCluster.Spec.AutoNode != nil {
		c.consent(ctx)
	}
	if c.cluster == nil {
		c.wrong("Cluster "+c.key.String(), condition.Fix(v1beta1.ClusterNotFoundReason), "doesn't exist")
	} else {
		c.ControlPlane(c.cluster)
		c.unreadable(c.Kubeconfig(ctx, c.Client, c.cluster))
	}
	if c.hostedCluster == nil || c.hostedCluster.Spec.Release.Image == "" {
		c.DefaultRelease(ctx, c.Client, c.operatorNamespace)
	}
	if c.hostedCluster == nil {
		c.unreadable(c.Templates(ctx, c.Client, c.key, clusterMachines(c.key.Name)))
		c.warn("HostedCluster", fmt.Sprintf("turn AutoNode on: `autonode hosted-cluster create --cluster %s`", c.key),
			"Cluster %s has no HostedCluster", c.key)
		return nil
	}
	c.spec(ctx)
	c.pullSecret(ctx)
	c.karpenter(ctx)
	c.lease(ctx)
	c.conditions()
	return nil
}

func (c *clusterCheck) unreadable(err error) {
	if err != nil {
		c.Unread("Cluster "+c.key.String(), err)
	}
}

// clusterMachines selects the MachineDeployments of a Cluster, as `autonode hosted-cluster create` does by default.
func clusterMachines(cluster string) *v1beta1.ClusterAPI {
	return &v1beta1.ClusterAPI{TemplateSelectors: v1alpha1.TemplateSelectors{
		ScalableResourceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.ClusterNameLabel: cluster}},
	}}
}

// find takes a HostedCluster of the name, else a Cluster of the name and its HostedCluster.
func (c *clusterCheck) find(ctx context.Context, named client.ObjectKey) error {
	hostedCluster := &v1beta1.HostedCluster{}
	err := c.Get(ctx, named, hostedCluster)
	switch {
	case err == nil:
		c.hostedCluster = hostedCluster
		c.key = client.ObjectKey{Namespace: hostedCluster.ControlPlaneNamespace(), Name: hostedCluster.ClusterName()}
	case meta.IsNoMatchError(err):
		return errors.New("this cluster has no HostedClusters: AutoNode isn't installed in it; see `autonode check`, or choose the management " +
			"cluster with --context or --kubeconfig")
	case apierrors.IsNotFound(err):
		c.key = named
	default:
		return fmt.Errorf("reading HostedCluster %s: %w", named, err)
	}
	cluster := &clusterv1.Cluster{}
	err = c.Get(ctx, c.key, cluster)
	switch {
	case err == nil:
		c.cluster = cluster
	case meta.IsNoMatchError(err):
		return errors.New("this cluster serves no Cluster API v1.14 or newer; see `autonode check`, or choose the management cluster with " +
			"--context or --kubeconfig")
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("reading Cluster %s: %w", c.key, err)
	case c.hostedCluster == nil:
		return fmt.Errorf("there is neither a HostedCluster nor a Cluster %s; list them with `kubectl get "+
			"hostedclusters.autonode.io,clusters.cluster.x-k8s.io -A`", named)
	}
	if c.hostedCluster != nil {
		return nil
	}
	list := &v1beta1.HostedClusterList{}
	if err := c.List(ctx, list); err != nil {
		return fmt.Errorf("listing HostedClusters: %w", err)
	}
	for i := range list.Items {
		if candidate := &list.Items[i]; candidate.ControlPlaneNamespace() == c.key.Namespace && candidate.ClusterName() == c.key.Name {
			c.hostedCluster = candidate
		}
	}
	return nil
}

func (c *clusterCheck) namespace(ctx context.Context) {
	subject := "Namespace " + c.key.Namespace
	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	const fix = "create the control plane there, or correct spec.controlPlaneNamespace of the HostedCluster"
	switch {
	case !c.found(ctx, c.Client, client.ObjectKey{Name: c.key.Namespace}, found, subject, fix, "doesn't exist"):
	case !found.DeletionTimestamp.IsZero():
		c.wrong(subject, "wait until it is gone, then create it again", "it is being deleted")
	default:
		c.ok(subject, "exists")
	}
}

// consent checks that the control plane's owner lets the HostedCluster have it, and the operator write there.
func (c *clusterCheck) consent(ctx context.Context) {
	subject := "Consent of Cluster " + c.key.String()
	switch given, err := consent.Given(ctx, c.Client, c.hostedCluster, c.key); {
	case err != nil:
		c.Unread(subject, err)
	case !given:
		c.wrong(subject, fmt.Sprintf("`kubectl -n %s annotate clusters.cluster.x-k8s.io %s %s=%s`", c.key.Namespace, c.key.Name,
			v1beta1.ConsentAnnotation,
			client.ObjectKeyFromObject(c.hostedCluster)), "%s", consent.Missing(c.hostedCluster, c.key))
	default:
		c.ok(subject, "is given to HostedCluster %s", client.ObjectKeyFromObject(c.hostedCluster))
	}
	if !c.hostedCluster.Names().Shared() {
		return
	}
	account := manifests.Operator
	if len(c.operators) > 0 {
		account = cmp.Or(c.operators[0].Spec.Template.Spec.ServiceAccountName, account)
	}
	subject = "Permissions of the operator in namespace " + c.key.Namespace
	bind := permission{Namespace: c.key.Namespace, Verb: "bind", Group: rbacv1.GroupName, Resource: "roles",
		Name: c.hostedCluster.Names().Karpenter}
	switch allowed, err := operatorMay(ctx, c.Client, c.operatorNamespace, account, bind); {
	case err != nil:
		c.Unread(subject, err)
	case !allowed:
		c.wrong(subject, "`"+consent.SharedNamespaceCommand(c.key.Namespace, c.operatorNamespace, account)+"`",
			"it may not write to the namespace, which HostedClusters share")
	default:
		c.ok(subject, "it may write there")
	}
}

// profileOf returns the profile of Cluster API with the groups of templates that the operators allow.
func profileOf(operators []appsv1.Deployment) *provider.Profile {
	groups := clusterapi.DefaultGroups
	for i := range operators {
		if value, set := flagOf(&operators[i], "template-groups"); set {
			groups = cmp.Or(value, groups)
		}
	}
	return clusterapi.New(groups)
}

// spec checks what spec.autoNode names, as the operator does.
func (c *clusterCheck) spec(ctx context.Context) {
	const subject = "spec.autoNode"
	autoNode := c.hostedCluster.Spec.AutoNode
	if autoNode == nil {
		c.warn(subject, "set it to turn AutoNode on: docs/platform/install.md", "not set, so AutoNode is off")
		return
	}
	config := autoNode.ProvisionerConfig.Karpenter
	if config == nil {
		c.wrong(subject, condition.Fix(v1beta1.InvalidSpecReason), "provisionerConfig.karpenter isn't set")
		return
	}
	profiles := provider.NewProfiles(profileOf(c.operators), aws.New())
	profile, ok := profiles[config.Platform]
	if !ok {
		c.wrong(subject, condition.Fix(v1beta1.PlatformUnsupportedReason), "provisionerConfig.karpenter.platform %q: use one of %s",
			config.Platform, profiles)
		return
	}
	if err := profile.CheckSpec(config); err != nil {
		c.wrong(subject, condition.Fix(v1beta1.InvalidSpecReason), "provisionerConfig.karpenter.%s", err)
		return
	}
	if c.cluster == nil {
		return // what the profile checks depends on it
	}
	finding, err := profile.CheckCluster(ctx, provider.Input{
		Namespace: c.key.Namespace, ClusterName: c.key.Name, Names: c.hostedCluster.Names(), Cluster: c.cluster, Config: config,
		Reader: c.Client, Mapper: c.RESTMapper(),
	})
	switch {
	case err != nil:
		c.Unread(subject, err)
		return
	case finding.Reason != "":
		c.wrong(subject, condition.Fix(finding.Reason), "%s", finding.Message)
		return
	}
	c.ok(subject, "is valid")
	if config.ClusterAPI != nil {
		c.unreadable(c.Templates(ctx, c.Client, c.key, config.ClusterAPI))
	}
}

func (c *clusterCheck) pullSecret(ctx context.Context) {
	ref := c.hostedCluster.Spec.PullSecret
	if ref == nil {
		return
	}
	key := client.ObjectKey{Namespace: c.hostedCluster.Namespace, Name: ref.Name}
	subject, found := "Secret "+key.String(), &corev1.Secret{}
	fix := fmt.Sprintf("`kubectl -n %s create secret docker-registry %s --docker-server=… --docker-username=… --docker-password=…`",
		key.Namespace, key.Name)
	switch {
	case !c.found(ctx, c.Client, key, found, subject, fix, "spec.pullSecret names it, and it doesn't exist"):
	case len(found.Data[corev1.DockerConfigJsonKey]) == 0:
		c.wrong(subject, fix, "it has no key %s", corev1.DockerConfigJsonKey)
	default:
		c.ok(subject, "has credentials for registries")
	}
}

// karpenter checks what the operator reports on the ControlPlaneComponent.
func (c *clusterCheck) karpenter(ctx context.Context) {
	key := client.ObjectKey{Namespace: c.key.Namespace, Name: c.hostedCluster.Names().Karpenter}
	subject, found := "ControlPlaneComponent "+key.String(), &v1beta1.ControlPlaneComponent{}
	switch err := c.Get(ctx, key, found); {
	case apierrors.IsNotFound(err):
		if c.hostedCluster.Spec.AutoNode != nil {
			c.warn(subject, "fix the other failures; the operator then creates it", "doesn't exist yet, so Karpenter isn't running")
		}
		return
	case err != nil:
		c.Unread(subject, err)
		return
	}
	c.unreadable(c.Karpenter(ctx, c.Client, key))
	wrong := condition.WrongOfComponent(found)
	for i := range wrong {
		result := Wrong
		if wrong[i].Reason == v1beta1.RollingOutReason {
			result = Warning
		}
		c.condition(result, subject, condition.Fix(wrong[i].Reason), &wrong[i])
	}
	if len(wrong) == 0 {
		c.ok(subject, "release %s", cmp.Or(found.Status.Version, "not known yet"))
	}
}

// lease checks what Karpenter reports on the cluster's part of a CapacityAccount.
func (c *clusterCheck) lease(ctx context.Context) {
	key := client.ObjectKey{Namespace: c.key.Namespace, Name: c.hostedCluster.Names().Karpenter}
	subject, found := "CapacityLease "+key.String(), &autonodev1alpha1.CapacityLease{}
	if err := c.Get(ctx, key, found); err != nil {
		if client.IgnoreNotFound(err) != nil && !meta.IsNoMatchError(err) {
			c.Unread(subject, err)
		}
		return
	}
	conditions := found.Status.Conditions
	switch {
	case meta.IsStatusConditionFalse(conditions, autonodev1alpha1.Ready):
		c.condition(Wrong, subject, "fix the problem in the message: docs/platform/fleet-capacity.md",
			meta.FindStatusCondition(conditions, autonodev1alpha1.Ready))
	case meta.IsStatusConditionFalse(conditions, autonodev1alpha1.CapacityReturned):
		c.condition(Warning, subject, "wait, or remove nodes that use it: docs/platform/capacity-requests.md#lending-and-reclaim",
			meta.FindStatusCondition(conditions, autonodev1alpha1.CapacityReturned))
	default:
		c.ok(subject, "Karpenter stays within it")
	}
}

// conditions adds what the operator reports on the HostedCluster.
func (c *clusterCheck) conditions() {
	hostedCluster := c.hostedCluster
	subject := "HostedCluster " + client.ObjectKeyFromObject(hostedCluster).String()
	wrong := condition.WrongOfHostedCluster(hostedCluster)
	for i := range wrong {
		c.condition(Wrong, subject, condition.Fix(wrong[i].Reason), &wrong[i])
	}
	switch {
	case unseen(hostedCluster):
		c.warn(subject, "check the operator with `autonode check`", "no operator has reconciled its spec yet")
	case len(wrong) > 0:
	case hostedCluster.Status.AutoNode != nil && hostedCluster.Status.AutoNode.State == v1beta1.AutoNodeStatePaused:
		c.warn(subject, "remove spec.pausedUntil, or resume the Cluster", "AutoNode is paused: %s", hostedCluster.Status.AutoNode.Message)
	case hostedCluster.Status.AutoNode != nil && hostedCluster.Status.AutoNode.State == v1beta1.AutoNodeStateAsleep:
		c.ok(subject, "%s", hostedCluster.Status.AutoNode.Message)
	case hostedCluster.Status.AutoNode != nil && hostedCluster.Status.AutoNode.State != v1beta1.AutoNodeStateEnabled:
		c.warn(subject, "wait; `autonode describe cluster` shows what it waits for", "AutoNode is %s: %s", hostedCluster.Status.AutoNode.State,
			hostedCluster.Status.AutoNode.Message)
	default:
		c.ok(subject, "all conditions are as expected")
	}
}
