// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/workload"
	"github.com/autonode-io/autonode/test/world/ec2"
	"github.com/autonode-io/autonode/test/world/hosting"
)

const (
	// eventually is how long everything that must happen may take: no test depends on how fast the machine is.
	eventually = 10 * time.Minute
	interval   = 100 * time.Millisecond

	zoneA, zoneB, zoneC = "us-east-1a", "us-east-1b", "us-east-1c"
	// bootstrapTemplate is the name of the KubeadmConfigTemplate for EC2.
	bootstrapTemplate = "ec2"
	poolLabel         = "pool"
)

var awsVersion = schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta2"}

// cluster is one hosted cluster, seen from both sides.
type cluster struct {
	name       string
	management client.WithWatch
	guest      client.WithWatch
}

// acquire returns the guest of that name with AutoNode on, for one test. When the test ends, its nodes go; when it failed, what a person
// would look at is written down first.
func acquire(t *testing.T, name string) *cluster {
	t.Helper()
	g := NewWithT(t)
	management, err := newClient(world.Management().RESTConfig())
	g.Expect(err).NotTo(HaveOccurred())
	guest, err := newClient(world.Guest(name).RESTConfig())
	g.Expect(err).NotTo(HaveOccurred())
	c := &cluster{name: name, management: management, guest: guest}
	t.Cleanup(func() {
		if t.Failed() {
			c.describe(t)
		}
		c.clear(t)
	})
	c.bootstrap(t)
	for _, instanceType := range []string{"m5.large", "m5.xlarge", "c5.large"} {
		c.template(t, instanceType, instanceType, nil)
	}
	c.enable(t)
	return c
}

func (c *cluster) namespace() string { return hosting.ControlPlaneNamespace(c.name) }

// bootstrap makes a bootstrap template as users of EC2 write it: instance metadata name the node.
func (c *cluster) bootstrap(t *testing.T) {
	t.Helper()
	template := &bootstrapv1.KubeadmConfigTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(), Name: bootstrapTemplate}}
	external, rotate := "external", "true"
	template.Spec.Template.Spec.JoinConfiguration.NodeRegistration = bootstrapv1.NodeRegistrationOptions{
		Name: "{{ ds.meta_data.local_hostname }}",
		KubeletExtraArgs: []bootstrapv1.Arg{
			{Name: "cloud-provider", Value: &external}, {Name: "rotate-server-certificates", Value: &rotate},
		},
	}
	NewWithT(t).Expect(client.IgnoreAlreadyExists(c.management.Create(t.Context(), template))).To(Succeed())
}

// priceOf returns the prices of a type in the world's region: on demand, and on spot where that is the cheapest.
func priceOf(t *testing.T, name string) (onDemand, spot float64) {
	t.Helper()
	for _, instanceType := range ec2.Sample().Types {
		if instanceType.Name != name {
			continue
		}
		for _, price := range instanceType.SpotPrice {
			if spot == 0 || price < spot {
				spot = price
			}
		}
		return instanceType.OnDemandPrice, spot
	}
	t.Fatalf("there is no type %s", name)
	return 0, 0
}

const patches = `
- op: add
  path: /spec/spotMarketOptions
  valueFrom: {template: '{{ if eq .capacityType "spot" }}{}{{ end }}'}
- op: add
  path: /spec/additionalTags
  valueFrom: {template: '{example.org/pool: {{ index .labels "karpenter.sh/nodepool" | quote }}}'}
`

// template makes an AWSMachineTemplate as a platform team writes it.
func (c *cluster) template(t *testing.T, name, instanceType string, change func(*unstructured.Unstructured)) {
	t.Helper()
	g := NewWithT(t)
	owner := &clusterv1.Cluster{}
	g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: c.namespace(), Name: c.name}, owner)).To(Succeed())
	onDemand, spot := priceOf(t, instanceType)
	template := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
		"instanceType":             instanceType,
		"imageLookupOrg":           world.EC2().Account(),
		"additionalSecurityGroups": []any{map[string]any{"id": "sg-0nodes"}},
		"cloudInit":                map[string]any{"insecureSkipSecretsManager": true},
	}}}}}
	template.SetGroupVersionKind(awsVersion.WithKind("AWSMachineTemplate"))
	template.SetNamespace(c.namespace())
	template.SetName(name)
	template.SetLabels(map[string]string{clusterv1.ClusterNameLabel: c.name, poolLabel: "general"})
	// Without this its controller doesn't know in which region to ask for the type.
	template.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: owner.Name, UID: owner.UID,
	}})
	template.SetAnnotations(map[string]string{
		v1alpha1.PriceAnnotation: strconv.FormatFloat(onDemand, 'f', -1, 64), v1alpha1.SpotPriceAnnotation: strconv.FormatFloat(spot, 'f', -1, 64),
		v1alpha1.InfrastructurePatchesAnnotation:                   patches,
		"capacity.cluster-autoscaler.kubernetes.io/ephemeral-disk": "20Gi",
	})
	if change != nil {
		change(template)
	}
	g.Expect(client.IgnoreAlreadyExists(c.management.Create(t.Context(), template))).To(Succeed())
}

