// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lenient"
)

// reportMachines returns a function that reports a Machine that can't be decoded on its NodeClaim: a cluster admin sees no more of the
// management cluster.
func reportMachines(recorder events.Recorder) func(object *metav1.PartialObjectMetadata, why string) {
	return func(object *metav1.PartialObjectMetadata, why string) {
		uid := object.Labels[v1alpha1.NodeClaimUIDLabel]
		if object.Kind != "Machine" || uid == "" {
			return
		}
		text := "Machine " + object.Name + ": " + lenient.Message(why)
		recorder.Publish(events.Event{
			InvolvedObject: &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{APIVersion: apis.Group + "/v1", Kind: "NodeClaim"},
				ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeClaimOf(object), UID: types.UID(uid)},
			},
			Type: corev1.EventTypeWarning, Reason: v1beta1.UndecodableReason, Message: text, DedupeValues: []string{uid, text},
		})
	}
}
