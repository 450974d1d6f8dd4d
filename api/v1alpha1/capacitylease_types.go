// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/scalar"
)

// Bounds of a Karpenter's reports. They keep sums over all clusters of an account within 64 bits.
const (
	// MaxRequests is the number of requests in a report.
	MaxRequests = 32
	// MaxRequestedLaunches is the number of launches of all requests in a report.
	MaxRequestedLaunches = 500
	// MaxCommittedMachines is the number of groups of machines that commitments are priced beside.
	MaxCommittedMachines = 512
	// MaxUnavailable is the number of unavailable offerings in a report.
	MaxUnavailable = 64
	// MaxCharge is the most that one machine takes of a pool, in the pool's unit: 64 TiB of memory.
	MaxCharge = int64(1) << 46
	// MaxAmount is the largest amount of a pool.
	MaxAmount = int64(1) << 54
)

// ReservationPool is the name of a reservation's pool.
func ReservationPool(id string) string { return "reservation/" + id }

// QuotaPool is the name of the pool of one resource of a quota, which is named as in CapacityAmounts.
func QuotaPool(quota, resource string) string { return "quota/" + quota + "/" + resource }

// CommitmentName is how a report calls a commitment.
func CommitmentName(name string) string { return "commitment/" + name }

// LimitPool is the name of the pool of a cluster's own limit of a resource.
func LimitPool(resource string) string { return "limit/" + resource }

// CapacityLease is one hosted cluster's share of the account that it shares with others. It lives in the
// cluster's control-plane namespace with the name "karpenter", or "karpenter-<cluster>" where clusters share the namespace.
// The operator writes its spec, and that cluster's Karpenter its status. One without pools limits nothing.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations={"argocd.argoproj.io/sync-options=Prune=false,Delete=false","kustomize.toolkit.fluxcd.io/prune=disabled"}
// +kubebuilder:resource:path=capacityleases,scope=Namespaced,shortName={ancl,ancls},categories={autonode}
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Account",type=string,JSONPath=`.spec.account.name`
// +kubebuilder:printcolumn:name="Sequence",type=integer,JSONPath=`.spec.sequence`
// +kubebuilder:printcolumn:name="Acknowledged",type=integer,JSONPath=`.status.acknowledgedSequence`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CapacityLease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the cluster's grant.
	// +optional
	Spec CapacityLeaseSpec `json:"spec,omitempty"`
	// status is the report of the cluster's Karpenter.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status CapacityLeaseStatus `json:"status,omitempty"`
}

// CapacityLeaseList is a list of CapacityLeases.
//
// +kubebuilder:object:root=true
type CapacityLeaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CapacityLease `json:"items"`
}

// CapacityLeaseSpec is a cluster's grant.
type CapacityLeaseSpec struct {
	// account that grants it. Without one the lease limits nothing.
	// +optional
	Account *CapacityAccountReference `json:"account,omitempty"`
	// sequence of the grant. It increases with each change of an amount. Zero: nothing is granted yet, and no amount means
	// anything.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Sequence int64 `json:"sequence,omitempty"`
	// pools that the cluster's machines take from. A machine takes from every pool whose rule applies to it.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=128
	Pools []LeasedPool `json:"pools,omitempty"`
	// commitments of the account that are in their term. Of the unused part, each has what this cluster may use: the clusters share it.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Commitments []LeasedCommitment `json:"commitments,omitempty"`
	// machines of all clusters that commitments may cover. Karpenter computes the price of a machine as the difference that it makes to the
	// bill beside these.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=512
	Machines []CommittedMachines `json:"machines,omitempty"`
	// counted are this cluster's machines of them. Karpenter adds what it has launched since, and removes what is gone.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=512
	Counted []CountedMachines `json:"counted,omitempty"`
	// unavailable offerings, as other clusters of the account found them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Unavailable []UnavailableOffering `json:"unavailable,omitempty"`
	// reclaim is what the cluster has to return: amounts that other clusters request and have precedence for. Karpenter launches nothing
	// into them, and removes nodes whose machines take from the pool, within disruption budgets until reclaimGracePeriod has passed, and by
	// force afterwards.
	// +optional
	// +listType=map
	// +listMapKey=pool
	// +kubebuilder:validation:MaxItems=128
	Reclaim []CapacityReclaim `json:"reclaim,omitempty"`
	// reclaimGracePeriod is how long the cluster has to return an amount, since its Karpenter has read the request. Defaults to 15m.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	ReclaimGracePeriod *scalar.Duration `json:"reclaimGracePeriod,omitempty"`
}

