// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	"github.com/dustin/go-humanize/english"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/kubelet"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
	"github.com/autonode-io/autonode/karpenter/providers/version"
)

// maxProblems is how many problems a message lists, and maxProblem the maximum length of each in bytes: a condition's
// message has a maximum length, a user's annotation hasn't.
const (
	maxProblems = 10
	maxProblem  = 500
)

// launchAllowed reports whether AutoNode stays enabled, and the Cluster is neither paused nor being deleted.
type launchAllowed struct{ Config }

func (s launchAllowed) reconcile(_ context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet,
	in *instancetype.Listing,
) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionLaunchAllowed
	held, why := nodeClass.Held()
	switch {
	case held != "":
		conditions.SetFalse(condition, held, why)
	case apierrors.IsNotFound(in.ClusterErr):
		conditions.SetFalse(condition, v1alpha1.SourceUnreadableReason,
			fmt.Sprintf("the Cluster in namespace %s of the management cluster doesn't exist", s.Namespace))
	case errors.Is(in.ClusterErr, template.ErrNotProvisioned):
		message := fmt.Sprintf("%s in namespace %s of the management cluster; nothing is launched until its infrastructure provider is done",
			in.ClusterErr, s.Namespace)
		if in.Cluster.NotReady != "" {
			message = in.Cluster.NotReady + "; nothing is launched until it is"
		}
		conditions.SetFalse(condition, v1alpha1.ClusterNotProvisionedReason, message)
	case in.ClusterErr != nil:
		return unreadable(conditions, condition, []error{in.ClusterErr})
	case in.Cluster.Deleting:
		conditions.SetFalse(condition, v1alpha1.ClusterDeletingReason,
			fmt.Sprintf("the Cluster in namespace %s of the management cluster is being deleted; nothing is launched any more", s.Namespace))
	case in.Cluster.Paused:
		conditions.SetFalse(condition, v1alpha1.ClusterPausedReason,
			fmt.Sprintf("the Cluster in namespace %s of the management cluster is paused; nothing is launched until it resumes", s.Namespace))
	case in.Cluster.NotReady != "" && s.InstanceTypes.Inventory.Pending() > 0:
		conditions.SetFalse(condition, v1alpha1.ClusterNotReadyReason,
			in.Cluster.NotReady+"; no further Machine is launched until it is, or the launched ones get their provider IDs")
	case in.Cluster.NotReady != "":
		// A Cluster that was ready once often works while a condition of it is False, and some flap. One Machine finds out: if it gets its
		// provider ID, the next is launched.
		conditions.SetTrueWithReason(condition, v1alpha1.ClusterNotReadyReason,
			in.Cluster.NotReady+"; until it is, no Machine is launched while another has no provider ID")
	default:
		conditions.SetTrue(condition)
	}
	return reconcile.Result{}, nil
}

// bootstrapReady reports whether the bootstrap of machines exists.
type bootstrapReady struct{ Config }

func (s bootstrapReady) reconcile(_ context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet,
	in *instancetype.Listing,
) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionBootstrapReady
	lacking := 0
	for _, tmpl := range in.Found.Templates {
		if !tmpl.Bootstrap.IsDefined() {
			lacking++
		}
	}
	if kind := machine.Unallowed(nodeClass.Spec.BootstrapPatches, s.AllowedPatches); kind != "" {
		conditions.SetFalse(condition, v1alpha1.BootstrapNotAllowedReason, fmt.Sprintf(
			"spec.bootstrapPatches for %s aren't those that the platform allows, because who decides what a machine boots with can read what the "+
				"machine may; remove them, or have them set in spec.autoNode of the HostedCluster", kind))
		return reconcile.Result{}, nil
	}
	if problems := s.KubeletBounds.Problems(nodeClass.Spec.Kubelet); len(problems) > 0 {
		conditions.SetFalse(condition, v1alpha1.BootstrapNotAllowedReason,
			"spec.kubelet."+strings.Join(problems, "; spec.kubelet.")+": correct it, or have spec.autoNode of the HostedCluster changed")
		return reconcile.Result{}, nil
	}
	if problems := kubelet.Check(nodeClass.Spec.Kubelet, nodeClass.Status.Version); len(problems) > 0 {
		conditions.SetFalse(condition, v1alpha1.KubeletSettingsInvalidReason,
			"spec.kubelet."+strings.Join(problems[:min(len(problems), maxProblems)], "; spec.kubelet.")+": correct it, or remove it")
		return reconcile.Result{}, nil
	}
	err := in.Found.BootstrapErr
	if imageless, without := s.imageless(nodeClass, in.Found.Templates); err == nil && without > 0 {
		message := fmt.Sprintf("the release names no %s; correct the patch that refers to it, or name a payload that does", imageless)
		if without == len(in.Found.Templates) {
			conditions.SetFalse(condition, v1alpha1.NodeImageMissingReason, message)
		} else {
			conditions.SetTrueWithReason(condition, v1alpha1.NodeImageMissingReason, fmt.Sprintf("%s; %d of %s can't be launched for that",
				message, without, english.Plural(len(in.Found.Templates), "template", "templates")))
		}
		return reconcile.Result{}, nil
	}
	if err == nil {
		unregistered, lacking := unregistering(nodeClass, in.Found.Templates), unwritten(nodeClass, in.Found.Templates)
		switch {
		case unregistered != "" && lacking != "":
			conditions.SetTrueWithReason(condition, v1alpha1.RegistrationUnknownReason, unregistered+"; "+lacking)
		case unregistered != "":
			conditions.SetTrueWithReason(condition, v1alpha1.RegistrationUnknownReason, unregistered)
		case lacking != "":
			conditions.SetTrueWithReason(condition, v1alpha1.KubeletSettingsUnwrittenReason, lacking)
		default:
			conditions.SetTrue(condition)
		}
		return reconcile.Result{}, nil
	}

	reason, message := v1alpha1.SourceUnreadableReason, summary([]error{err})
	switch {
	case errors.Is(err, template.ErrNoBootstrap):
		reason, message = v1alpha1.BootstrapMissingReason, message+"; set spec.bootstrap"
	case apierrors.IsNotFound(err):
		reason, message = v1alpha1.BootstrapNotFoundReason, fmt.Sprintf("%s doesn't exist in namespace %s of the management cluster",
			bootstrapName(nodeClass), s.Namespace)
	case errors.Is(err, template.ErrNotOurs):
		reason, message = v1alpha1.BootstrapNotAllowedReason, bootstrapName(nodeClass)+": "+message
	case apierrors.IsForbidden(err) && !informer.IsUnreadable(err):
		reason, message = v1alpha1.BootstrapNotAllowedReason, fmt.Sprintf(
			"%s: Karpenter may not read it, and so no machine may boot with it; have it named in spec.autoNode of the HostedCluster, or allow "+
				"Karpenter to get it (%s)",
			bootstrapName(nodeClass), err)
	case nodeClass.Spec.Bootstrap.ConfigTemplateRef != nil && !informer.IsUnreadable(err): // the object is no template
		reason, message = v1alpha1.BootstrapNotFoundReason, bootstrapName(nodeClass)+": "+message
	case !isPermanent(err):
		return unreadable(conditions, condition, []error{err})
	}
	result := reconcile.Result{RequeueAfter: retryInterval}
	if lacking < len(in.Found.Templates) {
		conditions.SetTrueWithReason(condition, reason, fmt.Sprintf("%s; %d of %s can't be launched for that", message, lacking,
			english.Plural(len(in.Found.Templates), "template", "templates")))
		return result, nil
	}
	conditions.SetFalse(condition, reason, message)
	return result, nil
}

