// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/message"
)

// barWidth is the width of a bar of utilization, in characters.
const barWidth = 8

// fleet is what people look for in a list of nodes.
type fleet struct {
	nodes []fleetNode
	// price of all nodes, in US dollars an hour.
	price float64
}

type fleetNode struct {
	name, instanceType, zone, capacityType, version string
	price                                           float64
	cpu                                             float64 // requested, as a fraction of what is allocatable
	pods                                            int
}

// newFleet joins nodes, the pods on them and the prices of the node class. Pods of DaemonSets don't count.
func newFleet(nodes []corev1.Node, pods []corev1.Pod, templates []v1alpha1.TemplateStatus) (fleet, error) {
	prices := map[string]v1alpha1.TemplateStatus{}
	for _, tmpl := range templates {
		prices[tmpl.InstanceType] = tmpl
	}
	var f fleet
	for _, node := range nodes {
		n := fleetNode{
			name: node.Name, instanceType: node.Labels[corev1.LabelInstanceTypeStable], zone: node.Labels[corev1.LabelTopologyZone],
			capacityType: node.Labels[karpv1.CapacityTypeLabelKey], version: node.Status.NodeInfo.KubeletVersion,
		}
		price := prices[n.instanceType].Price
		if n.capacityType == karpv1.CapacityTypeSpot {
			price = prices[n.instanceType].SpotPrice
		}
		var err error
		if n.price, err = strconv.ParseFloat(price, 64); err != nil {
			return fleet{}, fmt.Errorf("price of %s %s: %w", n.capacityType, n.instanceType, err)
		}
		var requested int64
		for _, pod := range pods {
			if pod.Spec.NodeName != node.Name || pod.DeletionTimestamp != nil {
				continue
			}
			n.pods++
			for _, container := range pod.Spec.Containers {
				requested += container.Resources.Requests.Cpu().MilliValue()
			}
		}
		if allocatable := node.Status.Allocatable.Cpu().MilliValue(); allocatable > 0 {
			n.cpu = float64(requested) / float64(allocatable)
		}
		f.nodes = append(f.nodes, n)
		f.price += n.price
	}
	slices.SortFunc(f.nodes, func(a, b fleetNode) int { return strings.Compare(a.name, b.name) })
	return f, nil
}

// String is a table.
func (f fleet) String() string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tVERSION\tTYPE\tZONE\tCAPACITY\tPRICE/H\tCPU\tPODS")
	for _, n := range f.nodes {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t$%.3f\t%s %3.0f%%\t%d\n",
			message.Line(n.name), message.Line(n.version), message.Line(n.instanceType), message.Line(n.zone), message.Line(n.capacityType), n.price, bar(n.cpu), n.cpu*100, n.pods)
	}
	_ = table.Flush() // a strings.Builder takes all
	return out.String()
}

func bar(fraction float64) string {
	full := min(barWidth, max(0, int(fraction*barWidth+0.5)))
	return strings.Repeat("█", full) + strings.Repeat("░", barWidth-full)
}

// cheapestAlone is the price of pods that have a node each, of the cheapest type that holds cpu.
func cheapestAlone(pods int, milliCPU int64, templates []v1alpha1.TemplateStatus) float64 {
	best := 0.0
	for _, tmpl := range templates {
		if cpu := tmpl.CPU.Amount(); cpu.MilliValue() < milliCPU {
			continue
		}
		for _, text := range []string{tmpl.Price, tmpl.SpotPrice} {
			if price, err := strconv.ParseFloat(text, 64); err == nil && price > 0 && (best == 0 || price < best) {
				best = price
			}
		}
	}
	return best * float64(pods)
}
