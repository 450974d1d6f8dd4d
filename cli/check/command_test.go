// SPDX-License-Identifier: Apache-2.0

package check_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/check"
	"github.com/autonode-io/autonode/cli/clitest"
	"github.com/autonode-io/autonode/manifests"
)

var server clitest.Server

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

func runCheck(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return clitest.Run(t, check.NewCommand(), append([]string{"--kubeconfig", server.Kubeconfig}, args...)...)
}

func TestCheckManagement(t *testing.T) {
	g, admin := NewWithT(t), server.Admin
	t.Run("When the operator isn't installed, it should say how to install it", func(t *testing.T) {
		g := NewWithT(t)
		out, err := runCheck(t)
		g.Expect(err).To(MatchError(ContainSubstring("failed; fix the failures above, in order")))
		g.Expect(out).To(ContainSubstring("✗ Operator: namespace autonode-system has no Deployment of the operator\n    install or upgrade the operator"))
		g.Expect(out).To(ContainSubstring("✗ Admission policies: missing, "))
		g.Expect(out).To(ContainSubstring("✓ CustomResourceDefinitions: 5 installed"))
	})

	objects, err := manifests.Render(manifests.Options{Image: "registry.example/autonode-operator:v1", Args: []string{"--karpenter-image="}})
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		if object.GetKind() != "CustomResourceDefinition" && object.GetName() != manifests.Guard { // which would guard the tests' definitions
			server.Create(t, object)
		}
	}
	operator := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.Namespace, Name: manifests.Operator}}
	g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(operator), operator)).To(Succeed())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: manifests.Namespace, Name: "operator-1", Labels: operator.Spec.Selector.MatchLabels},
		Spec:       operator.Spec.Template.Spec,
	}
	server.Create(t, pod)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "operator",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
	g.Expect(admin.Status().Update(t.Context(), pod)).To(Succeed())
	account := &autonodev1alpha1.CapacityAccount{ObjectMeta: metav1.ObjectMeta{Name: "checked"}}
	server.Create(t, account)
	account.Status.Conditions = []metav1.Condition{
		{Type: autonodev1alpha1.EntriesUsable, Status: metav1.ConditionFalse, Reason: autonodev1alpha1.LimitsUnusableReason, Message: "quota cpu", LastTransitionTime: metav1.Now()},
		{Type: autonodev1alpha1.MembersGranted, Status: metav1.ConditionTrue, Reason: autonodev1alpha1.NoMembersReason, Message: "none", LastTransitionTime: metav1.Now()},
	}
	g.Expect(admin.Status().Update(t.Context(), account)).To(Succeed())

	t.Run("When no replica runs, it should have the pod's reason, and go on", func(t *testing.T) {
		g := NewWithT(t)
		out, err := runCheck(t)
		g.Expect(err).To(HaveOccurred())
		for _, want := range []string{
			"✗ Deployment autonode-system/autonode-operator: none of 2 replicas is available; Pod operator-1: ImagePullBackOff: no such image\n",
			"! Default release: not set: the operator's --karpenter-image is empty\n",
			"✗ Admission policies: missing, so Karpenter's identities can do more than they need: ValidatingAdmissionPolicy " +
				"deletion.autonode.io, ValidatingAdmissionPolicyBinding deletion.autonode.io\n",
			"✓ Permissions of the operator: ServiceAccount autonode-system/autonode-operator has all ",
			"✓ Your permissions: you may turn AutoNode on for Clusters in namespace default\n",
			"✗ CapacityAccount checked: EntriesUsable (LimitsUnusable): quota cpu\n", "! CapacityAccount checked: MembersGranted (NoMembers): none\n",
			"! Infrastructure provider of TestMachineTemplate: contract v1beta2, without a built-in profile",
			"✓ HostedClusters: none yet",
		} {
			g.Expect(out).To(ContainSubstring(want))
		}
	})
	t.Run("When a role is older than the operator, it should name what it lacks", func(t *testing.T) {
		g := NewWithT(t)
		role := &rbacv1.ClusterRole{}
		g.Expect(admin.Get(t.Context(), client.ObjectKey{Name: manifests.Operator}, role)).To(Succeed())
		for i := range role.Rules {
			if role.Rules[i].Resources[0] == "machines" {
				role.Rules[i].Verbs = []string{"get", "list", "watch", "patch"}
			}
		}
		g.Expect(admin.Update(t.Context(), role)).To(Succeed())
		g.Eventually(func(g Gomega) { // the authorizer reads roles from a watch
			out, err := runCheck(t)
			g.Expect(err).To(HaveOccurred())
			g.Expect(out).To(ContainSubstring("✗ Permissions of the operator: ServiceAccount autonode-system/autonode-operator may not: delete machines.cluster.x-k8s.io\n"))
		}).Should(Succeed())
	})
	t.Run("When a script needs it, it should print JSON, and fail", func(t *testing.T) {
		g := NewWithT(t)
		out, err := runCheck(t, "-o", "json")
		g.Expect(err).To(HaveOccurred())
		report := check.Report{}
		g.Expect(json.Unmarshal([]byte(out), &report)).To(Succeed())
		g.Expect(report.Wrong).To(BeNumerically(">", 0))
		for _, c := range report.Checks {
			g.Expect(c.Fix == "").To(Equal(c.Result == check.OK), c.Subject)
		}
	})
	t.Run("When all is right, it should say so, and succeed", func(t *testing.T) {
		g := NewWithT(t)
		for _, object := range objects {
			switch {
			case object.GetName() == manifests.Guard:
				server.Create(t, object.DeepCopy())
			case object.GetName() == manifests.Operator && object.GetKind() == "ClusterRole":
				whole := object.DeepCopy()
				whole.SetResourceVersion("")
				g.Expect(admin.Update(t.Context(), whole)).To(Succeed())
			}
		}
		g.Expect(admin.Delete(t.Context(), pod)).To(Succeed())
		g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(operator), operator)).To(Succeed())
		args := operator.Spec.Template.Spec.Containers[0].Args
		operator.Spec.Template.Spec.Containers[0].Args = append(args[:len(args)-1], "--karpenter-image=registry.example/karpenter@sha256:0123")
		g.Expect(admin.Update(t.Context(), operator)).To(Succeed())
		operator.Status = appsv1.DeploymentStatus{ObservedGeneration: operator.Generation, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2}
		g.Expect(admin.Status().Update(t.Context(), operator)).To(Succeed())
		for i := range account.Status.Conditions {
			account.Status.Conditions[i].Status, account.Status.Conditions[i].Reason = metav1.ConditionTrue, autonodev1alpha1.AsExpectedReason
		}
		g.Expect(admin.Status().Update(t.Context(), account)).To(Succeed())
		g.Eventually(func(g Gomega) { // the authorizer reads roles from a watch
			out, err := runCheck(t)
			g.Expect(err).NotTo(HaveOccurred(), out)
			g.Expect(out).To(And(
				ContainSubstring("✓ Deployment autonode-system/autonode-operator: 2 of 2 replicas are available, image registry.example/autonode-operator:v1\n"),
				ContainSubstring("✓ Default release: Karpenter registry.example/karpenter@sha256:0123\n"),
				ContainSubstring("✓ Admission policies: 12 policies and bindings\n"), ContainSubstring("✓ CapacityAccounts: 1 is usable\n"),
				MatchRegexp(`\d+ checks: no failures, \d+ warnings\n$`), // of the provider, and of other tests' catalogs
			))
		}).Should(Succeed())
	})
	t.Run("When the user may read little, it should say what isn't checked", func(t *testing.T) {
		g := NewWithT(t)
		out, err := runCheck(t, "--kubeconfig", server.AddUser(t, "check-unprivileged"))
		g.Expect(err).To(Succeed())
		g.Expect(out).To(ContainSubstring("! CustomResourceDefinitions: not checked: customresourcedefinitions.apiextensions.k8s.io is forbidden"))
		g.Expect(out).To(ContainSubstring("! Your permissions: to turn AutoNode on for a Cluster you lack the permissions to create hostedclusters.autonode.io in namespace default, and to patch"))
	})
}

