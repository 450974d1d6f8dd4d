// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/explain"
)

var web = client.ObjectKey{Namespace: "shop", Name: "web"}

// explained is an answer as lines, of which a table can have a few.
func explained(answer *explain.PodAnswer) string {
	lines := []string{string(answer.Decision), answer.Summary}
	for _, pool := range answer.NodePools {
		lines = append(lines, fmt.Sprintf("= %s %t: %s", pool.Name, pool.Fits, pool.Reason))
		for _, accepted := range pool.Accepted {
			lines = append(lines, fmt.Sprintf("+ %s %s %s %.2f", accepted.InstanceType, accepted.Zone, accepted.CapacityType, accepted.Price))
		}
		for _, refused := range pool.Refused {
			lines = append(lines, fmt.Sprintf("- %d %s %v", refused.Count, refused.Reason, refused.Names))
		}
	}
	for _, refused := range answer.Nodes {
		lines = append(lines, fmt.Sprintf("node %d %s %v", refused.Count, refused.Reason, refused.Names))
	}
	return strings.Join(lines, "\n")
}

type podCase struct {
	objects []client.Object
	want    string
}

func checkPods(t *testing.T, cases map[string]podCase) {
	t.Helper()
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			answer, err := simulate(t, test.objects...).Pod(t.Context(), web)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			if diff := cmp.Diff(strings.TrimSpace(test.want), explained(answer)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodWithoutFit(t *testing.T) {
	checkPods(t, map[string]podCase{
		"When a pod is too large, it should say what it needs and what the largest has": {
			[]client.Object{nodeClass(nil), nodePool("general", nil), pod("web", "64", nil)}, `
Unschedulable
Pod shop/web doesn't fit NodePool general
= general false: none of 4 instance types fits: needs 64 cpu with DaemonSets; the largest has 32
- 3 needs 64 cpu with DaemonSets; the largest has 32 [large medium small]
- 1 the NodePool requires kubernetes.io/arch In [amd64] [arm]`,
		},
		"When a DaemonSet makes a pod too large, it should name the DaemonSet": {
			[]client.Object{
				nodeClass(nil), nodePool("general", nil), pod("web", "31", nil), daemonSet("agent", "3", nil), daemonSet("small", "500m", nil),
				daemonSet("elsewhere", "8", map[string]string{corev1.LabelArchStable: "arm64"}),
			}, `
Unschedulable
Pod shop/web doesn't fit NodePool general
= general false: none of 4 instance types fits: needs 34.5 cpu with DaemonSets (3 for kube-system/agent); the largest has 32
- 3 needs 34.5 cpu with DaemonSets (3 for kube-system/agent); the largest has 32 [large medium small]
- 1 the NodePool requires kubernetes.io/arch In [amd64] [arm]`,
		},
		"When a pod requires an architecture that its NodePool excludes, it should name the label": {
			[]client.Object{nodeClass(nil), nodePool("general", nil), pod("web", "1", func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{corev1.LabelArchStable: "arm64"}
			})}, `
Unschedulable
Pod shop/web doesn't fit NodePool general
= general false: incompatible requirements, key kubernetes.io/arch, kubernetes.io/arch In [arm64] not in kubernetes.io/arch In [amd64]`,
		},
		"When the NodePool's limit is reached, it should say how much of it is left": {
			append(machine("n", "general", "small", "2", nil), nodeClass(nil), nodePool("general", func(p *karpv1.NodePool) {
				p.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("9")}
			}), pod("web", "4", nil)), `
Unschedulable
Pod shop/web doesn't fit NodePool general
= general false: none of 4 instance types fits: needs 4 cpu with DaemonSets; the largest has 2
- 1 needs 4 cpu with DaemonSets; the largest has 2 [small]
- 2 over the NodePool's limit of 9 cpu, of which 7 is unused [large medium]
- 1 the NodePool requires kubernetes.io/arch In [amd64] [arm]
node 1 exceeds node resources [n]`,
		},
		"When nothing launches from the fitting types, it should repeat why": {
			[]client.Object{nodeClass(func(class *v1alpha1.ClusterAPINodeClass) {
				class.Status.Templates[2].Unavailable = v1alpha1.TemplateFull
			}), nodePool("general", nil), pod("web", "16", nil)}, `
Unschedulable
Pod shop/web has to wait: it fits NodePool general, but no instance type that fits can be launched now
= general false: of 4 instance types, none that fits can be launched now: its source is at the size that its max-size annotation allows
- 1 its source is at the size that its max-size annotation allows [large]
- 2 needs 16 cpu with DaemonSets; the largest has 8 [medium small]
- 1 the NodePool requires kubernetes.io/arch In [amd64] [arm]`,
		},
		"When launches failed, it should say what the node class reports of them, and guess nothing": {
			[]client.Object{nodeClass(func(class *v1alpha1.ClusterAPINodeClass) {
				class.Status.Templates[2].Unavailable = v1alpha1.TemplateBackOff
				class.Status.Conditions = []status.Condition{{
					Type: v1alpha1.ConditionOfferingsAvailable, Status: metav1.ConditionFalse, Message: "nothing can be launched: InsufficientCapacity (1); 3 pods wait",
				}}
			}), nodePool("general", nil), pod("web", "16", nil)}, `
Unschedulable
Pod shop/web has to wait: it fits NodePool general, but no instance type that fits can be launched now
= general false: of 4 instance types, none that fits can be launched now: nothing can be launched: InsufficientCapacity (1); 3 pods wait
- 1 nothing can be launched: InsufficientCapacity (1); 3 pods wait [large]
- 2 needs 16 cpu with DaemonSets; the largest has 8 [medium small]
- 1 the NodePool requires kubernetes.io/arch In [amd64] [arm]`,
		},
		"When a quota of the infrastructure is exhausted, it should say which, though other types are available": {
			[]client.Object{nodeClass(func(class *v1alpha1.ClusterAPINodeClass) {
				class.Status.Templates[2].Unavailable = v1alpha1.TemplateQuota
				class.Status.Conditions = []status.Condition{{
					Type: v1alpha1.ConditionOfferingsAvailable, Status: metav1.ConditionTrue, Reason: v1alpha1.QuotaExhaustedReason,
					Message: `quota "on-demand P vCPUs" is exhausted, until 12:03:00 UTC (2 offerings)`,
				}}
			}), nodePool("general", nil), pod("web", "16", nil)}, `
Unschedulable
Pod shop/web has to wait: it fits NodePool general, but no instance type that fits can be launched now
= general false: of 4 instance types, none that fits can be launched now: quota "on-demand P vCPUs" is exhausted, until 12:03:00 UTC (2 offerings)
- 1 quota "on-demand P vCPUs" is exhausted, until 12:03:00 UTC (2 offerings) [large]
- 2 needs 16 cpu with DaemonSets; the largest has 8 [medium small]
- 1 the NodePool requires kubernetes.io/arch In [amd64] [arm]`,
		},
		"When the node class isn't ready, it should have its message": {
			[]client.Object{nodeClass(func(class *v1alpha1.ClusterAPINodeClass) {
				class.Status.Conditions = []status.Condition{{Type: status.ConditionReady, Status: metav1.ConditionFalse, Message: "no template matches pool=web"}}
			}), nodePool("general", func(p *karpv1.NodePool) { p.Status.Conditions = nil }), pod("web", "1", nil)}, `
Unschedulable
Pod shop/web doesn't fit NodePool general
= general false: its node class default isn't ready: no template matches pool=web`,
		},
		"When a pod requires spot, it should say what isn't offered as spot": {
			[]client.Object{nodeClass(nil), nodePool("general", nil), pod("web", "4", func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{karpv1.CapacityTypeLabelKey: "spot"}
			})}, `
Unschedulable
Pod shop/web doesn't fit NodePool general
= general false: none of 4 instance types fits: needs 4 cpu with DaemonSets; the largest has 2
- 1 needs 4 cpu with DaemonSets; the largest has 2 [small]
- 3 the pod requires karpenter.sh/capacity-type In [spot] [arm large medium]`,
		},
		"When no NodePool can be used, it should give each one's reason": {
			[]client.Object{
				nodeClass(nil),
				nodePool("tainted", func(p *karpv1.NodePool) {
					p.Spec.Template.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
					p.Spec.Weight = ptr.To(int32(5))
				}),
				nodePool("static", func(p *karpv1.NodePool) { p.Spec.Replicas = ptr.To(int64(1)); p.Spec.Weight = ptr.To(int32(4)) }),
				nodePool("unready", func(p *karpv1.NodePool) {
					p.StatusConditions().SetFalse(karpv1.ConditionTypeNodeClassReady, "NodeClassNotReady", "NodeClass has no templates")
					p.StatusConditions().SetFalse(status.ConditionReady, "NodeClassNotReady", "NodeClass has no templates")
					p.Spec.Weight = ptr.To(int32(3))
				}),
				nodePool("classless", func(p *karpv1.NodePool) {
					p.Spec.Template.Spec.NodeClassRef.Name = "gone"
					p.Spec.Weight = ptr.To(int32(2))
				}),
				nodePool("foreign", func(p *karpv1.NodePool) {
					p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "default"}
				}),
				pod("web", "1", nil),
			}, `
Unschedulable
Pod shop/web fits none of 5 NodePools
= tainted false: did not tolerate taint (taint=gpu:NoSchedule)
= static false: it is static (spec.replicas): it keeps a number of nodes and launches none for pending pods
= unready false: it isn't ready: NodeClass has no templates
= classless false: its instance types aren't known: node class gone doesn't exist; NodePool classless names it
= foreign false: its node class is of kind EC2NodeClass, whose instance types this program doesn't know`,
		},
		"When there is no NodePool, it should say so": {
			[]client.Object{pod("web", "1", nil)}, "Unschedulable\nPod shop/web gets no node: the cluster has no NodePool",
		},
		"When a volume's claim is missing, it should say so": {
			[]client.Object{nodeClass(nil), nodePool("general", nil), pod("web", "1", func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
			})}, "Unschedulable\nPod shop/web is ignored by Karpenter: getting persistent volume claim, persistentvolumeclaim \"data\" not found (PersistentVolumeClaim=data)",
		},
	})
}

