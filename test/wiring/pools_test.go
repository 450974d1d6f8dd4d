// SPDX-License-Identifier: Apache-2.0

package wiring_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/core/staticbackoff"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/test/workload"
	"github.com/autonode-io/autonode/test/world/fault"
)

const (
	// steady is the NodePool whose pods are to run whatever happens to the others.
	steady = "steady"
	// audited is a finalizer that another controller puts on NodeClaims.
	audited = "example.com/audited"
	// replicas of a static NodePool.
	replicas = 3
	// starved is how long a pod may wait for its node. It is less than the five minutes after which Karpenter core gives up a launch,
	// and the pods of other NodePools go on.
	starved = 4 * time.Minute
)

// failing is a NodePool that gets no node.
type failing struct {
	name string
	// static: it has replicas; otherwise a pod requests it.
	static bool
	// types of instances that it may have; all if empty.
	types string
	// answer is the management cluster's to a request for one of its machines; nil for its own.
	answer fault.Fault
	// reason of the event by which it is known to have failed, on a NodeClaim or the NodePool.
	reason string
	// rounds is how often its launches may be tried within a time in which other pods were made.
	rounds func(within time.Duration, pods int) int
}

// status is an API server's answer that isn't success.
func status(code int, reason metav1.StatusReason, text string) fault.Fault {
	return func(request *http.Request, _ http.RoundTripper) (*http.Response, error) {
		body, err := json.Marshal(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: text,
		})
		return &http.Response{
			StatusCode: code, Status: strconv.Itoa(code), Proto: request.Proto, ProtoMajor: request.ProtoMajor, ProtoMinor: request.ProtoMinor,
			Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: request,
		}, err
	}
}

// hang never answers.
func hang(request *http.Request, _ http.RoundTripper) (*http.Response, error) {
	<-request.Context().Done()
	return nil, request.Context().Err()
}

// take has another owner make an object of that name first.
func (w *world) take(request *http.Request, next http.RoundTripper) (*http.Response, error) {
	theirs := &unstructured.Unstructured{}
	theirs.SetGroupVersionKind(environment.TestMachine)
	theirs.SetNamespace(w.Namespace)
	theirs.SetName(nameIn(request))
	if err := w.Admin.Create(request.Context(), theirs); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	return next.RoundTrip(request)
}

// backedOff: both offerings are tried once, and closed for at least that long. The first round may be under way when it is counted.
func backedOff(within time.Duration, _ int) int { return 1 + 2*(1+int(within/offering.BaseTTL)) }

// repeated: as often as Karpenter retries pods. A pod of another NodePool makes it retry all.
func repeated(within time.Duration, pods int) int {
	return 2 + pods + int(within/staticbackoff.Interval)
}

// fewer: after longer and longer pauses.
func fewer(within time.Duration, _ int) int {
	rounds := 2
	for pause := staticbackoff.Interval; within >= pause; pause = min(2*pause, staticbackoff.MaxInterval) {
		rounds, within = rounds+1, within-pause
	}
	return rounds
}

func never(time.Duration, int) int { return 0 }

// failures are all kinds of NodePools that get no node.
func (w *world) failures() []failing {
	denied := status(http.StatusForbidden, metav1.StatusReasonForbidden, `admission webhook "quota.example.com" denied the request: no budget left`)
	return []failing{
		{name: "absent-static", static: true, types: "c16-none", reason: staticbackoff.ReplicasUnavailableReason, rounds: never},
		{name: "exhausted-static", static: true, types: "c8-xlarge", reason: nodeclaim.InsufficientCapacityReason, rounds: backedOff},
		{name: "denied-static", static: true, answer: denied, reason: staticbackoff.ReplicasUnavailableReason, rounds: backedOff},
		{name: "denied", answer: denied, reason: cloudprovider.MachineRejectedReason, rounds: backedOff},
		{
			name: "invalid", answer: status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "spec.size: Unsupported value"),
			reason: cloudprovider.MachineRejectedReason, rounds: backedOff,
		},
		{name: "taken", answer: w.take, reason: cloudprovider.NameTakenReason, rounds: backedOff},
		{
			name: "broken-static", static: true, answer: status(http.StatusInternalServerError, metav1.StatusReasonInternalError, "failed calling webhook: connection refused"),
			reason: cloudprovider.MachineNotCreatedReason, rounds: fewer,
		},
		{name: "hanging", answer: hang, reason: cloudprovider.MachineNotCreatedReason, rounds: repeated}, // the last: a pod waits for it for seconds
	}
}

