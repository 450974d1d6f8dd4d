// SPDX-License-Identifier: Apache-2.0

package v1beta1

// Fault annotations, for KwokMachine, KwokMachineTemplate and KwokCluster. See the package documentation for
// which object wins.
const (
	// FaultPrefix starts the name of every fault annotation. An unknown name behind it is reported, never ignored
	// in silence.
	FaultPrefix = "faults.infrastructure.autonode.io/"

	// FaultNoCapacity makes the cloud refuse to start the machine: Provisioned and Ready become False with the reason
	// InsufficientInstanceCapacity, and stay so until the fault ends.
	//
	// Value: "true" (everywhere), "false" (nowhere), or a comma-separated list of places, each
	// `<zone>`, `<zone>/<capacity type>` or `*/<capacity type>`, for example "a,b/spot,*/reserved".
	FaultNoCapacity = FaultPrefix + "no-capacity"

	// FaultLateProviderID makes the cloud report the machine's provider ID, addresses and `provisioned` that much later,
	// while the machine itself boots and joins as ever: for a time there is a Node whose machine has no provider ID.
	//
	// Value: a duration such as "30s", or "true" (until the fault ends).
	FaultLateProviderID = FaultPrefix + "late-provider-id"

	// FaultNeverJoins makes the machine start and its Node never appear.
	//
	// Value: "true", "false", or the Kubernetes version of the machines that don't, such as "1.36.3".
	FaultNeverJoins = FaultPrefix + "never-joins"

	// FaultDies makes the machine stop without a word once its Node has joined: no more heartbeats, pods are
	// neither started nor ended, and the Node's Ready condition becomes Unknown. That last step is what the guest's
	// controller-manager does after its grace period; the provider does it at once so that no test has to wait for
	// that. When the fault ends, the machine comes back, as after a reboot.
	//
	// Value: "true", "false", or a duration that is counted from the joining, such as "30s".
	FaultDies = FaultPrefix + "dies"

	// FaultInterrupted makes the cloud say that it will take the machine back, by the condition Interrupted. The machine runs on.
	//
	// Value: "true" or "false".
	FaultInterrupted = FaultPrefix + "interrupted"

	// FaultTerminated makes the cloud terminate the machine once its Node has joined: it stops as by FaultDies, and Provisioned and
	// Ready become False with the reason InstanceTerminated.
	//
	// Value: "true", "false", or a duration that is counted from the joining, such as "30s".
	FaultTerminated = FaultPrefix + "terminated"
)
