// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpdrift "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"

	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	"github.com/autonode-io/autonode/karpenter/providers/drift"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// offer is what a node class offers at one time.
type offer struct {
	templates []template.Template
	cluster   template.Cluster
	gaps      template.Gaps
}

// restart creates a new provider without memory, and gives it the current templates.
func (f *fixture) restart(o offer) {
	f.t.Helper()
	f.store = instancetype.New(instancetype.Config{Templates: f.templates, Pricing: pricing.New(pricing.NewFile("")), Inventory: f.watch(), Capacity: f.store.Capacity})
	f.selects(o.templates, o.cluster, o.gaps)
	config := f.provider.Config
	config.InstanceTypes = f.store
	config.Drift = drift.New(drift.Config{InstanceTypes: f.store, Images: f.provider.Images, Version: f.provider.Drift.Version})
	f.provider = cloudprovider.New(config)
}

// Karpenter core looks for the instance type of a node that is an hour old by itself, before it queries the provider.
func TestInstanceTypeNotFound(t *testing.T) {
	for name, tc := range map[string]struct {
		after func(*offer)
		want  string
	}{
		"When the Cluster ceases to declare zones, it should keep the node": {after: func(o *offer) { o.cluster.FailureDomains = nil }},
		"When the source is malformed at the start, it should keep the node": {after: func(o *offer) {
			o.gaps.Sources = []string{o.templates[0].Source.Annotation()}
			o.templates = nil
		}},
		"When the template gets a taint that the NodePool doesn't have, it should keep the node": {after: func(o *offer) {
			o.templates[0].Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
		}},
		"When the source makes another instance type now, it should replace the node": {
			after: func(o *offer) { o.templates[0].InstanceType = "c5-large" }, want: string(karpdrift.InstanceTypeNotFound),
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			now := offer{templates: []template.Template{f.Template("c4-large", 0.1)}, cluster: template.Cluster{FailureDomains: []string{"a"}}}
			f.restart(now)
			nodePool, _ := f.nodePool(nil, requirement(corev1.LabelOSStable, "linux"))

			nodeClaim := f.claim("old", nil)
			stored := nodeClaim.DeepCopy()
			nodeClaim.Labels[karpv1.NodePoolLabelKey] = nodePool.Name
			created, err := f.provider.Create(f.ctx, nodeClaim)
			f.Expect(err).NotTo(HaveOccurred())
			maps.Copy(nodeClaim.Labels, created.Labels)
			nodeClaim.Annotations = created.Annotations
			f.Expect(f.Admin.Patch(t.Context(), nodeClaim, client.MergeFrom(stored))).To(Succeed())
			nodeClaim.Status.ProviderID = created.Status.ProviderID
			nodeClaim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
			f.Expect(f.Admin.Status().Update(t.Context(), nodeClaim)).To(Succeed())
			f.Eventually(func() error {
				_, err := f.provider.Get(f.ctx, created.Status.ProviderID)
				return err
			}).Should(Succeed())

			tc.after(&now)
			f.restart(now)
			inTwoHours := clocktesting.NewFakeClock(time.Now().Add(2 * time.Hour))
			_, err = karpdrift.NewController(inTwoHours, f.Admin, f.provider).Reconcile(f.ctx, nodeClaim)
			f.Expect(err).NotTo(HaveOccurred())
			reason := ""
			if drifted := nodeClaim.StatusConditions().Get(karpv1.ConditionTypeDrifted); drifted.IsTrue() {
				reason = drifted.Reason
			}
			f.Expect(reason).To(Equal(tc.want))
		})
	}
}
