// SPDX-License-Identifier: Apache-2.0

package teardown_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// refusing is a guest whose admin doesn't want AutoNode to go: what a request is for decides about it.
type refusing struct {
	client.Client
	deletes, patches, lists, definitions func(client.Client, runtime.Object) error
}

func (r refusing) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if r.definitions != nil && object.GetObjectKind().GroupVersionKind().Kind == "CustomResourceDefinition" {
		return r.definitions(r.Client, object)
	}
	return r.Client.Get(ctx, key, object, options...)
}

func (r refusing) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	if r.deletes != nil {
		return r.deletes(r.Client, object)
	}
	return r.Client.Delete(ctx, object, options...)
}

func (r refusing) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	if r.patches != nil {
		return r.patches(r.Client, object)
	}
	return r.Client.Patch(ctx, object, patch, options...)
}

func (r refusing) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if r.lists != nil {
		if err := r.lists(r.Client, list); err != nil {
			return err
		}
	}
	return r.Client.List(ctx, list, options...)
}

// denied is what an admission policy answers.
func denied(client.Client, runtime.Object) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: "karpenter.sh", Resource: "nodeclaims"}, "a", fmt.Errorf("\x1b[31mno\n%s", strings.Repeat("!", 5000)))
}

// hanging is what comes of a webhook that takes longer than the operator waits.
func hanging(client.Client, runtime.Object) error {
	return &url.Error{Op: http.MethodDelete, URL: clusters.Guest.Config.Host, Err: context.DeadlineExceeded}
}

// reverted is what a mutating policy makes of a patch: it succeeds, and nothing has changed.
func reverted(guest client.Client, object runtime.Object) error {
	stored := object.(client.Object)
	return guest.Get(context.Background(), client.ObjectKeyFromObject(stored), stored)
}

// broken is what a conversion webhook that is gone makes of a list of NodeClaims.
func broken(how func(client.Client, runtime.Object) error) func(client.Client, runtime.Object) error {
	return func(c client.Client, list runtime.Object) error {
		if _, ok := list.(*karpv1.NodeClaimList); ok {
			return how(c, list)
		}
		return nil
	}
}

func TestPhaseEnds(t *testing.T) {
	ctx := t.Context()
	for name, before := range map[string][]time.Duration{
		"the time to drain":            nil,
		"the time of the forced drain": {drainTimeout},
	} {
		t.Run("When "+name+" ends while the guest refuses a pass, it should come back", func(t *testing.T) {
			g := NewWithT(t)
			f := setUp(ctx, t, fmt.Sprintf("phase-ends-%d", len(before)))
			f.claim(ctx, g, "a")
			f.disable()
			guest := refusing{Client: f.clusters.Guest.Client, deletes: denied}
			f.Guest.Live = guest
			f.reconcile(ctx, g)
			for _, d := range before {
				f.pass(d)
				f.reconcile(ctx, g)
			}
			f.clock.SetTime(f.phaseEnd(g).Add(-time.Second / 2))
			f.restart(g) // so that it doesn't back off
			guest.deletes = func(c client.Client, object runtime.Object) error {
				f.pass(time.Second)
				return denied(c, object)
			}
			f.Guest.Live = guest
			g.Expect(f.reconcile(ctx, g).RequeueAfter).To(BeNumerically(">", 0), "nothing else wakes it")
		})
	}
}

// phaseEnd is when nodes are forced, or what was forced is given up.
func (f *fixture) phaseEnd(g Gomega) time.Time {
	status := f.HostedCluster.Status.AutoNode
	if status.DrainForcedTime != nil {
		return status.DrainForcedTime.At().Add(5 * time.Minute)
	}
	g.Expect(status.DrainRequestedTime).NotTo(BeNil())
	return status.DrainRequestedTime.At().Add(drainTimeout)
}

