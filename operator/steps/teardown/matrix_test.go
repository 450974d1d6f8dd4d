// SPDX-License-Identifier: Apache-2.0

package teardown_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// guestState is a guest's answer to every request.
type guestState string

const (
	up       guestState = "up"
	down     guestState = "down"
	flapping guestState = "flapping" // every other time
)

// ending is one case of the matrix.
type ending struct {
	deleted    bool // or only disabled
	guest      guestState
	budget     bool // a PodDisruptionBudget blocks until pods may be terminated
	finalizers bool // Karpenter never finishes
	restarted  bool // another operator takes over in between
	stop       bool // spec.nodeDrain.onTimeout
}

func (e ending) String() string {
	word := func(is bool, yes, no string) string {
		if is {
			return yes
		}
		return no
	}
	return fmt.Sprintf("%s, the guest is %s, %s, %s, %s and onTimeout is %s",
		word(e.deleted, "the HostedCluster is deleted", "AutoNode is turned off"), e.guest,
		word(e.budget, "a PodDisruptionBudget blocks", "no PodDisruptionBudget blocks"),
		word(e.finalizers, "finalizers are left", "Karpenter removes its finalizers"),
		word(e.restarted, "the operator restarts", "the operator goes on"),
		word(e.stop, "Stop", "Force"))
}

// outcome is what a case has to come to.
type outcome struct {
	done, forced, abandoned, stopped bool
}

// want returns what the documentation promises: see docs/platform/lifecycle.md.
func (e ending) want() outcome {
	stuck := e.budget || e.finalizers
	switch {
	case e.guest == down && !e.deleted:
		return outcome{} // it is waited for
	case e.guest == down:
		return outcome{done: !e.stop, abandoned: !e.stop, stopped: e.stop}
	case !stuck:
		return outcome{done: true}
	case e.stop:
		return outcome{stopped: true}
	default:
		return outcome{done: true, forced: true, abandoned: e.finalizers}
	}
}

func matrix() []ending {
	var all []ending
	either := []bool{false, true}
	for _, deleted := range either {
		for _, guest := range []guestState{up, down, flapping} {
			for _, budget := range either {
				for _, finalizers := range either {
					for _, restarted := range either {
						for _, stop := range either {
							all = append(all, ending{deleted, guest, budget, finalizers, restarted, stop})
						}
					}
				}
			}
		}
	}
	return all
}

func TestMatrix(t *testing.T) {
	for n, e := range matrix() {
		t.Run(fmt.Sprintf("When %s, it should end as documented", e), func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			f := setUpIn(t, simulated(t), fmt.Sprintf("matrix-%d", n))
			f.claim(ctx, g, "a")
			if e.budget {
				f.budget(ctx, g, "a")
			}
			if e.stop {
				f.HostedCluster.Spec.NodeDrain = &v1beta1.NodeDrain{OnTimeout: v1beta1.DrainTimeoutStop}
			}
			if e.deleted {
				f.delete()
			} else {
				f.disable()
			}

			got, began := outcome{}, f.clock.Now()
			var last scope.Result
			// Reconciled before the deadline, after it, after the operator gives up, and much later.
			for round, minute := range []int{0, 10, 20, 29, 31, 34, 37, 60, 65} {
				f.clock.SetTime(began.Add(time.Duration(minute) * time.Minute))
				if e.guest == down || e.guest == flapping && round%2 == 1 {
					f.unreachable()
				} else {
					f.reachable()
				}
				if e.restarted && round == 2 {
					f.restart(g)
				}
				for acted := true; acted; { // some steps lead to the next at once
					if last = f.reconcile(ctx, g); !last.Wait {
						break
					}
					acted = f.others(ctx, g, e)
				}
				if minute < 30 {
					f.expectNothingForced(ctx, g)
				}
				if got.done = !last.Wait; got.done {
					break
				}
			}

			for event := f.event(); event != ""; event = f.event() {
				g.Expect(event).To(Or(ContainSubstring(v1beta1.DrainForcedReason), ContainSubstring(v1beta1.AbandonedReason)))
				got.forced = got.forced || contains(event, v1beta1.DrainForcedReason)
				got.abandoned = got.abandoned || contains(event, v1beta1.AbandonedReason)
			}
			got.stopped = last.Reason == v1beta1.AutoNodeDrainStoppedReason
			g.Expect(got).To(Equal(e.want()), last.Message)
			if got.abandoned {
				g.Expect(expectRecord(ctx, g, f).Data).To(HaveKeyWithValue("machines", "a nodeClaim=a providerID=kwok://a\n"))
			} else {
				expectNoRecord(ctx, g, f)
			}
			if !got.done {
				f.expectNothingForced(ctx, g) // for as long as it takes
			}
			if got.stopped && e.budget && e.guest == up {
				g.Expect(last.Message).To(ContainSubstring("PodDisruptionBudget default/cart"))
			}
		})
	}
}

func contains(event, reason string) bool { return strings.Contains(event, " "+reason+" ") }

// restart lets another operator go on, with what the API server has kept.
func (f *fixture) restart(g Gomega) {
	kept := &v1beta1.HostedCluster{}
	data, err := json.Marshal(f.HostedCluster)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(data, kept)).To(Succeed())
	f.HostedCluster, f.step = kept, f.newStep()
}

// others do what Karpenter and Cluster API do meanwhile, and say whether they did something.
func (f *fixture) others(ctx context.Context, g Gomega, e ending) bool {
	if e.guest == down || e.finalizers {
		return false
	}
	claim := &karpv1.NodeClaim{}
	err := f.clusters.Guest.Client.Get(ctx, client.ObjectKey{Name: "a"}, claim)
	g.Expect(client.IgnoreNotFound(err)).To(Succeed())
	_, terminated := claim.Annotations[karpv1.NodeClaimTerminationTimestampAnnotationKey]
	if err != nil || claim.DeletionTimestamp.IsZero() || e.budget && !terminated {
		return false
	}
	f.karpenterRemoves(ctx, g, "a")
	return true
}

// expectNothingForced expects that nothing was forced and nothing given up: neither the pods, nor the Machine, which stays as long as its
// NodeClaim does.
func (f *fixture) expectNothingForced(ctx context.Context, g Gomega) {
	claim := &karpv1.NodeClaim{}
	switch err := f.clusters.Guest.Client.Get(ctx, client.ObjectKey{Name: "a"}, claim); {
	case apierrors.IsNotFound(err):
		return // drained
	default:
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(claim.Annotations).NotTo(HaveKey(karpv1.NodeClaimTerminationTimestampAnnotationKey))
	g.Expect(claim.Finalizers).To(ContainElement(karpv1.TerminationFinalizer))
	machine := &metav1.PartialObjectMetadata{}
	machine.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("Machine"))
	g.Expect(f.clusters.Management.Client.Get(ctx, client.ObjectKey{Namespace: f.ControlPlaneNamespace, Name: "a"}, machine)).To(Succeed())
	g.Expect(machine.DeletionTimestamp.IsZero()).To(BeTrue())
	expectNoRecord(ctx, g, f)
}
