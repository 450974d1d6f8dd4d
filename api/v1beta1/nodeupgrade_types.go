// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
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
