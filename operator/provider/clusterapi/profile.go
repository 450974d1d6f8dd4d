// SPDX-License-Identifier: Apache-2.0

// Package clusterapi is the profile of this repository's own provider: machines through Cluster API, on any infrastructure.
package clusterapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/crds"
	guestassets "github.com/autonode-io/autonode/assets/guest"
	karpenterassets "github.com/autonode-io/autonode/assets/karpenter"
	"github.com/autonode-io/autonode/internal/lenient"
	"github.com/autonode-io/autonode/operator/provider"
)

// Component is the name of Karpenter's component in payloads.
const Component = "karpenter-clusterapi"

// New returns the profile for templates of a comma-separated list of API groups; one that begins with "*." stands for all below it. The
// profile's manifests are in assets, because Karpenter can run without the operator, too.
func New(apiGroups string) *provider.Profile {
	allowed := parseGroups(apiGroups)
	return &provider.Profile{
		Platform:        v1beta1.PlatformClusterAPI,
		Component:       Component,
		CheckSpec:       allowed.checkSpec,
		CheckCluster:    checkCluster,
		Deployment:      karpenterassets.Deployment,
		AdaptDeployment: adaptDeployment,
		ReadsNodeImages: true,
		Role:            allowed.role,
		NodeClass: provider.NodeClass{
			GroupVersionKind:   v1alpha1.GroupVersion.WithKind(v1alpha1.Kind),
			Plural:             "clusterapinodeclasses",
			New:                func() client.Object { return &v1alpha1.ClusterAPINodeClass{} },
			NewList:            func() client.ObjectList { return &v1alpha1.ClusterAPINodeClassList{} },
			DrainingAnnotation: v1alpha1.DrainingAnnotation,
			Guarded:            true,
			RolloutAnnotation:  v1alpha1.RolloutAnnotation,
			Finalizer:          v1alpha1.NodeClassFinalizer,
			StopLaunches:       stopLaunches,
		},
		Definitions:      crds.Embedded,
		DefaultNodeClass: func(config *v1beta1.Karpenter) client.Object { return config.ClusterAPI.DefaultNodeClass() },
		NodeClasses:      nodeClasses,
		HoldsUpgrades:    true,
		ClusterRole:      guestassets.ClusterRole,
		Roles:            roles,
		Tokens:           []provider.Token{{Key: "token"}},

		ApprovesCertificates: true,
	}
}

func roles() ([]client.Object, error) {
	role, binding, err := guestassets.Roles()
	renewals, renewalsErr := guestassets.RenewalsBinding()
	return []client.Object{role, binding, renewals}, errors.Join(err, renewalsErr)
}

func checkSpec(config *v1beta1.Karpenter) error {
	if config.ClusterAPI == nil {
		return errors.New("clusterAPI is required when platform is ClusterAPI")
	}
	if selector := config.ClusterAPI.ScalableResourceSelector; selector != nil {
		if _, err := lenient.Selector(selector); err != nil {
			return fmt.Errorf("clusterAPI.scalableResourceSelector: %w", err)
		}
	}
	if problems := config.ClusterAPI.KubeletBounds.Problems(config.ClusterAPI.Kubelet); len(problems) > 0 {
		return fmt.Errorf("clusterAPI.kubelet exceeds clusterAPI.kubeletBounds: %s", strings.Join(problems, "; "))
	}
	for i := range config.ClusterAPI.InfrastructureTemplateSelectors {
		if _, err := lenient.Selector(&config.ClusterAPI.InfrastructureTemplateSelectors[i].Selector); err != nil {
			return fmt.Errorf("clusterAPI.infrastructureTemplateSelectors[%d].selector: %w", i, err)
		}
	}
	for i := range config.ClusterAPI.CatalogSelectors {
		if _, err := lenient.Selector(&config.ClusterAPI.CatalogSelectors[i].Selector); err != nil {
			return fmt.Errorf("clusterAPI.catalogSelectors[%d].selector: %w", i, err)
		}
	}
	return nil
}

func adaptDeployment(ctx context.Context, in provider.Input, deployment *appsv1.Deployment) error {
	container := &deployment.Spec.Template.Spec.Containers[0]
	// Always set it, if only to allow none: node classes are in the guest, and their authors must not decide which content a machine may
	// read.
	patches, err := json.Marshal(append([]v1alpha1.BootstrapPatches{}, in.Config.ClusterAPI.BootstrapPatches...))
	if err != nil {
		return fmt.Errorf("encoding the bootstrap patches: %w", err)
	}
	container.Args = append(container.Args, "--cluster-name="+in.ClusterName, "--node-version="+in.NodeVersion)
	if in.Config.ClusterAPI.KubeletBounds != nil {
		bounds, err := json.Marshal(in.Config.ClusterAPI.KubeletBounds)
		if err != nil {
			return fmt.Errorf("encoding the bounds of kubelets: %w", err)
		}
		container.Env = append(container.Env, corev1.EnvVar{Name: "KUBELET_BOUNDS", Value: string(bounds)})
	}
	if in.Names.Shared() {
		// A flag and no variable: a Karpenter that doesn't know it ends, instead of taking another Cluster's objects.
		container.Args = append(container.Args, "--shared-namespace")
	}
	// The kubelet replaces variables in values, and those of a patch aren't its own.
	container.Env = append(container.Env, corev1.EnvVar{
		Name: "ALLOWED_BOOTSTRAP_PATCHES", Value: strings.ReplaceAll(string(patches), "$", "$$"),
	})
	named, err := templates(ctx, in)
	if err != nil {
		return err
	}
	reboots, err := rebootable(named)
	if err != nil {
		return err
	}
	if reboots {
		container.Env = append(container.Env, corev1.EnvVar{Name: "IN_PLACE_REBOOT", Value: "true"})
	}
	switch {
	case in.Upgrades.Hold:
		container.Env = append(container.Env, corev1.EnvVar{Name: upgradeWindow, Value: "never"})
	case in.Upgrades.Window != nil:
		window, err := json.Marshal(in.Upgrades.Window)
		if err != nil {
			return fmt.Errorf("encoding the maintenance window: %w", err)
		}
		container.Env = append(container.Env, corev1.EnvVar{Name: upgradeWindow, Value: string(window)})
	}
	return nil
}