// enable turns AutoNode on and waits until Karpenter runs and has all templates.
func (c *cluster) enable(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	key := client.ObjectKey{Namespace: hosting.Namespace, Name: c.name}
	hosted := &v1beta1.HostedCluster{}
	g.Expect(c.management.Get(t.Context(), key, hosted)).To(Succeed())
	before := hosted.DeepCopy()
	hosted.Spec.AutoNode = &v1beta1.AutoNode{ProvisionerConfig: v1beta1.ProvisionerConfig{
		Name: v1beta1.ProvisionerKarpenter,
		Karpenter: &v1beta1.Karpenter{Platform: v1beta1.PlatformClusterAPI, ClusterAPI: &v1beta1.ClusterAPI{
			TemplateSelectors: v1alpha1.TemplateSelectors{InfrastructureTemplateSelectors: []v1alpha1.InfrastructureTemplateSelector{{
				APIGroup: awsVersion.Group, Kind: "AWSMachineTemplate", Selector: metav1.LabelSelector{MatchLabels: map[string]string{poolLabel: "general"}},
			}}},
			Bootstrap: &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
				APIGroup: bootstrapv1.GroupVersion.Group, Kind: "KubeadmConfigTemplate", Name: bootstrapTemplate,
			}},
		}},
	}}
	g.Expect(c.management.Patch(t.Context(), hosted, client.MergeFrom(before))).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.management.Get(ctx, key, hosted)).To(Succeed())
		enabled := meta.FindStatusCondition(hosted.Status.Conditions, v1beta1.AutoNodeEnabled)
		g.Expect(enabled).NotTo(BeNil())
		g.Expect(enabled.Status).To(Equal(metav1.ConditionTrue), "%s: %s", enabled.Reason, enabled.Message)
		class := &v1alpha1.ClusterAPINodeClass{}
		g.Expect(c.guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class)).To(Succeed())
		g.Expect(class.StatusConditions().IsTrue("Ready", "TemplatesReady")).To(BeTrue(), "default node class: %v", class.Status.Conditions)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// nodePool creates a NodePool of the default node class. requirements are keys, each with its values.
func (c *cluster) nodePool(t *testing.T, name string, requirements map[string][]string, change ...func(*karpv1.NodePool)) {
	t.Helper()
	pool := workload.NodePool(name, change...)
	for key, values := range requirements {
		workload.Require(key, values...)(pool)
	}
	NewWithT(t).Expect(c.guest.Create(t.Context(), pool)).To(Succeed())
}

// workload creates a Deployment whose pods each need a node of their own, with a label of the node that chooses the NodePools.
func (c *cluster) workload(t *testing.T, name string, replicas int32, selector map[string]string) {
	t.Helper()
	deployment := workload.Deployment(name, replicas, "500m", workload.Apart, func(template *corev1.PodTemplateSpec) {
		template.Spec.NodeSelector = selector
	})
	NewWithT(t).Expect(c.guest.Create(t.Context(), deployment)).To(Succeed())
}

// onPool selects the nodes of one NodePool.
func onPool(name string) map[string]string {
	return map[string]string{karpv1.NodePoolLabelKey: name}
}

