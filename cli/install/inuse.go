// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize/english"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/message"
)

// maxListed is how many HostedClusters a refusal names.
const maxListed = 10

// inUse returns why removing the operator, or with definitions its CRDs too, would harm hosted clusters. Empty if there are no nodes.
func inUse(ctx context.Context, management client.Reader, definitions bool) (string, error) {
	list := &v1beta1.HostedClusterList{}
	if err := management.List(ctx, list); meta.IsNoMatchError(err) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("listing HostedClusters, whose nodes depend on the operator: %w", err)
	}
	nodes, unknown := int32(0), 0
	var using []string
	for i := range list.Items {
		hc := &list.Items[i]
		name := client.ObjectKeyFromObject(hc).String()
		switch count, known := nodesOf(hc); {
		case !known:
			unknown++
			using = append(using, name+" (unknown)")
		case count > 0:
			nodes += count
			using = append(using, fmt.Sprintf("%s (%d)", name, count))
		case definitions:
			using = append(using, name+" (0)")
		}
	}
	if len(using) == 0 {
		return "", nil
	}
	count := english.Plural(int(nodes), "node", "")
	if unknown > 0 {
		count = fmt.Sprintf("at least %s; unknown for %d", count, unknown)
	}
	return fmt.Sprintf("%s with %s: %s", english.Plural(len(using), "HostedCluster", ""), count, message.List(using, maxListed, ", ")), nil
}

// nodesOf returns how many nodes and machines a HostedCluster has, as the operator reported it last.
func nodesOf(hc *v1beta1.HostedCluster) (count int32, known bool) {
	if hc.Spec.AutoNode == nil && hc.Status.AutoNode == nil {
		return 0, true // it never had any
	}
	status := hc.Status.AutoNode
	if status == nil || status.NodeCount == nil {
		return 0, false
	}
	count = *status.NodeCount
	if status.NodeClaimCount != nil {
		count = max(count, *status.NodeClaimCount)
	}
	return count, true
}
