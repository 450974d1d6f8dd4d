// SPDX-License-Identifier: Apache-2.0

package v1beta1

import "github.com/autonode-io/autonode/api/scalar"

// Sleep removes Karpenter's nodes, and then Karpenter's replicas, for a while. The guest's objects stay, and its pods are pending.
type Sleep struct {
	// schedules are when the cluster is asleep: while the last start of any entry is later than the entry's last end.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Schedules []SleepSchedule `json:"schedules,omitempty"`
	// suspend has the cluster asleep now, whatever schedules say.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
	// nodeDrain sets how long nodes may drain when the cluster falls asleep, and the policy at the deadline.
	// +optional
	NodeDrain *NodeDrain `json:"nodeDrain,omitempty"`
}

// SleepSchedule has a cluster asleep from each start to the next end. The syntax is that of a maintenance window's schedule.
type SleepSchedule struct {
	// start is when the cluster falls asleep, in cron syntax, such as "0 20 * * 1-5". If the clocks skip it, it is the first instant after.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^(@(annually|yearly|monthly|weekly|daily|midnight|hourly)|[0-9A-Za-z*/,?-]+( +[0-9A-Za-z*/,?-]+){4})$')",message="start has to be five fields as cron has them (minute, hour, day, month, weekday), such as 0 20 * * 1-5"
	Start string `json:"start"`
	// end is when it wakes, in the same syntax, such as "0 7 * * 1-5".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="self.matches('^(@(annually|yearly|monthly|weekly|daily|midnight|hourly)|[0-9A-Za-z*/,?-]+( +[0-9A-Za-z*/,?-]+){4})$')",message="end has to be five fields as cron has them (minute, hour, day, month, weekday), such as 0 7 * * 1-5"
	End string `json:"end"`
	// timeZone of start and end, by its IANA name, such as Europe/Zurich. Defaults to UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}

// SleepStatus is how a cluster sleeps.
type SleepStatus struct {
	// since is when its last node had gone; absent while it falls asleep.
	// +optional
	Since *scalar.Time `json:"since,omitempty"`
	// savedPerHour is the sum of the prices of the nodes that it had when it began to fall asleep, such as "$1.204".
	// +optional
	// +kubebuilder:validation:MaxLength=32
	SavedPerHour string `json:"savedPerHour,omitempty"`
}