// imageless counts the templates whose nodes need an image that the payload lacks, and names the first.
func (s bootstrapReady) imageless(nodeClass *v1alpha1.ClusterAPINodeClass, templates []template.Template) (first string, n int) {
	for i := range templates {
		tmpl := &templates[i]
		if _, missing := s.images(nodeClass, tmpl); missing != "" {
			if n++; n == 1 {
				first = fmt.Sprintf("%s for %s", missing, tmpl.Arch)
			}
		}
	}
	return first, n
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

// versionReasons are the reasons of versions that make a node class not ready.
var versionReasons = map[version.Outcome]string{
	version.TooNew:    v1alpha1.VersionTooNewReason,
	version.TooOld:    v1alpha1.VersionTooOldReason,
	version.Malformed: v1alpha1.VersionMalformedReason,
}

// setVersion sets VersionReady: the nodes' version is known and supported by the API server.
func (c Config) setVersion(nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet) {
	const condition = v1alpha1.ConditionVersionReady
	resolved, _ := c.Version.ResolveFor(c.Upgrade.Launch(nil).Version, nodeClass, nil)
	nodeClass.Status.Version = resolved.Version
	switch resolved.Outcome {
	case version.Desired:
		conditions.SetTrue(condition)
	case version.HeldBack:
		conditions.SetTrueWithReason(condition, v1alpha1.VersionHeldBackReason, resolved.Message)
	case version.Unknown:
		conditions.SetUnknownWithReason(condition, v1alpha1.VersionUnknownReason, resolved.Message)
	default:
		conditions.SetFalse(condition, versionReasons[resolved.Outcome], resolved.Message)
	}
}

// setUpgrade reports an upgrade that proves itself. The operator reads the status, and people the condition.
func (c Config) setUpgrade(nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet) {
	const condition = v1alpha1.ConditionUpgradeAllowed
	upgrade := c.Upgrade.Status()
	switch nodeClass.Status.NodeUpgrade = upgrade; {
	case upgrade == nil:
		_ = conditions.Clear(condition)
	case upgrade.Phase == v1alpha1.NodeUpgradeRolling:
		conditions.SetTrueWithReason(condition, string(upgrade.Phase), upgrade.Message)
	default:
		conditions.SetFalse(condition, string(upgrade.Phase), upgrade.Message)
	}
}

// unreadable keeps a condition's last status during an outage of the management cluster. It reports errors that need
// a user's action.
func unreadable(conditions status.ConditionSet, condition string, errs []error) (reconcile.Result, error) {
	result := reconcile.Result{RequeueAfter: retryInterval}
	switch current := conditions.Get(condition); {
	case slices.ContainsFunc(errs, isPermanent):
		conditions.SetFalse(condition, v1alpha1.SourceUnreadableReason, summary(errs))
	case current.IsUnknown():
		conditions.SetUnknownWithReason(condition, v1alpha1.SourceUnreadableReason, summary(errs))
	default:
		// Set it again: a condition counts for the generation that it was observed at.
		conditions.Set(*current)
	}
	return result, nil
}

// isPermanent reports whether a kind becomes readable only after a user's action.
func isPermanent(err error) bool {
	var unreadable *informer.UnreadableError
	return errors.As(err, &unreadable) && unreadable.Permanent()
}

func invalid(found *template.Found) []error {
	errs := make([]error, len(found.Invalid))
	for i, err := range found.Invalid {
		errs[i] = err
	}
	return errs
}

// summary joins the first few problems.
func summary(problems []error) string {
	var texts []string
	for _, problem := range problems {
		texts = append(texts, message.Cut(problem.Error(), maxProblem)+advice(problem))
	}
	return message.List(texts, maxProblems, "; ")
}
