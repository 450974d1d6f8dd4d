// SPDX-License-Identifier: Apache-2.0

package describe

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/check"
	"github.com/autonode-io/autonode/cli/clitest"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/explain"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/printer/printertest"
)

// healthy is a cluster with one node.
func healthy() *view {
	claim := karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1", Labels: map[string]string{karpv1.NodePoolLabelKey: "general", corev1.LabelInstanceTypeStable: "c2"}}}
	for _, step := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		claim.StatusConditions().SetTrue(step)
	}
	claim.Status.NodeName = "blue-1"
	return &view{
		hostedCluster: &v1beta1.HostedCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue"}, Spec: v1beta1.HostedClusterSpec{AutoNode: &v1beta1.AutoNode{}},
			Status: v1beta1.HostedClusterStatus{
				AutoNode: &v1beta1.AutoNodeStatus{State: v1beta1.AutoNodeStateEnabled, NodeCount: ptr.To(int32(1))},
				Version:  &v1beta1.VersionStatus{Desired: &v1beta1.DesiredVersion{Version: "1.36.3+autonode.0.1.0", Source: v1beta1.ReleaseSourceDefault}},
			},
		},
		cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue"}, Status: clusterv1.ClusterStatus{
			Phase: "Provisioned", Initialization: clusterv1.ClusterInitializationStatus{ControlPlaneInitialized: ptr.To(true)},
		}},
		component: &v1beta1.ControlPlaneComponent{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "karpenter"}, Status: v1beta1.ControlPlaneComponentStatus{Version: "1.36.3+autonode.0.1.0"},
		},
		machines: []clusterv1.Machine{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "general-1", Labels: map[string]string{v1alpha1.NodeClaimLabel: "general-1"}},
			Status:     clusterv1.MachineStatus{Phase: "Running"},
		}},
		guest: true,
		classes: []v1alpha1.ClusterAPINodeClass{{
			ObjectMeta: metav1.ObjectMeta{Name: "default"}, Status: v1alpha1.ClusterAPINodeClassStatus{
				TemplateCount: ptr.To(int32(1)), Version: "1.36.3", Cheapest: "c2 $0.021", Templates: []v1alpha1.TemplateStatus{{InstanceType: "c2", Source: "KwokMachineTemplate/c2"}},
			},
		}},
		pools:      []karpv1.NodePool{{ObjectMeta: metav1.ObjectMeta{Name: "general"}}},
		nodeClaims: []karpv1.NodeClaim{claim},
		nodes: map[string]*corev1.Node{"blue-1": {ObjectMeta: metav1.ObjectMeta{Name: "blue-1"}, Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"}, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}},
	}
}

func pendingPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-5 * time.Minute))}}
}