// fails answers requests for the machines of failing NodePools.
func fails(pools *sync.Map) fault.Fault {
	return func(request *http.Request, next http.RoundTripper) (*http.Response, error) {
		if makesMachine(request) {
			if pool, ok := pools.Load(labelIn(request, karpv1.NodePoolLabelKey)); ok {
				if answer := pool.(failing).answer; answer != nil {
					return answer(request, next)
				}
			}
		}
		return next.RoundTrip(request)
	}
}

// sent is the metadata of an object that a request creates.
func sent(request *http.Request) (object metav1.PartialObjectMetadata) {
	body, err := io.ReadAll(request.Body)
	if err == nil {
		_ = json.Unmarshal(body, &object)
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	return object
}

func labelIn(request *http.Request, key string) string { return sent(request).Labels[key] }

func nameIn(request *http.Request) string { return sent(request).Name }

// add makes a NodePool, and a pod if that is what its nodes are for.
func (w *world) add(t *testing.T, pool failing) {
	t.Helper()
	nodePool := w.nodePool(pool.name)
	if pool.types != "" {
		workload.Require(corev1.LabelInstanceTypeStable, pool.types)(nodePool)
	}
	if pool.static {
		nodePool.Spec.Replicas = ptr.To(int64(replicas))
	}
	NewWithT(t).Expect(w.Admin.Create(t.Context(), nodePool)).To(Succeed())
	if !pool.static && pool.name != steady {
		w.pod(t, pool.name, karpv1.NodePoolLabelKey, pool.name)
	}
}

// exhaust plays an infrastructure that has no c8-xlarge.
func (w *world) exhaust(g Gomega, ctx context.Context) {
	list := &clusterv1.MachineList{}
	g.Expect(w.Admin.List(ctx, list, client.InNamespace(w.Namespace), client.MatchingLabels{corev1.LabelInstanceTypeStable: "c8-xlarge"})).To(Succeed())
	for i := range list.Items {
		m := &list.Items[i]
		if len(m.Status.Conditions) > 0 || m.DeletionTimestamp != nil {
			continue
		}
		m.Status.Conditions = []metav1.Condition{{
			Type: clusterv1.MachineInfrastructureReadyCondition, Status: metav1.ConditionFalse, Reason: "InsufficientInstanceCapacity", LastTransitionTime: metav1.Now(),
		}}
		err := w.Admin.Status().Update(ctx, m)
		g.Expect(err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
	}
}

// eventually waits while the infrastructure has no c8-xlarge.
func (w *world) eventually(t *testing.T, check func(g Gomega, ctx context.Context)) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		w.exhaust(g, ctx)
		check(g, ctx)
	}).WithContext(t.Context()).WithTimeout(starved).WithPolling(poll).Should(Succeed())
}

// launched counts the NodeClaims of a NodePool that have been launched.
func (w *world) launched(g Gomega, ctx context.Context, nodePool string) (count int) {
	list := &karpv1.NodeClaimList{}
	g.Expect(w.Admin.List(ctx, list, client.MatchingLabels{karpv1.NodePoolLabelKey: nodePool})).To(Succeed())
	for i := range list.Items {
		if list.Items[i].StatusConditions().IsTrue(karpv1.ConditionTypeLaunched) {
			count++
		}
	}
	return count
}

// made counts the NodeClaims that Karpenter has made for a NodePool.
func made(g Gomega, nodePool string) (count int) {
	for _, one := range gathered(g, "karpenter_nodeclaims_created_total") {
		if labelOf(one, "nodepool") == nodePool {
			count += int(one.GetCounter().GetValue())
		}
	}
	return count
}

// reported reports whether there is an event with a reason on a NodePool or one of its NodeClaims.
func (w *world) reported(g Gomega, ctx context.Context, nodePool, reason string) bool {
	list := &corev1.EventList{}
	g.Expect(w.Admin.List(ctx, list)).To(Succeed())
	for _, event := range list.Items {
		if name := event.InvolvedObject.Name; event.Reason == reason && (name == nodePool || strings.HasPrefix(name, nodePool+"-")) {
			return true
		}
	}
	return false
}

