// SPDX-License-Identifier: Apache-2.0

package explain

// Decision on a pod or a node.
type Decision string

// Decisions on pods.
const (
	// Unschedulable: no NodePool can launch a node for the pod, and no node has room.
	Unschedulable Decision = "Unschedulable"
	// Launches: Karpenter launches a node for the pod.
	Launches Decision = "Launches"
	// Fits: the pod fits on a node that exists or is being launched.
	Fits Decision = "Fits"
	// Ignored: Karpenter launches no node for this pod, or not yet.
	Ignored Decision = "Ignored"
	// Bound: the pod has a node.
	Bound Decision = "Bound"
)

// Decisions on nodes.
const (
	// Stays: Karpenter leaves the node as it is.
	Stays Decision = "Stays"
	// Disrupted: Karpenter would remove or replace the node now.
	Disrupted Decision = "Disrupted"
	// Terminating: the node is being removed.
	Terminating Decision = "Terminating"
	// Unmanaged: the node isn't Karpenter's.
	Unmanaged Decision = "Unmanaged"
)

// PodAnswer explains why a pod has no node. Its JSON is an output format that scripts may rely on.
type PodAnswer struct {
	Pod      string   `json:"pod"`
	Decision Decision `json:"decision"`
	// Summary is the answer in a sentence.
	Summary string `json:"summary"`
	// Waits is what Karpenter or the pod is waiting for, and what to do.
	Waits []string `json:"waits,omitempty"`
	// Node that has the pod, or will.
	Node string `json:"node,omitempty"`
	// NodePools in the order in which Karpenter tries them. Empty where none is needed.
	NodePools []NodePoolAnswer `json:"nodePools,omitempty"`
	// Nodes that exist and refuse the pod, by reason.
	Nodes []Refusal `json:"nodes,omitempty"`
	// Missing is what isn't known.
	Missing []string `json:"missing,omitempty"`
}

// NodePoolAnswer reports whether a NodePool can launch a node for a pod.
type NodePoolAnswer struct {
	Name string `json:"name"`
	Fits bool   `json:"fits"`
	// Reason that excludes the whole NodePool, or why its instance types are refused.
	Reason string `json:"reason"`
	// InstanceTypes is how many the NodePool's node class offers.
	InstanceTypes int `json:"instanceTypes"`
	// Accepted instance types, cheapest first, at most maxNames.
	Accepted []Accepted `json:"accepted,omitempty"`
	// AcceptedCount is how many there are.
	AcceptedCount int `json:"acceptedCount"`
	// Refused instance types by reason, those that miss the least first.
	Refused []Refusal `json:"refused,omitempty"`
}

// Accepted is an instance type that fits a pod.
type Accepted struct {
	InstanceType string `json:"instanceType"`
	// Zone, CapacityType and Price in US dollars an hour of its cheapest offering.
	Zone         string  `json:"zone"`
	CapacityType string  `json:"capacityType"`
	Price        float64 `json:"price"`
}

// Refusal is why instance types or nodes can't have a pod.
type Refusal struct {
	Reason string `json:"reason"`
	Count  int    `json:"count"`
	// Names of them, at most maxNames.
	Names []string `json:"names"`

	// rank is lower the less is missing.
	rank int
}

// NodeAnswer explains why a node stays or goes. Its JSON is an output format that scripts may rely on.
type NodeAnswer struct {
	Node      string   `json:"node"`
	NodeClaim string   `json:"nodeClaim,omitempty"`
	NodePool  string   `json:"nodePool,omitempty"`
	Decision  Decision `json:"decision"`
	// Summary is the answer in a sentence.
	Summary string `json:"summary"`
	// Methods are Karpenter's ways to disrupt a node, in the order in which it tries them.
	Methods []MethodAnswer `json:"methods,omitempty"`
	// Blocking are the pods, annotations and budgets that keep the node.
	Blocking []string `json:"blocking,omitempty"`
	// Facts of the node that its NodePool's settings are about.
	Facts []string `json:"facts,omitempty"`
	// Missing is what isn't known.
	Missing []string `json:"missing,omitempty"`
}

// MethodAnswer is what one method would do with a node.
type MethodAnswer struct {
	Name string `json:"name"`
	// Disrupts the node now.
	Disrupts bool   `json:"disrupts"`
	Reason   string `json:"reason"`
}

// maxNames bounds how many names an answer has of one sort.
const maxNames = 10
