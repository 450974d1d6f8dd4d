// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/informer"
	"github.com/autonode-io/autonode/karpenter/instancetype"
	"github.com/autonode-io/autonode/karpenter/shape"
	"github.com/autonode-io/autonode/karpenter/version"
)

// Limits of the API's lists, and of how much of them a message repeats.
const (
	maxShapes   = 100
	maxZones    = 64
	maxProblems = 3
)

// launchAllowed: AutoNode isn't being turned off, and the Cluster isn't paused.
type launchAllowed struct{ Config }

func (s launchAllowed) reconcile(_ context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet, in *input) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionLaunchAllowed
	switch {
	case nodeClass.Annotations[v1alpha1.DrainingAnnotation] == "true":
		conditions.SetFalse(condition, v1alpha1.DrainingReason, "AutoNode is being turned off for this cluster; its nodes drain, and no new ones are launched")
	case apierrors.IsNotFound(in.clusterErr):
		conditions.SetFalse(condition, v1alpha1.SourceUnreadableReason, fmt.Sprintf("the Cluster in namespace %s of the management cluster doesn't exist", s.Namespace))
	case in.clusterErr != nil:
		return unreadable(conditions, condition, in.clusterErr)
	case in.cluster.Paused:
		conditions.SetFalse(condition, v1alpha1.ClusterPausedReason, fmt.Sprintf("the Cluster in namespace %s of the management cluster is paused; nothing is launched until it resumes", s.Namespace))
	default:
		conditions.SetTrue(condition)
	}
	return reconcile.Result{}, nil
}

// shapesReady: at least one usable shape was found. It also keeps the store, and what the status says about shapes.
type shapesReady struct{ Config }

func (s shapesReady) reconcile(_ context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet, in *input) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionShapesReady
	result := reconcile.Result{}
	if slices.ContainsFunc(in.found.Unreadable, isPermanent) {
		// Nothing tells when a kind is served at last.
		result.RequeueAfter = retryInterval
	}
	if in.clusterErr != nil {
		// Without the Cluster its zones are unknown, and other zones would make every node drift: what was known stays.
		if _, err := s.Store.Snapshot(nodeClass.Name); err == nil {
			return result, nil
		}
		return unreadable(conditions, condition, in.clusterErr)
	}

	shapes := s.keepUnreadable(nodeClass.Name, in.found)
	snapshot := s.Store.Set(nodeClass, shapes, in.cluster)
	s.describe(nodeClass, snapshot, shapes, in.cluster)

	problems := slices.Concat(in.found.SelectorErrs, in.found.Unreadable, invalid(in.found), snapshot.Problems)
	usable := len(snapshot.InstanceTypes) > 0
	switch {
	case usable && len(problems) > 0:
		conditions.SetTrueWithReason(condition, v1alpha1.SomeInvalidReason,
			fmt.Sprintf("%s; the other %s in use", summary(problems), plural(len(shapes), "shape is", "shapes are")))
	case usable:
		conditions.SetTrueWithReason(condition, condition, fmt.Sprintf("%s, the cheapest is %s", plural(len(shapes), "shape", "shapes"), nodeClass.Status.Cheapest))
	case nodeClass.Spec.ScalableResourceSelector == nil && len(nodeClass.Spec.InfrastructureTemplateSelectors) == 0:
		conditions.SetFalse(condition, v1alpha1.NoSelectorReason,
			"the node class selects nothing; set spec.infrastructureTemplateSelectors or spec.scalableResourceSelector")
	case len(in.found.SelectorErrs) > 0:
		conditions.SetFalse(condition, v1alpha1.InvalidSelectorReason, summary(in.found.SelectorErrs))
	case slices.ContainsFunc(in.found.Unreadable, isPermanent):
		conditions.SetFalse(condition, v1alpha1.SourceUnreadableReason, summary(in.found.Unreadable))
	case len(in.found.Unreadable) > 0:
		return unreadable(conditions, condition, in.found.Unreadable[0])
	case len(problems) > 0:
		conditions.SetFalse(condition, v1alpha1.AllInvalidReason, summary(problems)+"; nothing else matches")
	default:
		conditions.SetFalse(condition, v1alpha1.NoShapesReason, s.nothingMatches(nodeClass, in.found))
	}
	return result, nil
}

// keepUnreadable adds the shapes that were known before and depend on a kind that can't be read now: that it can't be read
// says nothing about what exists, and a node whose instance type vanishes is replaced.
func (s shapesReady) keepUnreadable(nodeClass string, found *shape.Found) []shape.Shape {
	unread := map[schema.GroupKind]bool{}
	for _, err := range found.Unreadable {
		var unreadable *informer.UnreadableError
		if errors.As(err, &unreadable) {
			unread[unreadable.GroupKind] = true
		}
	}
	if len(unread) == 0 {
		return found.Shapes
	}
	shapes := slices.Clone(found.Shapes)
	for _, old := range s.Store.Shapes(nodeClass) {
		depends := unread[old.Source.GroupKind] || unread[old.Template.GroupVersionKind().GroupKind()] ||
			old.Bootstrap.ConfigTemplate != nil && unread[old.Bootstrap.ConfigTemplate.GroupVersionKind().GroupKind()]
		same := func(sh shape.Shape) bool { return sh.Source.Annotation() == old.Source.Annotation() }
		if depends && !slices.ContainsFunc(shapes, same) {
			shapes = append(shapes, old)
		}
	}
	return shapes
}

