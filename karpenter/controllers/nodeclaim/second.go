// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	opmetrics "github.com/awslabs/operatorpkg/metrics"
	"github.com/awslabs/operatorpkg/status"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/metrics"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/launchtime"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

const (
	// maxSeconds limits how many NodeClaims are created beside one, one after the other, as their launches fail.
	maxSeconds = 3
	// secondInterval is the requeue interval of a slow launch while another one has the second launch of the cluster.
	secondInterval = 10 * time.Second
	// alternativeInterval is that while no other offering is available. There may be many such launches, and each look compares
	// all offerings.
	alternativeInterval = time.Minute
)

// Outcomes of a second launch, values of the label outcome.
const (
	outcomeFirst  = "first_won"
	outcomeSecond = "second_won"
)

var secondLaunches = opmetrics.NewPrometheusCounter(crmetrics.Registry, prometheus.CounterOpts{
	Namespace: metrics.Namespace,
	Subsystem: "clusterapi",
	Name:      "second_launches_total",
	Help:      "Launches beside which Karpenter launched another offering, because they took longer than the template's machines usually do, and of which one has got its machine. Labeled by outcome: first_won or second_won, and the template source of the first launch.",
}, []opmetrics.Label{
	{Name: "outcome", Help: "Which of both launches got its machine first.", Values: []opmetrics.Value{
		{Name: outcomeFirst, Help: "The first launch, which was slow."},
		{Name: outcomeSecond, Help: "The second launch."},
	}},
	{Name: "template_source", Help: "The template source of the first launch, as the Machine's annotation names it."},
}, opmetrics.Beta)

// oneNode counts by limits of nodes.
var oneNode = corev1.ResourceList{resources.Node: *resource.NewQuantity(1, resource.DecimalSI)}

// SecondLaunches is what second launches need to know.
type SecondLaunches struct {
	// Alternative returns the cheapest available offering for a NodeClaim beside that of its Machine, and what such a machine has.
	Alternative func(ctx context.Context, nodeClaim *karpv1.NodeClaim, first offering.Key) (offering.Key, corev1.ResourceList, bool)
	// IsReplacement reports whether a NodeClaim replaces a node that runs until then, so that no pod waits for it.
	IsReplacement func(nodeClaim string) bool
	// Vacancies is how many replacements a NodePool waits for whose nodes were terminated first.
	Vacancies func(nodePool string) int
	// Usage is what a NodePool's limits count.
	Usage func(nodePool string) corev1.ResourceList
	// Rejections are the offerings that a NodePool doesn't get.
	Rejections *offering.Rejections
}

// second launches another offering beside one whose machine takes longer than machines of its template usually do: an infrastructure
// provider may report a failed task as late as at its next sync. What it launches is a NodeClaim like the first one, with a Machine of its own.
// So everything that follows NodeClaims and Machines has both. Create returned the first one's offering long ago, and Karpenter core has
// stored it as what the node will be, so that another Machine can't take the first one's place. Of both NodeClaims the one whose machine
// comes first stays. There is one second launch in a cluster at a time.
//
// Each step may be the last before a crash. The first NodeClaim's annotation names the second before that is created, and its condition
// afterwards: a name that the condition lacks is created once more.
type second struct {
	Config
	times    *launchtime.Times
	deadline *deadline

	// mu lets one launch begin or end at a time.
	mu sync.Mutex
	// current is the second launch; read reports whether those of an earlier process are known.
	current pair
	read    bool
}

// pair is the names of a NodeClaim and of that beside it.
type pair struct{ first, second string }

func (s *second) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	beside, err := s.beside(ctx, nodeClaim)
	switch {
	case err != nil:
		return outcome{}, err
	case s.provisioned(ctx, m) || nodeClaim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue():
		if beside == nil || beside.DeletionTimestamp != nil {
			return outcome{}, nil
		}
		return s.removeLoser(ctx, nodeClaim, m, beside)
	case beside != nil && isSecond(nodeClaim, beside):
		return s.explain(ctx, nodeClaim, fmt.Sprintf("launched beside NodeClaim %s, whose machine takes longer than usual; the one whose machine comes first stays", beside.Name))
	case beside != nil && s.isRecorded(nodeClaim):
		if beside.DeletionTimestamp != nil {
			return outcome{requeueAfter: secondInterval}, nil // it has failed
		}
		return outcome{}, nil
	}
	return s.consider(ctx, nodeClaim, m)
}

