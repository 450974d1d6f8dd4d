// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/assets/crds"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/crd"
)

// places are fields of objects as a cluster admin writes them, with %s for a value's JSON.
const (
	pool = `{"apiVersion":"karpenter.sh/v1","kind":"NodePool","metadata":{"name":"values"},"spec":{%s,"template":{"spec":{"requirements":[],` +
		`"nodeClassRef":{"group":"karpenter.cluster.x-k8s.io","kind":"ClusterAPINodeClass","name":"default"}%s}}}}`
	overlay = `{"apiVersion":"karpenter.sh/v1alpha1","kind":"NodeOverlay","metadata":{"name":"values"},"spec":{"requirements":[` +
		`{"key":"node.kubernetes.io/instance-type","operator":"In","values":["a"]}],"capacity":{"example.com/device":%s}}}`
	buffer = `{"apiVersion":"autoscaling.x-k8s.io/v1beta1","kind":"CapacityBuffer","metadata":{"name":"values","namespace":"default"},"spec":{` +
		`"podTemplateRef":{"name":"a"},"limits":{"cpu":%s}}}`
)

var places = map[string]string{
	"limits":                 fmt.Sprintf(pool, `"limits":{"cpu":%s}`, ""),
	"consolidateAfter":       fmt.Sprintf(pool, `"disruption":{"consolidateAfter":%s}`, ""),
	"duration":               fmt.Sprintf(pool, `"disruption":{"consolidateAfter":"0s","budgets":[{"nodes":"1","schedule":"@daily","duration":%s}]}`, ""),
	"expireAfter":            fmt.Sprintf(pool, `"weight":1`, `,"expireAfter":%s`),
	"terminationGracePeriod": fmt.Sprintf(pool, `"weight":1`, `,"terminationGracePeriod":%s`),
	"timeAdded":              fmt.Sprintf(pool, `"weight":1`, `,"taints":[{"key":"a","effect":"NoSchedule","timeAdded":%s}]`),
	"capacity":               overlay,
	"buffer":                 buffer,
}

func TestValues(t *testing.T) {
	g, ctx, s := NewWithT(t), t.Context(), clusters.NewScope(t, "values")
	removeBuffers(t)
	s.FeatureGates = &scope.FeatureGates{Definitions: sets.New(crds.CapacityBuffer)}
	g.Eventually(reconcile(ctx, crd.New(crd.Config{Apply: apply.New()}), s)).Should(Equal(scope.Result{}))
	create := func(place string, value any) error {
		raw, err := json.Marshal(value)
		g.Expect(err).NotTo(HaveOccurred())
		object := &unstructured.Unstructured{}
		g.Expect(object.UnmarshalJSON([]byte(strings.Replace(places[place], "%s", string(raw), 1)))).To(Succeed(), place)
		return clusters.Guest.Client.Create(ctx, object, client.DryRunAll)
	}
	quantities := []any{"100m", "1.5Gi", "1e3", "1E3", "5", 5, "1.5E", "1e-3", ".5", "5.", "+2", "-1k", "1Ei"}
	badQuantities := []any{"1e1.5", "1e-999999999", "1e9999", "1E1.", strings.Repeat("9", 300)}
	for place, values := range map[string][]any{
		"limits": quantities, "capacity": quantities, "buffer": quantities,
		"consolidateAfter":       {"Never", "0s", "30s", "1h30m", "30m1h", "2592000s", "876000h"},
		"duration":               {"8h", "1h30m", "90m", "8h0s"},
		"expireAfter":            {"Never", "720h", "720h0m0s", "2592000s"},
		"terminationGracePeriod": {"0s", "48h"},
		"timeAdded": {
			"2026-12-01T06:00:00Z", "2026-12-01T06:00:00.123456Z", "2026-12-01T06:00:00+01:00", "2026-12-31T23:59:59-08:00", "2028-02-29T00:00:00Z",
			"2000-02-29T00:00:00Z", "2026-11-30T00:00:00Z", nil,
		},
	} {
		t.Run(fmt.Sprintf("When a value of %s can be decoded, it should be admitted", place), func(t *testing.T) {
			g := NewWithT(t)
			g.Eventually(func(g Gomega) { // a definition that has changed is in force a moment later
				for _, value := range values {
					g.Expect(create(place, value)).To(Succeed(), "%v", value)
				}
			}).Should(Succeed())
		})
	}
	for place, values := range map[string][]any{
		"limits": badQuantities, "capacity": badQuantities, "buffer": badQuantities,
		"consolidateAfter":       {"99999999999999999999h", "9999999h", "999999h999999h999999h"},
		"duration":               {"99999999999999999999h", "9999999h"},
		"expireAfter":            {"99999999999999999999h", "9999999h", "9999999999s", "99999999m"},
		"terminationGracePeriod": {"99999999999999999999h"},
		"timeAdded": {
			"2026-12-01t06:00:00z", "2026-12-01T06:00:00+99:99", "2026-12-01T23:59:60Z", "2026-12-01T06:00:00,5Z", "2026-12-01T06:00:00ZT",
			"2026-02-29T00:00:00Z", "2100-02-29T00:00:00Z", "2026-11-31T00:00:00Z", "", []any{}, []any{"a"},
		},
	} {
		t.Run(fmt.Sprintf("When a value of %s can't be decoded, it should be rejected by name", place), func(t *testing.T) {
			g := NewWithT(t)
			g.Eventually(func(g Gomega) {
				for _, value := range values {
					err := create(place, value)
					g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v: %v", value, err)
					g.Expect(err).To(MatchError(And(ContainSubstring("spec."), ContainSubstring("Invalid value"))), "%v", value)
				}
			}).Should(Succeed())
		})
	}

	t.Run("When a status has a time that can't be decoded, it should be rejected, and one that Karpenter writes admitted", func(t *testing.T) {
		g := NewWithT(t)
		stored := &unstructured.Unstructured{}
		g.Expect(stored.UnmarshalJSON([]byte(fmt.Sprintf(places["limits"], `"5"`)))).To(Succeed())
		g.Expect(clusters.Guest.Client.Create(ctx, stored)).To(Succeed())
		t.Cleanup(func() { g.Expect(clusters.Guest.Client.Delete(context.WithoutCancel(ctx), stored)).To(Succeed()) })
		write := func(at string) error {
			patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Ready","message":"","lastTransitionTime":%q}]}}`, at)
			return clusters.Guest.Client.Status().Patch(ctx, stored, client.RawPatch("application/merge-patch+json", []byte(patch)),
				&client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}})
		}
		g.Expect(write("2026-12-01T06:00:00Z")).To(Succeed())
		g.Expect(write("2026-12-01t06:00:00z")).To(MatchError(ContainSubstring("status.conditions[0].lastTransitionTime")))
	})
}
