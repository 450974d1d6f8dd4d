// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
)

func TestQuotaOfAnObject(t *testing.T) {
	f := newFixture(t, "observed", "blue")
	blue := f.karpenters["blue"]
	observed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "observed", Name: "quotas"}, Data: map[string]string{"cpu": "4"}}
	source := func(name, path string) autonodev1alpha1.CapacityLimitSource {
		return autonodev1alpha1.CapacityLimitSource{Resource: "cpu", APIVersion: "v1", Kind: "ConfigMap", Namespace: "observed", Name: name, Path: path}
	}
	from := func(limits autonodev1alpha1.CapacityAmounts, source autonodev1alpha1.CapacityLimitSource) {
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Quotas = []autonodev1alpha1.CapacityQuota{{Name: "all", Limits: limits, LimitsFrom: []autonodev1alpha1.CapacityLimitSource{source}}}
		})
	}
	later := func() { f.settleAfter(quotaInterval) }
	pool := func(limit string) OmegaMatcher {
		return ContainElement(And(HaveField("Name", "quota/all/cpu"), HaveField("Limit", limit)))
	}
	problem := func(message string) OmegaMatcher {
		return ConsistOf(And(HaveField("Field", "quotas[all].limitsFrom[cpu]"), HaveField("Message", message)))
	}
	blue.want(5) // of two vCPUs each

	t.Run("When the object isn't there yet, the quota's own limit should count", func(t *testing.T) {
		g := NewWithT(t)
		from(autonodev1alpha1.CapacityAmounts{"cpu": scalar.Number(2)}, source("quotas", "data.cpu"))
		f.settle()
		g.Expect(blue.machines()).To(Equal(1))
		g.Expect(f.account.Status.Unusable).To(problem("its limit stays 2: there is no ConfigMap observed/quotas"))
		g.Expect(f.condition(autonodev1alpha1.Ready)).To(HaveField("Reason", autonodev1alpha1.SomeUnusableReason))
	})
	t.Run("When the object has a limit, it should count within a minute", func(t *testing.T) {
		g := NewWithT(t)
		f.create(observed)
		f.settle()
		g.Expect(blue.machines()).To(Equal(1), "it was read less than a minute ago")
		later()
		g.Expect(blue.machines()).To(Equal(2))
		g.Expect(f.account.Status.Pools).To(pool("4"))
		g.Expect(f.account.Status.Unusable).To(BeEmpty())
	})
	t.Run("When the infrastructure raises it, the clusters should get more", func(t *testing.T) {
		g := NewWithT(t)
		observed.Data["cpu"] = "6"
		g.Expect(clusters.Management.Client.Update(t.Context(), observed)).To(Succeed())
		later()
		g.Expect(blue.machines()).To(Equal(3))
	})
	t.Run("When it is malformed, the last limit should stay", func(t *testing.T) {
		g := NewWithT(t)
		observed.Data["cpu"] = "many"
		g.Expect(clusters.Management.Client.Update(t.Context(), observed)).To(Succeed())
		later()
		g.Expect(f.account.Status.Pools).To(pool("6"))
		g.Expect(f.account.Status.Unusable).To(problem(`its limit stays 6: data.cpu of ConfigMap observed/quotas: "many" is not a quantity`))
	})
	t.Run("When the object is gone and another operator starts, the last limit should stay", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(clusters.Management.Client.Delete(t.Context(), observed)).To(Succeed())
		f.Controller = New(f.Controller.Config)
		f.settle()
		g.Expect(f.account.Status.Pools).To(pool("6"))
		g.Expect(f.account.Status.Unusable).To(problem("its limit stays 6: there is no ConfigMap observed/quotas"))
		g.Expect(blue.machines()).To(Equal(3))
	})
	for name, test := range map[string]struct {
		source  autonodev1alpha1.CapacityLimitSource
		message string
	}{
		"When the path is malformed, it should say so": {source("quotas", "..cpu"), `path "..cpu" is not a path`},
		"When the cluster has no such kind, it should say so": {
			autonodev1alpha1.CapacityLimitSource{Resource: "cpu", APIVersion: "example.com/v1", Kind: "Quota", Name: "any", Path: "status.value"}, "the management cluster has no kind Quota of example.com/v1",
		},
		"When it is a Secret of another version, it should not be read": {
			autonodev1alpha1.CapacityLimitSource{Resource: "cpu", APIVersion: "/v1/x", Kind: "Secret", Name: "any", Path: "data.cpu"}, `apiVersion "/v1/x" is none`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := (&reconciliation{Controller: f.Controller}).readQuota(t.Context(), &test.source)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.message)))
		})
	}
}
