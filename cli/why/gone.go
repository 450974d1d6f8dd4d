// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/printer"
)

// gone returns the newest NodeRecord of a node that is gone, named directly or by its NodeClaim; nil if there is none, or none can be read.
func (o *NodeOptions) gone(ctx context.Context) *v1alpha1.NodeRecord {
	records := &v1alpha1.NodeRecordList{}
	if o.Guest.List(ctx, records, "NodeRecords", "NodeRecords") != nil {
		return nil
	}
	all := slices.DeleteFunc(records.Items, func(r v1alpha1.NodeRecord) bool {
		ofClaim := len(r.Name) > 9 && r.Name[:len(r.Name)-9] == o.Node // a NodeRecord's name ends in a part of the NodeClaim's UID
		return r.End == nil || string(r.Launch.Node) != o.Node && !ofClaim
	})
	if len(all) == 0 {
		return nil
	}
	return new(slices.MaxFunc(all, func(a, b v1alpha1.NodeRecord) int { return a.End.Time.At().Compare(b.End.Time.At()) }))
}

func printGone(to io.Writer, r *v1alpha1.NodeRecord) {
	at := r.End.Time.At().UTC().Format(time.DateTime + " MST")
	printer.Printf(to, "Node %s has been gone since %s: %s\n", r.Launch.Node, at, r.End.Because)
	facts := []string{
		fmt.Sprintf("launched at %s for %s", r.Launch.Time.At().UTC().Format(time.DateTime+" MST"), r.Launch.For),
		strings.TrimSuffix(fmt.Sprintf("%s %s in zone %s, %s/h", r.Launch.CapacityType, r.Launch.InstanceType,
			cmp.Or(r.Launch.Zone, "unknown"), r.Launch.PricePerHour), ", /h"), // some have no price
		fmt.Sprintf("lived %s for %s", cmp.Or(r.End.Lived, "an unknown time"), cmp.Or(r.End.Cost, "an unknown price")),
		"launched after " + string(r.End.LaunchedAfter), "registered after " + string(r.End.RegisteredAfter),
		"initialized after " + string(r.End.InitializedAfter),
	}
	facts = slices.DeleteFunc(facts, func(fact string) bool { return strings.HasSuffix(fact, " after ") }) // it didn't get so far
	for _, refused := range r.Launch.Refused {
		facts = append(facts, "unavailable at its launch: "+strings.TrimSpace(string(refused)))
	}
	printList(to, "Facts", facts)
}
