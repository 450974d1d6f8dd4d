// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"testing"
	"time"

	kstatus "github.com/fluxcd/cli-utils/pkg/kstatus/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/apply"
)

const statusNamespace = "statuses"

var statusFields = apply.StatusFields{
	Names: []string{"observedGeneration", "autoNode", "version"}, Conditions: []string{v1beta1.ValidConfiguration, v1beta1.AutoNodeEnabled},
}

// full is a status in which everything is set, as the operator holds it.
func full() v1beta1.HostedClusterStatus {
	then := metav1.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	return v1beta1.HostedClusterStatus{
		ObservedGeneration: 1,
		Conditions: []metav1.Condition{
			{Type: v1beta1.ValidConfiguration, Status: metav1.ConditionTrue, Reason: v1beta1.AsExpectedReason, LastTransitionTime: then},
			{Type: v1beta1.AutoNodeEnabled, Status: metav1.ConditionTrue, Reason: v1beta1.AsExpectedReason, LastTransitionTime: then},
		},
		AutoNode: &v1beta1.AutoNodeStatus{
			State: v1beta1.AutoNodeStateEnabled, NodeCount: ptr.To(int32(2)), DrainStartedTime: ptr.To(scalar.NewTime(then.Time)),
			NodeVersions: []v1beta1.NodeVersion{{Version: "1.36.3", Count: 1}, {Version: "1.36.2", Count: 1}},
		},
		Version: &v1beta1.VersionStatus{
			NodeVersion: "1.36.3",
			Desired:     &v1beta1.DesiredVersion{Version: "1.36.3", Image: "registry.example/release@sha256:1363"},
			History:     []v1beta1.UpdateHistory{{State: v1beta1.UpdatePartial, Version: "1.36.3", Image: "registry.example/release@sha256:1363", StartedTime: scalar.NewTime(then.Time)}},
		},
	}
}

func typesOf(hostedCluster *v1beta1.HostedCluster) []string {
	var types []string
	for _, condition := range hostedCluster.Status.Conditions {
		types = append(types, condition.Type)
	}
	return types
}

func TestNewStatus(t *testing.T) {
	const namespace = "new-status"
	admin := clusters.Management.Client
	NewWithT(t).Expect(admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	in := metav1.ObjectMeta{Namespace: namespace, Name: "new"}
	for kind, object := range map[string]client.Object{
		"HostedCluster": &v1beta1.HostedCluster{
			ObjectMeta: in, Spec: v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: "registry.example/release:1.36.3"}},
		},
		"ControlPlaneComponent": &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1beta1.KarpenterComponent}},
		"CapacityAccount":       &autonodev1alpha1.CapacityAccount{ObjectMeta: metav1.ObjectMeta{Name: "new-status"}},
		"CapacityLease":         &autonodev1alpha1.CapacityLease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: autonodev1alpha1.LeaseName}},
		"InstanceTypeCatalog": &v1alpha1.InstanceTypeCatalog{ObjectMeta: in, Spec: v1alpha1.InstanceTypeCatalogSpec{
			TemplateRef: v1alpha1.InfrastructureTemplateReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "KwokMachineTemplate", Name: "c2"}, InstanceTypes: []v1alpha1.CatalogInstanceType{},
		}},
	} {
		t.Run("When a "+kind+" is new, it should show tools that no program of ours has seen it", func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(admin.Create(t.Context(), object)).To(Succeed())
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			g.Expect(err).NotTo(HaveOccurred())
			result, err := kstatus.Compute(&unstructured.Unstructured{Object: content})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.Status).To(Equal(kstatus.InProgressStatus))
		})
	}
}

