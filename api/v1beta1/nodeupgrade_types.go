// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/scalar"
)

// NodeUpgrade is a union: the member that policy names is set.
//
// +kubebuilder:validation:XValidation:rule="self.policy == 'MaintenanceWindow' ? has(self.maintenanceWindow) : !has(self.maintenanceWindow)",message="maintenanceWindow is required when policy is MaintenanceWindow, and forbidden otherwise"
type NodeUpgrade struct {
	// policy decides when nodes are upgraded. Until then new nodes get the version that nodes have.
	// +optional
	// +kubebuilder:default=Immediate
	Policy NodeUpgradePolicy `json:"policy,omitempty"`
	// maintenanceWindow is when nodes may be upgraded.
	// +optional
	MaintenanceWindow *MaintenanceWindow `json:"maintenanceWindow,omitempty"`
	// canary proves a release on its first nodes, once policy allows its version. A release that was Completed before needs none.
	// +optional
	Canary *NodeUpgradeCanary `json:"canary,omitempty"`
	// haltOn bounds the damage of a release, with or without canaries. Defaults to one failed node where canary is set, otherwise to none.
	// +optional
	HaltOn *NodeUpgradeHaltOn `json:"haltOn,omitempty"`
	// after are rings: the HostedClusters that complete a release before this one's nodes get it, once policy allows its version. A release
	// that was Completed here before waits for none, nor does the first one.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	After []NodeUpgradeAfter `json:"after,omitempty"`
}

// NodeUpgradeAfter is a ring. Of its HostedClusters, those that are deleted, paused, asleep, without AutoNode or without nodes don't count,
// nor those whose own upgrade is halted although no node has failed; at least one has to be left.
type NodeUpgradeAfter struct {
	// hostedClusterSelector selects HostedClusters of the same namespace by their labels. It may not be empty, and none of them may wait for
	// this one.
	// +required
	// +kubebuilder:validation:XValidation:rule="has(self.matchLabels) && size(self.matchLabels) > 0 || has(self.matchExpressions) && size(self.matchExpressions) > 0",message="hostedClusterSelector may not be empty"
	HostedClusterSelector metav1.LabelSelector `json:"hostedClusterSelector"`
	// soakDuration is how long each of them has to run the release and be Ready after it is Completed there, from 0s to 168h, such as 24h.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) <= duration('168h')",message="soakDuration has to be between 0s and 168h, such as 24h"
	SoakDuration scalar.Duration `json:"soakDuration"`
}

// NodeUpgradeCanary is the proof that a release needs. Nodes whose version a node class or a MachineDeployment pins aren't canaries.
type NodeUpgradeCanary struct {
	// nodes is how many nodes get the release first, from 1 to 100.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Nodes int32 `json:"nodes,omitempty"`
	// soakDuration is how long they have to be healthy without a break, from 0s to 168h: initialized and Ready, and of each workload the
	// share of ready pods on them no lower than on other nodes. Defaults to 10m.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) <= duration('168h')",message="soakDuration has to be between 0s and 168h, such as 10m"
	SoakDuration *scalar.Duration `json:"soakDuration,omitempty"`
}

// NodeUpgradeHaltOn is when an upgrade of nodes halts.
type NodeUpgradeHaltOn struct {
	// failedNodes halts the upgrade at so many nodes that didn't come, didn't join, were repaired, or aren't Ready now; from 1 to 100.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	FailedNodes int32 `json:"failedNodes,omitempty"`
	// unavailablePods halts the upgrade while so many pods on nodes of the release aren't ready, of workloads that do better on other nodes:
	// a number such as "3", or a percentage of the pods there, rounded up. Defaults to never.
	// +optional
	// +kubebuilder:validation:Pattern=`^([1-9][0-9]{0,4}|([1-9]|[1-9][0-9]|100)%)$`
	UnavailablePods string `json:"unavailablePods,omitempty"`
}

// NodeUpgradePolicy decides when nodes are upgraded.
//
// +kubebuilder:validation:Enum=Immediate;MaintenanceWindow;Manual
type NodeUpgradePolicy string

const (
	// NodeUpgradeImmediate: nothing; nodes follow the payload and the control plane at once.
	NodeUpgradeImmediate NodeUpgradePolicy = "Immediate"
	// NodeUpgradeMaintenanceWindow: the next maintenance window. From then on new nodes get the new version, and running nodes are
	// replaced while a window is open. The others wait for the next window.
	NodeUpgradeMaintenanceWindow NodeUpgradePolicy = "MaintenanceWindow"
	// NodeUpgradeManual: the annotation autonode.io/approve-node-version on the HostedCluster, with the approved version.
	NodeUpgradeManual NodeUpgradePolicy = "Manual"
)

// MaintenanceWindow is a recurring window.
type MaintenanceWindow struct {
	// schedule is when it opens, in cron syntax: minute, hour, day of month, month and day of week, such as "0 2 * * 6"; or
	// @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually. If the clocks skip it, the window opens at the first instant after.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^(@(annually|yearly|monthly|weekly|daily|midnight|hourly)|[0-9A-Za-z*/,?-]+( +[0-9A-Za-z*/,?-]+){4})$')",message="schedule has to be five fields as cron has them (minute, hour, day, month, weekday), such as 0 2 * * 6, or one of @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually"
	Schedule string `json:"schedule"`
	// duration is how long it stays open, from 15m to 168h. No replacement starts in the last five minutes; drains in progress
	// finish.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) >= duration('15m') && duration(self) <= duration('168h')",message="duration has to be between 15m and 168h, such as 4h or 1h30m"
	Duration scalar.Duration `json:"duration"`
	// timeZone of schedule, by its IANA name, such as Europe/Zurich. Defaults to UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}