// mixes adds one NodePool after the other that gets no node, in any order, and each time has a pod of another NodePool get one. A NodeClaim
// without a provider ID keeps Karpenter core from scheduling any pod: Azure/karpenter-provider-azure#1854, kubernetes-sigs/karpenter#3198.
func (w *world) mixes(t *testing.T) {
	g := NewWithT(t)
	large := w.InfrastructureTemplate.DeepCopy()
	large.SetName("c8-xlarge")
	large.SetResourceVersion("")
	large.SetUID("")
	annotations := large.GetAnnotations()
	annotations[v1alpha1.PriceAnnotation] = "5"
	large.SetAnnotations(annotations)
	g.Expect(w.Admin.Create(t.Context(), large)).To(Succeed())
	t.Cleanup(func() { w.clean(t, large) })

	mixture := w.failures()
	seed := uint64(time.Now().UnixNano())
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(mixture)-1, func(i, j int) { mixture[i], mixture[j] = mixture[j], mixture[i] })
	failingPools := &sync.Map{}
	w.management.Use(fails(failingPools))
	// run has one more pod of steady get a node, and returns how long that took.
	pods := 0
	run := func(beside string) {
		pods++
		began := time.Now()
		w.pod(t, steady+"-"+strconv.Itoa(pods), karpv1.NodePoolLabelKey, steady)
		w.eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(w.launched(g, ctx, steady)).To(Equal(pods), "beside "+beside)
		})
		t.Logf("a pod got a node after %s beside %s", time.Since(began).Round(100*time.Millisecond), beside)
	}
	w.add(t, failing{name: steady})
	run("no other NodePool")

	start := map[string]time.Time{}
	for i, pool := range mixture {
		failingPools.Store(pool.name, pool)
		start[pool.name] = time.Now()
		w.add(t, pool)
		run("one more NodePool (seed " + strconv.FormatUint(seed, 10) + "): " + pool.name)
		w.eventually(t, func(g Gomega, ctx context.Context) {
			g.Expect(w.reported(g, ctx, pool.name, pool.reason)).To(BeTrue(), "%s of %s", pool.reason, pool.name)
		})
		if i == len(mixture)/2 {
			w.keepsNodeClaim(t)
		}
		run("all that have failed so far, and " + pool.name)
	}
	for _, pool := range mixture {
		each := 1
		if pool.static {
			each = replicas
		}
		count, most := made(g, pool.name), each*pool.rounds(time.Since(start[pool.name]), pods)
		t.Logf("%s: %d NodeClaims, at most %d", pool.name, count, most)
		g.Expect(count).To(BeNumerically("<=", most), "%s backs off", pool.name)
		g.Expect(w.launched(g, t.Context(), pool.name)).To(BeZero(), pool.name)
	}
}

// keepsNodeClaim has a NodeClaim deleted that was never launched, and that another controller's finalizer keeps.
func (w *world) keepsNodeClaim(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	like := w.NodeClaim(t.Context(), "like-kept")
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: w.Namespace + "-kept", Finalizers: []string{audited}, Labels: like.Labels}, Spec: like.Spec}
	claim.Spec.Requirements = append(claim.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
		Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"c16-none"},
	})
	g.Expect(w.Admin.Create(t.Context(), claim)).To(Succeed())
	w.eventually(t, func(g Gomega, ctx context.Context) {
		g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		g.Expect(claim.DeletionTimestamp).NotTo(BeNil())
		g.Expect(claim.Finalizers).To(Equal([]string{audited}), "Karpenter has let it go")
	})
	t.Cleanup(func() {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		NewWithT(t).Expect(client.IgnoreNotFound(w.Admin.Patch(context.WithoutCancel(t.Context()), claim, patch))).To(Succeed())
	})
}

// clean removes what mixes has made, and waits until Karpenter is done with it.
func (w *world) clean(t *testing.T, template *unstructured.Unstructured) {
	t.Helper()
	g, ctx := NewWithT(t), context.WithoutCancel(t.Context())
	g.Expect(w.Admin.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(w.Namespace), client.HasLabels{karpv1.NodePoolLabelKey}, client.GracePeriodSeconds(0))).To(Succeed())
	names := []string{steady}
	for _, pool := range w.failures() {
		names = append(names, pool.name)
	}
	for _, name := range names {
		g.Expect(client.IgnoreNotFound(w.Admin.Delete(ctx, &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: name}}))).To(Succeed())
		g.Expect(w.Admin.DeleteAllOf(ctx, &karpv1.NodeClaim{}, client.MatchingLabels{karpv1.NodePoolLabelKey: name})).To(Succeed())
	}
	w.management.Use(nil)
	g.Expect(w.Admin.Delete(ctx, template)).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		for _, name := range names {
			list := &karpv1.NodeClaimList{}
			g.Expect(w.Admin.List(ctx, list, client.MatchingLabels{karpv1.NodePoolLabelKey: name})).To(Succeed())
			g.Expect(list.Items).To(BeEmpty(), name)
			err := w.Admin.Get(ctx, client.ObjectKey{Name: name}, &karpv1.NodePool{})
			g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "NodePool %s: %v", name, err)
		}
	}).WithContext(ctx).WithPolling(poll).Should(Succeed())
}
