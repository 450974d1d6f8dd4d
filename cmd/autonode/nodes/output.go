// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Listed are the nodes as --output json and yaml print them. Scripts may rely on the fields.
type Listed struct {
	Nodes []Node `json:"nodes"`
	// PendingPods have no node.
	PendingPods int `json:"pendingPods"`
}

// Node is a node, a NodeClaim without one, or both. What isn't known is left out.
type Node struct {
	Name         string `json:"name"`
	NodePool     string `json:"nodePool,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	Zone         string `json:"zone,omitempty"`
	CapacityType string `json:"capacityType,omitempty"`
	// PricePerHour in US dollars.
	PricePerHour *float64 `json:"pricePerHour,omitempty"`
	// CPU and Memory that pods request, as fractions of what is allocatable.
	CPU    *float64 `json:"requestedCPU,omitempty"`
	Memory *float64 `json:"requestedMemory,omitempty"`
	// Pods without those of DaemonSets.
	Pods    int         `json:"pods"`
	Created metav1.Time `json:"created"`
	State   string      `json:"state,omitempty"`
}

func viewOfRows(rows []*row, pending int) Listed {
	listed := Listed{Nodes: make([]Node, len(rows)), PendingPods: pending}
	for i, r := range rows {
		listed.Nodes[i] = Node{
			Name: r.name, NodePool: r.nodePool, InstanceType: r.instanceType, Zone: r.zone, CapacityType: r.capacityType,
			PricePerHour: known(r.price), CPU: known(r.cpu), Memory: known(r.memory), Pods: r.pods, Created: metav1.NewTime(r.created), State: r.state,
		}
	}
	return listed
}

func known(number float64) *float64 {
	if math.IsNaN(number) {
		return nil
	}
	return &number
}
