// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/scalar"
)

// RecordedDayLabel is on a NodeRecord: the day of its last write in UTC, such as 2026-11-30.
const RecordedDayLabel = Group + "/recorded-day"

// NodeRecord is why a node came, what it cost and why it went. Karpenter deletes it a week after the node by default.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=noderecords,scope=Cluster
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.launch.node`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.launch.nodePool`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.launch.instanceType`
// +kubebuilder:printcolumn:name="Price/h",type=string,JSONPath=`.launch.pricePerHour`
// +kubebuilder:printcolumn:name="Launched for",type=string,JSONPath=`.launch.for`
// +kubebuilder:printcolumn:name="Lived",type=string,JSONPath=`.end.lived`
// +kubebuilder:printcolumn:name="Cost",type=string,JSONPath=`.end.cost`
// +kubebuilder:printcolumn:name="Gone because",type=string,JSONPath=`.end.because`
type NodeRecord struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// launch of the node's machine.
	Launch NodeLaunch `json:"launch,omitempty"`
	// end of the node; absent while it exists.
	End *NodeEnd `json:"end,omitempty"`
}

// NodeRecordList is a list of NodeRecords.
// +kubebuilder:object:root=true
type NodeRecordList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeRecord `json:"items"`
}

// NodeRecordName returns the name of a NodeClaim's NodeRecord, which ends in the start of the NodeClaim's UID.
func NodeRecordName(claim metav1.Object) string {
	name, uid := claim.GetName(), claim.GetUID()
	return name[:min(len(name), 244)] + "-" + string(uid[:min(len(uid), 8)])
}

// RecordText is a short text of a NodeRecord.
// +kubebuilder:validation:MaxLength=256
type RecordText string

// NodeLaunch is the launch of a node's machine.
type NodeLaunch struct {
	// time of the launch.
	Time *scalar.Time `json:"time,omitempty"`
	// node is the name of the Node; of its Machine until the record ends, or if the node never joined.
	Node         RecordText `json:"node,omitempty"`
	NodePool     RecordText `json:"nodePool,omitempty"`
	NodeClass    RecordText `json:"nodeClass,omitempty"`
	InstanceType RecordText `json:"instanceType,omitempty"`
	Zone         RecordText `json:"zone,omitempty"`
	CapacityType RecordText `json:"capacityType,omitempty"`
	// pricePerHour in US dollars, such as $0.083.
	PricePerHour RecordText `json:"pricePerHour,omitempty"`
	// for what the node was launched, such as "12 pods, web/api, web/cart and 3 more owners"; adopted if that isn't known.
	For RecordText `json:"for,omitempty"`
	// refused are offerings that the NodeClaim allowed and that were unavailable at its launch, with the reason.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Refused []RecordText `json:"refused,omitempty"`
}

// NodeEnd is the end of a node.
type NodeEnd struct {
	// time when the machine's deletion began after the drain, or when Karpenter noticed that the NodeClaim was gone.
	Time *scalar.Time `json:"time,omitempty"`
	// lived is the time since the launch, such as 3h12m.
	Lived RecordText `json:"lived,omitempty"`
	// cost in US dollars, such as $0.27: the price at the launch for that time.
	Cost RecordText `json:"cost,omitempty"`
	// reason why the node went: Upgrade for another version or image of nodes, Reclaimed with borrowed capacity, Deleted by a request,
	// Teardown when the operator deleted its machine without Karpenter.
	// +kubebuilder:validation:Enum=Empty;Underutilized;Drifted;Expired;Interrupted;Unhealthy;ScaledDown;Reclaimed;Upgrade;LaunchFailed;Deleted;Teardown;Unknown
	Reason string `json:"reason"`
	// because is the reason with its details.
	// +kubebuilder:validation:MaxLength=512
	Because string `json:"because,omitempty"`
	// launchedAfter is the time from the NodeClaim's creation to its machine, such as 4s.
	LaunchedAfter RecordText `json:"launchedAfter,omitempty"`
	// registeredAfter is the time from the NodeClaim's creation until its node had joined.
	RegisteredAfter RecordText `json:"registeredAfter,omitempty"`
	// initializedAfter is the time from the NodeClaim's creation until its node was ready for pods.
	InitializedAfter RecordText `json:"initializedAfter,omitempty"`
	// drain of the node, such as "14 pods moved in 40s".
	Drain RecordText `json:"drain,omitempty"`
}