// beside returns the NodeClaim that is launched beside another; nil for none. It may be being deleted.
func (s *second) beside(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	for _, name := range []string{nodeClaim.Annotations[v1alpha1.SecondOfAnnotation], lastOf(nodeClaim)} {
		if name == "" {
			continue
		}
		other := &karpv1.NodeClaim{}
		if err := s.get(ctx, name, other); err != nil {
			return nil, fmt.Errorf("reading NodeClaim %s, which is launched beside NodeClaim %s: %w", name, nodeClaim.Name, err)
		}
		if isSecond(nodeClaim, other) || isSecond(other, nodeClaim) {
			return other, nil
		}
	}
	return nil, nil //nolint:nilnil // most NodeClaims have none
}

// isSecond reports whether one NodeClaim was created beside another. Both say so.
func isSecond(nodeClaim, first *karpv1.NodeClaim) bool {
	return first.Name != "" && nodeClaim.Annotations[v1alpha1.SecondOfAnnotation] == first.Name && lastOf(first) == nodeClaim.Name
}

// lastOf returns the last NodeClaim that was created beside another one, or is about to be.
func lastOf(first *karpv1.NodeClaim) string {
	if names := secondsOf(first); len(names) > 0 {
		return names[len(names)-1]
	}
	return ""
}

func secondsOf(first *karpv1.NodeClaim) []string {
	return strings.Fields(first.Annotations[v1alpha1.SecondLaunchesAnnotation])
}

// isRecorded reports whether a NodeClaim's condition names the last NodeClaim beside it, which has been created then.
func (s *second) isRecorded(first *karpv1.NodeClaim) bool {
	condition := first.StatusConditions().Get(ConditionMachineProvisioned)
	return condition != nil && condition.Reason == LaunchSlowReason && strings.Contains(condition.Message, lastOf(first))
}

