// SPDX-License-Identifier: Apache-2.0

// Package nodeupgrade decides which version nodes get, and when outdated nodes are replaced: at once, in a maintenance window, or
// after a user has approved the version.
//
// Until the window opens, or the version is approved, new nodes get the version of the existing ones. From then on they get the
// payload's. Running nodes are replaced only while the window is open or the version is approved. When a window closes, replaced
// nodes stay and the others wait for the next window. Nothing is rolled back.
package nodeupgrade

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/maintenance"
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/payload"
)

const (
	// skewRecheck is the interval between checks whether the control plane still supports the nodes' current version,
	// which can't be watched.
	skewRecheck = 10 * time.Minute
	// nodeVersionFlag is the flag for Karpenter.
	nodeVersionFlag = "--node-version="
)

// Config is the input of New.
type Config struct {
	// Management reads Karpenter's Deployment from the cache.
	Management client.Reader
	// Versions has the guests' API servers' versions.
	Versions *guest.Versions
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// NodeUpgrade is the step.
type NodeUpgrade struct{ Config }

var _ scope.Step = (*NodeUpgrade)(nil)

// New returns the step.
func New(config Config) *NodeUpgrade {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &NodeUpgrade{config}
}

// Name implements scope.Step.
func (*NodeUpgrade) Name() string { return "nodeupgrade" }

// Reconcile fills s.NodeUpgrade, and owns status.version.nodeVersion, which outlives this operator.
func (n *NodeUpgrade) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	if s.Release == nil {
		return scope.Result{Wait: true, Message: "the release isn't resolved"}, n.Observe(ctx, s)
	}
	current, err := n.current(ctx, s)
	if err != nil {
		return scope.Result{}, err
	}
	wanted := s.Karpenter.Versions[payload.KubernetesVersion]
	upgrade, after, err := n.policy(ctx, s, wanted, current)
	if err != nil {
		return scope.Result{Wait: true, Message: err.Error()}, n.Observe(ctx, s)
	}
	server := ""
	// The first version needs no approval, and nodes can't use a version that the control plane no longer supports.
	if upgrade.Waits != "" && current != "" && wanted != "" && !same(current, wanted) {
		if server = n.server(ctx, s); !guest.Unsupported(current, server) {
			upgrade.Version = current
		}
		after = scope.Sooner(after, skewRecheck)
	}
	s.NodeUpgrade = upgrade

	status := &s.HostedCluster.Status
	if status.Version == nil {
		status.Version = &v1beta1.VersionStatus{}
	}
	if err := prove(ctx, s, wanted, server); err != nil {
		return scope.Result{}, err
	}
	if now := s.NodeUpgrade.Version; status.Version.NodeVersion != now {
		log.FromContext(ctx).Info("Nodes get another version", "version", now, "before", status.Version.NodeVersion)
		status.Version.NodeVersion = now
	}
	return scope.Result{RequeueAfter: after}, nil
}

// Observe reports why nodes wait while a step before this one waits. It decides nothing.
func (n *NodeUpgrade) Observe(ctx context.Context, s *scope.Scope) error {
	known := s.HostedCluster.Status.Version
	if known == nil || known.Desired == nil {
		return nil
	}
	upgrade, _, err := n.policy(ctx, s, known.Desired.NodeVersion, known.NodeVersion)
	if err != nil {
		return nil //nolint:nilerr // ValidConfiguration reports it
	}
	s.NodeUpgrade = upgrade
	s.NodeUpgrade.Version = known.NodeVersion
	if proof := known.NodeUpgrade; proof != nil && proof.Phase != v1alpha1.NodeUpgradeRolling {
		s.NodeUpgrade.Progress = proof
	}
	return nil
}

// current returns the version of new nodes; empty without nodes and without a Karpenter to launch any. A
// HostedCluster restored from its spec has lost the status that holds it: then Karpenter's Deployment has it, or else
// the nodes.
func (n *NodeUpgrade) current(ctx context.Context, s *scope.Scope) (string, error) {
	if known := s.HostedCluster.Status.Version; known != nil && known.NodeVersion != "" {
		return known.NodeVersion, nil
	}
	deployment := &appsv1.Deployment{}
	key := s.ComponentKey()
	if err := n.Management.Get(ctx, key, deployment); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("reading the Deployment: %w", err)
	}
	for _, container := range deployment.Spec.Template.Spec.Containers {
		for _, arg := range container.Args {
			if v, ok := strings.CutPrefix(arg, nodeVersionFlag); ok && v != "" {
				return v, nil
			}
		}
	}
	if s.Guest == nil {
		return "", nil
	}
	nodes := &corev1.NodeList{}
	if err := s.Guest.Cached.List(ctx, nodes, client.HasLabels{karpv1.NodePoolLabelKey}); err != nil {
		return "", fmt.Errorf("listing nodes in the guest: %w", err)
	}
	// A node may be ahead of the payload, because its image is. That decides nothing about the others' version.
	newest, wanted := "", guest.PlainVersion(s.Karpenter.Versions[payload.KubernetesVersion])
	for i := range nodes.Items {
		if v := guest.PlainVersion(nodes.Items[i].Status.NodeInfo.KubeletVersion); guest.CompareVersions(v, newest) > 0 &&
			(wanted == "" || guest.CompareVersions(v, wanted) <= 0) {
			newest = v
		}
	}
	return newest, nil
}

