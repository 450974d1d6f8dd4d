// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// published are the events that a recorder was given.
type published []events.Event

// Publish implements events.Recorder.
func (p *published) Publish(all ...events.Event) { *p = append(*p, all...) }

func TestReportMachines(t *testing.T) {
	t.Run("When a Machine can't be decoded whose NodeClaim's name is too long for a label, the event should be on that NodeClaim", func(t *testing.T) {
		g := NewWithT(t)
		recorder := &published{}
		name := strings.Repeat("general-", 9) + "x7k2p"
		reportMachines(recorder)(&metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "Machine"}, ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{v1alpha1.NodeClaimNameAnnotation: name},
			Labels: map[string]string{v1alpha1.NodeClaimLabel: v1alpha1.NodeClaimLabelValue(name), v1alpha1.NodeClaimUIDLabel: "1"},
		}}, "status.lastUpdated")
		g.Expect(*recorder).To(HaveLen(1))
		object, ok := (*recorder)[0].InvolvedObject.(*metav1.PartialObjectMetadata)
		g.Expect(ok).To(BeTrue())
		g.Expect([]string{object.Kind, object.Name, string(object.UID)}).To(Equal([]string{"NodeClaim", name, "1"}))
	})
}
