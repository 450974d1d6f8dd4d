// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/scalar"
)

// CapacityAccount describes what several hosted clusters share: reservations, quotas and commitments of one account with
// the infrastructure. The operator divides them among the clusters and grants each its part by a CapacityLease. An entry
// that the operator can't read is unusable, and a condition names it; the others stay in use.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations={"argocd.argoproj.io/sync-options=Prune=false,Delete=false","kustomize.toolkit.fluxcd.io/prune=disabled"}
// +kubebuilder:resource:path=capacityaccounts,scope=Cluster,shortName={anca,ancas},categories={autonode}
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Clusters",type=integer,JSONPath=`.status.clusterCount`
// +kubebuilder:printcolumn:name="Machines",type=integer,JSONPath=`.status.machineCount`
// +kubebuilder:printcolumn:name="Fullest",type=string,JSONPath=`.status.fullestPool`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type CapacityAccount struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the capacity that the clusters of the account share.
	// +required
	Spec CapacityAccountSpec `json:"spec"`
	// status reports grants and use. The operator's record of grants is part of it: don't edit it.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status CapacityAccountStatus `json:"status,omitempty"`
}

// CapacityAccountList is a list of CapacityAccounts.
//
// +kubebuilder:object:root=true
type CapacityAccountList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CapacityAccount `json:"items"`
}

// CapacityAccountSpec is the capacity that the clusters of an account share.
type CapacityAccountSpec struct {
	// members are the hosted clusters that share the account. The first entry that matches a cluster applies to it. An
	// account serves at most 200 clusters. A cluster that two accounts claim belongs to the older account.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=200
	Members []CapacityMember `json:"members,omitempty"`

	// reservations are machines that are reserved with the infrastructure. A machine uses one if its offering names the
	// reservation's ID.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=40
	Reservations []CapacityReservation `json:"reservations,omitempty"`

	// quotas are the most that the machines of all clusters may take together.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Quotas []CapacityQuota `json:"quotas,omitempty"`

	// commitments are paid for whether they are used or not, so that Karpenter launches what they cover first.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Commitments []CapacityCommitment `json:"commitments,omitempty"`

	// preemption is LowerPriority if a request that doesn't fit reclaims what clusters with a lower priority use beyond their guaranteed
	// amounts, provided that this suffices for it. With Never, the request waits until enough is free at once. Defaults to Never.
	// +optional
	// +kubebuilder:default:=Never
	// +kubebuilder:validation:Enum=Never;LowerPriority
	Preemption CapacityPreemption `json:"preemption,omitempty"`

	// reclaimGracePeriod is how long clusters have to return what others reclaim: guaranteed amounts once their cluster requests them, and
	// by preemption. Their nodes drain within disruption budgets for so long, and by force afterwards. Defaults to 15m.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') && duration(self) >= duration('1m') && duration(self) <= duration('24h')",message="reclaimGracePeriod has to be a time between 1m and 24h, such as 30m"
	ReclaimGracePeriod *scalar.Duration `json:"reclaimGracePeriod,omitempty"`
}

// CapacityPreemption decides whether requests reclaim amounts that aren't guaranteed to their cluster.
type CapacityPreemption string

// Preemption of clusters.
const (
	PreemptionNever         CapacityPreemption = "Never"
	PreemptionLowerPriority CapacityPreemption = "LowerPriority"
)

