// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// expiring is a context that is cancelled once it has been asked so many times.
type expiring struct {
	context.Context
	asked, expires int
}

func (e *expiring) Err() error {
	if e.asked++; e.asked > e.expires {
		return context.Canceled
	}
	return nil
}

// TestBlockedBy is a guest whose admin writes pods, budgets and requirements without end: each pod is compared with each requirement.
func TestBlockedBy(t *testing.T) {
	const all = 1 << 20
	for name, test := range map[string]struct {
		pods, budgets, requirements int
		matching                    int // the budget that matches the pods; none by default
		annotated                   int // the pod with karpenter.sh/do-not-disrupt; none by default
		expires                     int // after so many budgets
		want                        string
		wantErr                     error
	}{
		"When the last budget within the limits matches, it should be the reason": {
			pods: 500, budgets: 100, requirements: 49, matching: 100, expires: all, want: "PodDisruptionBudget shop/b100 (0 disruptions allowed)",
		},
		"When the last pod within the limits may not be disrupted, it should be the reason": {
			pods: 500, budgets: 100, requirements: 49, annotated: 500, want: "pod shop/p500, which has the annotation karpenter.sh/do-not-disrupt",
		},
		"When no budget within the limits matches, there should be no reason": {pods: 500, budgets: 100, requirements: 49, expires: all},
		"When there are more pods and budgets, their number should be reported": {
			pods: 510, budgets: 120, requirements: 1, matching: 120, annotated: 510, expires: all,
			want: "unknown reasons: 30 pods and PodDisruptionBudgets are beyond the limits of a check",
		},
		"When a budget has more requirements, it should count as one that wasn't examined": {
			pods: 1, budgets: 1, requirements: 50, matching: 1, expires: all,
			want: "unknown reasons: 1 pods and PodDisruptionBudgets are beyond the limits of a check",
		},
		"When the context ends meanwhile, so should the check": {pods: 500, budgets: 100, requirements: 49, matching: 100, expires: 10, wantErr: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			pods, budgets := make([]corev1.Pod, test.pods), make([]policyv1.PodDisruptionBudget, test.budgets)
			for i := range pods {
				pods[i].Namespace, pods[i].Name, pods[i].Labels = "shop", fmt.Sprintf("p%d", i+1), map[string]string{"app": "web"}
				if i+1 == test.annotated {
					pods[i].Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
				}
			}
			for i := range budgets {
				selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
				if i+1 == test.matching {
					selector.MatchLabels["app"] = "web"
				}
				for range test.requirements {
					selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: "a", Operator: metav1.LabelSelectorOpDoesNotExist})
				}
				budgets[i].Namespace, budgets[i].Name, budgets[i].Spec.Selector = "shop", fmt.Sprintf("b%d", i+1), selector
			}
			ctx := &expiring{Context: t.Context(), expires: test.expires}
			why, err := blockedBy(ctx, pods, budgets)
			if test.wantErr != nil {
				g.Expect(err).To(MatchError(test.wantErr))
				g.Expect(ctx.asked).To(Equal(test.expires + 1))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(why).To(Equal(test.want))
		})
	}
}
