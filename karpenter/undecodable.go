// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/karpenter/core/undecodable"
	"github.com/autonode-io/autonode/lenient"
)

// reporter writes events in the guest about objects that can't be decoded, once there is a recorder.
type reporter struct {
	recorder atomic.Pointer[events.Recorder]
}

// guestObjects decodes the guest's.
func (r *reporter) guestObjects() *lenient.Decoder {
	return lenient.New(lenient.Config{Scheme: clientgoscheme.Scheme, Adjust: undecodable.Adjust(), Report: r.inGuest})
}

func (r *reporter) inGuest(object *metav1.PartialObjectMetadata, why string) {
	r.publish(object, lenient.Message(why))
}

// inManagement reports a Machine on its NodeClaim: a cluster admin sees no more of the management cluster.
func (r *reporter) inManagement(object *metav1.PartialObjectMetadata, why string) {
	uid := object.Labels[v1alpha1.NodeClaimUIDLabel]
	if object.Kind != "Machine" || uid == "" {
		return
	}
	r.publish(&metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: apis.Group + "/v1", Kind: "NodeClaim"},
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeClaimOf(object), UID: types.UID(uid)},
	}, "Machine "+object.Name+": "+lenient.Message(why))
}

func (r *reporter) publish(object *metav1.PartialObjectMetadata, text string) {
	if recorder := r.recorder.Load(); recorder != nil {
		(*recorder).Publish(events.Event{
			InvolvedObject: object, Type: corev1.EventTypeWarning, Reason: v1beta1.UndecodableReason, Message: text,
			DedupeValues: []string{string(object.UID), text},
		})
	}
}