// The deadline of a drain counts from when it began, and ends it, independent of the guest.
func TestRefusals(t *testing.T) {
	for name, refusal := range map[string]struct {
		refusing
		// before is done before every look, and meanwhile what Karpenter does.
		before func(ctx context.Context, g Gomega, f *fixture, round int)
		// left is in what is written down of the guest; empty if nothing is.
		left string
	}{
		"deletions-denied": {refusing: refusing{deletes: denied}, left: "NodeClaim a: "},
		"patches-denied":   {refusing: refusing{patches: denied}, left: "removing finalizer karpenter.sh/termination of a"},
		"patches-reverted": {refusing: refusing{patches: reverted}, left: "keeps finalizer karpenter.sh/termination on a"},
		"writes-denied":    {refusing: refusing{deletes: denied, patches: denied}, left: "NodeClaim a: "},
		"deletions-hang":   {refusing: refusing{deletes: hanging}, left: "the guest takes too long to answer"},
		"patches-hang":     {refusing: refusing{patches: hanging}, left: "the guest takes too long to answer"},
		"lists-fail":       {refusing: refusing{lists: broken(denied)}, left: "NodeClaims: "},
		"definitions-hang": {refusing: refusing{definitions: hanging}, left: "the guest takes too long to answer"},
		"lists-hang":       {refusing: refusing{lists: broken(hanging)}, left: "the guest takes too long to answer"},
		"finalizers": {before: func(ctx context.Context, g Gomega, f *fixture, round int) {
			if round > 0 {
				return
			}
			for _, object := range []client.Object{&karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}} {
				g.Expect(f.clusters.Guest.Client.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
				object.SetFinalizers(append(object.GetFinalizers(), "example.com/mine"))
				g.Expect(f.clusters.Guest.Client.Update(ctx, object)).To(Succeed())
			}
		}},
		"claims-made": {before: func(ctx context.Context, g Gomega, f *fixture, round int) {
			f.claim(ctx, g, fmt.Sprintf("more-%d", round))
		}},
	} {
		for _, deleted := range []bool{false, true} {
			for _, stop := range []bool{false, true} {
				who := map[bool]string{false: "AutoNode is turned off", true: "the HostedCluster is deleted"}[deleted]
				policy := map[bool]v1beta1.DrainTimeoutPolicy{false: v1beta1.DrainTimeoutForce, true: v1beta1.DrainTimeoutStop}[stop]
				t.Run(fmt.Sprintf("When %s, the guest does %q and onTimeout is %s, it should end through the management cluster at the deadline, or not at all", who, name, policy), func(t *testing.T) {
					t.Parallel()
					g, ctx := NewWithT(t), t.Context()
					f := setUpIn(t, simulated(t), fmt.Sprintf("refusal-%s-%t-%t", name, deleted, stop))
					f.equip(t)
					f.claim(ctx, g, "a")
					f.HostedCluster.Spec.NodeDrain = &v1beta1.NodeDrain{OnTimeout: policy}
					if deleted {
						f.delete()
					} else {
						f.disable()
					}
					began, done := f.clock.Now(), time.Duration(0)
					var last scope.Result
					for round, minute := range []int{0, 1, 15, 29, 30, 31, 34, 36, 60} {
						f.clock.SetTime(began.Add(time.Duration(minute) * time.Minute))
						if refusal.before != nil {
							refusal.before(ctx, g, f, round)
						}
						for range 3 { // as often as it does at once
							f.reachable()
							guest := refusal.refusing
							guest.Client = f.clusters.Guest.Client
							f.Guest.Live = guest
							if last = f.reconcile(ctx, g); !last.Wait {
								break
							}
							g.Expect(last.RequeueAfter).To(And(BeNumerically(">", 0), BeNumerically("<=", 30*time.Second)))
							g.Expect(len(last.Message)).To(BeNumerically("<", 1024))
							g.Expect(last.Message).NotTo(ContainSubstring("\x1b"))
						}
						if minute < 30 {
							g.Expect(f.machineOf(ctx, g, "a").DeletionTimestamp.IsZero()).To(BeTrue(), "nothing is forced before the deadline")
						}
						if !last.Wait {
							done = time.Duration(minute) * time.Minute
							break
						}
					}
					if stop {
						g.Expect(last.Wait).To(BeTrue())
						g.Expect(last.Reason).To(Equal(v1beta1.AutoNodeDrainStoppedReason))
						g.Expect(f.machineOf(ctx, g, "a").DeletionTimestamp.IsZero()).To(BeTrue())
						g.Expect(f.event()).To(BeEmpty())
						return
					}
					g.Expect(done).To(BeNumerically("~", 35*time.Minute, time.Minute), last.Message)
					g.Expect(f.machineOf(ctx, g, "a").DeletionTimestamp.IsZero()).To(BeFalse())
					record := expectRecord(ctx, g, f)
					g.Expect(record.Data["machines"]).To(ContainSubstring("a nodeClaim=a providerID=kwok://a\n"))
					g.Expect(record.Data["leftInGuest"]).To(ContainSubstring(refusal.left))
					if refusal.left == "" {
						g.Expect(record.Data).NotTo(HaveKey("leftInGuest"))
					}
					g.Expect(record.Data["leftInGuest"]).NotTo(ContainSubstring("\x1b"))
					var told, forced int
					for event := f.event(); event != ""; event = f.event() {
						if contains(event, v1beta1.AbandonedReason) {
							told++
						} else {
							g.Expect(event).To(ContainSubstring(v1beta1.DrainForcedReason))
							forced++
						}
					}
					g.Expect(told).To(BeNumerically("<=", 2))
					g.Expect(told).To(BeNumerically(">=", 1))
					g.Expect(forced).To(BeNumerically("<=", 1))
				})
			}
		}
	}
}

