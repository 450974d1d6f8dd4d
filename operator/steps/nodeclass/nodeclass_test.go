// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/nodeclass"
)

var clusters scopetest.Clusters

func TestMain(m *testing.M) { os.Exit(scopetest.Run(m, &clusters)) }

func TestNodeClass(t *testing.T) {
	NewWithT(t).Expect(clusters.InstallDefinitions()).To(Succeed())
	ctx, s := t.Context(), clusters.NewScope(t, "nodeclass")
	step := nodeclass.New(nodeclass.Config{Apply: apply.New()})
	reconcile := func(g Gomega) { g.Expect(scopetest.Reconcile(t, step, s)).To(Equal(scope.Result{})) }

	t.Run("When the guest has no default node class, it should make it, and admission should take it", func(t *testing.T) {
		g := NewWithT(t)
		reconcile(g)
		class := get(ctx, g, v1alpha1.DefaultNodeClass)
		g.Expect(class.Spec.InfrastructureTemplateSelectors).To(HaveLen(1))
		g.Expect(class.Spec.Bootstrap.ConfigTemplateRef.Name).To(Equal("default"))
	})

	t.Run("When a person edits what the HostedCluster declares, it should put it back, and leave what it doesn't say", func(t *testing.T) {
		g := NewWithT(t)
		class := get(ctx, g, v1alpha1.DefaultNodeClass)
		class.Spec.Version = "1.36.2"
		class.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To(int32(20))}
		class.Spec.Bootstrap.ConfigTemplateRef.Name = "another"
		metav1.SetMetaDataAnnotation(&class.ObjectMeta, "example.com/note", "mine")
		g.Expect(clusters.Guest.Client.Update(ctx, class)).To(Succeed())
		reconcile(g)
		class = get(ctx, g, v1alpha1.DefaultNodeClass)
		g.Expect(class.Spec.Bootstrap.ConfigTemplateRef.Name).To(Equal("default"))
		g.Expect(class.Spec.Version).To(Equal("1.36.2"))
		g.Expect(class.Spec.Kubelet.MaxPods).To(HaveValue(BeEquivalentTo(20)))
		g.Expect(class.Annotations).To(HaveKeyWithValue("example.com/note", "mine"))
	})

	t.Run("When the HostedCluster stops saying something, it should be removed", func(t *testing.T) {
		g := NewWithT(t)
		config := s.HostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI
		config.ScalableResourceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
		reconcile(g)
		g.Expect(get(ctx, g, v1alpha1.DefaultNodeClass).Spec.ScalableResourceSelector).NotTo(BeNil())
		config.ScalableResourceSelector = nil
		reconcile(g)
		g.Expect(get(ctx, g, v1alpha1.DefaultNodeClass).Spec.ScalableResourceSelector).To(BeNil())
	})

	t.Run("When a person deletes it, it should come back", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(clusters.Guest.Client.Delete(ctx, get(ctx, g, v1alpha1.DefaultNodeClass))).To(Succeed())
		reconcile(g)
		g.Expect(get(ctx, g, v1alpha1.DefaultNodeClass).Spec.Version).To(BeEmpty())
	})

	t.Run("When AutoNode is turned on again while it drained, every node class should be free to launch", func(t *testing.T) {
		g := NewWithT(t)
		mine := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{
			Name: "mine", Annotations: map[string]string{v1alpha1.DrainingAnnotation: "true", "example.com/note": "mine"},
		}}
		g.Expect(clusters.Guest.Client.Create(ctx, mine)).To(Succeed())
		reconcile(g)
		class := get(ctx, g, "mine")
		g.Expect(class.Annotations).To(Equal(map[string]string{"example.com/note": "mine"}))
		g.Expect(class.Labels).To(BeEmpty(), "an admin's node class isn't ours")
	})
}

func TestRollout(t *testing.T) {
	g := NewWithT(t)
	g.Expect(clusters.InstallDefinitions()).To(Succeed())
	ctx, s := t.Context(), clusters.NewScope(t, "nodeclass")
	step := nodeclass.New(nodeclass.Config{Apply: apply.New()})
	theirs := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}
	g.Expect(clusters.Guest.Client.Create(ctx, theirs)).To(Succeed())
	for _, test := range []struct{ name, rollout, want string }{
		{"When no rollout of Karpenter was complete yet, node classes should say nothing of one", "", ""},
		{"When one is complete, they should name it", "first", "first"},
		{"When the next is under way, they should name the one before", "", "first"},
		{"When that is complete, they should name it", "second", "second"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			s.Rollout = test.rollout
			scopetest.Reconcile(t, step, s)
			for _, name := range []string{v1alpha1.DefaultNodeClass, "theirs"} {
				g.Expect(get(ctx, g, name).Annotations[v1alpha1.RolloutAnnotation]).To(Equal(test.want), name)
			}
			version := get(ctx, g, "theirs").ResourceVersion
			scopetest.Reconcile(t, step, s)
			g.Expect(get(ctx, g, "theirs").ResourceVersion).To(Equal(version))
		})
	}
}