// CapacityMember selects hosted clusters and declares the share of each. Exactly one of hostedCluster and
// namespaceSelector is set.
//
// +kubebuilder:validation:XValidation:rule="has(self.hostedCluster) != has(self.namespaceSelector)",message="set exactly one of hostedCluster and namespaceSelector"
type CapacityMember struct {
	// hostedCluster names one hosted cluster.
	// +optional
	HostedCluster *HostedClusterReference `json:"hostedCluster,omitempty"`
	// namespaceSelector selects the hosted clusters in all namespaces with these labels. Labels of HostedClusters don't
	// count: tenants may write those. An empty selector selects all hosted clusters.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// priority among the clusters whose requests don't all fit: the higher one is served first. Among equals, the cluster with the
	// smallest share is.
	// +optional
	// +kubebuilder:default:=0
	// +kubebuilder:validation:Minimum=-1000000
	// +kubebuilder:validation:Maximum=1000000
	Priority int32 `json:"priority,omitempty"`
	// guaranteed amounts are those that each of these clusters has once it requests them. Other clusters borrow what it neither uses nor
	// requests, and have reclaimGracePeriod to return it. Then it isn't lent again for an hour.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=56
	Guaranteed []CapacityShare `json:"guaranteed,omitempty"`
	// maximum is the most that each of these clusters may have of a reservation or quota.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=56
	Maximum []CapacityShare `json:"maximum,omitempty"`
	// limits are the most that all machines of Karpenter's in each of these clusters may have together, independent of its
	// NodePools allow.
	// +optional
	Limits CapacityAmounts `json:"limits,omitempty"`
}

