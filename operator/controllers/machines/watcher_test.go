// SPDX-License-Identifier: Apache-2.0

package machines_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/controllers/machines"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

func TestWatcher(t *testing.T) {
	g := NewWithT(t)
	ctx, management, s := t.Context(), clusters.Management.Client, clusters.NewScope(t, "burst")
	var waiting []*clusterv1.Machine
	for i := range 12 {
		name := fmt.Sprintf("general-%d", i)
		machine := &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.ControlPlaneNamespace, Name: name, Labels: map[string]string{
				clusterv1.ClusterNameLabel: s.Cluster.Name, v1alpha1.NodeClaimLabel: name, v1alpha1.NodeClaimUIDLabel: "uid-" + name,
			}},
			Spec: clusterv1.MachineSpec{ClusterName: s.Cluster.Name},
		}
		g.Expect(management.Create(ctx, machine)).To(Succeed())
		waiting = append(waiting, machine)
	}
	clock := clocktesting.NewFakeClock(waiting[0].CreationTimestamp.Time)
	recorder := events.NewFakeRecorder(10)
	watcher := machines.New(machines.Config{
		Management: management, Recorder: recorder, Clock: clock,
		HostedClusters: func(_ context.Context, cluster client.ObjectKey) ([]v1beta1.HostedCluster, error) {
			g.Expect(cluster).To(Equal(client.ObjectKeyFromObject(s.Cluster)))
			return []v1beta1.HostedCluster{*s.HostedCluster}, nil
		},
	})
	request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.Cluster)}
	reconcile := func(g Gomega) ctrl.Result {
		result, err := watcher.Reconcile(ctx, request)
		g.Expect(err).NotTo(HaveOccurred())
		return result
	}

	t.Run("When Machines have just been created, it should come back and warn of none", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(reconcile(g).RequeueAfter).To(Equal(15 * time.Second))
		g.Expect(recorder.Events).NotTo(Receive())
	})

	t.Run("When Cluster API hasn't begun with many of them, it should warn on the HostedCluster, once an hour", func(t *testing.T) {
		g := NewWithT(t)
		clock.SetTime(waiting[11].CreationTimestamp.Add(15 * time.Second))
		reconcile(g)
		g.Expect(recorder.Events).To(Receive(And(HavePrefix("Warning "+v1beta1.ClusterAPIBehindReason+" "),
			ContainSubstring("has not begun with 12 of 12 Machines of Cluster clusters-burst/burst"))))
		clock.SetTime(clock.Now().Add(time.Hour - time.Second))
		reconcile(g)
		g.Expect(recorder.Events).NotTo(Receive())
		clock.SetTime(clock.Now().Add(time.Second))
		reconcile(g)
		g.Expect(recorder.Events).To(Receive())
	})

	t.Run("When fewer than ten wait, it should warn of none", func(t *testing.T) {
		g := NewWithT(t)
		for _, machine := range waiting[:3] {
			machine.Status.Phase = string(clusterv1.MachinePhasePending)
			g.Expect(management.Status().Update(ctx, machine)).To(Succeed())
		}
		clock.SetTime(clock.Now().Add(time.Hour))
		g.Expect(reconcile(g)).To(BeZero())
		g.Expect(recorder.Events).NotTo(Receive())
	})
}

func TestLook(t *testing.T) {
	g := NewWithT(t)
	const group, kind = "infrastructure.cluster.x-k8s.io", "VSphereCluster"
	ctx, management, s := t.Context(), clusters.Management.Client, clusters.NewScope(t, "late")
	g.Expect(apiserver.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{
		CRDs: []*apiextensionsv1.CustomResourceDefinition{scopetest.Definition(group, kind, "vsphereclusters", "v1beta1")},
	})).To(Succeed())
	infrastructure := &unstructured.Unstructured{}
	infrastructure.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1beta1", Kind: kind})
	infrastructure.SetNamespace(s.ControlPlaneNamespace)
	infrastructure.SetName(s.Cluster.Name)
	g.Expect(management.Create(ctx, infrastructure)).To(Succeed())
	s.Cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: group, Kind: kind, Name: s.Cluster.Name}
	g.Expect(management.Update(ctx, s.Cluster)).To(Succeed())
	var created time.Time
	for _, name := range []string{"general-1", "general-2"} {
		machine := &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.ControlPlaneNamespace, Name: name, Labels: map[string]string{
				clusterv1.ClusterNameLabel: s.Cluster.Name, v1alpha1.NodeClaimLabel: name, v1alpha1.NodeClaimUIDLabel: "uid-" + name,
			}},
			Spec: clusterv1.MachineSpec{ClusterName: s.Cluster.Name},
		}
		g.Expect(management.Create(ctx, machine)).To(Succeed())
		created = machine.CreationTimestamp.Time
		machine.Status.Phase = string(clusterv1.MachinePhaseProvisioning)
		g.Expect(management.Status().Update(ctx, machine)).To(Succeed())
	}
	clock := clocktesting.NewFakeClock(created)
	watcher := machines.New(machines.Config{
		Management: management, Recorder: events.NewFakeRecorder(10), Clock: clock,
		HostedClusters: func(context.Context, client.ObjectKey) ([]v1beta1.HostedCluster, error) {
			return []v1beta1.HostedCluster{*s.HostedCluster}, nil
		},
	})
	requestedAt := func(g Gomega) string {
		result, err := watcher.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.Cluster)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(Equal(time.Minute))
		g.Expect(management.Get(ctx, client.ObjectKeyFromObject(infrastructure), infrastructure)).To(Succeed())
		return infrastructure.GetAnnotations()[v1beta1.LookRequestedAtAnnotation]
	}
	now := func() string { return clock.Now().UTC().Format(time.RFC3339) }

	t.Run("When Machines have waited for their instances for less than a minute, it should request nothing", func(t *testing.T) {
		NewWithT(t).Expect(requestedAt(NewWithT(t))).To(BeEmpty())
	})
	t.Run("When two have waited for a minute, it should have the provider look, at most once a minute", func(t *testing.T) {
		g := NewWithT(t)
		clock.SetTime(created.Add(time.Minute))
		first := now()
		g.Expect(requestedAt(g)).To(Equal(first))
		clock.SetTime(clock.Now().Add(30 * time.Second))
		g.Expect(requestedAt(g)).To(Equal(first))
		clock.SetTime(clock.Now().Add(30 * time.Second))
		g.Expect(requestedAt(g)).To(Equal(now()))
	})
	t.Run("When the Cluster is paused, it should change nothing", func(t *testing.T) {
		g := NewWithT(t)
		last := now()
		s.Cluster.Spec.Paused = ptr.To(true)
		g.Expect(management.Update(ctx, s.Cluster)).To(Succeed())
		clock.SetTime(clock.Now().Add(time.Hour))
		g.Expect(requestedAt(g)).To(Equal(last))
	})
}