func TestPodWithFit(t *testing.T) {
	checkPods(t, map[string]podCase{
		"When a NodePool fits, it should say what is launched, and why the others aren't": {
			[]client.Object{nodeClass(nil), nodePool("general", nil), pod("web", "4", nil)}, `
Launches
Pod shop/web needs a new node, which NodePool general can launch: 2 instance types, the cheapest medium at $0.200 an hour
= general true: 2 instance types fit
+ medium a on-demand 0.20
+ large a on-demand 0.80
- 1 needs 4 cpu with DaemonSets; the largest has 2 [small]
- 1 the NodePool requires kubernetes.io/arch In [amd64] [arm]`,
		},
		"When other pods wait too, it should count those that share the node, which may need more than the pod alone": {
			[]client.Object{nodeClass(nil), nodePool("general", nil), pod("web", "4", nil), pod("other", "4", nil), pod("third", "4", nil)}, `
Launches
Pod shop/web needs a new node, which NodePool general can launch for it and 2 other pods: 1 instance type, the cheapest large at $0.800 an hour
= general true: 2 instance types fit the pod alone
+ medium a on-demand 0.20
+ large a on-demand 0.80
- 1 needs 4 cpu with DaemonSets; the largest has 2 [small]
- 1 the NodePool requires kubernetes.io/arch In [amd64] [arm]`,
		},
		"When a node has room, it should name it": {
			append(machine("n", "general", "medium", "8", nil), nodeClass(nil), nodePool("general", nil), pod("web", "4", nil)),
			"Fits\nPod shop/web fits on node n",
		},
		"When a node is on its way, it should name the NodeClaim": {
			append(machine("n", "general", "medium", "8", func(node *corev1.Node, claim *karpv1.NodeClaim) {
				delete(node.Labels, karpv1.NodeInitializedLabelKey)
				claim.StatusConditions().SetUnknownWithReason(karpv1.ConditionTypeInitialized, "NodeNotReady", "the node isn't ready")
			}), nodeClass(nil), nodePool("general", nil), pod("web", "4", nil)),
			"Fits\nPod shop/web waits for NodeClaim claim-n, which Karpenter has launched",
		},
	})
	t.Run("When pods fit one by one but not together, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		answer, err := simulate(t, nodeClass(nil), nodePool("general", func(p *karpv1.NodePool) {
			p.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("8")}
		}), pod("web", "5", nil), pod("first", "6", nil)).Pod(t.Context(), web)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(answer.Decision).To(Equal(explain.Unschedulable))
		g.Expect(answer.Summary).To(HavePrefix("Pod shop/web fits 1 NodePool alone, but not together with the other pending pods: "))
	})
}

