// SPDX-License-Identifier: Apache-2.0

package teardown_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/scope"
)

// onAWS is a hosted cluster in which AutoNode was on with the AWS provider, and whose admin has an EC2NodeClass.
func onAWS(ctx context.Context, t *testing.T, name string) *fixture {
	t.Helper()
	g := NewWithT(t)
	g.Expect(ec2NodeClasses()).To(Succeed())
	return setUp(ctx, t, name, func(s *scope.Scope) { s.Profile, s.HostedCluster.Spec.AutoNode = aws.New(), scopetest.AWS() })
}

var ec2NodeClasses = sync.OnceValue(func() error {
	err := apiserver.InstallCRDs(clusters.Guest.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{scopetest.EC2NodeClasses()}})
	return err
})

func (f *fixture) ec2NodeClass(ctx context.Context, t *testing.T) client.Object {
	g := NewWithT(t)
	class := ec2NodeClass()
	class.SetFinalizers([]string{"karpenter.k8s.aws/termination"})
	g.Expect(clusters.Guest.Client.Create(ctx, class)).To(Succeed())
	t.Cleanup(func() {
		ctx, left := context.WithoutCancel(ctx), ec2NodeClass()
		if err := clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(left), left); err != nil {
			return
		}
		left.SetFinalizers(nil)
		_ = clusters.Guest.Client.Update(ctx, left)
		_ = clusters.Guest.Client.Delete(ctx, left)
	})
	return class
}

func ec2NodeClass() *unstructured.Unstructured {
	class := &unstructured.Unstructured{}
	class.SetGroupVersionKind(aws.New().NodeClass.GroupVersionKind)
	class.SetName(v1alpha1.DefaultNodeClass)
	return class
}

// ec2Claim makes a NodeClaim of the AWS provider, which has no Machine.
func (f *fixture) ec2Claim(ctx context.Context, g Gomega, name string) {
	claim := scopetest.NodeClaim(name)
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
	claim.Spec.NodeClassRef.Group, claim.Spec.NodeClassRef.Kind = "karpenter.k8s.aws", "EC2NodeClass"
	g.Expect(clusters.Guest.Client.Create(ctx, claim)).To(Succeed())
	claim.Status.ProviderID = "aws:///eu-central-1a/i-" + name
	g.Expect(clusters.Guest.Client.Status().Update(ctx, claim)).To(Succeed())
}

func (f *fixture) ec2Removes(ctx context.Context, g Gomega, object client.Object) {
	g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
	g.Expect(object.GetDeletionTimestamp().IsZero()).To(BeFalse())
	object.SetFinalizers(nil)
	g.Expect(clusters.Guest.Client.Update(ctx, object)).To(Succeed())
}

// mayLaunch reports whether Karpenter's role lets it create NodeClaims.
func mayLaunch(ctx context.Context, g Gomega) bool {
	role := scopetest.Get(ctx, g, clusters.Guest.Client, "", "autonode:karpenter", &rbacv1.ClusterRole{})
	return slices.ContainsFunc(role.Rules, func(rule rbacv1.PolicyRule) bool {
		return slices.Contains(rule.Resources, "nodeclaims") && slices.Contains(rule.Verbs, "create")
	})
}