func TestStatus(t *testing.T) {
	ctx, admin := t.Context(), clusters.Management.Client
	NewWithT(t).Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: statusNamespace}})).To(Succeed())
	create := func(g Gomega, name string) *v1beta1.HostedCluster {
		hostedCluster := &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: statusNamespace, Name: name},
			Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: "registry.example/release:1.36.3"}},
		}
		g.Expect(admin.Create(ctx, hostedCluster)).To(Succeed())
		return hostedCluster
	}
	live := func(g Gomega, of client.Object) *v1beta1.HostedCluster {
		hostedCluster := &v1beta1.HostedCluster{}
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(of), hostedCluster)).To(Succeed())
		return hostedCluster
	}
	// platform is another manager, which applies a condition and never forces anything.
	platform := func(of client.Object, value metav1.ConditionStatus) error {
		theirs := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
			"type": "Platform", "status": string(value), "reason": "Platform", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
		}}}}}
		theirs.SetGroupVersionKind(v1beta1.GroupVersion.WithKind("HostedCluster"))
		theirs.SetNamespace(of.GetNamespace())
		theirs.SetName(of.GetName())
		return admin.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(theirs), client.FieldOwner("platform"))
	}
	// off is what is left of a status when AutoNode is turned off.
	off := func(hostedCluster *v1beta1.HostedCluster) {
		hostedCluster.Status.AutoNode = nil
		hostedCluster.Status.Version.NodeVersion = ""
		meta.RemoveStatusCondition(&hostedCluster.Status.Conditions, v1beta1.ValidConfiguration)
	}
	for _, before := range []struct {
		name, how string
		write     func(g Gomega, hostedCluster *v1beta1.HostedCluster)
	}{
		{"applied", "an apply", func(g Gomega, hostedCluster *v1beta1.HostedCluster) {
			g.Expect(apply.Status(ctx, admin, hostedCluster, statusFields)).To(Succeed())
		}},
		{"patched", "an earlier version's merge patch", func(g Gomega, hostedCluster *v1beta1.HostedCluster) {
			config := rest.CopyConfig(clusters.Management.Config)
			config.UserAgent = apply.FieldOwner
			earlier, err := client.New(config, client.Options{Scheme: admin.Scheme()})
			g.Expect(err).NotTo(HaveOccurred())
			empty := hostedCluster.DeepCopy()
			empty.Status = v1beta1.HostedClusterStatus{}
			g.Expect(earlier.Status().Patch(ctx, hostedCluster, client.MergeFrom(empty))).To(Succeed())
		}},
		{"restored", "a backup that was restored", func(g Gomega, hostedCluster *v1beta1.HostedCluster) {
			g.Expect(admin.Status().Update(ctx, hostedCluster, client.FieldOwner("restore"))).To(Succeed())
		}},
	} {
		t.Run("When a field goes whose value came by "+before.how+", it should be gone, and others' stay", func(t *testing.T) {
			g := NewWithT(t)
			hostedCluster := create(g, before.name)
			hostedCluster.Status = full()
			before.write(g, hostedCluster)
			held := live(g, hostedCluster)
			held.Status.Operator = "autonode-system/a"
			g.Expect(admin.Status().Update(ctx, held, client.FieldOwner("holder"))).To(Succeed())
			g.Expect(platform(hostedCluster, metav1.ConditionTrue)).To(Succeed())

			after := live(g, hostedCluster)
			g.Expect(after.Status.AutoNode).To(BeComparableTo(full().AutoNode))
			after.Status.AutoNode.NodeCount = ptr.To(int32(1))
			after.Status.AutoNode.DrainStartedTime = nil
			after.Status.AutoNode.NodeVersions = []v1beta1.NodeVersion{{Version: "1.37.1", Count: 1}, {Version: "1.36.3", Count: 1}}
			g.Expect(apply.Status(ctx, admin, after, statusFields)).To(Succeed())
			read := live(g, hostedCluster)
			g.Expect(read.Status).To(BeComparableTo(after.Status), "the versions newest first, as they were given")
			g.Expect(after.ResourceVersion).To(Equal(read.ResourceVersion))

			off(after)
			g.Expect(apply.Status(ctx, admin, after, statusFields)).To(Succeed())
			read = live(g, hostedCluster)
			g.Expect(read.Status.AutoNode).To(BeNil())
			g.Expect(typesOf(read)).To(ConsistOf(v1beta1.AutoNodeEnabled, "Platform"))
			g.Expect(read.Status.Version).To(BeComparableTo(after.Status.Version))
			g.Expect(read.Status.Operator).To(Equal("autonode-system/a"))
			g.Expect(after.ResourceVersion).To(Equal(read.ResourceVersion))
		})
	}

	t.Run("When another manager has a condition, each should go on applying its own without a conflict or a write", func(t *testing.T) {
		g := NewWithT(t)
		ours := create(g, "shared")
		g.Expect(platform(ours, metav1.ConditionTrue)).To(Succeed())
		ours = live(g, ours)
		conditions := ours.Status.Conditions
		ours.Status = full()
		ours.Status.Conditions = append(conditions, ours.Status.Conditions...)
		g.Expect(apply.Status(ctx, admin, ours, statusFields)).To(Succeed())

		settled := live(g, ours).ResourceVersion
		g.Expect(platform(ours, metav1.ConditionTrue)).To(Succeed())
		g.Expect(apply.Status(ctx, admin, ours, statusFields)).To(Succeed())
		g.Expect(live(g, ours).ResourceVersion).To(Equal(settled))

		g.Expect(platform(ours, metav1.ConditionFalse)).To(Succeed())
		ours.ResourceVersion = live(g, ours).ResourceVersion // and the old condition in the status
		ours.Status.AutoNode.NodeCount = ptr.To(int32(3))
		g.Expect(apply.Status(ctx, admin, ours, statusFields)).To(Succeed())
		read := live(g, ours)
		g.Expect(read.Status.AutoNode.NodeCount).To(HaveValue(BeEquivalentTo(3)))
		g.Expect(read.Status.Conditions).To(ContainElement(And(HaveField("Type", "Platform"), HaveField("Status", metav1.ConditionFalse))))
	})

	t.Run("When another client has overwritten our fields, it should restore them", func(t *testing.T) {
		g := NewWithT(t)
		ours := create(g, "overwritten")
		ours.Status = full()
		g.Expect(apply.Status(ctx, admin, ours, statusFields)).To(Succeed())
		edited := live(g, ours)
		edited.Status.AutoNode.NodeCount, edited.Status.AutoNode.Message = ptr.To(int32(99)), "hello"
		g.Expect(admin.Status().Update(ctx, edited, client.FieldOwner("vandal"))).To(Succeed())
		ours.ResourceVersion = edited.ResourceVersion
		g.Expect(apply.Status(ctx, admin, ours, statusFields)).To(Succeed())
		g.Expect(live(g, ours).Status).To(BeComparableTo(ours.Status))
	})

	t.Run("When it was made from a status that has changed since, it should be a conflict and change nothing", func(t *testing.T) {
		g := NewWithT(t)
		stale := create(g, "stale")
		newer := stale.DeepCopy()
		newer.Status = full()
		g.Expect(apply.Status(ctx, admin, newer, statusFields)).To(Succeed())
		stale.Status = full()
		stale.Status.AutoNode.DrainStartedTime = ptr.To(scalar.Now())
		err := apply.Status(ctx, admin, stale, statusFields)
		g.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
		g.Expect(err).To(MatchError(ContainSubstring("HostedCluster " + statusNamespace + "/stale")))
		g.Expect(live(g, stale).ResourceVersion).To(Equal(newer.ResourceVersion))
	})

	t.Run("When the object is gone, it should report that and not recreate it", func(t *testing.T) {
		g := NewWithT(t)
		gone := create(g, "gone")
		g.Expect(admin.Delete(ctx, gone)).To(Succeed())
		gone.Status = full()
		g.Expect(apierrors.IsNotFound(apply.Status(ctx, admin, gone, statusFields))).To(BeTrue())
		g.Expect(apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(gone), gone))).To(BeTrue())
	})
}
