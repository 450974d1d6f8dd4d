// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// rejecting is a management cluster that answers requests to create an object with an error.
type rejecting struct {
	client.Client
	// answer returns nil for an object that is created.
	answer func(object client.Object) error
}

// Create implements client.Client.
func (r *rejecting) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	if err := r.answer(object); err != nil {
		return err
	}
	return r.Client.Create(ctx, object, opts...)
}

// ofType rejects objects of an instance type.
func ofType(instanceType string, err error) func(client.Object) error {
	return func(object client.Object) error {
		if object.GetLabels()[corev1.LabelInstanceTypeStable] == instanceType {
			return err
		}
		return nil
	}
}

// newRejecting is a fixture with a management cluster that answers as answer decides.
func newRejecting(t *testing.T, answer func(client.Object) error) *fixture {
	t.Helper()
	f := newFixture(t)
	f.provider.Machines = f.Machines(&rejecting{f.Management.GetClient(), answer})
	return f
}

var machinesResource = schema.GroupResource{Group: clusterv1.GroupVersion.Group, Resource: "machines"}

// policy is what an admission policy answers.
func policy(message string) error {
	err := apierrors.NewForbidden(machinesResource, "rejected", nil)
	err.ErrStatus.Message = message
	return err
}

// TestRejections: a NodeClaim whose Machine is rejected must not wait (DESIGN: no pool waits for another).
// kubernetes-sigs/karpenter#3198 is of a provider whose Create retries.
func TestRejections(t *testing.T) {
	in := func(nodePool string) func(*karpv1.NodeClaim) {
		return func(n *karpv1.NodeClaim) { n.Labels[karpv1.NodePoolLabelKey] = nodePool }
	}
	for name, tc := range map[string]struct {
		answer  error
		message string
	}{
		"When a policy rejects a Machine, it should": {
			policy(`machines.cluster.x-k8s.io "x" is forbidden: ValidatingAdmissionPolicy 'sizes' denied request: c2-small is too small`), "c2-small is too small",
		},
		"When an object isn't valid, it should": {
			apierrors.NewInvalid(schema.GroupKind{Kind: "TestMachine"}, "x", nil), "invalid",
		},
		"When a webhook rejects with any code of its own, it should": {
			&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 400, Reason: metav1.StatusReasonBadRequest, Message: "admission webhook denied the request: no image"}},
			"no image",
		},
	} {
		t.Run(name+" end the launch, quote the answer, and take the next cheapest offering", func(t *testing.T) {
			f := newRejecting(t, ofType("c2-small", tc.answer))
			cheapest := func(n *karpv1.NodeClaim) {
				in("general")(n)
				n.Spec.Requirements = append(n.Spec.Requirements, requirement(corev1.LabelTopologyZone, "a"))
			}
			f.ends(cloudprovider.MachineRejectedReason, "first", cheapest)
			f.Expect(f.recorder.Messages()).To(ConsistOf(And(
				HavePrefix("no machine of on-demand c2-small in zone a: "), ContainSubstring(tc.message), ContainSubstring("; not tried again before "), HaveSuffix(" for NodePool general"),
			)))
			_, created := f.launch("second", cheapest)
			f.Expect(created.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c4-large"))
		})
	}

	t.Run("When one NodePool's Machines are rejected, it should offer the others the same as before, and this one all again after a while", func(t *testing.T) {
		f := newRejecting(t, func(object client.Object) error {
			if object.GetLabels()[karpv1.NodePoolLabelKey] == "rejected" {
				return policy("not this one")
			}
			return nil
		})
		all := []string{"c2-small", "c4-large"}
		f.Expect(f.launchable(f.ctx, "rejected")).To(Equal(all))
		for _, zone := range []string{"a", "b"} {
			f.refused("in-"+zone, func(n *karpv1.NodeClaim) {
				in("rejected")(n)
				n.Spec.Requirements = append(n.Spec.Requirements, requirement(corev1.LabelTopologyZone, zone))
			})
		}
		f.Expect(f.launchable(f.ctx, "rejected")).To(Equal([]string{"c4-large"}))
		f.Expect(f.launchable(f.ctx, "admitted")).To(Equal(all))
		_, created := f.launch("admitted", in("admitted"))
		f.Expect(created.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c2-small"))
		f.clock.Step(offering.BaseTTL)
		f.Expect(f.launchable(f.ctx, "rejected")).To(Equal(all))
	})

	t.Run("When a template can't be cloned, it should take the next cheapest offering, too", func(t *testing.T) {
		f := newFixture(t)
		f.offer(unbuildable)
		for _, name := range []string{"in-a", "in-b"} {
			f.ends(cloudprovider.MachineUnbuildableReason, name, nil)
		}
		_, created := f.launch("built", nil)
		f.Expect(created.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c4-large"))
	})

	t.Run("When another owner has an object of the name, it should leave that, end the launch and close the offering", func(t *testing.T) {
		f := newFixture(t)
		theirs := &unstructured.Unstructured{}
		theirs.SetGroupVersionKind(environment.TestMachine)
		theirs.SetNamespace(f.Namespace)
		theirs.SetName(f.MachineName(f.Namespace + "-taken"))
		f.Expect(f.Admin.Create(t.Context(), theirs)).To(Succeed())
		f.ends(cloudprovider.NameTakenReason, "taken", nil)
		f.Expect(f.provider.Rejections.Entries()).To(HaveLen(1))
	})

	t.Run("When the name is an earlier NodeClaim's, it should end the launch and close nothing", func(t *testing.T) {
		f := newFixture(t)
		before, _ := f.launch("again", nil)
		f.Expect(f.Admin.Delete(t.Context(), before)).To(Succeed())
		f.ends(cloudprovider.NameTakenReason, "again", nil)
		f.Expect(f.launchable(f.ctx, "general")).To(Equal([]string{"c2-small", "c4-large"}))
	})
}

// TestLaunchEnds: whatever fails, Karpenter deletes the NodeClaim, unless no launch at all can succeed.
func TestLaunchEnds(t *testing.T) {
	retried := func(err error) bool {
		var create *karpcloudprovider.CreateError
		return errors.As(err, &create) && create.ConditionReason == cloudprovider.ManagementUnreachableReason
	}
	for name, tc := range map[string]struct {
		answer error
		is     func(error) bool
		events gomegatypes.GomegaMatcher
	}{
		"When a webhook can't be called, it should end the launch, and try the offering again": {
			apierrors.NewInternalError(errors.New("failed calling webhook")), karpcloudprovider.IsInsufficientCapacityError, ConsistOf(cloudprovider.MachineNotCreatedReason),
		},
		"When the API server has too much to do, it should end the launch, and try the offering again": {
			apierrors.NewTooManyRequests("later", 1), karpcloudprovider.IsInsufficientCapacityError, ConsistOf(cloudprovider.MachineNotCreatedReason),
		},
		"When the API server doesn't answer in time, it should end the launch, and try the offering again": {
			context.DeadlineExceeded, karpcloudprovider.IsInsufficientCapacityError, ConsistOf(cloudprovider.MachineNotCreatedReason),
		},
		"When the API server can't be reached, it should have Karpenter retry": {syscall.ECONNREFUSED, retried, BeEmpty()},
	} {
		t.Run(name, func(t *testing.T) {
			f := newRejecting(t, func(client.Object) error { return tc.answer })
			_, err := f.provider.Create(f.ctx, f.claim("fails", nil))
			f.Expect(tc.is(err)).To(BeTrue(), "%v", err)
			f.Expect(f.recorder.Reasons()).To(tc.events)
			f.Expect(f.launchable(f.ctx, "general")).To(Equal([]string{"c2-small", "c4-large"}))
		})
	}

	t.Run("When it is known within two seconds whether a node class is ready, it should launch in the same call", func(t *testing.T) {
		f := newFixture(t)
		asked := 0
		f.provider.Version = func(_ string, nodeClass *v1alpha1.ClusterAPINodeClass, tmpl *template.Template) (version.Result, bool) {
			if asked++; asked < 3 {
				return version.Result{Outcome: version.Unknown, Message: "not asked yet"}, true
			}
			return resolved(nodeClass, tmpl)
		}
		f.launch("settles", nil)
		f.Expect(asked).To(Equal(3))
		f.Expect(f.recorder.Reasons()).To(BeEmpty())
	})

	t.Run("When Karpenter ends during a launch, it should leave the NodeClaim to the next", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		f := newRejecting(t, func(client.Object) error { stop(); return ctx.Err() })
		_, err := f.provider.Create(ctx, f.claim("ends", nil))
		f.Expect(retried(err)).To(BeTrue(), "%v", err)
		f.Expect(f.recorder.Reasons()).To(BeEmpty())
	})
}

func TestMissing(t *testing.T) {
	f := newFixture(t)
	missing := func(nodePool string, instanceTypes ...string) string {
		static := f.pool(nodePool, requirement(corev1.LabelInstanceTypeStable, instanceTypes...))
		static.Spec.Replicas = ptr.To(int64(5))
		return f.provider.Missing(f.ctx, static)
	}
	t.Run("When an offering is available, it should say nothing", func(t *testing.T) {
		NewWithT(t).Expect(missing("fixed", "c2-small", "c4-large")).To(BeEmpty())
	})
	t.Run("When it isn't known yet what is offered, it should say nothing", func(t *testing.T) {
		nodePool := f.pool("fixed")
		nodePool.Spec.Template.Spec.NodeClassRef.Name = "nowhere"
		NewWithT(t).Expect(f.provider.Missing(f.ctx, nodePool)).To(BeEmpty())
	})
	t.Run("When no instance type meets the requirements, it should name those", func(t *testing.T) {
		NewWithT(t).Expect(missing("fixed", "c8-xlarge")).To(Equal(
			"none of the 2 instance types of node class " + f.nodeClass.Name + " meets its requirements, which name c8-xlarge"))
	})
	until := f.unavailable.Mark(offering.Key{InstanceType: "c2-small", Zone: "a", CapacityType: karpv1.CapacityTypeOnDemand}, "InsufficientCapacity")
	f.provider.Rejections.Mark("fixed", offering.Key{InstanceType: "c2-small", Zone: "b", CapacityType: karpv1.CapacityTypeOnDemand}, cloudprovider.MachineRejectedReason)
	again := "; not tried again before " + until.UTC().Format(time.TimeOnly+" MST") + ")"
	t.Run("When no offering is available, it should say what each failed for and until when", func(t *testing.T) {
		missing := missing("fixed", "c2-small")
		g := NewWithT(t)
		g.Expect(missing).To(HavePrefix("none of the 1 instance types that meet its requirements has an available offering: "))
		g.Expect(strings.Split(missing[strings.Index(missing, ": ")+2:], ", ")).To(ConsistOf(
			"on-demand c2-small in zone a (InsufficientCapacity"+again, "on-demand c2-small in zone b (MachineRejected"+again))
	})
	t.Run("When one is available to another NodePool, it should say nothing of that", func(t *testing.T) {
		NewWithT(t).Expect(missing("other", "c2-small")).To(BeEmpty())
	})
	f.clock.Step(offering.BaseTTL)
	f.Expect(missing("fixed", "c2-small")).To(BeEmpty())
}
