// SPDX-License-Identifier: Apache-2.0

package component

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/guest/watch"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/payload"
)

// noPullSecrets are of HostedClusters that name none.
type noPullSecrets struct{}

func (noPullSecrets) Get(context.Context, *v1beta1.HostedCluster) (*corev1.Secret, error) {
	return nil, nil
}

// installed returns the step, and a Scope of a hosted cluster, with a management cluster in memory.
func installed(t *testing.T) (*Component, *scope.Scope, *events.FakeRecorder) {
	t.Helper()
	g := NewWithT(t)
	scheme, err := scopetest.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	var uids atomic.Int64
	management := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper()).WithTypeConverters(managedfields.NewDeducedTypeConverter()).
		WithStatusSubresource(&clusterv1.Cluster{}, &v1beta1.ControlPlaneComponent{}, &appsv1.Deployment{}).
		WithInterceptorFuncs(interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			object.SetUID(types.UID(fmt.Sprint(uids.Add(1))))
			return c.Create(ctx, object, options...)
		}}).Build()
	clusters := scopetest.Clusters{Management: scopetest.Cluster{Client: management}}
	s := clusters.NewScope(t, "blue")
	s.Guest.Config = &rest.Config{Host: "https://blue.example:6443"}
	kinds := runtime.NewScheme()
	g.Expect(watch.AddToScheme(kinds)).To(Succeed())
	s.Guest.Cached, s.Guest.Complete = fake.NewClientBuilder().WithScheme(kinds).Build(), true
	recorder := events.NewFakeRecorder(100)
	c := New(Config{Management: management, Applier: apply.New(), Recorder: recorder, PullSecrets: noPullSecrets{}, Clock: clock.RealClock{}})
	return c, s, recorder
}

// resolved has the payload of a version.
func resolved(s *scope.Scope, version string) {
	s.Release = &payload.Release{Version: version, Image: "registry.example/release@sha256:" + version}
	s.Karpenter.Image = "registry.example/autonode/karpenter-clusterapi@sha256:" + strings.Repeat(version[len(version)-1:], 64)
}