func TestDescribe(t *testing.T) {
	wrong := func(kind, reason, text string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: text}
	}
	for _, test := range []struct {
		name   string
		change func(*view)
		want   string
	}{
		{"When nothing is wrong, it should show each object down to the node", func(*view) {}, `
  HostedCluster clusters/blue  Enabled  release 1.36.3+autonode.0.1.0, the operator's default  1 node
  ├─ Cluster clusters-blue/blue  Provisioned
  ├─ Karpenter clusters-blue/karpenter  release 1.36.3+autonode.0.1.0
  ├─ ClusterAPINodeClass default  1 template  version 1.36.3  from c2 $0.021
  └─ NodePool general
     └─ NodeClaim general-1  c2  ready
        ├─ Machine clusters-blue/general-1  Running
        └─ Node blue-1  v1.36.3
No problems found.
`},
		{"When the guest wasn't read, it should say how, and show Machines", func(v *view) {
			*v = view{hostedCluster: v.hostedCluster, cluster: v.cluster, component: v.component, machines: v.machines}
		}, `
  HostedCluster clusters/blue  Enabled  release 1.36.3+autonode.0.1.0, the operator's default  1 node
  ├─ Cluster clusters-blue/blue  Provisioned
  ├─ Karpenter clusters-blue/karpenter  release 1.36.3+autonode.0.1.0
  └─ Machine clusters-blue/general-1  Running
The guest wasn't read: name it with --guest-kubeconfig or --guest-context to see NodePools, NodeClaims and nodes.
No problems found in the objects above.
`},
		{"When pods wait for what nothing can launch, it should count them and explain the oldest", func(v *view) {
			v.pending, v.oldest = 16, pendingPod("web")
			v.answer = &explain.PodAnswer{Decision: explain.Unschedulable, Summary: "Pod shop/web has to wait",
				NodePools: []explain.NodePoolAnswer{{Name: "general", Reason: "Misconfigured"}}}
		}, `
  HostedCluster clusters/blue  Enabled  release 1.36.3+autonode.0.1.0, the operator's default  1 node
  ├─ Cluster clusters-blue/blue  Provisioned
  ├─ Karpenter clusters-blue/karpenter  release 1.36.3+autonode.0.1.0
  ├─ ClusterAPINodeClass default  1 template  version 1.36.3  from c2 $0.021
  ├─ NodePool general
  │  └─ NodeClaim general-1  c2  ready
  │     ├─ Machine clusters-blue/general-1  Running
  │     └─ Node blue-1  v1.36.3
! └─ 16 pods are pending  the oldest is shop/web, 5m old
        Pod shop/web has to wait; NodePool general: Misconfigured
Waits: 16 pods are pending: Pod shop/web has to wait; NodePool general: Misconfigured
`},
		{"When a pod waits for a node that comes, it should say that it waits", func(v *view) {
			v.pools, v.nodeClaims, v.machines, v.classes = nil, nil, nil, nil
			v.pending, v.oldest = 1, pendingPod("web")
			v.answer = &explain.PodAnswer{Decision: explain.Launches, Summary: "Pod shop/web needs a new node"}
		}, `
  HostedCluster clusters/blue  Enabled  release 1.36.3+autonode.0.1.0, the operator's default  1 node
  ├─ Cluster clusters-blue/blue  Provisioned
  ├─ Karpenter clusters-blue/karpenter  release 1.36.3+autonode.0.1.0
! └─ 1 pod is pending  the oldest is shop/web, 5m old
        Pod shop/web needs a new node
Waits: 1 pod is pending: Pod shop/web needs a new node
`},
		{"When AutoNode is paused, the infrastructure isn't ready, Karpenter has no replica and a Machine hangs, it should mark each", func(v *view) {
			v.pools, v.nodeClaims, v.classes = nil, nil, nil
			v.hostedCluster.Status.AutoNode.State, v.hostedCluster.Status.AutoNode.Message = v1beta1.AutoNodeStatePaused, "paused by spec.pausedUntil"
			v.cluster.Status.Conditions = []metav1.Condition{wrong(clusterv1.ClusterInfrastructureReadyCondition, "VCenterUnreachable", "Login failure")}
			v.clusterFaults.ControlPlane(v.cluster)
			v.karpenterFaults.Checks = []check.Check{{Subject: "Deployment a/b", Result: check.Warning, Message: "Karpenter has no ready replica", Fix: "see it"}}
			v.machines[0].DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Hour)}
		}, `
! HostedCluster clusters/blue  Paused  release 1.36.3+autonode.0.1.0, the operator's default  1 node
  │     AutoNodeEnabled (Paused): paused by spec.pausedUntil
! ├─ Cluster clusters-blue/blue  Provisioned
  │     Cluster clusters-blue/blue: the infrastructure of Cluster clusters-blue/blue isn't ready: VCenterUnreachable: Login failure; fix the problem that the infrastructure provider reports
! ├─ Karpenter clusters-blue/karpenter  release 1.36.3+autonode.0.1.0
  │     Deployment a/b: Karpenter has no ready replica; see it
! └─ Machine clusters-blue/general-1  Running
        hangs in deletion: no reason given
Wrong: HostedCluster clusters/blue: AutoNodeEnabled (Paused): paused by spec.pausedUntil
`},
		{"When no template can be launched, it should name the node class, not what waits for it", func(v *view) {
			v.hostedCluster.Status.Conditions = []metav1.Condition{wrong(v1beta1.NodeClassReady, "NoSources", "default: nothing matches")}
			v.classes[0].Status.Conditions = []status.Condition{status.Condition(wrong(v1alpha1.ConditionSourcesFound, "NoSources", "nothing matches team=web"))}
			v.classes[0].Status.Templates[0].Unavailable = v1alpha1.TemplateBackOff
			v.nodeClaims, v.machines, v.nodes = nil, nil, nil
		}, `
! HostedCluster clusters/blue  Enabled  release 1.36.3+autonode.0.1.0, the operator's default  1 node
  │     NodeClassReady (NoSources): default: nothing matches
  ├─ Cluster clusters-blue/blue  Provisioned
  ├─ Karpenter clusters-blue/karpenter  release 1.36.3+autonode.0.1.0
! ├─ ClusterAPINodeClass default  1 template  version 1.36.3
  │  │     SourcesFound (NoSources): nothing matches team=web
  │  └─ KwokMachineTemplate/c2  c2  unavailable: BackOff
  └─ NodePool general
Wrong: ClusterAPINodeClass default: SourcesFound (NoSources): nothing matches team=web
`},
		{"When the payload can't be resolved, it should name that first", func(v *view) {
			*v = view{hostedCluster: v.hostedCluster, cluster: v.cluster, guest: true}
			v.hostedCluster.Status.Version, v.hostedCluster.Status.AutoNode = nil, nil
			v.hostedCluster.Status.Conditions = []metav1.Condition{
				wrong(v1beta1.AutoNodeEnabled, v1beta1.AutoNodeWaitingReason, "waits"), wrong(v1beta1.ReleaseResolved, v1beta1.ReleaseMissingReason, "spec.release isn't set"),
			}
		}, `
! HostedCluster clusters/blue  AutoNode is on  release not resolved
  │     ReleaseResolved (ReleaseMissing): spec.release isn't set
  ├─ Cluster clusters-blue/blue  Provisioned
  └─ Karpenter  not installed yet
Wrong: HostedCluster clusters/blue: ReleaseResolved (ReleaseMissing): spec.release isn't set
`},
		{"When a machine fails, it should name the NodeClaim, and show a Machine without one", func(v *view) {
			v.nodeClaims[0].Status = karpv1.NodeClaimStatus{}
			v.nodeClaims[0].StatusConditions().SetUnknownWithReason(karpv1.ConditionTypeLaunched, "LaunchFailed", "quota exceeded")
			v.machines = append(v.machines, clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
				Namespace: "clusters-blue", Name: "stray", Labels: map[string]string{v1alpha1.NodeClaimLabel: "stray"},
			}})
		}, `
  HostedCluster clusters/blue  Enabled  release 1.36.3+autonode.0.1.0, the operator's default  1 node
  ├─ Cluster clusters-blue/blue  Provisioned
  ├─ Karpenter clusters-blue/karpenter  release 1.36.3+autonode.0.1.0
  ├─ ClusterAPINodeClass default  1 template  version 1.36.3  from c2 $0.021
  ├─ NodePool general
! │  └─ NodeClaim general-1  c2  launching
  │     │     Launched (LaunchFailed): quota exceeded
  │     └─ Machine clusters-blue/general-1  Running
  └─ Machine clusters-blue/stray  no phase yet  without NodeClaim
Wrong: NodeClaim general-1: Launched (LaunchFailed): quota exceeded
`},
		{"When there is no Cluster, it should say what to correct, and what couldn't be read", func(v *view) {
			*v = view{hostedCluster: v.hostedCluster, guest: true, problems: []string{"reading Machines: forbidden"}}
			v.hostedCluster.Spec.AutoNode = nil
			v.hostedCluster.Status.AutoNode = nil
		}, `
  HostedCluster clusters/blue  AutoNode is off  release 1.36.3+autonode.0.1.0, the operator's default
! └─ Cluster clusters-blue/blue
        doesn't exist; create it, or correct spec.infraID and spec.controlPlaneNamespace of the HostedCluster
reading Machines: forbidden
Wrong: Cluster clusters-blue/blue: doesn't exist; create it, or correct spec.infraID and spec.controlPlaneNamespace of the HostedCluster
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := healthy()
			test.change(v)
			var out bytes.Buffer
			NewWithT(t).Expect(v.print(&out, "")).To(Succeed())
			if diff := cmp.Diff(test.want, "\n"+out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOutput(t *testing.T) {
	v := healthy()
	v.nodeClaims[0].Status = karpv1.NodeClaimStatus{}
	v.nodeClaims[0].StatusConditions().SetUnknownWithReason(karpv1.ConditionTypeLaunched, "LaunchFailed", "quota exceeded")
	v.classes, v.machines, v.problems = nil, nil, []string{"reading Machines: forbidden"}
	for format, want := range map[string]string{
		"name": "HostedCluster clusters/blue\nCluster clusters-blue/blue\nKarpenter clusters-blue/karpenter\nNodePool general\nNodeClaim general-1\n",
		"yaml": `below:
- text: Cluster clusters-blue/blue  Provisioned
- text: Karpenter clusters-blue/karpenter  release 1.36.3+autonode.0.1.0
- below:
  - text: NodeClaim general-1  c2  launching
    wrong: 'Launched (LaunchFailed): quota exceeded'
  text: NodePool general
problems:
- 'reading Machines: forbidden'
text: HostedCluster clusters/blue  Enabled  release 1.36.3+autonode.0.1.0, the operator's
  default  1 node
`,
	} {
		t.Run("When a script requests "+format+", it should get the tree", func(t *testing.T) {
			var out bytes.Buffer
			NewWithT(t).Expect(v.print(&out, format)).To(Succeed())
			NewWithT(t).Expect(cmp.Diff(want, out.String())).To(BeEmpty())
		})
	}
}

func TestPage(t *testing.T) {
	t.Run("When the documentation shows a cluster, it should show what the command prints", func(t *testing.T) {
		v := healthy()
		v.nodeClaims[0].Status = karpv1.NodeClaimStatus{}
		v.nodeClaims[0].StatusConditions().SetUnknownWithReason(karpv1.ConditionTypeLaunched, "LaunchFailed", "quota exceeded")
		v.machines[0].Status.Phase = "Pending"
		v.hostedCluster.Status.AutoNode.NodeCount = ptr.To(int32(0))
		var out bytes.Buffer
		NewWithT(t).Expect(v.print(&out, "")).To(Succeed())
		clitest.Shown(t, "docs/reference/cli/hosted-cluster.md", "autonode describe cluster clusters/blue --guest-kubeconfig blue.kubeconfig", out.String())
	})
}

func TestRead(t *testing.T) {
	g := NewWithT(t)
	scheme, err := cluster.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	machine := func(name, subject string) *clusterv1.Machine {
		return &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: name, Labels: map[string]string{
			clusterv1.ClusterNameLabel: subject, v1alpha1.NodeClaimLabel: name,
		}}}
	}
	management := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "blue"}},
		&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue"}}, machine("ours", "blue"), machine("others", "green"),
	).Build()
	key := client.ObjectKey{Namespace: "clusters", Name: "blue"}

	t.Run("When the HostedCluster exists, it should read what belongs to it", func(t *testing.T) {
		g, v := NewWithT(t), &view{}
		g.Expect(v.readManagement(t.Context(), management, key)).To(Succeed())
		g.Expect(v.cluster).NotTo(BeNil())
		g.Expect(v.component).To(BeNil())
		g.Expect(v.machines).To(ConsistOf(HaveField("Name", "ours")))
		g.Expect(v.problems).To(BeEmpty())
	})
	t.Run("When there is no such HostedCluster, it should say how to list them", func(t *testing.T) {
		err := (&view{}).readManagement(t.Context(), management, client.ObjectKey{Namespace: "clusters", Name: "bleu"})
		NewWithT(t).Expect(err).To(MatchError("there is no HostedCluster clusters/bleu; list them with `kubectl get hostedclusters.autonode.io -A`"))
	})
	t.Run("When the kinds can't be read, it should be an error for the HostedCluster, and a problem for others", func(t *testing.T) {
		g, v := NewWithT(t), &view{}
		other := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build()
		g.Expect(v.readManagement(t.Context(), other, key)).To(MatchError(ContainSubstring("reading HostedCluster clusters/blue")))
		g.Expect(v.readGuest(t.Context(), other)).To(MatchError(ContainSubstring("listing the guest's nodes")))
	})
}

func TestWrongInput(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"When there is no name, it should say what is missing":     {nil, "NAME is missing: the HostedCluster, like clusters/blue; see `describe cluster --help`"},
		"When there are two names, it should say so":               {[]string{"a/b", "c"}, "unexpected argument \"c\"; see `describe cluster --help`"},
		"When the name has two slashes, it should show a good one": {[]string{"a/b/c"}, `"a/b/c" isn't the name of a HostedCluster, like clusters/blue`},
		"When the name is empty, it should show a good one":        {[]string{"a/"}, `"a/" isn't the name of a HostedCluster, like clusters/blue`},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := NewCommand()
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(append([]string{"cluster"}, test.args...))
			NewWithT(t).Expect(cmd.ExecuteContext(t.Context())).To(MatchError(test.want))
		})
	}
}

