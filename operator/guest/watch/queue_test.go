// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/operator/guest/store"
)

func TestRates(t *testing.T) {
	t.Run("When a guest's objects change without end, its events should be delayed, and no other guest's", func(t *testing.T) {
		g := NewWithT(t)
		clk := clocktesting.NewFakePassiveClock(time.Now())
		r := newRates(clk)
		busy, calm := types.NamespacedName{Name: "busy"}, types.NamespacedName{Name: "calm"}
		for range eventsAtOnce {
			g.Expect(r.delay(busy)).To(BeZero())
		}
		g.Expect(r.exceeded(busy)).To(BeFalse())
		g.Expect(r.delay(busy)).To(Equal(Delay))
		g.Expect(r.exceeded(busy)).To(BeTrue())
		g.Expect(r.delay(calm)).To(BeZero())
		g.Expect(r.exceeded(calm)).To(BeFalse())
		clk.SetTime(clk.Now().Add(time.Minute))
		g.Expect(r.delay(busy)).To(BeZero())
		g.Expect(r.exceeded(busy)).To(BeFalse())
	})
}

func TestShrink(t *testing.T) {
	large := map[string]string{"autonode.io/kept": "yes", "karpenter.sh/nodepool": "general"}
	for i := range 1000 {
		large[fmt.Sprintf("example.com/%d", i)] = strings.Repeat("x", 1000)
	}
	meta := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "a", Labels: large, Annotations: large, Finalizers: []string{"karpenter.sh/termination"}}
	}

	t.Run("When metadata is as large as an API server takes, only ours and Karpenter's should be kept", func(t *testing.T) {
		g := NewWithT(t)
		object := &metav1.PartialObjectMetadata{ObjectMeta: meta()}
		_, err := shrink(object)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(object.Labels).To(Equal(map[string]string{"autonode.io/kept": "yes", "karpenter.sh/nodepool": "general"}))
		g.Expect(object.Annotations).To(HaveLen(2))
		g.Expect(object.Finalizers).To(HaveLen(1))
	})

	t.Run("When a node has all that a node can have, what is counted should be kept", func(t *testing.T) {
		g := NewWithT(t)
		node := &corev1.Node{ObjectMeta: meta()}
		node.Status.NodeInfo.KubeletVersion = strings.Repeat("v", 1<<20)
		_, err := shrink(node)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Labels).To(Equal(map[string]string{"karpenter.sh/nodepool": "general"}))
		g.Expect(node.Size()).To(BeNumerically("<", 1024))
	})

	t.Run("When a NodePool is large, its budgets, replicas and limit of nodes should be kept", func(t *testing.T) {
		g := NewWithT(t)
		pool := &karpv1.NodePool{ObjectMeta: meta()}
		pool.Spec.Disruption.Budgets = make([]karpv1.Budget, 1000)
		pool.Spec.Template.Annotations = large
		pool.Spec.Replicas = ptr.To(int64(3))
		pool.Spec.Limits = karpv1.Limits{"cpu": resource.MustParse("8"), "nodes": resource.MustParse("3" + strings.Repeat("1", 1<<10))}
		_, err := shrink(pool)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pool.Spec.Disruption.Budgets).To(HaveLen(50))
		g.Expect(pool.Spec.Template).To(BeZero())
		g.Expect(pool.Spec.Replicas).To(HaveValue(Equal(int64(3))))
		g.Expect(pool.Spec.Limits).To(HaveLen(1))
		nodes := pool.Spec.Limits["nodes"]
		g.Expect(len(nodes.String())).To(BeNumerically("<", 32))
	})

	long := strings.Repeat("x", 1<<20)
	var many []string
	taints, list, ours := []corev1.Taint{}, corev1.ResourceList{}, map[string]string{}
	for i := range 10_000 {
		many = append(many, fmt.Sprintf("example.com/%060d", i))
		taints = append(taints, corev1.Taint{Key: fmt.Sprintf("example.com/%040d", i)})
		list[corev1.ResourceName(fmt.Sprintf("example.com/%040d", i))] = resource.MustParse("1")
		ours[fmt.Sprintf("a.karpenter.sh/%040d", i)] = "x"
	}
	conditions, owners := make([]status.Condition, 1000), make([]metav1.OwnerReference, maxOwners)
	for i := range conditions {
		conditions[i] = status.Condition{Type: long, Status: metav1.ConditionStatus(long), Reason: long, Message: long}
	}
	for i := range owners {
		owners[i] = metav1.OwnerReference{APIVersion: long, Kind: long, Name: long, UID: types.UID(long)}
	}
	budgets := make([]karpv1.Budget, 100)
	for i := range budgets {
		budgets[i] = karpv1.Budget{Nodes: long, Schedule: ptr.To(long), Reasons: make([]karpv1.DisruptionReason, 1000)}
	}
	templates := make([]v1alpha1.TemplateStatus, 1000)
	for i := range templates {
		templates[i] = v1alpha1.TemplateStatus{Source: long, InstanceType: long, Version: long, Image: v1alpha1.ImageOlder}
	}
	for name, object := range map[string]client.Object{
		"metadata with 10,000 finalizers":        &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Finalizers: many, GenerateName: long}},
		"metadata with finalizers of 1 MiB":      &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{long}}},
		"metadata with 10,000 labels of ours":    &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Labels: ours, Annotations: ours}},
		"metadata with owners of 1 MiB":          &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owners}},
		"a NodePool with 10,000 finalizers":      &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Finalizers: many}},
		"a NodePool with budgets of 1 MiB":       &karpv1.NodePool{Spec: karpv1.NodePoolSpec{Disruption: karpv1.Disruption{Budgets: budgets}}},
		"a NodeClaim with 10,000 taints":         &karpv1.NodeClaim{Spec: karpv1.NodeClaimSpec{Taints: taints, StartupTaints: taints}},
		"a NodeClaim with 10,000 resources":      &karpv1.NodeClaim{Status: karpv1.NodeClaimStatus{Capacity: list, Allocatable: list}},
		"a NodeClaim with IDs of 1 MiB":          &karpv1.NodeClaim{Status: karpv1.NodeClaimStatus{ProviderID: long, NodeName: long, ImageID: long}},
		"a NodeClaim with a node class of 1 MiB": &karpv1.NodeClaim{Spec: karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{Group: long, Kind: long, Name: long}}},
		"a NodeClaim with conditions of 1 MiB":   &karpv1.NodeClaim{Status: karpv1.NodeClaimStatus{Conditions: conditions}},
		"a node class with a status of 1 MiB":    &v1alpha1.ClusterAPINodeClass{Status: v1alpha1.ClusterAPINodeClassStatus{Cheapest: long, Version: long, Conditions: conditions, Templates: templates}},
		"a node class with patches of 1 MiB":     &v1alpha1.ClusterAPINodeClass{Spec: v1alpha1.ClusterAPINodeClassSpec{Version: long, BootstrapPatches: []v1alpha1.BootstrapPatches{{Kind: long}}}},
		"an upgrade of 1 MiB": &v1alpha1.ClusterAPINodeClass{Status: v1alpha1.ClusterAPINodeClassStatus{NodeUpgrade: &v1alpha1.NodeUpgradeStatus{
			Image: long, Version: long, Phase: v1alpha1.NodeUpgradeHalted, Message: long, Canaries: many, FailedNodes: many,
			SoakStartTime: &scalar.Time{Malformed: long}}}},
		"a Node of 1 MiB": &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"karpenter.sh/nodepool": long}}, Spec: corev1.NodeSpec{ProviderID: long, Taints: taints},
			Status: corev1.NodeStatus{Capacity: list, Allocatable: list, NodeInfo: corev1.NodeSystemInfo{KubeletVersion: long}}},
		"a definition of 1 MiB": &apiextensionsv1.CustomResourceDefinition{Status: apiextensionsv1.CustomResourceDefinitionStatus{
			StoredVersions: many, Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Message: long}}}},
	} {
		t.Run("When there is "+name+", little of it should be kept", func(t *testing.T) {
			g := NewWithT(t)
			kept, err := shrink(object)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(store.Size(kept)).To(BeNumerically("<", 100<<10))
			again, err := shrink(kept)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(again).To(Equal(kept), "to shrink is idempotent")
		})
	}

	t.Run("When a guest has 5,000 nodes, half of what is allowed should be enough for it", func(t *testing.T) {
		g := NewWithT(t)
		node, claim := &corev1.Node{ObjectMeta: meta()}, &karpv1.NodeClaim{ObjectMeta: meta()}
		node.Labels, claim.Labels, claim.Annotations = map[string]string{"karpenter.sh/nodepool": "general"}, map[string]string{}, map[string]string{}
		for i := range 25 {
			claim.Labels[fmt.Sprintf("karpenter.k8s.example/label-%d", i)] = "some-value-of-an-instance-type"
		}
		for _, condition := range []string{"Launched", "Registered", "Initialized", "Consolidatable", "Drifted", "Ready"} {
			claim.Status.Conditions = append(claim.Status.Conditions, status.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: condition, Message: condition})
		}
		request := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "csr-abcde"}, Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: make([]byte, 1<<10), SignerName: certificatesv1.KubeletServingSignerName, Username: "system:node:general-abcde", Groups: []string{"system:nodes", "system:authenticated"}}}
		size := 0
		for _, object := range []any{node, claim, request, request, request} {
			kept, err := shrink(object)
			g.Expect(err).NotTo(HaveOccurred())
			size += store.Size(kept) + 256
		}
		g.Expect(5000 * size).To(BeNumerically("<", 64<<20))
	})

	t.Run("When an admin patches a node class's status in a loop, nothing should be reconciled for it", func(t *testing.T) {
		g := NewWithT(t)
		before := &v1alpha1.ClusterAPINodeClass{}
		after := before.DeepCopy()
		after.Status.Conditions = []status.Condition{{Type: "Spam", Message: "1"}}
		g.Expect(nodeClassDiffers(before, after)).To(BeFalse())
		after.Status.Version = "1.36.3"
		g.Expect(nodeClassDiffers(before, after)).To(BeTrue())
		after.Status.Version = before.Status.Version
		after.Status.Conditions[0] = status.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "NoTemplates"}
		g.Expect(nodeClassDiffers(before, after)).To(BeTrue())
		g.Expect(nodeClassDiffers(after, after.DeepCopy())).To(BeFalse())
	})
}

