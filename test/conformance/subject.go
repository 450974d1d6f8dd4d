// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/audit"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/hosting"
	"github.com/autonode-io/autonode/test/world/process"
)

// operatorTimeout is the timeout for AutoNode to be on. On a busy machine several guests' Karpenters start at once.
const operatorTimeout = 10 * time.Minute

// subject is a measured guest, with a Karpenter and a NodePool, or with a MachineDeployment.
type subject struct {
	Contestant
	world    *localworld.World
	guest    client.Client
	follower *follower
	// workers is the MachineDeployment; nil with a Karpenter.
	workers    client.Object
	management client.Client
	// Audit logs of both API servers.
	managementLog, guestLog *audit.Tail
	profiler                *profiler
	// small is the provider's instance type with two CPUs.
	small string
}

func newSubject(ctx context.Context, s setup, c Contestant, p provider, profiles string) (_ *subject, err error) {
	guestName := c.Provider + "-1" // as run.guests names it
	m := &subject{
		Contestant: c, world: s.world, small: p.small(),
		managementLog: &audit.Tail{Path: s.world.AuditLog(localworld.Management)}, guestLog: &audit.Tail{Path: s.world.AuditLog(guestName)},
	}
	managementConfig, err := benchAccess(s.world.Management())
	if err != nil {
		return nil, err
	}
	guestConfig, err := benchAccess(s.world.Guest(guestName))
	if err != nil {
		return nil, err
	}
	scheme, err := newScaleScheme()
	if err != nil {
		return nil, err
	}
	if m.management, err = client.New(managementConfig, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("connecting to the management cluster: %w", err)
	}
	if m.guest, err = client.New(guestConfig, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", guestName, err)
	}
	karpenter := ""
	if c.Operator {
		if err := enable(ctx, m.management, m.guest, guestName, hosting.AutoNode(hosting.TemplatePool, hosting.BootstrapTemplate)); err != nil {
			return nil, err
		}
	} else {
		runner, err := s.start(ctx, p, guestName)
		if err != nil {
			return nil, err
		}
		karpenter = runner.profiles
	}
	if profiles != "" {
		if m.profiler, err = newProfiler(profiles, s.world, guestName, karpenter); err != nil {
			return nil, err
		}
	}
	for _, document := range p.defaults() {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, fmt.Errorf("decoding the defaults of %s: %w", c.Provider, err)
		}
		if c.Operator && object.GetKind() == v1alpha1.Kind {
			continue // the operator keeps it
		}
		if object.GetKind() == "KWOKNodeClass" && c.KwokDelay > 0 {
			if err := unstructured.SetNestedField(object.Object, c.KwokDelay.String(), "spec", "nodeRegistrationDelay"); err != nil {
				return nil, fmt.Errorf("delaying the nodes of %s: %w", c.Provider, err)
			}
		}
		if err := m.guest.Create(ctx, object); err != nil {
			return nil, fmt.Errorf("creating %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	var demand client.Object = &corev1.Pod{}
	if c.Provider == MachineDeployment {
		demand, m.workers = &corev1.Node{}, hosting.Workers(s.world.Guest(guestName), 0)
	}
	m.follower, err = follow(ctx, scheme, managementConfig, guestConfig, hosting.ControlPlaneNamespace(guestName), demand)
	return m, err
}

func (m *subject) stop() { m.follower.stop() }

// benchAccess is the access of an administrator whose requests don't count.
func benchAccess(cluster *controlplane.Cluster) (*rest.Config, error) {
	config, err := cluster.RESTConfigFor(benchUser, "system:masters")
	if err != nil {
		return nil, err
	}
	config.UserAgent, config.QPS = benchUser, -1
	return config, nil
}

func newScaleScheme() (*runtime.Scheme, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	for _, add := range []func(*runtime.Scheme) error{clusterv1.AddToScheme, v1beta1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building a scheme: %w", err)
		}
	}
	return scheme, nil
}

// enable turns AutoNode on, as a platform team does, and waits until Karpenter runs and the default node class is
// ready.
func enable(ctx context.Context, management, guest client.Client, name string, autoNode *v1beta1.AutoNode) error {
	ctx, cancel := context.WithTimeout(ctx, operatorTimeout)
	defer cancel()
	hosted := &v1beta1.HostedCluster{}
	key := client.ObjectKey{Namespace: hosting.Namespace, Name: name}
	if err := management.Get(ctx, key, hosted); err != nil {
		return fmt.Errorf("reading the HostedCluster: %w", err)
	}
	before := hosted.DeepCopy()
	hosted.Spec.AutoNode = autoNode
	if err := management.Patch(ctx, hosted, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("turning AutoNode on: %w", err)
	}
	return process.Poll(ctx, "AutoNode to be on", nil, nil, func(ctx context.Context) error {
		if err := management.Get(ctx, key, hosted); err != nil {
			return err
		}
		condition := meta.FindStatusCondition(hosted.Status.Conditions, v1beta1.AutoNodeEnabled)
		if condition == nil || condition.Status != metav1.ConditionTrue || condition.ObservedGeneration != hosted.Generation {
			return fmt.Errorf("condition %s is %v", v1beta1.AutoNodeEnabled, condition)
		}
		class := &v1alpha1.ClusterAPINodeClass{}
		if err := guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class); err != nil {
			return err
		}
		if !class.StatusConditions().IsTrue("Ready") {
			return fmt.Errorf("node class %s isn't ready", class.Name)
		}
		return nil
	})
}

// isReady reports whether a pod runs, or a Node is ready.
func isReady(object client.Object) bool {
	switch o := object.(type) {
	case *corev1.Pod:
		return slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	case *corev1.Node:
		return slices.ContainsFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}
	return false
}
