// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/cli/condition"
	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/manifests"
)

// oldestKubernetes is the oldest version of the management cluster, as in docs/reference/compatibility.md.
const oldestKubernetes = "1.31"

const (
	operatorSubject = "Operator"
	installFix      = "install or upgrade the operator the way it was installed, such as `autonode install`: docs/platform/install.md"
)

// managementCheck checks a management cluster.
type managementCheck struct {
	client.Client
	*Report
	operatorNamespace string
	// userNamespace is where the user would create a HostedCluster.
	userNamespace string

	// installed are the objects of an installation of this program's version.
	installed   []*unstructured.Unstructured
	definitions []apiextensionsv1.CustomResourceDefinition
	operators   []appsv1.Deployment
}

// run checks one thing after the other. An error means that nothing can be checked.
func (m *managementCheck) run(ctx context.Context, version string) (err error) {
	m.kubernetes(version)
	if m.installed, err = manifests.Render(manifests.Options{Image: manifests.Operator + ":any"}); err != nil {
		return err
	}
	definitions := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := m.List(ctx, definitions); err != nil {
		m.Unread("CustomResourceDefinitions", err)
	} else {
		m.definitions = definitions.Items
		m.clusterAPI()
		if !m.autoNode() {
			return nil // nothing of AutoNode is in this cluster
		}
	}
	m.operator(ctx)
	if m.definitions != nil {
		m.providers()
	}
	m.policies(ctx)
	m.operatorRights(ctx)
	m.userRights(ctx)
	m.accounts(ctx)
	m.catalogs(ctx)
	m.hostedClusters(ctx)
	return nil
}

func (m *managementCheck) kubernetes(version string) {
	const subject = "Kubernetes"
	parsed, err := utilversion.ParseGeneric(version)
	switch {
	case err != nil:
		m.warn(subject, "check that it is "+oldestKubernetes+" or newer", "the API server reports %q, which isn't a version", version)
	case parsed.LessThan(utilversion.MustParseGeneric(oldestKubernetes)):
		m.wrong(subject, "upgrade the management cluster", "%s is older than %s, which AutoNode's admission policies require",
			version, oldestKubernetes)
	default:
		m.ok(subject, "%s", version)
	}
}

// definition returns the CustomResourceDefinition of a name; nil if there is none.
func (m *managementCheck) definition(name string) *apiextensionsv1.CustomResourceDefinition {
	i := slices.IndexFunc(m.definitions, func(crd apiextensionsv1.CustomResourceDefinition) bool { return crd.Name == name })
	if i < 0 {
		return nil
	}
	return &m.definitions[i]
}

func (m *managementCheck) clusterAPI() {
	const subject, fix = "Cluster API", "install Cluster API 1.14 or newer: `clusterctl init`, or `clusterctl upgrade apply`"
	version, name := clusterv1.GroupVersion.Version, "clusters."+clusterv1.GroupVersion.Group
	switch crd := m.definition(name); {
	case crd == nil:
		m.wrong(subject, fix, "there is no CustomResourceDefinition %s", name)
	case !slices.Contains(served(crd), version):
		m.wrong(subject, fix, "%s isn't served in version %s, only in %s", name, version, strings.Join(served(crd), ", "))
	default:
		m.ok(subject, "serves %s/%s", clusterv1.GroupVersion.Group, version)
	}
}

func served(crd *apiextensionsv1.CustomResourceDefinition) []string {
	var names []string
	for i := range crd.Spec.Versions {
		if crd.Spec.Versions[i].Served {
			names = append(names, crd.Spec.Versions[i].Name)
		}
	}
	return names
}

// providers names the providers whose machine templates and bootstrap templates may be used, with their contract.
func (m *managementCheck) providers() {
	profiles, err := infrastructure.Embedded()
	if err != nil {
		m.Unread("Infrastructure providers", err)
		return
	}
	infrastructures, bootstraps := 0, []string{}
	for i := range m.definitions {
		crd := &m.definitions[i]
		kind := schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}
		machines := strings.HasSuffix(kind.Kind, "MachineTemplate")
		if !machines && !strings.HasSuffix(kind.Kind, "ConfigTemplate") || !m.allowed(kind) {
			continue
		}
		if !machines {
			bootstraps = append(bootstraps, kind.Kind)
			continue
		}
		infrastructures++
		subject := "Infrastructure provider of " + kind.Kind
		contract := contractOf(crd)
		switch known := profiles.For(kind).Known(); {
		case contract == "":
			m.wrong(subject, "install a version of the provider that supports Cluster API 1.14",
				"CustomResourceDefinition %s has no Cluster API contract label, such as %s/%s",
				crd.Name, clusterv1.GroupVersion.Group, clusterv1.GroupVersion.Version)
		case !known:
			m.warn(subject, "declare capacity in the templates' status.capacity or annotations, "+
				"or write a profile: docs/reference/infrastructure.md",
				"contract %s, without a built-in profile: AutoNode reads no capacity, image or capacity type from its templates' spec", contract)
		default:
			m.ok(subject, "contract %s, with a built-in profile", contract)
		}
	}
	if infrastructures == 0 {
		m.wrong("Infrastructure providers", "install one: `clusterctl init --infrastructure NAME`",
			"none is installed whose machine templates AutoNode may use")
	}
	if len(bootstraps) == 0 {
		m.warn("Bootstrap providers", "install one, such as `clusterctl init --bootstrap kubeadm`, unless machines boot with the data "+
			"in a Secret",
			"none is installed, so nothing generates the machines' bootstrap data")
	} else {
		m.ok("Bootstrap providers", "%s", strings.Join(bootstraps, ", "))
	}
}