// upgradeWindow is the variable with the window in which Karpenter may replace nodes for their version.
const upgradeWindow = "NODE_UPGRADE_WINDOW"

func stopLaunches(object client.Object, since time.Time, reason, message string) bool {
	class, ok := object.(*v1alpha1.ClusterAPINodeClass)
	if !ok {
		return false
	}
	conditions := class.StatusConditions()
	allowed := conditions.Get(v1alpha1.ConditionLaunchAllowed)
	if allowed.IsFalse() && !v1alpha1.IsStopped(allowed.Reason) || allowed.IsTrue() && allowed.LastTransitionTime.After(since) ||
		!conditions.SetFalse(v1alpha1.ConditionLaunchAllowed, reason, message) {
		return false
	}
	ready := conditions.Root()
	ready.Reason, ready.Message = reason, message
	conditions.Set(*ready)
	return true
}

func nodeClasses(ctx context.Context, guest client.Reader) ([]provider.NodeClassReport, error) {
	classes := &v1alpha1.ClusterAPINodeClassList{}
	if err := guest.List(ctx, classes); err != nil {
		return nil, fmt.Errorf("listing node classes in the guest: %w", err)
	}
	reports := make([]provider.NodeClassReport, 0, len(classes.Items))
	for i := range classes.Items {
		class := &classes.Items[i]
		report := provider.NodeClassReport{
			Name: class.Name, Generation: class.Generation, Default: class.Name == v1alpha1.DefaultNodeClass,
			Ready: condition(class, status.ConditionReady), Offerings: offerings(class),
			Pinned: class.Spec.Version, Given: class.Status.Version, Upgrade: class.Status.NodeUpgrade,
		}
		for t := range class.Status.Templates {
			if template := &class.Status.Templates[t]; template.Image == v1alpha1.ImageOlder {
				report.Images = append(report.Images, provider.OlderImage{
					Template: template.Source, InstanceType: template.InstanceType, Version: template.Version,
				})
			}
		}
		reports = append(reports, report)
	}
	return reports, nil
}

// offerings is the condition of a node class's offerings. It is False as well if some can be launched and every launch fails, which
// Karpenter reports by the reason alone.
func offerings(class *v1alpha1.ClusterAPINodeClass) *metav1.Condition {
	c := condition(class, v1alpha1.ConditionOfferingsAvailable)
	if c != nil && c.Reason == v1alpha1.LaunchesFailReason {
		c.Status = metav1.ConditionFalse
	}
	return c
}

// condition returns a node class's condition, without a reason that Karpenter doesn't have: reasons become values of a metric's label, and
// the guest's admin may write a status. It returns nil if the node class has no condition of the type, or one that the operator has set.
func condition(class *v1alpha1.ClusterAPINodeClass, conditionType string) *metav1.Condition {
	for i := range class.Status.Conditions {
		if class.Status.Conditions[i].Type != conditionType {
			continue
		}
		c := metav1.Condition(class.Status.Conditions[i])
		if v1alpha1.IsStopped(c.Reason) {
			return nil
		}
		if !reasons.Has(c.Reason) {
			c.Reason = ""
		}
		return &c
	}
	return nil
}

// reasons are those with which a node class isn't ready, or has nothing to launch.
var reasons = sets.New(
	v1alpha1.NoSelectorReason, v1alpha1.InvalidSelectorReason, v1alpha1.NoTemplatesReason, v1alpha1.AllInvalidReason,
	v1alpha1.ReferenceNotFoundReason, v1alpha1.SourceUnreadableReason, v1alpha1.BootstrapMissingReason, v1alpha1.BootstrapNotFoundReason,
	v1alpha1.NodeImageMissingReason, v1alpha1.BootstrapNotAllowedReason, v1alpha1.VersionUnknownReason, v1alpha1.VersionTooNewReason,
	v1alpha1.VersionTooOldReason, v1alpha1.VersionMalformedReason, v1alpha1.DrainingReason, v1alpha1.ClusterPausedReason,
	v1alpha1.AsleepReason, v1alpha1.ClusterDeletingReason, v1alpha1.ClusterNotProvisionedReason,
	v1alpha1.KubeletSettingsInvalidReason,
	v1alpha1.NoCapacityReason, v1alpha1.NoQuotaReason, v1alpha1.LaunchesFailReason,
)