func TestHostileOutput(t *testing.T) {
	const hostile = printertest.Hostile
	v := healthy()
	v.hostedCluster.Status.Conditions = []metav1.Condition{{Type: v1beta1.NodeClassReady, Status: metav1.ConditionFalse, Reason: hostile, Message: hostile}}
	v.hostedCluster.Status.Version.Desired.Version, v.component.Status.Version, v.component.Status.ImageOverride = hostile, hostile, hostile
	v.cluster.Status.Phase, v.machines[0].Status.Phase, v.machines[0].Name = hostile, hostile, hostile
	v.classes[0].Name, v.classes[0].Status.Version, v.classes[0].Status.Cheapest = hostile, hostile, hostile
	v.classes[0].Status.Templates = []v1alpha1.TemplateStatus{{InstanceType: hostile, Source: hostile, Unavailable: hostile}, {}}
	v.pools[0].Name, v.nodeClaims[0].Name = hostile, hostile
	v.nodeClaims[0].Labels[karpv1.NodePoolLabelKey], v.nodeClaims[0].Labels[corev1.LabelInstanceTypeStable] = hostile, hostile
	v.nodes["blue-1"].Status.NodeInfo.KubeletVersion = hostile
	v.problems = []string{hostile}
	v.pending, v.oldest, v.answer = 2, pendingPod(hostile), &explain.PodAnswer{Summary: hostile, NodePools: []explain.NodePoolAnswer{{Name: hostile, Reason: hostile}}}
	v.clusterFaults.Checks, v.karpenterFaults.Checks = []check.Check{{Message: hostile}}, []check.Check{{Message: hostile}}
	for _, format := range append(printer.Formats, "") {
		printertest.Harmless(t, "describe cluster -o "+format, func(to io.Writer) error { return v.print(to, format) })
	}
}