func TestCheckCluster(t *testing.T) {
	g, admin := NewWithT(t), server.Admin
	const namespace = "check-blue"
	cluster := server.MakeCluster(t, namespace, "blue")
	t.Run("When a Cluster has no HostedCluster yet, it should check the Cluster, and say how to turn AutoNode on", func(t *testing.T) {
		g := NewWithT(t)
		out, err := runCheck(t, namespace+"/blue")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(Equal(`✓ Namespace check-blue: exists
✓ Cluster check-blue/blue: provisioned, control plane initialized
✓ Secret check-blue/blue-kubeconfig: has a kubeconfig that the operator accepts
✓ MachineDeployments: 1 of 1 match cluster.x-k8s.io/cluster-name=blue: blue-workers
! HostedCluster: Cluster check-blue/blue has no HostedCluster
    turn AutoNode on: ` + "`autonode hosted-cluster create --cluster check-blue/blue`" + `
5 checks: no failures, 1 warning
`))
	})
	_, _, err := server.CreateHostedCluster(t, "--cluster", namespace+"/blue", "--release", clitest.PayloadImage)
	g.Expect(err).NotTo(HaveOccurred())
	t.Run("When no operator has seen the HostedCluster, it should warn", func(t *testing.T) {
		g := NewWithT(t)
		out, err := runCheck(t, "blue", "-n", namespace)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("✓ Consent of Cluster check-blue/blue: is given to HostedCluster check-blue/blue\n"))
		g.Expect(out).To(ContainSubstring("✓ spec.autoNode: is valid\n"))
		g.Expect(out).To(ContainSubstring("! ControlPlaneComponent check-blue/karpenter: doesn't exist yet, so Karpenter isn't running\n"))
		g.Expect(out).To(HaveSuffix("! HostedCluster check-blue/blue: no operator has reconciled its spec yet\n" +
			"    check the operator with `autonode check`\n8 checks: no failures, 2 warnings\n"))
	})
	t.Run("When several things are wrong, it should name each, causes first, with the fix", func(t *testing.T) {
		g := NewWithT(t)
		cluster.Annotations = nil
		g.Expect(admin.Patch(t.Context(), cluster, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":null}}`)))).To(Succeed())
		secret := &corev1.Secret{}
		g.Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "blue-kubeconfig"}, secret)).To(Succeed())
		secret.Labels = nil
		secret.Data["value"] = []byte(strings.ReplaceAll(clitest.GuestKubeconfig, "token: secret", "exec: {command: aws}"))
		g.Expect(admin.Update(t.Context(), secret)).To(Succeed())
		g.Expect(admin.Delete(t.Context(), clitest.MachineTemplate(namespace))).To(Succeed())
		hostedCluster := &v1beta1.HostedCluster{}
		g.Expect(admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "blue"}, hostedCluster)).To(Succeed())
		hostedCluster.Spec.PullSecret = &corev1.LocalObjectReference{Name: "pull"}
		g.Expect(admin.Update(t.Context(), hostedCluster)).To(Succeed())
		hostedCluster.Status.ObservedGeneration = hostedCluster.Generation
		for _, c := range []metav1.Condition{
			{Type: v1beta1.Ready, Status: metav1.ConditionFalse, Reason: v1beta1.AutoNodeWaitingReason, Message: "waits"},
			{Type: v1beta1.NodeIdentityEnforced, Status: metav1.ConditionFalse, Reason: v1beta1.ApprovedByAnotherReason, Message: "request csr-1 by AutoApproved"},
		} {
			meta.SetStatusCondition(&hostedCluster.Status.Conditions, c)
		}
		g.Expect(admin.Status().Update(t.Context(), hostedCluster)).To(Succeed())
		out, err := runCheck(t, namespace+"/blue")
		g.Expect(err).To(MatchError(ContainSubstring("checks failed")))
		want := []string{
			"✗ Consent of Cluster check-blue/blue: ", "    `kubectl -n check-blue annotate clusters.cluster.x-k8s.io blue autonode.io/consents-to=check-blue/blue`",
			"✗ Secret check-blue/blue-kubeconfig: it lacks the label", "    `kubectl -n check-blue label secret blue-kubeconfig --overwrite cluster.x-k8s.io/cluster-name=blue`",
			"✗ Secret check-blue/blue-kubeconfig: the operator rejects the kubeconfig: exec runs a program",
			"✗ MachineDeployment check-blue/blue-workers: it refers to TestMachineTemplate check-blue/small, which doesn't exist",
			"✗ Secret check-blue/pull: spec.pullSecret names it, and it doesn't exist",
			"✗ HostedCluster check-blue/blue: NodeIdentityEnforced (ApprovedByAnother): request csr-1 by AutoApproved", "docs/reference/node-identity.md",
		}
		rest := out
		for _, text := range want {
			_, after, found := strings.Cut(rest, text)
			g.Expect(found).To(BeTrue(), "%s\nin\n%s", text, out)
			rest = after
		}
	})
	t.Run("When nothing matches a selector, or the bootstrap is missing, it should say how many there are", func(t *testing.T) {
		g := NewWithT(t)
		server.MakeCluster(t, "check-red", "red")
		_, _, err := server.CreateHostedCluster(t, "--cluster", "check-red/red", "--release", clitest.PayloadImage, "--templates", "TestMachineTemplate", "-l", "pool=web",
			"--bootstrap", "TestMachineTemplate.infrastructure.cluster.x-k8s.io/none")
		g.Expect(err).NotTo(HaveOccurred())
		out, err := runCheck(t, "check-red/red")
		g.Expect(err).To(HaveOccurred())
		g.Expect(out).To(ContainSubstring("✗ TestMachineTemplates: none of 1 in namespace check-red matches pool=web, so nothing launches\n    label one"))
		g.Expect(out).To(ContainSubstring("✗ Bootstrap: there is no TestMachineTemplate check-red/none, so nothing launches\n"))
	})
	t.Run("When the Cluster is gone, it should say what to correct", func(t *testing.T) {
		g := NewWithT(t)
		server.Create(t, &v1beta1.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gone"}, Spec: v1beta1.HostedClusterSpec{ControlPlaneNamespace: namespace}})
		out, err := runCheck(t, namespace+"/gone")
		g.Expect(err).To(HaveOccurred())
		g.Expect(out).To(ContainSubstring("✗ Cluster check-blue/gone: doesn't exist\n    create the Cluster, or correct spec.infraID\n"))
		g.Expect(out).To(ContainSubstring("! spec.autoNode: not set, so AutoNode is off\n"))
	})
}

