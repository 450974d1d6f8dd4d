// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"strings"

	opmetrics "github.com/awslabs/operatorpkg/metrics"
	"github.com/prometheus/client_golang/prometheus"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/metrics"
)

var saved = opmetrics.NewPrometheusCounter(crmetrics.Registry, prometheus.CounterOpts{
	Namespace: metrics.Namespace, Subsystem: "clusterapi", Name: "consolidation_saved_dollars_per_hour_total",
	Help: "Savings by consolidation in US dollars an hour, as Karpenter estimates them. Labeled by nodepool and reason.",
}, []opmetrics.Label{
	{Name: metrics.NodePoolLabel, Help: "The NodePool."}, {Name: metrics.ReasonLabel, Help: "The reason of the disruption."},
}, opmetrics.Beta)

// Savings counts the savings of consolidation, around the passes of Karpenter core's disruption queue. A command counts once it has deleted
// its nodes. Nodes of several NodePools share its savings by their prices.
//
// Upstream gap: core has its estimates in events and logs only (docs/internals/upstream/disruption-savings.md).
func Savings(queue *disruption.Queue) Middleware {
	return Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		commands := queue.GetCommands()
		result, err := next.Reconcile(ctx, request)
		for _, c := range commands {
			// The queue reconciles the first NodeClaim of a command.
			if c.ConsolidationType() == "" || c.Candidates[0].NodeClaim.Name != request.Name || !c.Succeeded || c.EstimatedSavings() <= 0 {
				continue
			}
			for _, candidate := range c.Candidates {
				saved.Add(c.EstimatedSavings()*candidate.Price/c.SourceCost(), map[string]string{
					metrics.NodePoolLabel: candidate.Labels()[karpv1.NodePoolLabelKey], metrics.ReasonLabel: strings.ToLower(string(c.Reason())),
				})
			}
		}
		return result, err
	})
}