// describe writes what was found into the status.
func (s shapesReady) describe(nodeClass *v1alpha1.ClusterAPINodeClass, snapshot *instancetype.Snapshot, shapes []shape.Shape, cluster shape.Cluster) {
	nodeClass.Status.ShapeCount = ptr.To(int32(len(shapes)))
	nodeClass.Status.Cheapest = ""
	if choices := snapshot.Choices(); len(choices) > 0 {
		cheapest := choices[0]
		if i := slices.IndexFunc(choices, func(c instancetype.Choice) bool { return c.Offering.Available }); i >= 0 {
			cheapest = choices[i]
		}
		nodeClass.Status.Cheapest = fmt.Sprintf("%s $%s", cheapest.InstanceType.Name, decimal(cheapest.Offering.Price))
	}

	statuses := make([]v1alpha1.ShapeStatus, 0, len(shapes))
	prices := make(map[string]float64, len(shapes))
	for i := range shapes {
		described, price := s.shapeStatus(&shapes[i], cluster)
		statuses = append(statuses, described)
		prices[described.Source] = price
	}
	slices.SortStableFunc(statuses, func(a, b v1alpha1.ShapeStatus) int {
		return cmp.Or(cmp.Compare(prices[a.Source], prices[b.Source]), cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Source, b.Source))
	})
	nodeClass.Status.Shapes = statuses[:min(len(statuses), maxShapes)]
	if len(statuses) == 0 {
		// As it is read back.
		nodeClass.Status.Shapes = nil
	}
}

// shapeStatus describes one shape, and returns the price to order it by.
func (s shapesReady) shapeStatus(sh *shape.Shape, cluster shape.Cluster) (v1alpha1.ShapeStatus, float64) {
	described := v1alpha1.ShapeStatus{
		InstanceType: sh.InstanceType,
		Source:       sh.Source.GroupKind.Kind + "/" + sh.Source.Name,
		Architecture: sh.Arch,
		CPU:          sh.Capacity.Cpu().DeepCopy(),
		Memory:       sh.Capacity.Memory().DeepCopy(),
	}
	for name, quantity := range sh.Capacity {
		if shape.IsDevice(name) {
			if described.GPU == nil {
				described.GPU = corev1.ResourceList{}
			}
			described.GPU[name] = quantity.DeepCopy()
		}
	}
	zones := cluster.FailureDomains
	if len(sh.FailureDomains) > 0 {
		zones = sh.FailureDomains
	}
	if len(zones) > 0 {
		described.Zones = slices.Clone(zones[:min(len(zones), maxZones)])
	}
	cheapest := math.Inf(1)
	if price, ok := s.Store.Pricing.Price(sh, karpv1.CapacityTypeOnDemand); ok {
		described.Price = decimal(price)
		cheapest = min(cheapest, price)
	}
	if price, ok := s.Store.Pricing.Price(sh, karpv1.CapacityTypeSpot); ok {
		described.SpotPrice = decimal(price)
		cheapest = min(cheapest, price)
	}
	return described, cheapest
}

// nothingMatches says for each selector how many objects it could have matched.
func (s shapesReady) nothingMatches(nodeClass *v1alpha1.ClusterAPINodeClass, found *shape.Found) string {
	var parts []string
	say := func(gk schema.GroupKind, field string, selector *metav1.LabelSelector) {
		text := metav1.FormatLabelSelector(selector)
		if text == "<none>" {
			text = "everything"
		}
		existing := "none exists"
		if n := found.Existing[gk]; n > 0 {
			existing = plural(n, "exists, and it doesn't have the labels", "exist, and none has the labels")
		}
		parts = append(parts, fmt.Sprintf("no %s in namespace %s of the management cluster matches %s (%s): %s", gk.Kind, s.Namespace, field, text, existing))
	}
	for i, selector := range nodeClass.Spec.InfrastructureTemplateSelectors {
		say(schema.GroupKind{Group: selector.APIGroup, Kind: selector.Kind}, fmt.Sprintf("spec.infrastructureTemplateSelectors[%d]", i), &selector.Selector)
	}
	if selector := nodeClass.Spec.ScalableResourceSelector; selector != nil {
		say(shape.MachineDeploymentKind, "spec.scalableResourceSelector", selector)
	}
	return strings.Join(parts, "; ")
}

// bootstrapReady: what machines join by exists.
type bootstrapReady struct{ Config }