func TestIgnoredPod(t *testing.T) {
	checkPods(t, map[string]podCase{
		"When a pod has a node, it should name it": {[]client.Object{pod("web", "1", on("n"))}, "Bound\nPod shop/web is on node n, phase Running"},
		"When a pod is done, it should say so": {[]client.Object{pod("web", "1",
			func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, "Bound\nPod shop/web needs no node: it is Succeeded"},
		"When a DaemonSet owns it, it should say what Karpenter does for those": {
			[]client.Object{pod("web", "1", func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", Controller: ptr.To(true)}}
			})}, "Ignored\nPod shop/web belongs to DaemonSet agent: Karpenter launches no nodes for pods of DaemonSets, it keeps room for them on those that it launches",
		},
		"When it has scheduling gates, it should name them": {
			[]client.Object{pod("web", "1", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}} })},
			"Ignored\nPod shop/web has scheduling gates (example.com/quota): nothing schedules it until their owners remove them",
		},
		"When no scheduler has tried it, it should name the scheduler": {
			[]client.Object{pod("web", "1", func(p *corev1.Pod) { p.Status.Conditions = nil; p.Spec.SchedulerName = "mine" })},
			"Ignored\nPod shop/web hasn't been tried by its scheduler, mine: Karpenter acts once condition PodScheduled has reason Unschedulable",
		},
		"When another pod makes room for it, it should name the node": {
			[]client.Object{pod("web", "1", func(p *corev1.Pod) { p.Status.NominatedNodeName = "n" })},
			"Ignored\nPod shop/web waits for node n, where kube-scheduler evicts pods of a lower priority for it",
		},
	})
	t.Run("When the infrastructure isn't ready for the machine that comes, it should have the provider's words", func(t *testing.T) {
		g := NewWithT(t)
		objects := append(machine("n", "general", "medium", "8", func(node *corev1.Node, claim *karpv1.NodeClaim) {
			delete(node.Labels, karpv1.NodeInitializedLabelKey)
			claim.StatusConditions().SetUnknown(karpv1.ConditionTypeRegistered)
			claim.StatusConditions().SetFalse("MachineProvisioned", "ClusterNotReady", "Login failure")
		}), nodeClass(nil), nodePool("general", nil), pod("web", "4", nil))
		answer, err := simulate(t, objects...).Pod(t.Context(), web)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(answer.Waits).To(Equal([]string{"condition MachineProvisioned of NodeClaim claim-n: Login failure"}))
	})
	t.Run("When the NodePool of a NodeClaim is gone, it should answer, and say what isn't known", func(t *testing.T) {
		g := NewWithT(t)
		gone := append(machine("n", "gone", "medium", "8", func(_ *corev1.Node, claim *karpv1.NodeClaim) {
			claim.DeletionTimestamp = &metav1.Time{Time: noon}
		}), machine("m", "gone", "medium", "8", nil)...)
		s := simulate(t, append(gone, nodeClass(nil), nodePool("general", nil), pod("web", "16", nil))...)
		const missing = "NodePool gone doesn't exist: Karpenter disrupts none of its nodes, and their costs don't count"
		answer, err := s.Pod(t.Context(), web)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(answer.Missing).To(Equal([]string{missing}))
		node, err := s.Node(t.Context(), "n")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Summary).To(Equal("Node n is being removed: 0 pods left to evict"))
		g.Expect(node.Missing).To(Equal([]string{missing}))
		node, err = s.Node(t.Context(), "m")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Decision).To(Equal(explain.Stays))
	})
	t.Run("When there is no such pod, it should say how to find it", func(t *testing.T) {
		_, err := simulate(t).Pod(t.Context(), web)
		NewWithT(t).Expect(err).To(MatchError("namespace \"shop\" has no pod \"web\"; see `kubectl -n shop get pods`"))
	})
}