func TestUnattended(t *testing.T) {
	ctx := t.Context()

	t.Run("When AutoNode on AWS is turned off, it should drain what is AWS's, and leave the admin's node class and others' NodeClaims", func(t *testing.T) {
		g := NewWithT(t)
		f := onAWS(ctx, t, "aws-disable")
		class := f.ec2NodeClass(ctx, t)
		f.ec2Claim(ctx, g, "a")
		foreign := scopetest.NodeClaim("foreign")
		g.Expect(clusters.Guest.Client.Create(ctx, foreign)).To(Succeed())
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter-leader-election"}}
		g.Expect(clusters.Guest.Client.Create(ctx, lease)).To(Succeed())
		g.Expect(mayLaunch(ctx, g)).To(BeTrue())

		f.disable()
		g.Expect(f.reconcile(ctx, g).Message).To(HavePrefix("1 node is left to drain; "))
		g.Expect(mayLaunch(ctx, g)).To(BeFalse(), "it would launch another node for the pods that it evicts")
		claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		f.ec2Removes(ctx, g, claim)

		// A request that was let through before may still come: it is waited for.
		g.Expect(f.reconcile(ctx, g)).To(Equal(scope.Result{Wait: true, Message: "waiting until Karpenter launches nothing any more", RequeueAfter: 5 * time.Second}))
		f.ec2Claim(ctx, g, "late")
		f.pass(6 * time.Second)
		g.Expect(f.reconcile(ctx, g).Message).To(HavePrefix("1 "))
		f.ec2Removes(ctx, g, &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "late"}})

		f.finishes(ctx, g)
		f.expectEquipment(ctx, g, false)
		for _, object := range []client.Object{class, foreign} {
			g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
			g.Expect(object.GetDeletionTimestamp().IsZero()).To(BeTrue())
		}
		for _, object := range []client.Object{
			lease, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "autonode:karpenter"}},
			&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "autonode:karpenter"}},
		} {
			scopetest.ExpectGone(ctx, g, clusters.Guest.Client, object)
		}
		expectNoRecord(ctx, g, f)
	})

	for name, written := range map[string]bool{"aws-again": true, "aws-at-once": false} {
		t.Run(fmt.Sprintf("When AutoNode is turned off, on and off again, and the first drain's end was written down: %t, it should take the right to launch nodes again", written), func(t *testing.T) {
			g := NewWithT(t)
			f := onAWS(ctx, t, name)
			f.ec2Claim(ctx, g, "a")
			f.disable()
			f.reconcile(ctx, g)
			g.Expect(mayLaunch(ctx, g)).To(BeFalse())
			f.pass(time.Minute)
			f.enable(ctx, g, scopetest.AWS())
			g.Expect(mayLaunch(ctx, g)).To(BeTrue())
			if written { // else the status conflicted, with AutoNode being turned off again
				f.HostedCluster.Status.AutoNode.DrainStartedTime = nil
			}
			f.ec2Removes(ctx, g, &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a"}})

			f.disable()
			for range 2 {
				g.Expect(f.reconcile(ctx, g).Message).To(Equal("waiting until Karpenter launches nothing any more"))
				g.Expect(mayLaunch(ctx, g)).To(BeFalse())
			}
			f.pass(6 * time.Second)
			f.finishes(ctx, g)
			f.expectEquipment(ctx, g, false)
		})
	}

	t.Run("When the HostedCluster is deleted, it should let Karpenter clean up after its node classes before it goes", func(t *testing.T) {
		g := NewWithT(t)
		f := onAWS(ctx, t, "aws-delete")
		f.created(ctx, t, f.Profile.NodeClass.Definition())
		f.ec2NodeClass(ctx, t)
		f.delete()
		f.reconcile(ctx, g)
		f.pass(6 * time.Second)
		for range 2 {
			g.Expect(f.reconcile(ctx, g).Message).To(Equal("removing node class default"))
		}
		key := client.ObjectKey{Namespace: f.ControlPlaneNamespace, Name: v1beta1.KarpenterComponent}
		g.Expect(clusters.Management.Client.Get(ctx, key, &v1beta1.ControlPlaneComponent{})).To(Succeed(), "who else would clean up?")
		f.ec2Removes(ctx, g, ec2NodeClass())
		f.finishes(ctx, g)
		f.expectEquipment(ctx, g, false)
	})

	t.Run("When the guest had node classes of AWS's before, it should leave them as they are", func(t *testing.T) {
		g := NewWithT(t)
		f := onAWS(ctx, t, "aws-adopted")
		class := f.ec2NodeClass(ctx, t)
		f.delete()
		f.reconcile(ctx, g)
		f.pass(6 * time.Second)
		f.finishes(ctx, g)
		f.expectEquipment(ctx, g, false)
		left := ec2NodeClass()
		g.Expect(clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(left), left)).To(Succeed())
		g.Expect(left.GetResourceVersion()).To(Equal(class.GetResourceVersion()))
	})

	t.Run("When Karpenter never cleans up, it should not wait for it longer than for anything else, and write down what may be left", func(t *testing.T) {
		g := NewWithT(t)
		f := onAWS(ctx, t, "aws-stuck")
		f.created(ctx, t, f.Profile.NodeClass.Definition())
		f.ec2NodeClass(ctx, t)
		f.ec2Claim(ctx, g, "a")
		f.delete()
		f.reconcile(ctx, g)
		f.pass(drainTimeout + time.Minute)
		f.reconcile(ctx, g)
		g.Expect(f.event()).To(ContainSubstring(v1beta1.DrainForcedReason))
		f.pass(6 * time.Minute)
		f.finishes(ctx, g)
		f.expectEquipment(ctx, g, false)
		record := expectRecord(ctx, g, f)
		g.Expect(record.Data).To(HaveKeyWithValue("nodeClaims", "a node= providerID=aws:///eu-central-1a/i-a\n"))
		g.Expect(record.Data).To(HaveKeyWithValue("unattended", ContainSubstring("kubernetes.io/cluster/aws-stuck=owned")))
		g.Expect(f.event()).To(And(ContainSubstring(v1beta1.AbandonedReason), ContainSubstring("machines may be left that no controller removes")))
	})

	machines := func(ctx context.Context, t *testing.T, name string) *fixture { return setUp(ctx, t, name) }
	for name, test := range map[string]struct {
		setUp    func(context.Context, *testing.T, string) *fixture
		left     int32
		recorded bool
	}{
		"aws-gone": {onAWS, 2, true}, "aws-empty": {onAWS, 0, false}, "gone": {machines, 2, false},
	} {
		t.Run("When the Cluster and its kubeconfig went away, it should not wait for the guest, and say so only if nodes that aren't Machines may be left: "+name, func(t *testing.T) {
			g := NewWithT(t)
			f := test.setUp(ctx, t, name)
			g.Expect(clusters.Management.Client.Delete(ctx, f.Cluster)).To(Succeed())
			f.HostedCluster.Status.AutoNode = &v1beta1.AutoNodeStatus{NodeClaimCount: ptr.To(test.left)}
			f.delete()
			f.unreachable()
			g.Expect(f.reconcile(ctx, g)).To(Equal(scope.Result{}))
			if test.recorded {
				g.Expect(expectRecord(ctx, g, f).Data).To(HaveKeyWithValue("reason", "the Cluster and its kubeconfig went away before Karpenter had removed its nodes"))
			} else {
				expectNoRecord(ctx, g, f)
			}
			f.reachable()
			f.finishes(ctx, g)
		})
	}
}