// server returns the version of the guest's API server, empty if unknown: a failed request must not hold up nodes.
func (n *NodeUpgrade) server(ctx context.Context, s *scope.Scope) string {
	if s.Guest == nil {
		return ""
	}
	server, err := n.Versions.Server(ctx, s, func(_ string, age time.Duration) bool { return age >= skewRecheck })
	if err != nil {
		log.FromContext(ctx).V(1).Info("Reading the API server's version", "error", err.Error())
	}
	return server
}

// policy returns why nodes may not get the payload's version now, if they may not, and after how long time changes that; zero for never.
// Wanted is the payload's version, and current the one that nodes get now. Either may be empty, which is unknown.
func (n *NodeUpgrade) policy(ctx context.Context, s *scope.Scope, wanted, current string) (scope.NodeUpgrade, time.Duration, error) {
	out, after := scope.NodeUpgrade{Version: wanted}, time.Duration(0)
	autoNode := s.HostedCluster.Spec.AutoNode
	if autoNode == nil || autoNode.NodeUpgrade == nil {
		return out, 0, nil
	}
	window, err := parseWindow(autoNode.NodeUpgrade)
	switch approved := s.HostedCluster.Annotations[v1beta1.ApproveNodeVersionAnnotation]; {
	case err != nil:
		return out, 0, err
	case window != nil:
		out.Window = autoNode.NodeUpgrade.MaintenanceWindow
		out.Waits, after = waitsForWindow(window, n.Clock.Now(), wanted, current)
	case autoNode.NodeUpgrade.Policy == v1beta1.NodeUpgradeManual && (wanted == "" || !same(approved, wanted)):
		out.Hold, out.Waits = true, waitsForApproval(s.HostedCluster, strings.TrimPrefix(wanted, "v"), approved)
	}
	if out.Waits == "" {
		waits, soaked, err := n.ring(ctx, s.HostedCluster)
		out.Waits, out.Ring, out.Hold, after = waits, waits != "", waits != "", scope.Sooner(after, soaked)
		return out, after, err
	}
	return out, after, nil
}

// annotate is the command that annotates a HostedCluster, up to the annotation's value.
func annotate(hostedCluster *v1beta1.HostedCluster, annotation string) string {
	return fmt.Sprintf("kubectl annotate --overwrite -n %s hostedcluster %s %s=", hostedCluster.Namespace, hostedCluster.Name, annotation)
}

// Check returns the problem of the spec, which begins with the field's path.
func Check(ctx context.Context, management client.Reader, hostedCluster *v1beta1.HostedCluster, profile *provider.Profile) error {
	upgrade := hostedCluster.Spec.AutoNode.NodeUpgrade
	if upgrade != nil && !profile.HoldsUpgrades && (upgrade.Policy != "" && upgrade.Policy != v1beta1.NodeUpgradeImmediate ||
		upgrade.Canary != nil || upgrade.HaltOn != nil || len(upgrade.After) > 0) {
		return fmt.Errorf("spec.autoNode.nodeUpgrade: on platform %s nodes follow at once; policy has to be %s, without canary, haltOn and after",
			profile.Platform, v1beta1.NodeUpgradeImmediate)
	}
	if _, err := parseWindow(upgrade); err != nil {
		return err
	}
	return checkRings(ctx, management, hostedCluster)
}

// parseWindow parses the window of the policy MaintenanceWindow; nil for the others. Errors name the field.
func parseWindow(upgrade *v1beta1.NodeUpgrade) (*maintenance.Schedule, error) {
	const field = "spec.autoNode.nodeUpgrade.maintenanceWindow"
	if upgrade == nil || upgrade.Policy != v1beta1.NodeUpgradeMaintenanceWindow {
		return nil, nil
	}
	if upgrade.MaintenanceWindow == nil {
		return nil, fmt.Errorf("%s is required when policy is MaintenanceWindow", field)
	}
	window, err := maintenance.Parse(*upgrade.MaintenanceWindow)
	if err != nil {
		return nil, fmt.Errorf("%s.%w", field, err)
	}
	return window, nil
}

// waitsForWindow describes when nodes get a version, empty while they may, and returns the time until that changes.
func waitsForWindow(window *maintenance.Schedule, now time.Time, wanted, current string) (string, time.Duration) {
	opens, closes := window.Opens(now), window.Closes(now)
	switch {
	case window.Open(now) && closes.IsZero():
		return "", 0
	case window.Open(now):
		return "", max(closes.Sub(now), time.Second)
	case opens.IsZero():
		return "the maintenance window doesn't open again", 0
	}
	change := "upgraded"
	if guest.CompareVersions(guest.PlainVersion(wanted), guest.PlainVersion(current)) < 0 {
		change = "taken back"
	}
	return fmt.Sprintf("to be %s from %s on, in the maintenance window", change, opens.Format("Mon 2 Jan 15:04 MST")),
		max(opens.Sub(now), time.Second)
}

// waitsForApproval describes how to approve a version instead of the approved one.
func waitsForApproval(hostedCluster *v1beta1.HostedCluster, wanted, approved string) string {
	message := "approve with: " + annotate(hostedCluster, v1beta1.ApproveNodeVersionAnnotation) + wanted
	const limit = 64 // of what is quoted
	switch _, err := utilversion.ParseSemantic(approved); {
	case approved == "":
		return message
	case err != nil || len(approved) > limit:
		return fmt.Sprintf("the approval isn't of a version such as %s; %s", wanted, message)
	default:
		return fmt.Sprintf("approved is %s; %s", approved, message)
	}
}

// same compares versions with their builds: another build is another version, which may need approval.
func same(a, b string) bool { return strings.TrimPrefix(a, "v") == strings.TrimPrefix(b, "v") }
