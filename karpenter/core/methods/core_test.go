// SPDX-License-Identifier: Apache-2.0

package methods_test

import (
	"context"
	"flag"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/controllers/state/informer"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/cost"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// classed is a cloud provider with AutoNode's node class. A test adds the calls that it answers.
type classed struct {
	karpcloudprovider.CloudProvider
}

// GetSupportedNodeClasses implements cloudprovider.CloudProvider.
func (classed) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.ClusterAPINodeClass{}}
}

// newGuest returns a guest that has objects, with the index that core reads.
func newGuest(objects ...client.Object) client.Client {
	return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).WithStatusSubresource(&karpv1.NodeClaim{}, &karpv1.NodePool{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(pod client.Object) []string { return []string{pod.(*corev1.Pod).Spec.NodeName} }).Build()
}

// coreConfig is that of a core.
type coreConfig struct {
	Guest         client.Client
	CloudProvider karpcloudprovider.CloudProvider
	Recorder      events.Recorder
	Clock         clock.Clock
	// Flags of Karpenter's command line.
	Flags []string
}

// core is what Karpenter core's disruption controller and its methods need.
type core struct {
	coreConfig
	Context     context.Context // it has core's options, for as long as the test runs
	State       *state.Cluster
	Provisioner *provisioning.Provisioner
	Queue       *disruption.Queue
}

// newCore returns a core whose state has the objects of the guest.
func newCore(t *testing.T, config coreConfig, objects []client.Object) *core {
	t.Helper()
	g := gomega.NewWithT(t)
	opts, fs := &options.Options{}, &options.FlagSet{FlagSet: flag.NewFlagSet("karpenter", flag.ContinueOnError)}
	opts.AddFlags(fs)
	g.Expect(opts.Parse(fs, config.Flags...)).To(gomega.Succeed())
	ctx, guest, cloudProvider := options.ToContext(t.Context(), opts), config.Guest, config.CloudProvider
	cluster, costs := state.NewCluster(config.Clock, guest, cloudProvider), cost.NewClusterCost(ctx, cloudProvider, guest)
	for _, object := range objects {
		var feed reconcile.Reconciler
		switch object.(type) {
		case *karpv1.NodePool:
			feed = informer.NewNodePoolController(guest, cloudProvider, cluster, costs)
		case *karpv1.NodeClaim:
			feed = informer.NewNodeClaimController(guest, cloudProvider, cluster, costs)
		case *corev1.Node:
			feed = informer.NewNodeController(guest, cluster)
		case *corev1.Pod:
			feed = informer.NewPodController(guest, cluster)
		default:
			continue
		}
		_, err := feed.Reconcile(ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	devices := deviceallocation.NewController(guest)
	devices.Hydrate(ctx)
	provisioner := provisioning.NewProvisioner(guest, config.Recorder, cloudProvider, cluster, config.Clock, devices, virtualpods.NewVirtualPodCache(guest))
	return &core{
		coreConfig: config, Context: ctx, State: cluster, Provisioner: provisioner,
		Queue: disruption.NewQueue(guest, config.Recorder, cluster, config.Clock, provisioner),
	}
}

// disrupt runs the disruption controller once, with these methods, and the commands that it begins. It returns those.
func (c *core) disrupt(t *testing.T, methods []disruption.Method) []*disruption.Command {
	t.Helper()
	g := gomega.NewWithT(t)
	controller := disruption.NewController(c.Context, c.Clock, c.Guest, c.Provisioner, c.CloudProvider, c.Recorder, c.State, c.Queue, nil, disruption.WithMethods(methods...))
	_, err := controller.Reconcile(c.Context)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	begun := c.Queue.GetCommands()
	for _, command := range begun {
		_, err := c.Queue.Reconcile(c.Context, command.Candidates[0].NodeClaim)
		g.Expect(err).NotTo(gomega.HaveOccurred())
	}
	return begun
}
