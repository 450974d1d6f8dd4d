// SPDX-License-Identifier: Apache-2.0

package environment

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Names of a Fleet.
const (
	FleetNamespace = "clusters-blue"
	FleetCluster   = "blue"
	FleetNodeClass = "default"
)

// Fleet is a hosted cluster of any size in real caches, without an API server: benchmarks and tests measure with it the costs
// that grow with the number of machines. Nothing in it changes.
type Fleet struct {
	// Management and Guest read from the caches, and write nowhere.
	Management, Guest *Counted
	// ManagementCache holds the Machines.
	ManagementCache cache.Cache
	// Sources are the template sources; machine i is made from number i modulo their count.
	Sources []string
}

// NewFleet returns a fleet of registered nodes.
func NewFleet(tb testing.TB, machines, templates int) *Fleet {
	tb.Helper()
	f := &Fleet{}
	for i := range templates {
		f.Sources = append(f.Sources, FleetSource(i))
	}
	machineList, nodeClaims, nodes := &clusterv1.MachineList{}, &karpv1.NodeClaimList{}, &corev1.NodeList{}
	for i := range machines {
		machineList.Items = append(machineList.Items, FleetMachine(i, f.Sources[i%templates]))
		nodeClaims.Items = append(nodeClaims.Items, FleetNodeClaim(i))
		nodes.Items = append(nodes.Items, fleetNode(i))
	}
	clusters := &clusterv1.ClusterList{Items: []clusterv1.Cluster{{
		ObjectMeta: metav1.ObjectMeta{Namespace: FleetNamespace, Name: FleetCluster},
	}}}
	nodeClasses := &v1alpha1.ClusterAPINodeClassList{Items: []v1alpha1.ClusterAPINodeClass{{
		ObjectMeta: metav1.ObjectMeta{Name: FleetNodeClass},
	}}}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), clusterv1.AddToScheme(scheme)); err != nil {
		tb.Fatal(err)
	}
	scheme.AddKnownTypes(schema.GroupVersion{Group: apis.Group, Version: "v1"}, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	var management client.Client
	f.ManagementCache, management = Cached(tb, scheme, machine.Index, machineList, clusters)
	_, guest := Cached(tb, scheme, nil, nodeClaims, nodes, nodeClasses)
	f.Management, f.Guest = &Counted{Client: management}, &Counted{Client: guest}
	return f
}

// FleetSource is the annotation of a template source.
func FleetSource(i int) string {
	tmpl := FleetTemplate(i)
	return tmpl.Source.Annotation()
}

// FleetTemplate is the template of FleetSource, with an instance type of its own that is offered on demand and spot.
func FleetTemplate(i int) template.Template {
	name, price := fmt.Sprintf("t-%d", i), 0.01*float64(i+1)
	return template.Template{
		Source: template.Source{
			GroupKind: schema.GroupKind{Group: TestMachine.Group, Kind: "TestMachineTemplate"},
			Namespace: FleetNamespace, Name: name, ResourceVersions: "1",
		},
		Bootstrap: template.Bootstrap{DataSecretName: "join"}, InstanceType: name, Arch: "amd64", OS: "linux",
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(int64(i%64+1), resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(int64(i%64+1)<<31, resource.BinarySI),
			corev1.ResourcePods:   *resource.NewQuantity(110, resource.DecimalSI),
		},
		Price: ptr.To(price), SpotPrice: ptr.To(price / 3),
	}
}

// FleetMachine is a Machine of a fleet, with the name and UID of FleetNodeClaim.
func FleetMachine(i int, source string) clusterv1.Machine {
	name := fmt.Sprintf("general-%d", i)
	return clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: FleetNamespace, Name: name, UID: types.UID(fmt.Sprintf("m-%d", i)), ResourceVersion: "1",
			Labels: map[string]string{
				clusterv1.ClusterNameLabel:     FleetCluster,
				v1alpha1.NodeClaimLabel:        name,
				v1alpha1.NodeClaimUIDLabel:     fmt.Sprintf("uid-%d", i),
				karpv1.NodePoolLabelKey:        "general",
				karpv1.CapacityTypeLabelKey:    karpv1.CapacityTypeSpot,
				corev1.LabelInstanceTypeStable: "c4-large",
				corev1.LabelTopologyZone:       "a",
			},
			Annotations: map[string]string{v1alpha1.TemplateSourceAnnotation: source},
		},
		Spec: clusterv1.MachineSpec{
			ClusterName: FleetCluster, ProviderID: fmt.Sprintf("cloud://%d", i),
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: TestMachine.Group, Kind: TestMachine.Kind, Name: name},
			Bootstrap: clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: KubeadmConfig.Group, Kind: KubeadmConfig.Kind, Name: name,
			}},
		},
	}
}