func TestStopped(t *testing.T) {
	g := NewWithT(t)
	g.Expect(clusters.InstallDefinitions()).To(Succeed())
	ctx, s := t.Context(), clusters.NewScope(t, "nodeclass")
	step := nodeclass.New(nodeclass.Config{Apply: apply.New(), Guest: func(context.Context, *v1beta1.HostedCluster) (*scope.Guest, time.Duration, error) {
		return s.Guest, 0, nil
	}})
	const name = "stopped"
	g.Expect(clusters.Guest.Client.Create(ctx, &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	now := time.Now()
	for _, test := range []struct {
		name string
		// reported is the status of LaunchAllowed by Karpenter, an hour ago or now; empty for no report.
		reported metav1.ConditionStatus
		justNow  bool
		mode     scope.Mode
		// available is the reason of the component's Available since then.
		available string
		since     time.Time
		want      string
	}{
		{"When Karpenter is available, it should write nothing", metav1.ConditionTrue, false, scope.On, v1beta1.AsExpectedReason, now.Add(-time.Hour), ""},
		{"When Karpenter was available a moment ago, it should write nothing", metav1.ConditionTrue, false, scope.On, v1beta1.ReplicasUnavailableReason, now, ""},
		{
			"When Karpenter has been unavailable for a while, it should report that", metav1.ConditionTrue, false, scope.On,
			v1beta1.ReplicasUnavailableReason, now.Add(-10 * time.Minute), v1alpha1.KarpenterUnavailableReason,
		},
		{
			"When Karpenter has reported since, it should leave that", metav1.ConditionTrue, true, scope.On,
			v1beta1.ReplicasUnavailableReason, now.Add(-10 * time.Minute), "",
		},
		{
			"When Karpenter has forbidden launches itself, it should leave that", metav1.ConditionFalse, false, scope.On,
			v1beta1.ReplicasUnavailableReason, now.Add(-10 * time.Minute), "",
		},
		{"When Karpenter is paused, it should report that", metav1.ConditionTrue, true, scope.Paused, v1beta1.PausedReason, now, v1alpha1.PausedReason},
		{
			"When Karpenter doesn't come back after the pause, it should report that", "", false, scope.On,
			v1beta1.ReplicasUnavailableReason, now.Add(-10 * time.Minute), v1alpha1.KarpenterUnavailableReason,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, s := NewWithT(t), *s
			class := get(ctx, g, name)
			if test.reported != "" {
				class.Status.Conditions = []status.Condition{{
					Type: v1alpha1.ConditionLaunchAllowed, Status: test.reported, Reason: "Karpenter", LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
				}}
				if test.justNow {
					class.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now)
				}
				g.Expect(clusters.Guest.Client.Status().Update(ctx, class)).To(Succeed())
			}
			s.Component = &v1beta1.ControlPlaneComponent{Status: v1beta1.ControlPlaneComponentStatus{Conditions: []metav1.Condition{{
				Type: v1beta1.Available, Status: metav1.ConditionFalse, Reason: test.available, LastTransitionTime: metav1.NewTime(test.since),
			}}}}
			if s.Mode = test.mode; test.mode == scope.Paused {
				s.Guest = nil
			}
			_, err := step.Reconcile(ctx, &s)
			g.Expect(err).NotTo(HaveOccurred())
			written := get(ctx, g, name)
			if test.want == "" {
				g.Expect(written.Status).To(Equal(class.Status))
				return
			}
			conditions := written.StatusConditions()
			for _, condition := range []*status.Condition{conditions.Get(v1alpha1.ConditionLaunchAllowed), conditions.Root()} {
				g.Expect(condition).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", test.want), HaveField("Message", ContainSubstring("platform team"))))
			}
			s.Guest = nil
			if test.mode == scope.On {
				s.Guest = &scope.Guest{Cached: clusters.Guest.Client, Live: clusters.Guest.Client, Complete: true}
			}
			scopetest.Reconcile(t, step, &s)
			g.Expect(get(ctx, g, name).ResourceVersion).To(Equal(written.ResourceVersion), "nothing changed")
		})
	}
}

func get(ctx context.Context, g Gomega, name string) *v1alpha1.ClusterAPINodeClass {
	return scopetest.Get(ctx, g, clusters.Guest.Client, "", name, &v1alpha1.ClusterAPINodeClass{})
}