func TestShrinkUpgrade(t *testing.T) {
	names := func(n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprintf("general-%d", i))
		}
		return names
	}
	halted, at := v1alpha1.NodeUpgradeHalted, scalar.NewTime(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)).Stored()
	whole := func() *v1alpha1.NodeUpgradeStatus {
		return &v1alpha1.NodeUpgradeStatus{Image: "A", Version: "1.37.1", Phase: halted, Canaries: names(1), FailedNodes: names(2), SoakStartTime: &at, Message: "failed"}
	}
	for name, test := range map[string]struct{ report, want *v1alpha1.NodeUpgradeStatus }{
		"When it is as Karpenter reports it, it should stay": {
			report: whole(), want: whole(),
		},
		"When there are 101 names, a hundred should stay": {
			report: &v1alpha1.NodeUpgradeStatus{Phase: halted, Canaries: names(101), FailedNodes: names(101)},
			want:   &v1alpha1.NodeUpgradeStatus{Phase: halted, Canaries: names(100), FailedNodes: names(100)},
		},
		"When names aren't NodeClaims', they should go": {
			report: &v1alpha1.NodeUpgradeStatus{Phase: halted, Canaries: []string{"a b", "a", strings.Repeat("a", 254), ""}, FailedNodes: []string{"\x1b[2J"}},
			want:   &v1alpha1.NodeUpgradeStatus{Phase: halted, Canaries: []string{"a"}, FailedNodes: []string{}},
		},
		"When its phase is unknown, there should be none": {report: &v1alpha1.NodeUpgradeStatus{Image: "A", Phase: "Spam"}},
		"When its time is malformed, it should begin without one": {
			report: &v1alpha1.NodeUpgradeStatus{Phase: halted, SoakStartTime: &scalar.Time{Malformed: "noon"}},
			want:   &v1alpha1.NodeUpgradeStatus{Phase: halted},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			before, class := &v1alpha1.ClusterAPINodeClass{}, &v1alpha1.ClusterAPINodeClass{Status: v1alpha1.ClusterAPINodeClassStatus{NodeUpgrade: test.report}}
			_, err := shrink(class)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(cmp.Diff(test.want, class.Status.NodeUpgrade)).To(BeEmpty())
			g.Expect(nodeClassDiffers(before, class)).To(Equal(test.want != nil))
			g.Expect(nodeClassDiffers(class, class.DeepCopy())).To(BeFalse())
		})
	}

	t.Run("When texts are longer than a HostedCluster's status takes, they should be cut", func(t *testing.T) {
		g := NewWithT(t)
		long := strings.Repeat("ä", 1<<10)
		class := &v1alpha1.ClusterAPINodeClass{Status: v1alpha1.ClusterAPINodeClassStatus{NodeUpgrade: &v1alpha1.NodeUpgradeStatus{
			Image: long, Version: long, Phase: halted, Message: long}}}
		_, err := shrink(class)
		g.Expect(err).NotTo(HaveOccurred())
		upgrade := class.Status.NodeUpgrade
		g.Expect(len(upgrade.Image)).To(BeNumerically("<=", 512))
		g.Expect(len(upgrade.Version)).To(BeNumerically("<=", 64))
		g.Expect(len(upgrade.Message)).To(BeNumerically("<=", 1024))
	})
}