func TestRefusedMarks(t *testing.T) {
	ctx := t.Context()

	t.Run("When the guest takes the mark from a node class, it should take from Karpenter the right to create Machines", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "unmarked")
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: f.ControlPlaneNamespace, Name: v1beta1.KarpenterComponent}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"cluster.x-k8s.io"}, Resources: []string{"machines"}, Verbs: []string{"get", "create", "delete"}},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
			{APIGroups: []string{"infrastructure.cluster.x-k8s.io"}, Resources: []string{"kwokmachines"}, Verbs: []string{"create", "delete"}},
		}}
		g.Expect(f.clusters.Management.Client.Create(ctx, role)).To(Succeed())
		f.claim(ctx, g, "a")
		f.disable()
		f.Guest.Live = refusing{Client: f.clusters.Guest.Client, patches: reverted}
		g.Expect(f.reconcile(ctx, g).Message).To(ContainSubstring("something there takes the mark away"))
		f.pass(30 * time.Second)
		f.reconcile(ctx, g)
		g.Expect(f.clusters.Management.Client.Get(ctx, client.ObjectKeyFromObject(role), role)).To(Succeed())
		g.Expect(role.Rules[0].Verbs).To(Equal([]string{"get", "delete"}))
		g.Expect(role.Rules[1].Verbs).To(Equal([]string{"create"}))
		g.Expect(role.Rules[2].Verbs).To(Equal([]string{"create", "patch"}))
		g.Expect(role.Rules[3].Verbs).To(Equal([]string{"delete"}))
		f.reachable()
		f.pass(30 * time.Second)
		f.karpenterRemoves(ctx, g, "a")
		f.finishes(ctx, g)
	})

	t.Run("When the control-plane namespace is being deleted, it should need no record to delete the Machines", func(t *testing.T) {
		g := NewWithT(t)
		f := setUp(ctx, t, "terminating")
		f.claim(ctx, g, "a")
		g.Expect(f.clusters.Management.Client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.ControlPlaneNamespace}})).To(Succeed())
		f.delete()
		f.unreachable()
		f.reconcile(ctx, g)
		f.pass(drainTimeout + time.Minute)
		f.finishes(ctx, g)
		g.Expect(f.machineOf(ctx, g, "a").DeletionTimestamp.IsZero()).To(BeFalse())
		g.Expect(f.event()).To(ContainSubstring(v1beta1.AbandonedReason))
		f.reachable()
		f.clusterAPIRemoves(ctx, g, "a")
	})
}