func TestPage(t *testing.T) {
	g := NewWithT(t)
	server.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "clusters"}})
	cluster := server.MakeCluster(t, "clusters-blue", "blue")
	cluster.Status.Phase = string(clusterv1.ClusterPhaseProvisioned)
	g.Expect(server.Admin.Status().Update(t.Context(), cluster)).To(Succeed())
	_, _, err := server.CreateHostedCluster(t, "--cluster", "clusters-blue/blue", "--namespace", "clusters", "--release", clitest.PayloadImage)
	g.Expect(err).NotTo(HaveOccurred())
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: "blue-kubeconfig"}}
	g.Expect(server.Admin.Patch(t.Context(), secret, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":null}}`)))).To(Succeed())
	t.Run("When the documentation shows a cluster with a fault, it should show what the command prints", func(t *testing.T) {
		out, err := runCheck(t, "clusters/blue")
		NewWithT(t).Expect(err).To(HaveOccurred())
		clitest.Shown(t, "docs/reference/cli/install.md", "autonode check clusters/blue", out)
	})
}

func TestCheckNone(t *testing.T) {
	t.Run("When the name is of an object in one other namespace, it should say which", func(t *testing.T) {
		g := NewWithT(t)
		server.MakeCluster(t, "check-elsewhere", "elsewhere")
		_, err := runCheck(t, "elsewhere")
		g.Expect(err).To(MatchError(`"elsewhere" is in namespace check-elsewhere, not in default: name it check-elsewhere/elsewhere`))
		out, _ := runCheck(t, "elsewhere", "-n", "check-elsewhere")
		g.Expect(out).To(ContainSubstring("Cluster check-elsewhere/elsewhere: "))
	})
	t.Run("When there is neither a HostedCluster nor a Cluster, it should say how to list both", func(t *testing.T) {
		_, err := runCheck(t, "a/b")
		NewWithT(t).Expect(err).To(MatchError(
			"there is neither a HostedCluster nor a Cluster a/b; list them with `kubectl get hostedclusters.autonode.io,clusters.cluster.x-k8s.io -A`"))
	})
}
