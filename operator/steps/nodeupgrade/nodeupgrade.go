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
	in, err := n.input(s, s.Karpenter.Versions[payload.KubernetesVersion], current)
	if err != nil {
		return scope.Result{Wait: true, Message: err.Error()}, n.Observe(ctx, s)
	}
	blocked := !same(decide(in).Version, in.wanted)
	if blocked {
		in.server = n.server(ctx, s)
	}
	s.NodeUpgrade = decide(in)

	status := &s.HostedCluster.Status
	if status.Version == nil {
		status.Version = &v1beta1.VersionStatus{}
	}
	if err := prove(ctx, s, in); err != nil {
		return scope.Result{}, err
	}
	if now := s.NodeUpgrade.Version; status.Version.NodeVersion != now {
		log.FromContext(ctx).Info("Nodes get another version", "version", now, "before", status.Version.NodeVersion)
		status.Version.NodeVersion = now
	}
	after := in.edge()
	if blocked && (after == 0 || after > skewRecheck) {
		after = skewRecheck
	}
	return scope.Result{RequeueAfter: after}, nil
}

// Observe reports why nodes wait while a step before this one waits. It decides nothing.
func (n *NodeUpgrade) Observe(_ context.Context, s *scope.Scope) error {
	known := s.HostedCluster.Status.Version
	if known == nil || known.Desired == nil {
		return nil
	}
	in, err := n.input(s, known.Desired.NodeVersion, known.NodeVersion)
	if err != nil {
		return nil //nolint:nilerr // ValidConfiguration reports it
	}
	s.NodeUpgrade = decide(in)
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

// input has all that a decision depends on.
type input struct {
	policy v1beta1.NodeUpgradePolicy
	// spec is the window of the policy MaintenanceWindow, and window the same parsed.
	spec   *v1beta1.MaintenanceWindow
	window *maintenance.Schedule
	// approved is the value of ApproveNodeVersionAnnotation, and approve how to write it.
	approved, approve string
	// wanted is the payload's version, current the one that nodes get now, server the API server's. Any may be empty, which is unknown.
	wanted, current, server string
	now                     time.Time
}

func (n *NodeUpgrade) input(s *scope.Scope, wanted, current string) (input, error) {
	hostedCluster := s.HostedCluster
	in := input{policy: v1beta1.NodeUpgradeImmediate, wanted: wanted, current: current, now: n.Clock.Now()}
	if hostedCluster.Spec.AutoNode == nil || hostedCluster.Spec.AutoNode.NodeUpgrade == nil {
		return in, nil
	}
	upgrade := hostedCluster.Spec.AutoNode.NodeUpgrade
	switch upgrade.Policy {
	case v1beta1.NodeUpgradeManual:
		in.policy = upgrade.Policy
		in.approved = hostedCluster.Annotations[v1beta1.ApproveNodeVersionAnnotation]
		in.approve = annotate(hostedCluster, v1beta1.ApproveNodeVersionAnnotation)
	case v1beta1.NodeUpgradeMaintenanceWindow:
		window, err := Window(upgrade)
		if err != nil {
			return in, err
		}
		in.policy, in.spec, in.window = upgrade.Policy, upgrade.MaintenanceWindow, window
	}
	return in, nil
}

// annotate is the command that annotates a HostedCluster, up to the annotation's value.
func annotate(hostedCluster *v1beta1.HostedCluster, annotation string) string {
	return fmt.Sprintf("kubectl annotate --overwrite -n %s hostedcluster %s %s=", hostedCluster.Namespace, hostedCluster.Name, annotation)
}

// Window parses the window of the policy MaintenanceWindow; nil for the others. Errors name the field.
func Window(upgrade *v1beta1.NodeUpgrade) (*maintenance.Schedule, error) {
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

// allows reports whether nodes may get the payload's version now.
func (in input) allows() bool {
	switch in.policy {
	case v1beta1.NodeUpgradeMaintenanceWindow:
		return in.window.Open(in.now)
	case v1beta1.NodeUpgradeManual:
		return in.wanted != "" && same(in.approved, in.wanted)
	default:
		return true
	}
}

// edge is the time until the window opens or closes; zero without one.
func (in input) edge() time.Duration {
	if in.window == nil {
		return 0
	}
	at := in.window.Opens(in.now)
	if in.window.Open(in.now) {
		at = in.window.Closes(in.now)
	}
	if at.IsZero() {
		return 0
	}
	return max(at.Sub(in.now), time.Second)
}

func decide(in input) scope.NodeUpgrade {
	allowed := in.allows()
	out := scope.NodeUpgrade{
		Version: in.wanted,
		Window:  in.spec,
		Hold:    in.policy == v1beta1.NodeUpgradeManual && !allowed,
	}
	// The first version needs no approval, and nodes can't use a version that the control plane no longer supports.
	if !allowed && in.current != "" && in.wanted != "" && !same(in.current, in.wanted) && !guest.Unsupported(in.current, in.server) {
		out.Version = in.current
	}
	if !allowed {
		out.Waits = in.waits()
	}
	return out
}

// waits describes why nodes wait.
func (in input) waits() string {
	if in.policy == v1beta1.NodeUpgradeMaintenanceWindow {
		opens := in.window.Opens(in.now)
		if opens.IsZero() {
			return "the maintenance window doesn't open again"
		}
		change := "upgraded"
		if guest.CompareVersions(guest.PlainVersion(in.wanted), guest.PlainVersion(in.current)) < 0 {
			change = "taken back"
		}
		return fmt.Sprintf("to be %s from %s on, in the maintenance window", change, opens.Format("Mon 2 Jan 15:04 MST"))
	}
	wanted := strings.TrimPrefix(in.wanted, "v")
	message := "approve with: " + in.approve + wanted
	const limit = 64 // of what is quoted
	switch _, err := utilversion.ParseSemantic(in.approved); {
	case in.approved == "":
		return message
	case err != nil || len(in.approved) > limit:
		return fmt.Sprintf("the approval isn't of a version such as %s; %s", wanted, message)
	default:
		return fmt.Sprintf("approved is %s; %s", in.approved, message)
	}
}

// same compares versions with their builds: another build is another version, which may need approval.
func same(a, b string) bool { return strings.TrimPrefix(a, "v") == strings.TrimPrefix(b, "v") }
