// SPDX-License-Identifier: Apache-2.0

// Package operator divides the capacity of CapacityAccounts in the operator's process, and serves metrics of them.
package operator

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/autonode-io/autonode/fleet/operator/capacityaccount"
	"github.com/autonode-io/autonode/fleet/operator/metrics"
	operatormetrics "github.com/autonode-io/autonode/operator/metrics"
)

// Extend adds the controller of the accounts that selector matches, and their metrics in a registry; nil is controller-runtime's.
func Extend(mgr manager.Manager, selector labels.Selector, recorder events.EventRecorder, registry prometheus.Registerer) error {
	accounts := capacityaccount.New(capacityaccount.Config{
		Management: mgr.GetClient(), Live: mgr.GetAPIReader(), Selector: selector, Recorder: recorder,
	})
	if err := accounts.SetUp(mgr); err != nil {
		return err
	}
	collector := metrics.New(metrics.Config{Management: mgr.GetClient(), Selector: selector, Costs: accounts.Cost})
	return mgr.Add(operatormetrics.Serve(collector, registry))
}
