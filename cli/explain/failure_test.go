// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/explain"
)

func TestPodAfterFailures(t *testing.T) {
	large := func(zone, message string) explain.Failure {
		return explain.Failure{InstanceType: "large", CapacityType: "on-demand", Zone: zone, Message: message, Until: noon.Add(time.Minute)}
	}
	a, b := large("a", "no capacity for on-demand large in zone a"), large("b", "no capacity for on-demand large in zone b")
	elsewhere, ended := a, a
	elsewhere.NodePool, ended.Until = "other", noon
	for name, test := range map[string]struct {
		failures []explain.Failure
		class    func(*v1alpha1.ClusterAPINodeClass)
		want     string
	}{
		"When one zone has no capacity, it should launch in the other": {failures: []explain.Failure{a}, want: `
Launches
Pod shop/web needs a new node, which NodePool general can launch: 1 instance type, the cheapest large at $0.800 an hour
= general true: 1 instance type fits
+ large b on-demand 0.80
- 2 needs 16 cpu with DaemonSets; the largest has 8 [medium small]
- 1 the NodePool requires kubernetes.io/arch In [amd64] [arm]`},
		"When no zone has capacity, it should wait, and have each event's message once": {failures: []explain.Failure{a, a, b}, want: `
Unschedulable
Pod shop/web has to wait: it fits NodePool general, but no instance type that fits can be launched now
= general false: of 4 instance types, none that fits can be launched now: no capacity for on-demand large in zone a; no capacity for on-demand large in zone b
- 1 no capacity for on-demand large in zone a; no capacity for on-demand large in zone b [large]
- 2 needs 16 cpu with DaemonSets; the largest has 8 [medium small]
- 1 the NodePool requires kubernetes.io/arch In [amd64] [arm]`},
		"When a failure has ended, or is another NodePool's, it should launch": {failures: []explain.Failure{elsewhere, ended}, want: `
Launches
Pod shop/web needs a new node, which NodePool general can launch: 1 instance type, the cheapest large at $0.800 an hour
= general true: 1 instance type fits
+ large a on-demand 0.80
- 2 needs 16 cpu with DaemonSets; the largest has 8 [medium small]
- 1 the NodePool requires kubernetes.io/arch In [amd64] [arm]`},
		"When the node class reports that nothing can be launched, it should launch nothing": {class: func(class *v1alpha1.ClusterAPINodeClass) {
			class.Status.Conditions = []status.Condition{{Type: v1alpha1.ConditionOfferingsAvailable, Status: metav1.ConditionFalse, Message: "nothing can be launched: NoQuota (3)"}}
		}, want: `
Unschedulable
Pod shop/web has to wait: it fits NodePool general, but no instance type that fits can be launched now
= general false: of 4 instance types, none that fits can be launched now: nothing can be launched: NoQuota (3)
- 1 nothing can be launched: NoQuota (3) [large]
- 2 needs 16 cpu with DaemonSets; the largest has 8 [medium small]
- 1 the NodePool requires kubernetes.io/arch In [amd64] [arm]`},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{nodeClass(test.class), nodePool("general", nil), pod("web", "16", nil)}
			answer, err := simulateWith(t, platform{failures: test.failures}, objects...).Pod(t.Context(), web)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			if diff := cmp.Diff(strings.TrimSpace(test.want), explained(answer)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
