// SPDX-License-Identifier: Apache-2.0

package profile_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
)

const group = "infrastructure.cluster.x-k8s.io"

func template(kind string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"kind": kind, "spec": map[string]any{"template": map[string]any{"spec": spec}}}}
}

func falseFor(reason, message string) metav1.Condition {
	return metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

func TestEmbedded(t *testing.T) {
	for name, profiles := range map[string]*profile.Profiles{"for any platform": profile.Embedded(), "without a file": made(t, "")} {
		t.Run("When there are profiles "+name+", it should have the embedded ones", func(t *testing.T) {
			g := NewWithT(t)
			kind := profiles.For(schema.GroupKind{Group: group, Kind: "AWSMachineTemplate"})
			g.Expect(kind.Known()).To(BeTrue())
			g.Expect(kind.Read(template("AWSMachineTemplate", map[string]any{"instanceType": "m5.large"})).InstanceType).To(Equal("m5.large"))
			g.Expect(profiles.Problem()).NotTo(HaveOccurred())
			g.Expect(profiles.Sequence()).To(BeZero())
		})
	}

	t.Run("When a kind has no profile, it should go by what holds for every kind", func(t *testing.T) {
		g := NewWithT(t)
		kind := profile.Embedded().For(schema.GroupKind{Group: group, Kind: "UnheardOfMachine"})
		g.Expect(kind.Known()).To(BeFalse())
		g.Expect(kind.Read(template("UnheardOfMachineTemplate", map[string]any{"instanceType": "m5.large"})).InstanceType).To(BeEmpty())
		means, ok := kind.Means(falseFor("VMProvisionFailed", "QuotaExceeded: raise it"), infrastructure.Question{})
		g.Expect(ok).To(BeTrue())
		g.Expect(means).To(Equal(infrastructure.NoQuota))
		means, _ = kind.Means(metav1.Condition{
			Type: clusterv1.MachineInfrastructureReadyCondition, Status: metav1.ConditionFalse, Reason: clusterv1.MachineInfrastructureDeletedReason,
		}, infrastructure.Question{Exists: true})
		g.Expect(means).To(Equal(infrastructure.Terminated), "as Cluster API calls it")
	})
}

func made(t *testing.T, path string) *profile.Profiles {
	t.Helper()
	profiles, err := profile.New(path)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return profiles
}

const overlay = `
- apiGroup: infrastructure.cluster.x-k8s.io
  kind: AWSMachine
  template:
    instanceType: [{path: "metadata.annotations['example.org/type']"}]
  conditions:
    - {means: InsufficientCapacity, reasons: [InstanceTerminated]}
- apiGroup: infrastructure.example.org
  kind: RackMachine
  template:
    capacity:
      cpu: [{path: spec.template.spec.cores}]
  conditions:
    - {means: InsufficientCapacity, words: [RackFull]}
    - {means: Broken, words: [RackOnFire]}
`

func TestFile(t *testing.T) {
	rack := schema.GroupKind{Group: "infrastructure.example.org", Kind: "RackMachine"}
	aws := schema.GroupKind{Group: group, Kind: "AWSMachine"}

	t.Run("When the file corrects a kind, adds one and has a mistake, it should name the mistake and use the rest", func(t *testing.T) {
		g := NewWithT(t)
		path := filepath.Join(t.TempDir(), "profiles.yaml")
		g.Expect(os.WriteFile(path, []byte(overlay), 0o600)).To(Succeed())
		profiles := made(t, path)
		g.Expect(profiles.Problem()).To(MatchError(And(
			ContainSubstring(`[1].conditions[1].means: "Broken" is not one of InsufficientCapacity, QuotaExceeded`), HaveSuffix("the rest of it is in use"))))
		g.Expect(profiles.For(rack).Read(template("RackMachineTemplate", map[string]any{"cores": int64(8)})).Capacity).To(HaveKeyWithValue(BeEquivalentTo("cpu"), "8"))
		means, _ := profiles.For(rack).Means(falseFor("NotReady", "RackFull: r4"), infrastructure.Question{})
		g.Expect(means).To(Equal(infrastructure.NoCapacity))

		object := template("AWSMachineTemplate", map[string]any{"instanceType": "m5.large", "marketType": "Spot"})
		object.SetAnnotations(map[string]string{"example.org/type": "ours"})
		facts := profiles.For(aws).Read(object)
		g.Expect(facts.InstanceType).To(Equal("ours"))
		g.Expect(facts.CapacityType).To(Equal(infrastructure.Spot), "a field that the file doesn't name stays")
		means, _ = profiles.For(aws).Means(falseFor("InstanceTerminated", ""), infrastructure.Question{})
		g.Expect(means).To(Equal(infrastructure.NoCapacity), "the file's rules come first")
	})

	t.Run("When the file changes, it should follow, and keep the last profiles while it is no list", func(t *testing.T) {
		g := NewWithT(t)
		path := filepath.Join(t.TempDir(), "profiles.yaml")
		profiles := made(t, path)
		g.Expect(profiles.Problem()).NotTo(HaveOccurred())
		var notified atomic.Int32
		profiles.OnChange(func() { notified.Add(1) })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- profiles.Start(ctx) }()
		defer func() { cancel(); g.Expect(<-done).To(Succeed()) }()

		before := profiles.Sequence()
		write := func(content string) {
			g.Expect(os.WriteFile(path+".new", []byte(content), 0o600)).To(Succeed())
			g.Expect(os.Rename(path+".new", path)).To(Succeed())
		}
		write(overlay)
		g.Eventually(func() bool { return profiles.For(rack).Known() }).Should(BeTrue())
		g.Expect(profiles.Sequence()).To(BeNumerically(">", before))
		g.Eventually(notified.Load).Should(BeNumerically(">", 0))

		write("kind: AWSMachine")
		g.Eventually(profiles.Problem).Should(MatchError(And(ContainSubstring("isn't a list of profiles"), HaveSuffix("the profiles read before stay in use"))))
		g.Expect(profiles.For(rack).Known()).To(BeTrue())

		write(overlay)
		g.Eventually(func() string { return profiles.Problem().Error() }).Should(ContainSubstring("Broken"))
		g.Expect(os.Remove(path)).To(Succeed())
		g.Eventually(func() bool { return profiles.For(rack).Known() }).Should(BeFalse())
		g.Expect(profiles.Problem()).NotTo(HaveOccurred())
	})

	t.Run("When a file has many mistakes, it should name the first ten", func(t *testing.T) {
		g := NewWithT(t)
		path := filepath.Join(t.TempDir(), "profiles.yaml")
		g.Expect(os.WriteFile(path, []byte(strings.Repeat("- 1\n", 12)), 0o600)).To(Succeed())
		g.Expect(made(t, path).Problem()).To(MatchError(ContainSubstring("; and 2 more")))
	})
}