// waitRunning waits until every replica of the Deployment is available.
func (c *cluster) waitRunning(t *testing.T, name string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		workload.ExpectRunning(g, ctx, c.guest, name)
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// nodes lists the nodes of a NodePool.
func (c *cluster) nodes(g Gomega, ctx context.Context, pool string) []corev1.Node {
	list := &corev1.NodeList{}
	g.Expect(c.guest.List(ctx, list, client.MatchingLabels{karpv1.NodePoolLabelKey: pool})).To(Succeed())
	return list.Items
}

// instances are those of a NodePool that run, or are about to.
func (c *cluster) instances(pool string) []ec2.Instance {
	var instances []ec2.Instance
	for _, instance := range world.EC2().Instances() {
		if instance.Tags["example.org/pool"] == pool && instance.Tags["kubernetes.io/cluster/"+c.name] == "owned" &&
			(instance.State == ec2.Pending || instance.State == ec2.Running) {
			instances = append(instances, instance)
		}
	}
	return instances
}

// eventsOn returns the messages of the guest's events on NodeClaims of a NodePool, with a reason.
func (c *cluster) eventsOn(ctx context.Context, pool, reason string) ([]string, error) {
	list := &corev1.EventList{}
	if err := c.guest.List(ctx, list); err != nil {
		return nil, err
	}
	var messages []string
	for _, event := range list.Items {
		if event.InvolvedObject.Kind == "NodeClaim" && event.Reason == reason && len(event.InvolvedObject.Name) > len(pool) && event.InvolvedObject.Name[:len(pool)+1] == pool+"-" {
			messages = append(messages, event.Message)
		}
	}
	return messages, nil
}

// clear removes the test's NodePools and workloads, and waits until its instances have gone.
func (c *cluster) clear(t *testing.T) {
	t.Helper()
	g, ctx := NewWithT(t), context.WithoutCancel(t.Context())
	g.Expect(c.guest.DeleteAllOf(ctx, &appsv1.Deployment{}, client.InNamespace(metav1.NamespaceDefault))).To(Succeed())
	if err := c.guest.DeleteAllOf(ctx, &karpv1.NodePool{}); !meta.IsNoMatchError(err) {
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Eventually(func(g Gomega, ctx context.Context) {
		machines := &clusterv1.MachineList{}
		g.Expect(c.management.List(ctx, machines, client.InNamespace(c.namespace()))).To(Succeed())
		g.Expect(machines.Items).To(BeEmpty())
		for _, instance := range world.EC2().Instances() {
			if instance.Tags["kubernetes.io/cluster/"+c.name] == "owned" {
				g.Expect(instance.State).To(BeElementOf(ec2.ShuttingDown, ec2.Terminated), instance.ID)
			}
		}
	}).WithContext(ctx).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// describe writes down what a person would look at.
func (c *cluster) describe(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	claims, machines := &karpv1.NodeClaimList{}, &clusterv1.MachineList{}
	if err := c.guest.List(ctx, claims); err == nil {
		for _, claim := range claims.Items {
			t.Logf("NodeClaim %s: %s", claim.Name, conditionsOf(claim.Status.Conditions))
		}
	}
	if err := c.management.List(ctx, machines, client.InNamespace(c.namespace())); err == nil {
		for _, machine := range machines.Items {
			t.Logf("Machine %s: %s", machine.Name, conditionsOf(machine.Status.Conditions))
		}
	}
	for _, kind := range []string{"AWSMachine", "AWSMachineTemplate"} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(awsVersion.WithKind(kind + "List"))
		if err := c.management.List(ctx, list, client.InNamespace(c.namespace())); err == nil {
			for _, object := range list.Items {
				t.Logf("%s %s: %v", kind, object.GetName(), object.Object["status"])
			}
		}
	}
	class := &v1alpha1.ClusterAPINodeClass{}
	if err := c.guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class); err == nil {
		t.Logf("node class: %s", conditionsOf(class.GetConditions()))
	}
	for _, instance := range world.EC2().Instances() {
		t.Logf("instance %s of %s: %s in %s, %s %s", instance.ID, instance.Tags["Name"], instance.Type, instance.Zone, instance.State, instance.ReasonCode)
	}
	for _, each := range []struct {
		name string
		of   client.Client
	}{{"guest", c.guest}, {"management", c.management}} {
		list := &corev1.EventList{}
		if err := each.of.List(ctx, list); err == nil {
			for _, event := range list.Items[max(0, len(list.Items)-40):] {
				t.Logf("event in %s: %s %s: %s: %s", each.name, event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Reason, event.Message)
			}
		}
	}
}

func conditionsOf[T any](conditions []T) string { return fmt.Sprintf("%+v", conditions) }