// contractOf returns the newest contract of Cluster API that a provider's kind follows; empty for none.
func contractOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	for _, contract := range []string{"v1beta2", "v1beta1"} {
		if crd.Labels[clusterv1.GroupVersion.Group+"/"+contract] != "" {
			return contract
		}
	}
	return ""
}

// allowed reports whether the operators let HostedClusters use a kind of templates.
func (m *managementCheck) allowed(kind schema.GroupKind) bool {
	config := &v1beta1.Karpenter{ClusterAPI: &v1beta1.ClusterAPI{}}
	config.ClusterAPI.InfrastructureTemplateSelectors = []v1alpha1.InfrastructureTemplateSelector{{APIGroup: kind.Group, Kind: kind.Kind}}
	return profileOf(m.operators).CheckSpec(config) == nil
}

// operator checks the operator's Deployments: one, or one for each shard.
func (m *managementCheck) operator(ctx context.Context) {
	found, err := operatorsIn(ctx, m.Client, m.operatorNamespace)
	if err != nil {
		m.Unread(operatorSubject, err)
		return
	}
	if len(found) == 0 {
		fix := installFix
		if elsewhere, err := operatorsIn(ctx, m.Client, ""); err == nil && len(elsewhere) > 0 {
			fix = "name its namespace: --operator-namespace " + elsewhere[0].Namespace
		}
		m.wrong(operatorSubject, fix, "namespace %s has no Deployment of the operator", m.operatorNamespace)
		return
	}
	m.operators = found
	for i := range m.operators {
		m.deployment(ctx, &m.operators[i])
	}
	m.DefaultRelease(ctx, m.Client, m.operatorNamespace)
}

func operatorsIn(ctx context.Context, management client.Reader, namespace string) ([]appsv1.Deployment, error) {
	list := &appsv1.DeploymentList{}
	err := management.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/name": manifests.Operator})
	return list.Items, err
}

func (m *managementCheck) deployment(ctx context.Context, d *appsv1.Deployment) {
	subject, image := "Deployment "+client.ObjectKeyFromObject(d).String(), "unknown"
	if containers := d.Spec.Template.Spec.Containers; len(containers) > 0 {
		image = containers[0].Image
	}
	replicas, available := ptr.Deref(d.Spec.Replicas, 1), d.Status.AvailableReplicas
	see := fmt.Sprintf("see `kubectl -n %s describe pods -l app.kubernetes.io/name=%s`, and the logs of pods that exit",
		d.Namespace, manifests.Operator)
	trouble := ""
	if available < replicas || d.Status.UpdatedReplicas < replicas {
		pods := &corev1.PodList{}
		if selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err == nil {
			if err := m.List(ctx, pods, client.InNamespace(d.Namespace), client.MatchingLabelsSelector{Selector: selector}); err == nil {
				trouble = clusterstatus.TroubleAmong(pods.Items)
			}
		}
		if trouble != "" {
			trouble = "; " + trouble
		}
	}
	switch {
	case replicas == 0:
		m.wrong(subject, fmt.Sprintf("`kubectl -n %s scale deployment %s --replicas=2`", d.Namespace, d.Name),
			"scaled to zero, so nothing reconciles HostedClusters")
	case available == 0:
		m.wrong(subject, see, "none of %d replicas is available%s", replicas, trouble)
	case d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas < replicas:
		m.warn(subject, "wait for the rollout; if it hangs, "+see, "%d of %d replicas run the newest pod template%s",
			d.Status.UpdatedReplicas, replicas, trouble)
	case available < replicas:
		m.warn(subject, see, "%d of %d replicas are available%s", available, replicas, trouble)
	default:
		m.ok(subject, "%d of %d replicas are available, image %s", available, replicas, image)
	}
}

// flagOf returns the value of a flag of the operator; false if its Deployment doesn't set it.
func flagOf(d *appsv1.Deployment, name string) (value string, set bool) {
	for _, container := range d.Spec.Template.Spec.Containers {
		for _, arg := range container.Args {
			if v, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
				value, set = v, true
			}
		}
	}
	return value, set
}