// HostedClusterReference names a HostedCluster.
type HostedClusterReference struct {
	// namespace of the HostedCluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// name of the HostedCluster.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// CapacityShare is an amount of a reservation or of a quota. Exactly one of reservation and quota is set.
//
// +kubebuilder:validation:XValidation:rule="has(self.reservation) != has(self.quota)",message="set exactly one of reservation and quota"
type CapacityShare struct {
	// reservation is the ID of a reservation of the account. The only amount of a reservation is machines.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Reservation string `json:"reservation,omitempty"`
	// quota is the name of a quota of the account.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Quota string `json:"quota,omitempty"`
	// amounts of it, such as {machines: 2} or {cpu: 64}.
	// +required
	Amounts CapacityAmounts `json:"amounts"`
}

// CapacityAmounts are quantities by resource: machines, cpu, memory and gpus, which are devices of every resource whose
// name ends with /gpu, such as nvidia.com/gpu.
//
// +kubebuilder:validation:MaxProperties=4
// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['machines', 'cpu', 'memory', 'gpus'])",message="resources are machines, cpu, memory and gpus"
type CapacityAmounts map[string]scalar.Quantity

// CapacityReservation is a number of machines that are reserved.
type CapacityReservation struct {
	// id of the reservation, such as cr-0123456789abcdef0, as offerings of an InstanceTypeCatalog name it.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	ID string `json:"id"`
	// instanceType of the reserved machines.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	InstanceType string `json:"instanceType"`
	// zone of the reserved machines, as nodes name it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Zone string `json:"zone"`
	// count of the reserved machines.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	Count int32 `json:"count"`
	// expires is when the reservation ends. Nothing is launched in it afterwards.
	// +optional
	Expires *scalar.Time `json:"expires,omitempty"`
	// price that each machine of count is billed at in US dollars an hour, used or not, as a decimal such as "0.139". Defaults to what the
	// machines in it cost on demand. The price of the catalog's offering isn't billed: it decides what Karpenter prefers.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Price string `json:"price,omitempty"`
	// billing is OnDemand if the cloud bills the reservation like machines on demand, so that commitments cover it, or Prepaid if they
	// don't. Defaults to OnDemand.
	// +optional
	// +kubebuilder:validation:Enum=OnDemand;Prepaid
	Billing CapacityBilling `json:"billing,omitempty"`
}

// CapacityBilling is how a reservation is billed.
type CapacityBilling string

// How a reservation is billed.
const (
	// BilledOnDemand is billed like machines on demand, as On-Demand Capacity Reservations of AWS and capacity reservations of Azure
	// and Google Cloud are.
	BilledOnDemand CapacityBilling = "OnDemand"
	// BilledPrepaid is paid at once, as Capacity Blocks of AWS are.
	BilledPrepaid CapacityBilling = "Prepaid"
)

// CapacityQuota is the most that machines may take together. At least one of limits and limitsFrom is set.
//
// +kubebuilder:validation:XValidation:rule="has(self.limits) || has(self.limitsFrom)",message="set limits, limitsFrom or both"
type CapacityQuota struct {
	// name of the quota.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
	// selector of the machines that count. Without one all do.
	// +optional
	Selector CapacitySelector `json:"selector,omitempty"`
	// limits by resource.
	// +optional
	Limits CapacityAmounts `json:"limits,omitempty"`
	// limitsFrom reads limits from objects in the management cluster, such as a cloud's quota that another controller observes, or
	// counts objects, such as hosts. Until the operator has read one, the resource's entry in limits is its limit.
	// +optional
	// +listType=map
	// +listMapKey=resource
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	LimitsFrom []CapacityLimitSource `json:"limitsFrom,omitempty"`
}

// CapacityLimitSource has the limit of a resource: name and path of a field, or selector and where of objects to count. The operator reads
// it every minute, and needs the right to get the object or to list the objects. While it can't read the limit, the last one stays.
//
// +kubebuilder:validation:XValidation:rule="has(self.name) == has(self.path) && has(self.selector) == has(self.where) && has(self.name) != has(self.selector) && (has(self.name) || self.resource == 'machines')",message="set name and path, or, for machines, selector and where"
type CapacityLimitSource struct {
	// resource that is limited.
	// +required
	// +kubebuilder:validation:Enum=machines;cpu;memory;gpus
	Resource string `json:"resource"`
	// apiVersion of the object, such as example.com/v1.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	APIVersion string `json:"apiVersion"`
	// kind of the object; not Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self != 'Secret'",message="a limit isn't read from a Secret"
	Kind string `json:"kind"`
	// namespace of the object; empty for an object without one. With a selector, empty counts the objects of all namespaces.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// name of the object.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// path of the field, such as status.quota.value or status.limits[0].amount. The field has a quantity, as a number or a string.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Path string `json:"path,omitempty"`
	// selector of at most 5000 objects, each a machine, by labels; an empty one selects all. The limit is the number of spare objects,
	// which have no spec.consumerRef and match where, and of those whose spec.consumerRef has the name and namespace of a Machine that
	// counts against the quota.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// where spare objects differ from others.
	// +optional
	Where *CapacityObjectCondition `json:"where,omitempty"`
}

// CapacityObjectCondition compares a field of objects.
type CapacityObjectCondition struct {
	// path of the field, such as status.provisioning.state.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Path string `json:"path"`
	// values, one of which the field has; "" matches an object without the field.
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	Values []string `json:"values"`
}

// CapacitySelector selects offerings. An empty list selects all.
type CapacitySelector struct {
	// instanceTypes are names, in which each * stands for any characters, such as m5.* or Standard_D*s_v5.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	InstanceTypes []string `json:"instanceTypes,omitempty"`
	// catalogs are names of the InstanceTypeCatalogs that have the instance type, in whichever namespace; each * stands for
	// any characters. No name selects a machine of an infrastructure template.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Catalogs []string `json:"catalogs,omitempty"`
	// zones as nodes name them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Zones []string `json:"zones,omitempty"`
	// capacityTypes are on-demand, spot and reserved.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:Enum=on-demand;spot;reserved
	CapacityTypes []string `json:"capacityTypes,omitempty"`
}

// CommitmentKind names the rules by which a commitment covers machines.
//
// +kubebuilder:validation:Enum=SavingsPlan;ReservedInstance;CommittedUse;AzureReservation
type CommitmentKind string

// Kinds of commitments.
const (
	// CommitmentSavingsPlan is an hourly spend: a savings plan of AWS or Azure, or a flexible committed use discount of Google Cloud.
	CommitmentSavingsPlan CommitmentKind = "SavingsPlan"
	// CommitmentReservedInstance is a number of EC2 instances.
	CommitmentReservedInstance CommitmentKind = "ReservedInstance"
	// CommitmentCommittedUse is an amount of vCPUs and memory of Google Cloud.
	CommitmentCommittedUse CommitmentKind = "CommittedUse"
	// CommitmentAzureReservation is a number of virtual machines of Azure.
	CommitmentAzureReservation CommitmentKind = "AzureReservation"
)

// SavingsPlanScope decides when a savings plan applies.
type SavingsPlanScope string

// Scopes of savings plans.
const (
	// ScopeEC2Instance applies before ScopeCompute, to one family.
	ScopeEC2Instance SavingsPlanScope = "EC2Instance"
	// ScopeCompute applies to any type.
	ScopeCompute SavingsPlanScope = "Compute"
)

// SizeFlexibility decides whether other sizes of a series use a commitment.
type SizeFlexibility string

// Size flexibility.
const (
	SizeFlexibilityOn  SizeFlexibility = "On"
	SizeFlexibilityOff SizeFlexibility = "Off"
)

// CapacityCommitment is capacity that is paid for whether it is used or not. kind decides by whose rules it covers machines. No kind covers
// a spot machine. What is unused counts as wasted.
//
// +kubebuilder:validation:XValidation:rule="self.kind != 'SavingsPlan' || has(self.hourlySpend) && !has(self.instances)",message="a SavingsPlan has hourlySpend and no instances"
// +kubebuilder:validation:XValidation:rule="self.kind != 'SavingsPlan' || has(self.rates) || has(self.ratesFrom) || has(self.discountPercent)",message="a SavingsPlan needs rates, ratesFrom or discountPercent"
// +kubebuilder:validation:XValidation:rule="!(self.kind in ['ReservedInstance', 'AzureReservation']) || has(self.instances) && has(self.instanceType) && !has(self.hourlySpend)",message="a ReservedInstance or AzureReservation has instances and instanceType, and no hourlySpend"
// +kubebuilder:validation:XValidation:rule="!(self.kind in ['ReservedInstance', 'AzureReservation']) || has(self.price) || has(self.discountPercent)",message="a ReservedInstance or AzureReservation needs price or discountPercent"
// +kubebuilder:validation:XValidation:rule="self.kind != 'CommittedUse' || (has(self.cpu) || has(self.memory)) && !has(self.hourlySpend) && !has(self.instances)",message="a CommittedUse has cpu, memory or both, and neither hourlySpend nor instances"
// +kubebuilder:validation:XValidation:rule="self.kind == 'SavingsPlan' || !has(self.scope) && !has(self.rates) && !has(self.ratesFrom)",message="only a SavingsPlan has scope, rates and ratesFrom"
// +kubebuilder:validation:XValidation:rule="self.kind in ['ReservedInstance', 'AzureReservation'] || !has(self.instanceType) && !has(self.sizeFlexibility) && !has(self.ratios)",message="only a ReservedInstance or AzureReservation has instanceType, sizeFlexibility and ratios"
// +kubebuilder:validation:XValidation:rule="self.kind == 'CommittedUse' || !has(self.cpu) && !has(self.memory)",message="only a CommittedUse has cpu and memory"
type CapacityCommitment struct {
	// name of the commitment.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
	// kind names the rules by which it covers machines: SavingsPlan, ReservedInstance, CommittedUse or AzureReservation.
	// +required
	Kind CommitmentKind `json:"kind"`
	// selector of the machines that it covers. Without one it covers all but spot machines. A ReservedInstance whose selector has
	// one zone is a zonal one; several are those of a region.
	// +optional
	Selector CapacitySelector `json:"selector,omitempty"`
	// hourlySpend is committed in US dollars an hour, as a decimal such as "12.50".
	// +optional
	// +kubebuilder:validation:MaxLength=32
	HourlySpend string `json:"hourlySpend,omitempty"`
	// scope of a SavingsPlan: EC2Instance applies before Compute. Defaults to Compute.
	// +optional
	// +kubebuilder:validation:Enum=EC2Instance;Compute
	Scope SavingsPlanScope `json:"scope,omitempty"`
	// rates are the prices of an hour of each instance type within a SavingsPlan, in US dollars as a decimal. A type without a rate is at
	// discountPercent, and isn't covered without that.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=2000
	Rates map[string]string `json:"rates,omitempty"`
	// ratesFrom reads rates from a ConfigMap in the management cluster. Those in rates take precedence.
	// +optional
	RatesFrom *CapacityRatesSource `json:"ratesFrom,omitempty"`
	// instances is the number of machines of instanceType that are committed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100000
	Instances *int32 `json:"instances,omitempty"`
	// instanceType of a ReservedInstance or an AzureReservation.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	InstanceType string `json:"instanceType,omitempty"`
	// price is the effective price of one of instances in US dollars an hour, what is paid upfront included, as a decimal. Without one, it
	// is the list price less discountPercent.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Price string `json:"price,omitempty"`
	// sizeFlexibility is On if other sizes of instanceType's series use the commitment by the ratio of their sizes. A zonal ReservedInstance
	// is never flexible. Defaults to On.
	// +optional
	// +kubebuilder:validation:Enum=On;Off
	SizeFlexibility SizeFlexibility `json:"sizeFlexibility,omitempty"`
	// ratios of sizes by instance type, as Azure's list of flexibility groups has them. Without those, the lists that
	// AWS and Azure publish apply.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	Ratios map[string]string `json:"ratios,omitempty"`
	// cpu of a CommittedUse, in vCPUs.
	// +optional
	CPU *CapacityCommittedAmount `json:"cpu,omitempty"`
	// memory of a CommittedUse. Its prices are those of a GiB.
	// +optional
	Memory *CapacityCommittedAmount `json:"memory,omitempty"`
	// discountPercent is the discount of a committed hour on the list price, such as 28 or "27.5". Defaults to none.
	// +optional
	DiscountPercent *scalar.Quantity `json:"discountPercent,omitempty"`
	// starts is when the term begins. Defaults to the past.
	// +optional
	Starts *scalar.Time `json:"starts,omitempty"`
	// ends is when the term ends. Defaults to never.
	// +optional
	Ends *scalar.Time `json:"ends,omitempty"`
}

// CapacityCommittedAmount is an amount of a resource that is committed, with its prices in US dollars an hour as decimals.
type CapacityCommittedAmount struct {
	// amount that is committed, such as 40 or 160Gi.
	// +required
	Amount scalar.Quantity `json:"amount"`
	// price of a committed unit.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Price string `json:"price"`
	// listPrice of a unit, by which the on-demand price of a machine is made up of vCPUs and memory.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	ListPrice string `json:"listPrice"`
}

// CapacityRatesSource is a key of a ConfigMap with rates: the output of aws savingsplans describe-savings-plans-offering-rates, or a table
// in CSV with the columns instanceType and rate, as text or compressed with gzip. The operator reads it every minute, and needs the right
// to get the ConfigMap. While it can't read it, the last rates stay.
type CapacityRatesSource struct {
	// namespace of the ConfigMap.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// name of the ConfigMap.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// key in the ConfigMap's data.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`
}

// CapacityAccountStatus reports grants and use.
type CapacityAccountStatus struct {
	// observedGeneration is the generation of the object that the condition Ready is about; -1 until the operator has reported any.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions: Ready, EntriesUsable, MembersGranted.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.lastTransitionTime >= timestamp('0001-01-01T00:00:00Z'))",message="lastTransitionTime has to be a time in RFC 3339"
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// clusterCount is the number of hosted clusters that have a lease.
	// +optional
	ClusterCount *int32 `json:"clusterCount,omitempty"`
	// machineCount is the number of Machines of these clusters that Karpenter created.
	// +optional
	MachineCount *int32 `json:"machineCount,omitempty"`
	// fullestPool is the pool of which most is used, such as "reservation/cr-1 10/10".
	// +optional
	// +kubebuilder:validation:MaxLength=512
	FullestPool string `json:"fullestPool,omitempty"`
	// pools report each reservation and each resource of a quota.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Pools []CapacityPoolStatus `json:"pools,omitempty"`
	// clusters is the record of grants, one entry a cluster. The operator decides by it: a cluster's entry is written
	// before its lease.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=400
	Clusters []CapacityGrant `json:"clusters,omitempty"`
	// unusable are the entries of spec that the operator can't read, at most fifty.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	Unusable []UnusableEntry `json:"unusable,omitempty"`
}

// CapacityPoolStatus reports one pool. Amounts of memory are in bytes with a unit.
type CapacityPoolStatus struct {
	// name of the pool: reservation/ID or quota/NAME/RESOURCE.
	// +required
	Name string `json:"name"`
	// limit of the pool.
	// +required
	Limit string `json:"limit"`
	// granted to all clusters together. It exceeds the limit only if machines existed before the account limited them, or
	// if the limit was lowered.
	// +required
	Granted string `json:"granted"`
	// used by Machines of all clusters.
	// +required
	Used string `json:"used"`
	// waiting are the requests that clusters don't get now.
	// +optional
	Waiting string `json:"waiting,omitempty"`
	// lent is the part of guaranteed amounts that other clusters are granted.
	// +optional
	Lent string `json:"lent,omitempty"`
	// reclaiming is the use that clusters were asked to return.
	// +optional
	Reclaiming string `json:"reclaiming,omitempty"`
	// reclaimingFor are the first of the clusters that it is reclaimed for, as namespace/name.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	ReclaimingFor []string `json:"reclaimingFor,omitempty"`
}

// CapacityGrant is the record of one cluster's grant.
type CapacityGrant struct {
	// namespace of the HostedCluster.
	// +required
	Namespace string `json:"namespace"`
	// name of the HostedCluster.
	// +required
	Name string `json:"name"`
	// controlPlaneNamespace is the namespace of the lease and of the Machines.
	// +required
	ControlPlaneNamespace string `json:"controlPlaneNamespace"`
	// cluster is the Cluster whose Machines count, where HostedClusters share controlPlaneNamespace; empty in a dedicated one.
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// leaseUID is the UID of the CapacityLease that the grant is for.
	// +optional
	LeaseUID string `json:"leaseUID,omitempty"`
	// sequence increases with each change of the lease's content.
	// +required
	Sequence int64 `json:"sequence"`
	// amounts by pool.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Amounts []GrantedAmount `json:"amounts,omitempty"`
	// released is when the cluster's lease was released because the cluster doesn't belong to the account any more. What is
	// granted counts until the machines that it had then are gone.
	// +optional
	Released *scalar.Time `json:"released,omitempty"`
	// retained are guaranteed amounts of the cluster that aren't lent, because other clusters were asked for them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Retained []RetainedAmount `json:"retained,omitempty"`
}

// RetainedAmount is an amount of a pool that isn't lent until a time.
type RetainedAmount struct {
	// pool is the pool's name.
	// +required
	Pool string `json:"pool"`
	// amount in the pool's unit.
	// +required
	Amount int64 `json:"amount"`
	// until is the time.
	// +required
	Until scalar.Time `json:"until"`
}

// GrantedAmount is an amount of one pool, in the pool's unit.
type GrantedAmount struct {
	// pool is the pool's name.
	// +required
	Pool string `json:"pool"`
	// granted is the most that the cluster's machines may take until the cluster acknowledges its lease. It counts
	// against the pool.
	// +required
	Granted int64 `json:"granted"`
	// limit is the quantity in the lease while the cluster is asked to return some of its grant.
	// +optional
	Limit *int64 `json:"limit,omitempty"`
}

// UnusableEntry is an entry of an account that the operator can't read.
type UnusableEntry struct {
	// field of the entry, such as quotas[gpu].limits.
	// +required
	Field string `json:"field"`
	// message has the reason.
	// +required
	Message string `json:"message"`
}

// UnmarshalJSON implements json.Unmarshaler: see scalar.DecodeStatus.
func (in *CapacityAccountStatus) UnmarshalJSON(data []byte) error {
	type plain CapacityAccountStatus
	return scalar.DecodeStatus(data, (*plain)(in))
}