func (s bootstrapReady) reconcile(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet, in *input) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionBootstrapReady
	lacking := 0
	for _, sh := range in.found.Shapes {
		if !sh.Bootstrap.IsDefined() {
			lacking++
		}
	}
	err := in.found.BootstrapErr
	if err == nil && nodeClass.Spec.Bootstrap != nil && nodeClass.Spec.Bootstrap.DataSecretName != "" {
		err = s.secretExists(ctx, nodeClass.Spec.Bootstrap.DataSecretName)
		lacking = len(in.found.Shapes)
	}
	if err == nil {
		conditions.SetTrue(condition)
		return reconcile.Result{}, nil
	}

	reason, message := v1alpha1.SourceUnreadableReason, err.Error()
	switch {
	case errors.Is(err, shape.ErrNoBootstrap):
		reason, message = v1alpha1.BootstrapMissingReason, message+"; set spec.bootstrap"
	case apierrors.IsNotFound(err):
		reason, message = v1alpha1.BootstrapNotFoundReason, fmt.Sprintf("%s doesn't exist in namespace %s of the management cluster", bootstrapName(nodeClass), s.Namespace)
	case !isPermanent(err):
		return unreadable(conditions, condition, err)
	}
	result := reconcile.Result{RequeueAfter: retryInterval}
	if lacking < len(in.found.Shapes) {
		conditions.SetTrueWithReason(condition, reason, fmt.Sprintf("%s; %d of %s can't be launched for that", message, lacking, plural(len(in.found.Shapes), "shape", "shapes")))
		return result, nil
	}
	conditions.SetFalse(condition, reason, message)
	return result, nil
}

// secretExists returns a NotFound if a Secret doesn't exist. That it may not be looked at is no reason to doubt it: the
// provider has no need to read Secrets.
func (s bootstrapReady) secretExists(ctx context.Context, name string) error {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err := s.Management.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: name}, secret)
	if apierrors.IsForbidden(err) {
		return nil
	}
	return err
}

func bootstrapName(nodeClass *v1alpha1.ClusterAPINodeClass) string {
	switch b := nodeClass.Spec.Bootstrap; {
	case b == nil:
		return "spec.bootstrap"
	case b.ConfigTemplateRef != nil:
		return fmt.Sprintf("spec.bootstrap.configTemplateRef: %s %s", b.ConfigTemplateRef.Kind, b.ConfigTemplateRef.Name)
	default:
		return "spec.bootstrap.dataSecretName: Secret " + b.DataSecretName
	}
}

// versionReady: the nodes' version is known and the API server can serve it.
type versionReady struct{ Config }

func (s versionReady) reconcile(_ context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet, _ *input) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionVersionReady
	server, _ := s.Version.Server()
	resolved := version.Resolve(version.Input{
		Spec:    nodeClass.Spec.Version,
		Payload: s.PayloadVersion,
		Current: nodeClass.Status.Version,
		Server:  server,
	})
	nodeClass.Status.Version = resolved.Version
	switch resolved.Outcome {
	case version.Desired:
		conditions.SetTrue(condition)
	case version.HeldBack:
		conditions.SetTrueWithReason(condition, string(version.HeldBack), resolved.Message)
	case version.Unknown:
		conditions.SetUnknownWithReason(condition, v1alpha1.VersionUnknownReason, resolved.Message)
	case version.TooNew:
		conditions.SetFalse(condition, v1alpha1.VersionTooNewReason, resolved.Message)
	default:
		conditions.SetFalse(condition, "Version"+string(resolved.Outcome), resolved.Message)
	}
	return reconcile.Result{}, nil
}

// unreadable leaves a condition that was decided before as it was while the management cluster is away: nothing is known
// to have changed.
func unreadable(conditions status.ConditionSet, condition string, err error) (reconcile.Result, error) {
	result := reconcile.Result{RequeueAfter: retryInterval}
	switch current := conditions.Get(condition); {
	case isPermanent(err):
		conditions.SetFalse(condition, v1alpha1.SourceUnreadableReason, err.Error())
	case current.IsUnknown():
		conditions.SetUnknownWithReason(condition, v1alpha1.SourceUnreadableReason, err.Error())
	default:
		// Set again, because a condition counts for the generation that it was observed at.
		conditions.Set(*current)
	}
	return result, nil
}

// isPermanent tells whether somebody has to do something for a kind to become readable.
func isPermanent(err error) bool {
	var unreadable *informer.UnreadableError
	return errors.As(err, &unreadable) && unreadable.Permanent()
}

func invalid(found *shape.Found) []error {
	errs := make([]error, len(found.Invalid))
	for i, err := range found.Invalid {
		errs[i] = err
	}
	return errs
}

// summary joins the first few problems.
func summary(problems []error) string {
	var texts []string
	for _, problem := range problems[:min(len(problems), maxProblems)] {
		texts = append(texts, problem.Error())
	}
	if more := len(problems) - maxProblems; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// decimal writes a price with no more digits than it needs, and at most five after the point.
func decimal(price float64) string {
	return strconv.FormatFloat(math.Round(price*1e5)/1e5, 'f', -1, 64)
}