// policies checks that the admission policies are there, and bound.
func (m *managementCheck) policies(ctx context.Context) {
	const subject = "Admission policies"
	var missing []string
	count := 0
	for _, object := range m.installed {
		kind := object.GroupVersionKind()
		if kind.Kind != "ValidatingAdmissionPolicy" && kind.Kind != "ValidatingAdmissionPolicyBinding" {
			continue
		}
		found := &metav1.PartialObjectMetadata{}
		found.SetGroupVersionKind(kind)
		switch err := m.Get(ctx, client.ObjectKeyFromObject(object), found); {
		case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
			missing = append(missing, kind.Kind+" "+object.GetName())
		case err != nil:
			m.Unread(subject, err)
			return
		default:
			count++
		}
	}
	if len(missing) > 0 {
		m.wrong(subject, installFix, "missing, so Karpenter's identities can do more than they need: %s", strings.Join(missing, ", "))
		return
	}
	m.ok(subject, "%d policies and bindings", count)
}

// reported lists objects on which the operator reports, and counts those that usable accepts. It returns how many there are; -1 if they
// can't be read.
func (m *managementCheck) reported(ctx context.Context, subject, outcome string, list client.ObjectList,
	usable func(client.Object) bool) int {
	if err := m.List(ctx, list); err != nil {
		m.Unread(subject, err)
		return -1
	}
	count := 0
	_ = meta.EachListItem(list, func(item runtime.Object) error { // no function returns an error
		if object, ok := item.(client.Object); ok && usable(object) {
			count++
		}
		return nil
	})
	if count > 0 {
		m.ok(subject, "%s %s", english.Plural(count, "is", "are"), outcome)
	}
	return meta.LenList(list)
}

// usable adds what a condition of an object reports, and reports whether all of the object is usable.
func (m *managementCheck) usable(name, fix, kind string, c *metav1.Condition, expected string) bool {
	switch {
	case c == nil || c.Status == metav1.ConditionUnknown:
		m.warn(name, "check the operator and its logs", "no operator has reported %s yet", kind)
	case c.Status == metav1.ConditionFalse:
		m.condition(Wrong, name, fix, c)
	case c.Reason != expected:
		m.condition(Warning, name, fix, c)
	default:
		return true
	}
	return false
}

// accounts checks what the operator reports on CapacityAccounts.
func (m *managementCheck) accounts(ctx context.Context) {
	m.reported(ctx, "CapacityAccounts", "usable", &autonodev1alpha1.CapacityAccountList{}, func(object client.Object) bool {
		account, right := object.(*autonodev1alpha1.CapacityAccount), true
		for _, kind := range []string{autonodev1alpha1.EntriesUsable, autonodev1alpha1.MembersGranted} {
			c := meta.FindStatusCondition(account.Status.Conditions, kind)
			right = m.usable("CapacityAccount "+account.Name, "fix the problem in the message: docs/platform/fleet-capacity.md", kind, c,
				autonodev1alpha1.AsExpectedReason) && right
		}
		return right
	})
}

// catalogs checks what the operator reports on InstanceTypeCatalogs.
func (m *managementCheck) catalogs(ctx context.Context) {
	const fix = "correct the entries named in the message, and test them with `autonode catalog check`"
	m.reported(ctx, "InstanceTypeCatalogs", "usable", &v1alpha1.InstanceTypeCatalogList{}, func(object client.Object) bool {
		kind := v1alpha1.ConditionInstanceTypesUsable
		c := object.(*v1alpha1.InstanceTypeCatalog).StatusConditions().Get(kind)
		return m.usable("InstanceTypeCatalog "+client.ObjectKeyFromObject(object).String(), fix, kind, (*metav1.Condition)(c), kind)
	})
}

// hostedClusters names the first thing that is wrong with each.
func (m *managementCheck) hostedClusters(ctx context.Context) {
	const subject = "HostedClusters"
	if m.reported(ctx, subject, "as expected", &v1beta1.HostedClusterList{}, func(object client.Object) bool {
		hostedCluster, key := object.(*v1beta1.HostedCluster), client.ObjectKeyFromObject(object).String()
		more := fmt.Sprintf("; `autonode check %s` shows more", key)
		switch wrong := condition.WrongOfHostedCluster(hostedCluster); {
		case len(wrong) > 0:
			m.condition(Wrong, "HostedCluster "+key, condition.Fix(wrong[0].Reason)+more, &wrong[0])
		case unseen(hostedCluster):
			m.warn("HostedCluster "+key, "check the operator, and its flag --hosted-cluster-selector"+more,
				"no operator has reconciled its spec yet")
		default:
			return true
		}
		return false
	}) == 0 {
		m.ok(subject, "none yet; create one with `autonode hosted-cluster create --cluster NAMESPACE/NAME`")
	}
}

// unseen reports whether no operator has reported on the spec as it is.
func unseen(hostedCluster *v1beta1.HostedCluster) bool {
	return hostedCluster.Status.ObservedGeneration < hostedCluster.Generation ||
		meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.Ready) == nil
}