// consider launches a second NodeClaim if the first is slow.
func (s *second) consider(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	nodePool, err := s.eligible(ctx, nodeClaim, m)
	if err != nil || nodePool == nil {
		return outcome{}, err
	}
	nodeClass, err := s.nodeClass(ctx, nodeClaim)
	if err != nil {
		return outcome{}, err
	}
	source := m.Annotations[v1alpha1.TemplateSourceAnnotation]
	slow := s.times.Slow(source)
	if slow >= nodeClass.Spec.Deadlines.LaunchOrDefault() {
		return outcome{}, nil // Karpenter gives it up before
	}
	since := s.Clock.Since(s.deadline.resumed(m, m.CreationTimestamp.Time))
	if since < slow {
		return outcome{requeueAfter: slow - since}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if free, err := s.free(ctx, nodeClaim); err != nil || !free {
		return outcome{requeueAfter: secondInterval}, err
	}
	key, capacity, ok := s.Second.Alternative(ctx, nodeClaim, offeringOf(m))
	if !ok || nodePool.Spec.Limits.ExceededBy(resources.Merge(s.Second.Usage(nodePool.Name), capacity, oneNode)) != nil {
		return outcome{requeueAfter: alternativeInterval}, nil
	}
	message := fmt.Sprintf("no provider ID for %s (%s), where machines of template %s usually take %s", since.Round(time.Second), offeringOf(m).Description(), source, s.usual(source))
	return s.launch(ctx, nodeClaim, nodePool, message, key)
}

// usual returns how long machines of a template usually take.
func (s *second) usual(source string) string {
	if usual, known := s.times.Usual(source); known {
		return usual.Round(time.Second).String()
	}
	return "less: none has been seen yet"
}

// eligible returns the NodePool of a NodeClaim that may have another one beside it; nil if it may not. Reserved machines, and those that
// replace a node which was terminated first, have what another couldn't get. Where bootstrap data or the Cluster's infrastructure is
// missing, another machine would wait as well.
func (s *second) eligible(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (*karpv1.NodePool, error) {
	name := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	switch {
	case name == "", nodeClaim.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true", len(secondsOf(nodeClaim)) >= maxSeconds && s.isRecorded(nodeClaim),
		m.Labels[v1alpha1.ReservationIDLabel] != "", m.Labels[karpv1.CapacityTypeLabelKey] == karpv1.CapacityTypeReserved,
		m.Annotations[v1alpha1.ReplacesAnnotation] != "", s.Second.Vacancies(name) > 0, s.Second.IsReplacement(nodeClaim.Name),
		paused(m), lastCondition(m).Type == clusterv1.MachineBootstrapConfigReadyCondition:
		return nil, nil //nolint:nilnil // it may not
	}
	if notReady, err := s.notReady(ctx); err != nil || notReady != "" {
		return nil, err
	}
	nodePool := &karpv1.NodePool{}
	if err := s.get(ctx, name, nodePool); err != nil {
		return nil, fmt.Errorf("reading NodePool %s: %w", name, err)
	}
	if nodePool.UID == "" || nodePool.DeletionTimestamp != nil || nodePool.Spec.Replicas != nil {
		return nil, nil //nolint:nilnil // it may not
	}
	return nodePool, nil
}

// free reports whether there is no second launch in the cluster, or this NodeClaim's, which was begun. s.mu must be held.
func (s *second) free(ctx context.Context, nodeClaim *karpv1.NodeClaim) (bool, error) {
	if !s.read {
		if err := s.readCurrent(ctx); err != nil {
			return false, err
		}
	}
	if s.current == (pair{}) || s.current == (pair{nodeClaim.Name, lastOf(nodeClaim)}) && !s.isRecorded(nodeClaim) {
		return true, nil
	}
	// It is over once one of them is gone: a machine that hangs in deletion costs money.
	for _, name := range []string{s.current.first, s.current.second} {
		exists, err := s.exists(ctx, name)
		if err != nil {
			return false, err
		}
		if !exists {
			s.current = pair{}
			return true, nil
		}
	}
	return false, nil
}

// readCurrent finds the second launch of an earlier process.
func (s *second) readCurrent(ctx context.Context) error {
	nodeClaims := &karpv1.NodeClaimList{}
	if err := s.Guest.List(ctx, nodeClaims, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing NodeClaims: %w", err)
	}
	byName := make(map[string]*karpv1.NodeClaim, len(nodeClaims.Items))
	for i := range nodeClaims.Items {
		byName[nodeClaims.Items[i].Name] = &nodeClaims.Items[i]
	}
	for name, nodeClaim := range byName {
		if first := byName[nodeClaim.Annotations[v1alpha1.SecondOfAnnotation]]; first != nil && isSecond(nodeClaim, first) {
			s.current = pair{first.Name, name}
		}
	}
	s.read = true
	return nil
}

// exists queries the API server if the cache has no such NodeClaim: it may not have it yet.
func (s *second) exists(ctx context.Context, name string) (bool, error) {
	nodeClaim := &karpv1.NodeClaim{}
	if err := s.get(ctx, name, nodeClaim); err != nil {
		return false, fmt.Errorf("reading NodeClaim %s: %w", name, err)
	}
	if nodeClaim.UID != "" {
		return true, nil
	}
	err := s.GuestLive.Get(ctx, types.NamespacedName{Name: name}, nodeClaim)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading NodeClaim %s: %w", name, err)
	}
	return err == nil, nil
}

// launch creates a NodeClaim beside a slow one. s.mu must be held.
func (s *second) launch(ctx context.Context, nodeClaim *karpv1.NodeClaim, nodePool *karpv1.NodePool, message string, key offering.Key) (outcome, error) {
	name := lastOf(nodeClaim)
	if name == "" || s.isRecorded(nodeClaim) {
		name = newName(nodePool.Name)
		stored := nodeClaim.DeepCopy()
		if nodeClaim.Annotations == nil {
			nodeClaim.Annotations = map[string]string{}
		}
		nodeClaim.Annotations[v1alpha1.SecondLaunchesAnnotation] = strings.Join(append(secondsOf(nodeClaim), name), " ")
		err := s.Guest.Patch(ctx, nodeClaim, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			return outcome{done: true}, nil // the conflicting change triggers the next reconcile
		case err != nil:
			return outcome{}, fmt.Errorf("naming the NodeClaim that is launched beside NodeClaim %s: %w", nodeClaim.Name, err)
		}
	}
	s.current = pair{nodeClaim.Name, name}
	created := secondNodeClaim(nodePool, nodeClaim, name)
	switch err := s.Guest.Create(ctx, created); {
	case err == nil:
		metrics.NodeClaimsCreatedTotal.Inc(map[string]string{
			metrics.ReasonLabel:           "launch_slow",
			metrics.NodePoolLabel:         nodePool.Name,
			metrics.MinValuesRelaxedLabel: cmp.Or(created.Annotations[karpv1.NodeClaimMinValuesRelaxedAnnotationKey], "false"),
		})
	case !apierrors.IsAlreadyExists(err): // else an earlier attempt has created it
		return outcome{}, fmt.Errorf("creating NodeClaim %s beside NodeClaim %s: %w", name, nodeClaim.Name, err)
	}
	message += fmt.Sprintf("; also launching %s as NodeClaim %s", key.Description(), name)
	o, err := s.explain(ctx, nodeClaim, message)
	if err != nil || o.done {
		return o, err
	}
	log.FromContext(ctx).Info("launching another offering beside one that is slow", "NodeClaim", klog.KObj(nodeClaim), "second", klog.KRef("", name),
		"instanceType", key.InstanceType, "zone", key.Zone, "capacityType", key.CapacityType)
	event := warning(nodeClaim, LaunchSlowReason, "%s; the one whose machine comes first stays", message)
	event.DedupeValues = append(event.DedupeValues, name)
	s.Recorder.Publish(event)
	return outcome{}, nil
}

// explain writes a sentence into the condition of a NodeClaim whose machine hasn't come.
func (s *second) explain(ctx context.Context, nodeClaim *karpv1.NodeClaim, message string) (outcome, error) {
	conditions := nodeClaim.StatusConditions(status.WithClock(s.Clock))
	current := conditions.Get(ConditionMachineProvisioned)
	if current != nil && (current.Reason == LaunchSlowReason && current.Message == message || current.Reason == ClusterNotReadyReason) {
		return outcome{}, nil
	}
	stored := nodeClaim.DeepCopy()
	conditions.SetUnknownWithReason(ConditionMachineProvisioned, LaunchSlowReason, message)
	err := s.Guest.Status().Patch(ctx, nodeClaim, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return outcome{done: true}, nil // the conflicting change triggers the next reconcile
	case err != nil:
		return outcome{}, fmt.Errorf("reporting on NodeClaim %s that it is slow: %w", nodeClaim.Name, err)
	}
	return outcome{}, nil
}

// removeLoser deletes the other of two NodeClaims, once one has its machine. If both have, the first stays. A node that has joined isn't given
// up: pods may run on it, and Karpenter consolidates it if none does.
func (s *second) removeLoser(ctx context.Context, winner *karpv1.NodeClaim, m *clusterv1.Machine, loser *karpv1.NodeClaim) (outcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	other, err := s.Machines.ForNodeClaim(ctx, loser.UID)
	if err != nil && !errors.Is(err, machine.ErrNotFound) {
		return outcome{}, fmt.Errorf("finding the Machine of NodeClaim %s: %w", loser.Name, err)
	}
	first := isSecond(loser, winner)
	if loser.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() || !first && other != nil && s.provisioned(ctx, other) {
		return outcome{}, nil
	}
	// The cache may not have the deletion of the winner yet: both must not go.
	live := &karpv1.NodeClaim{}
	switch err := s.GuestLive.Get(ctx, client.ObjectKeyFromObject(winner), live); {
	case apierrors.IsNotFound(err), err == nil && (live.UID != winner.UID || live.DeletionTimestamp != nil):
		return outcome{done: true}, nil
	case err != nil:
		return outcome{}, fmt.Errorf("reading NodeClaim %s before the one beside it is deleted: %w", winner.Name, err)
	}
	if first {
		_, err := s.end(ctx, loser, outcomeFirst, m, fmt.Sprintf("NodeClaim %s, beside which this one was launched, got its machine first", winner.Name))
		return outcome{}, err
	}
	message := fmt.Sprintf("NodeClaim %s, which was launched beside this one, got its machine", winner.Name)
	if other == nil {
		_, err := s.end(ctx, loser, outcomeSecond, m, message+" first")
		return outcome{}, err
	}
	// Mark it first: what is launched next must not get the same offering.
	key, nodePool := offeringOf(other), loser.Labels[karpv1.NodePoolLabelKey]
	until := s.Second.Rejections.Mark(nodePool, key, LaunchSlowReason)
	gone, err := s.end(ctx, loser, outcomeSecond, other, fmt.Sprintf("%s before %s%s for NodePool %s", message, key.Description(), offering.RetryNotice(until), nodePool))
	switch {
	case err != nil:
		return outcome{}, err
	case !gone:
		return outcome{requeueAfter: time.Second}, nil
	}
	s.Unavailable.CountFailure(key, LaunchSlowReason)
	return outcome{}, nil
}

// end gives up the loser, and reports false if that has changed since it was read. m is the Machine of the first launch, or the winner's if
// that is gone.
func (s *second) end(ctx context.Context, loser *karpv1.NodeClaim, won string, m *clusterv1.Machine, message string) (bool, error) {
	disrupted, reason, kind := "second_launch", NotNeededReason, corev1.EventTypeNormal
	if won == outcomeSecond {
		disrupted, reason, kind = "launch_slow", LaunchSlowReason, corev1.EventTypeWarning
	}
	if gone, err := s.giveUp(ctx, loser.DeepCopy(), disrupted); err != nil || !gone {
		return false, err
	}
	secondLaunches.Inc(map[string]string{"outcome": won, "template_source": m.Annotations[v1alpha1.TemplateSourceAnnotation]})
	log.FromContext(ctx).Info("one of two launches has its machine", "outcome", won, "loser", klog.KObj(loser))
	event := warning(loser, reason, "%s", message)
	event.Type, event.DedupeValues = kind, append(event.DedupeValues, won)
	s.Recorder.Publish(event)
	return true, nil
}