// FleetNodeClaim is a registered NodeClaim of a fleet.
func FleetNodeClaim(i int) karpv1.NodeClaim {
	nodeClaim := karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("general-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)), ResourceVersion: "1",
		CreationTimestamp: metav1.NewTime(time.Unix(int64(i), 0)),
		Labels:            map[string]string{karpv1.NodePoolLabelKey: "general"},
	}}
	nodeClaim.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: FleetNodeClass}
	nodeClaim.Status.ProviderID, nodeClaim.Status.NodeName = fmt.Sprintf("cloud://%d", i), fmt.Sprintf("node-%d", i)
	nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
	return nodeClaim
}

func fleetNode(i int) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("node-%d", i), ResourceVersion: "1", Labels: map[string]string{karpv1.NodeRegisteredLabelKey: "true"},
			// A user's: nothing has to write to the node.
			Annotations: map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"},
		},
		Spec: corev1.NodeSpec{ProviderID: fmt.Sprintf("cloud://%d", i)},
	}
}

// Counted is a client that counts the objects it reads and refuses writes.
type Counted struct {
	client.Client
	// Read is the number of objects that were read.
	Read atomic.Int64
}

// Get implements client.Reader.
func (c *Counted) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	c.Read.Add(1)
	return c.Client.Get(ctx, key, object, opts...)
}

// List implements client.Reader.
func (c *Counted) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := c.Client.List(ctx, list, opts...)
	c.Read.Add(int64(meta.LenList(list)))
	return err
}

// Cached returns a real cache that holds the items of these lists, and a client that reads from it. Nothing in it changes.
func Cached(tb testing.TB, scheme *runtime.Scheme, index func(context.Context, client.FieldIndexer) error, lists ...client.ObjectList,
) (cache.Cache, client.Client) {
	tb.Helper()
	mapper, byKind := meta.NewDefaultRESTMapper(nil), map[schema.GroupVersionKind]listed{}
	for _, list := range lists {
		kind, err := apiutil.GVKForObject(list, scheme)
		if err != nil {
			tb.Fatal(err)
		}
		list.SetResourceVersion("1")
		item := kind.GroupVersion().WithKind(kind.Kind[:len(kind.Kind)-len("List")])
		byKind[item] = listed{list}
		scope := meta.RESTScopeRoot
		if item.Group == clusterv1.GroupVersion.Group {
			scope = meta.RESTScopeNamespace
		}
		for _, gvk := range []schema.GroupVersionKind{kind, item} {
			mapper.Add(gvk, scope)
		}
	}
	config := &rest.Config{Host: "https://nowhere.invalid"}
	c, err := cache.New(config, cache.Options{
		Scheme: scheme, Mapper: mapper,
		NewInformer: func(_ toolscache.ListerWatcher, object runtime.Object, resync time.Duration,
			indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			kind, err := apiutil.GVKForObject(object, scheme)
			list, found := byKind[kind]
			if err != nil || !found {
				tb.Errorf("the fleet has no %T: %v", object, err)
			}
			return toolscache.NewSharedIndexInformer(list, object, resync, indexers)
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	if index != nil {
		if err := index(tb.Context(), c); err != nil {
			tb.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	tb.Cleanup(stop)
	go func() { _ = c.Start(ctx) }()
	if !c.WaitForCacheSync(ctx) {
		tb.Fatal("waiting for the cache")
	}
	reader, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper, Cache: &client.CacheOptions{Reader: c}})
	if err != nil {
		tb.Fatal(err)
	}
	return c, reader
}

// listed is an API server's answer to a list; nothing changes.
type listed struct{ client.ObjectList }

func (l listed) List(metav1.ListOptions) (runtime.Object, error) { return l.ObjectList, nil }
func (listed) Watch(metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil }
func (listed) IsWatchListSemanticsUnSupported() bool             { return true }
