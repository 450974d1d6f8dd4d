// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Conditions of a CapacityAccount, of which a CapacityLease has Ready.
const (
	// Ready: every entry is usable, and every member has its lease. Of a lease: Karpenter keeps to it.
	Ready = "Ready"
	// EntriesUsable: the operator can read every entry of spec, and each has an effect.
	EntriesUsable = "EntriesUsable"
	// MembersGranted: every member has a lease that its Karpenter acknowledges.
	MembersGranted = "MembersGranted"
	// CapacityReturned: the cluster's machines take no more than they may keep of each pool in spec.reclaim of a CapacityLease. The condition
	// is absent while nothing is to be returned.
	CapacityReturned = "CapacityReturned"
)

// Reasons of conditions without a problem.
const (
	// AsExpectedReason: there is nothing to do.
	AsExpectedReason = "AsExpected"
)

// Reasons of EntriesUsable.
const (
	// SomeUnusableReason: the message names the entries that the operator can't read, the members that match no hosted cluster and the
	// reservations that have ended; the others are in use. Correct or remove them.
	SomeUnusableReason = "SomeUnusable"
	// LimitsUnusableReason: some of the entries that the message names are limits. The last limit of these stays in force; of one that never
	// was readable, nothing more is launched that counts against it. Correct them.
	LimitsUnusableReason = "LimitsUnusable"
)

// Reasons of MembersGranted.
const (
	// NoMembersReason: no hosted cluster with AutoNode matches spec.members. Correct the members, or turn AutoNode on.
	NoMembersReason = "NoMembers"
	// TooManyMembersReason: more clusters match than an account serves. Those that joined last have no lease and aren't limited. Divide
	// them among several accounts.
	TooManyMembersReason = "TooManyMembers"
	// ClaimedByOthersReason: another account that is older claims some of the clusters too, or still has machines of them. Correct
	// one of the accounts.
	ClaimedByOthersReason = "ClaimedByOthers"
	// NotAcknowledgedReason: some Karpenters haven't acknowledged their lease for minutes, so what they were asked to return
	// stays granted. Check whether Karpenter runs in these clusters, and that its version supports leases.
	NotAcknowledgedReason = "NotAcknowledged"
	// ReportExceedsGrantReason: some Karpenters have reported more than they were granted for minutes. That doesn't count.
	ReportExceedsGrantReason = "ReportExceedsGrant"
	// AccountDeletedReason: the account is being deleted. Leases stay as they are until the account's clusters are members of another.
	AccountDeletedReason = "AccountDeleted"
	// OverLimitReason: machines take more of the named pools than the limit, because that was lowered, because a reservation has ended, or
	// because a cluster joined with machines. None is removed, and no cluster is granted more of these pools. Raise the limit, or remove
	// nodes.
	OverLimitReason = "OverLimit"
	// OverGuaranteedReason: the guarantees of the named pools exceed the limit. Members with a higher priority have theirs first,
	// and others may get less than is guaranteed to them. Raise the limit, or lower guaranteed amounts.
	OverGuaranteedReason = "OverGuaranteed"
	// ReclaimOverdueReason: clusters still use what another cluster reclaims, after the deadline. What they are granted stays. Check whether
	// Karpenter runs in these clusters.
	ReclaimOverdueReason = "ReclaimOverdue"
	// MembersLeavingReason: clusters that don't belong to the account any more still have machines, which count until they are gone.
	MembersLeavingReason = "MembersLeaving"
)

// Reasons of events on a CapacityAccount beside those of its conditions.
const (
	// CapacityReclaimingReason: a cluster requests what it has precedence for, so the named clusters have to return what they use of it.
	CapacityReclaimingReason = "CapacityReclaiming"
	// CapacityReclaimedReason: nothing of a pool is to be returned any more: the cluster has what it requested, or requests it no more.
	CapacityReclaimedReason = "CapacityReclaimed"
)

// Reasons of CapacityReturned.
const (
	// DrainingReason: Karpenter removes nodes within disruption budgets until the deadline.
	DrainingReason = "Draining"
	// DeadlinePassedReason: the deadline has passed. Karpenter removes nodes by force.
	DeadlinePassedReason = "DeadlinePassed"
)

const (
	// LeaseName is the name of the CapacityLease in a dedicated control-plane namespace.
	LeaseName = "karpenter"
	// AccountFinalizer holds an account while clusters have leases of it.
	AccountFinalizer = Group + "/capacity-account"
)