func TestAsleep(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	c, s, recorder := installed(t)
	deployment := func() *appsv1.Deployment {
		return scopetest.Get(ctx, g, c.Management, s.ControlPlaneNamespace, v1beta1.KarpenterComponent, &appsv1.Deployment{})
	}
	// run runs a step with the component that the reconciler would read: the simulated cluster doesn't answer an apply of a status with it.
	run := func(t *testing.T, step scope.Step) {
		t.Helper()
		component := scopetest.Get(ctx, NewWithT(t), c.Management, s.ControlPlaneNamespace, v1beta1.KarpenterComponent, &v1beta1.ControlPlaneComponent{})
		s.Component.ResourceVersion = component.ResourceVersion
		_, err := step.Reconcile(ctx, s)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
	}
	// settle runs the steps, and in between does what the Deployment's controller does.
	settle := func(available int32) {
		t.Helper()
		for range 3 {
			run(t, c)
			run(t, c.Replicas())
			d := deployment()
			replicas := ptr.Deref(d.Spec.Replicas, 1)
			d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = replicas, replicas, min(replicas, available)
			g.Expect(c.Management.Status().Update(ctx, d)).To(Succeed())
		}
	}
	is := func(conditionType string) string {
		c := meta.FindStatusCondition(s.Component.Status.Conditions, conditionType)
		return strings.TrimSuffix(string(c.Status)+"/"+c.Reason+": "+c.Message, ": ")
	}
	resolved(s, "1.36.3")
	settle(2)
	g.Expect([]string{is(v1beta1.RolloutComplete), is(v1beta1.Available), is(v1beta1.Ready)}).To(HaveEach("True/AsExpected"))

	t.Run("When the cluster is falling asleep, Karpenter should go on", func(t *testing.T) {
		s.Sleep = scope.Sleep{Until: "later", Message: "falling asleep"}
		settle(2)
		NewWithT(t).Expect(deployment().Spec.Replicas).To(HaveValue(BeEquivalentTo(1)))
		NewWithT(t).Expect(is(v1beta1.Available)).To(Equal("True/AsExpected"))
	})
	t.Run("When the cluster is asleep, Karpenter should have no replica, and be rolled out as such", func(t *testing.T) {
		g := NewWithT(t)
		s.Sleep = scope.Sleep{Until: "later", Asleep: true, Message: "asleep until later"}
		settle(2)
		g.Expect(deployment().Spec.Replicas).To(HaveValue(BeZero()))
		g.Expect(is(v1beta1.RolloutComplete)).To(Equal("True/AsExpected"))
		g.Expect([]string{is(v1beta1.Available), is(v1beta1.Ready)}).To(HaveEach("False/Asleep: asleep until later"))
	})
	t.Run("When a payload comes meanwhile, it should be applied without a replica", func(t *testing.T) {
		g := NewWithT(t)
		resolved(s, "1.36.4")
		run(t, c)
		g.Expect(deployment().Spec.Replicas).To(HaveValue(BeZero()), "not even for a moment")
		settle(2)
		g.Expect(deployment().Spec).To(And(HaveField("Replicas", HaveValue(BeZero())),
			HaveField("Template.Spec.Containers", ConsistOf(HaveField("Image", s.Karpenter.Image)))))
		g.Expect(s.Component.Status.Version).To(Equal("1.36.4"))
		g.Expect(is(v1beta1.RolloutComplete)).To(Equal("True/AsExpected"))
		g.Expect(is(v1beta1.Available)).To(Equal("False/Asleep: asleep until later"))
	})
	t.Run("When no payload is resolved, Karpenter should still have no replica", func(t *testing.T) {
		g := NewWithT(t)
		live := deployment()
		g.Expect(c.scale(ctx, live, 2)).To(Succeed())
		s.Release = nil
		run(t, c)
		run(t, c.Replicas())
		g.Expect(deployment().Spec.Replicas).To(HaveValue(BeZero()))
		g.Expect(is(v1beta1.Available)).To(Equal("False/Asleep: asleep until later"))
	})
	t.Run("When it is paused meanwhile, it should report the pause", func(t *testing.T) {
		s.Mode = scope.Paused
		run(t, c.Replicas())
		NewWithT(t).Expect(is(v1beta1.Available)).To(HavePrefix("False/Paused"))
		s.Mode = scope.On
	})
	t.Run("When the cluster wakes, Karpenter should have its replicas again, without a warning of an outage", func(t *testing.T) {
		g := NewWithT(t)
		resolved(s, "1.36.4")
		settle(2) // asleep
		since := metav1.Unix(0, 0)
		meta.FindStatusCondition(s.Component.Status.Conditions, v1beta1.Available).LastTransitionTime = since
		s.Sleep = scope.Sleep{}
		settle(0)
		g.Expect(deployment().Spec.Replicas).To(HaveValue(BeEquivalentTo(1)))
		g.Expect(is(v1beta1.RolloutComplete)).To(Equal("False/RollingOut: 0 of 1 updated replicas are available"), "it starts, and isn't degraded")
		available := meta.FindStatusCondition(s.Component.Status.Conditions, v1beta1.Available)
		g.Expect(available.Reason).To(Equal(v1beta1.ReplicasUnavailableReason))
		g.Expect(available.LastTransitionTime.Time).To(BeTemporally(">", since.Time))
		settle(2)
		g.Expect([]string{is(v1beta1.RolloutComplete), is(v1beta1.Available), is(v1beta1.Ready)}).To(HaveEach("True/AsExpected"))
		for len(recorder.Events) > 0 {
			g.Expect(<-recorder.Events).To(HavePrefix(corev1.EventTypeNormal))
		}
	})
}
