// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"io"
	"strings"

	"github.com/autonode-io/autonode/cli/explain"
	"github.com/autonode-io/autonode/cli/printer"
)

// printPodAnswer prints the sentence first, and what led to it after.
func printPodAnswer(to io.Writer, answer *explain.PodAnswer) {
	printer.Line(to, answer.Summary)
	printList(to, "Waits for", answer.Waits)
	for i := range answer.NodePools {
		nodePool := &answer.NodePools[i]
		decision := "no"
		if nodePool.Fits {
			decision = "yes"
		}
		printer.Printf(to, "\nNodePool %s: %s, %s\n", nodePool.Name, decision, nodePool.Reason)
		for _, accepted := range nodePool.Accepted {
			printer.Printf(to, "  + %s  zone %s, %s, $%.3f an hour\n", accepted.InstanceType, accepted.Zone, accepted.CapacityType, accepted.Price)
		}
		if more := nodePool.AcceptedCount - len(nodePool.Accepted); more > 0 {
			printer.Printf(to, "  + %d more\n", more)
		}
		printRefusals(to, nodePool.Refused)
	}
	if len(answer.Nodes) > 0 {
		fmt.Fprint(to, "\nExisting nodes:\n")
		printRefusals(to, answer.Nodes)
	}
	printList(to, "Not known", answer.Missing)
}

func printNodeAnswer(to io.Writer, answer *explain.NodeAnswer) {
	printer.Line(to, answer.Summary)
	printList(to, "Kept by", answer.Blocking)
	if len(answer.Methods) > 0 {
		fmt.Fprint(to, "\nWhat Karpenter tries, in this order:\n")
	}
	names := ""
	for i, method := range answer.Methods {
		if names += method.Name; i+1 < len(answer.Methods) && answer.Methods[i+1].Reason == method.Reason {
			names += ", "
			continue
		}
		decision := "no"
		if method.Disrupts {
			decision = "yes"
		}
		printer.Printf(to, "  %s: %s, %s\n", names, decision, method.Reason)
		names = ""
	}
	printList(to, "Facts", answer.Facts)
	printList(to, "Not known", answer.Missing)
}

func printRefusals(to io.Writer, refusals []explain.Refusal) {
	for _, refusal := range refusals {
		names := strings.Join(refusal.Names, ", ")
		if more := refusal.Count - len(refusal.Names); more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		printer.Printf(to, "  - %d: %s (%s)\n", refusal.Count, refusal.Reason, names)
	}
}

func printList(to io.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	printer.Printf(to, "\n%s:\n", title)
	for _, line := range lines {
		printer.Printf(to, "  %s\n", line)
	}
}