// CapacityReclaim is the most that the cluster may keep of a pool, because other clusters request the rest.
type CapacityReclaim struct {
	// pool is the pool's name.
	// +required
	// +kubebuilder:validation:MaxLength=128
	Pool string `json:"pool"`
	// limit is the most that the cluster's machines may take, in the pool's unit. It is never less than what is guaranteed to the cluster.
	// +required
	// +kubebuilder:validation:Minimum=0
	Limit int64 `json:"limit"`
	// for are the first of the clusters that request it, as namespace/name.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=320
	For []string `json:"for,omitempty"`
	// by is the deadline by Karpenter's clock. Karpenter sets it in status.
	// +optional
	By *scalar.Time `json:"by,omitempty"`
}

// CapacityAccountReference names a CapacityAccount.
type CapacityAccountReference struct {
	// name of the CapacityAccount.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the CapacityAccount.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// PoolResource is the resource that a pool counts.
//
// +kubebuilder:validation:Enum=machines;vcpus;memory;gpus
type PoolResource string

// What pools count, and their units.
const (
	// PoolMachines counts machines.
	PoolMachines PoolResource = "machines"
	// PoolVCPUs counts thousandths of a vCPU.
	PoolVCPUs PoolResource = "vcpus"
	// PoolMemory counts bytes.
	PoolMemory PoolResource = "memory"
	// PoolGPUs counts GPUs.
	PoolGPUs PoolResource = "gpus"
)

// LeasedPool is a pool's rule, and what the cluster may take of it, in the unit of its resource: machines, thousandths
// of a vCPU, bytes of memory, GPUs.
type LeasedPool struct {
	// name of the pool: reservation/ID, quota/NAME/RESOURCE, or limit/RESOURCE for a limit of this cluster alone.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name"`
	// resource that the pool counts.
	// +required
	Resource PoolResource `json:"resource"`
	// selector of the machines that take from the pool.
	// +optional
	Selector CapacitySelector `json:"selector,omitempty"`
	// reservation is the ID of the reservation that a machine has to use to take from the pool; empty for any machine.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Reservation string `json:"reservation,omitempty"`
	// expires is when the reservation ends. Nothing is launched in it afterwards.
	// +optional
	Expires *scalar.Time `json:"expires,omitempty"`
	// limit is the most that the cluster's machines may take together.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Limit int64 `json:"limit,omitempty"`
	// granted is the most that the cluster's machines may take until it acknowledges the lease; never less than limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Granted int64 `json:"granted,omitempty"`
	// available is about how much the cluster gets if it requests more. A hint.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Available int64 `json:"available,omitempty"`
	// attainable is the most that the cluster might get in time, if all machines went but those that are guaranteed to others; of a
	// reservation, the most that it may reclaim. Karpenter requests what pods wait for up to this. A hint.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Attainable int64 `json:"attainable,omitempty"`
}

// LeasedCommitment is a commitment of the account that is in its term.
type LeasedCommitment struct {
	CapacityCommitment `json:",inline"`
	// packedRates are those of rates and ratesFrom, as a JSON object of numbers by instance type that is compressed with gzip.
	// +optional
	// +kubebuilder:validation:MaxLength=262144
	PackedRates []byte `json:"packedRates,omitempty"`
	// others is the unused part that other clusters may use: of hourlySpend, of instances, or of cpu, as a decimal.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Others string `json:"others,omitempty"`
	// othersMemory is that of memory, in GiB.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	OthersMemory string `json:"othersMemory,omitempty"`
}

// CommittedMachines is a number of equal machines that commitments may cover. zone and catalog are empty where no commitment distinguishes
// them.
type CommittedMachines struct {
	// instanceType of the machines.
	// +required
	// +kubebuilder:validation:MaxLength=253
	InstanceType string `json:"instanceType"`
	// zone as nodes name it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Zone string `json:"zone,omitempty"`
	// capacityType is on-demand or reserved.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	CapacityType string `json:"capacityType,omitempty"`
	// catalog is the name of the InstanceTypeCatalog that has the instance type.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Catalog string `json:"catalog,omitempty"`
	// price is the list price of one in US dollars an hour, as a decimal.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Price string `json:"price,omitempty"`
	// vcpus of one in thousandths, and memory in bytes.
	// +optional
	VCPUs int64 `json:"vcpus,omitempty"`
	// memory: see vcpus.
	// +optional
	Memory int64 `json:"memory,omitempty"`
	// reserved: they don't run, but are billed as a capacity reservation.
	// +optional
	Reserved bool `json:"reserved,omitempty"`
	// count of the machines.
	// +required
	// +kubebuilder:validation:Minimum=0
	Count int64 `json:"count"`
}

// CountedMachines is a number of machines of an offering.
type CountedMachines struct {
	// instanceType of the machines.
	// +required
	// +kubebuilder:validation:MaxLength=253
	InstanceType string `json:"instanceType"`
	// zone as in CommittedMachines.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Zone string `json:"zone,omitempty"`
	// capacityType is on-demand, spot or reserved.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	CapacityType string `json:"capacityType,omitempty"`
	// catalog as in CommittedMachines.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Catalog string `json:"catalog,omitempty"`
	// count of the machines.
	// +required
	// +kubebuilder:validation:Minimum=0
	Count int64 `json:"count"`
}

// UnavailableOffering is an offering that the infrastructure has no capacity for, or an exhausted quota. An empty field stands for all,
// such as all instance types of a zone.
type UnavailableOffering struct {
	// instanceType is a name; one that ends with * stands for all that begin with the rest.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	InstanceType string `json:"instanceType,omitempty"`
	// zone as nodes name it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Zone string `json:"zone,omitempty"`
	// capacityType is on-demand, spot or reserved.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	CapacityType string `json:"capacityType,omitempty"`
	// reason is Capacity, or Quota if a quota of the infrastructure is exhausted. Any other counts as Capacity.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Reason string `json:"reason,omitempty"`
	// quota is the name of the quota, as the profile of the infrastructure's kind has it. It stands for all offerings that the quota counts.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Quota string `json:"quota,omitempty"`
	// counts is the resource that the quota counts. Without it, all machines are alike to the quota.
	// +optional
	Counts PoolResource `json:"counts,omitempty"`
	// atLeast is the smallest amount of the quota that is too much, in the unit of counts.
	// +optional
	AtLeast int64 `json:"atLeast,omitempty"`
	// until is when the offering is tried again.
	// +required
	Until scalar.Time `json:"until"`
}

// CapacityLeaseStatus is the report of a cluster's Karpenter. The operator treats it as a tenant's report: it
// lowers this cluster's grants and raises them within its share, and changes nothing of other clusters'.
type CapacityLeaseStatus struct {
	// observedGeneration is the generation of the object that the condition Ready is about; -1 until Karpenter has reported any.
	// Karpenter reports a change of hints alone within half a minute.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready, once Karpenter keeps to the lease, and CapacityReturned while it has to return something.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",message="lastTransitionTime has to be a time in RFC 3339"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// acknowledgedSequence is the sequence that Karpenter has observed and keeps. Earlier grants are void.
	// +optional
	// +kubebuilder:validation:Minimum=0
	AcknowledgedSequence int64 `json:"acknowledgedSequence,omitempty"`
	// reserved is the most that the cluster's machines take until the next grant, launches included that may still come.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Reserved []PoolAmount `json:"reserved,omitempty"`
	// used is what the cluster's machines take now, launches included that may still come.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Used []PoolAmount `json:"used,omitempty"`
	// requests are launches that wait for a larger grant, the oldest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Requests []CapacityRequest `json:"requests,omitempty"`
	// reclaim has the deadlines of spec.reclaim. A pool may have several, each with less to keep and a later deadline than the one before.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Reclaim []CapacityReclaim `json:"reclaim,omitempty"`
	// unavailable offerings that this cluster found.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Unavailable []UnavailableOffering `json:"unavailable,omitempty"`
	// unmatched are the names of pools that no instance type of the cluster takes from, and of commitments that cover none of them, as
	// commitment/NAME. There are none before Karpenter has listed its instance types.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=192
	// +kubebuilder:validation:items:MaxLength=320
	Unmatched []string `json:"unmatched,omitempty"`
}

// PoolAmount is an amount of one pool, in the pool's unit.
type PoolAmount struct {
	// pool is the pool's name.
	// +required
	// +kubebuilder:validation:MaxLength=128
	Pool string `json:"pool"`
	// amount in the pool's unit.
	// +required
	// +kubebuilder:validation:Minimum=0
	Amount int64 `json:"amount"`
}

// CapacityRequest is a number of launches that take the same from each pool.
type CapacityRequest struct {
	// charges of one launch, by pool.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Charges []PoolAmount `json:"charges"`
	// count of the launches.
	// +required
	// +kubebuilder:validation:Minimum=0
	Count int64 `json:"count"`
}

// UnmarshalJSON implements json.Unmarshaler: see scalar.DecodeStatus.
func (in *CapacityLeaseStatus) UnmarshalJSON(data []byte) error {
	type plain CapacityLeaseStatus
	return scalar.DecodeStatus(data, (*plain)(in))
}
