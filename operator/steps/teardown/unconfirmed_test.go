// SPDX-License-Identifier: Apache-2.0

package teardown_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/steps/teardown"
)

// definitionReader is a reader of the management cluster in which the CustomResourceDefinition of HostedClusters is another one: the other tests need
// the real one.
type definitionReader struct {
	client.Reader
	metadata metav1.ObjectMeta
	err      error
}

func (r definitionReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	metadata, ok := object.(*metav1.PartialObjectMetadata)
	if !ok || metadata.GroupVersionKind().GroupKind() != (schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}) {
		return r.Reader.Get(ctx, key, object, options...)
	}
	metadata.ObjectMeta = r.metadata
	return r.err
}

func TestUnconfirmed(t *testing.T) {
	now := metav1.NewTime(time.Now())
	terminating := metav1.ObjectMeta{DeletionTimestamp: &now}
	confirmed := metav1.ObjectMeta{DeletionTimestamp: &now, Annotations: map[string]string{v1beta1.ConfirmDeletionAnnotation: "true"}}
	for name, test := range map[string]struct {
		definition metav1.ObjectMeta
		err        error
		change     func(*v1beta1.HostedCluster)
		want       string // of the message; empty if it drains
		wantErr    string
	}{
		"When the CRD is being deleted, it should keep the nodes and say what to do": {
			definition: terminating, want: "3 nodes keep running until you annotate it with autonode.io/confirm-deletion=true",
		},
		"When nodes weren't counted yet, it should keep them too": {
			definition: terminating, change: func(h *v1beta1.HostedCluster) { h.Status.AutoNode = nil }, want: "its nodes keep running",
		},
		"When the deletion of the CRD is confirmed, it should drain":        {definition: confirmed},
		"When the HostedCluster alone is deleted, it should drain":          {},
		"When there are no nodes, it should remove Karpenter's objects":     {definition: terminating, change: func(h *v1beta1.HostedCluster) { counts(h, 0) }},
		"When the drain started before the CRD's deletion, it should go on": {definition: terminating, change: func(h *v1beta1.HostedCluster) { h.Status.AutoNode.DrainStartedTime = &scalar.Time{Time: now} }},
		"When AutoNode is turned off, it should drain":                      {definition: terminating, change: func(h *v1beta1.HostedCluster) { h.DeletionTimestamp = nil }},
		"When the CRD can't be read, it should drain nothing":               {err: errors.New("away"), wantErr: "reading CustomResourceDefinition hostedclusters.autonode.io: away"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			f := setUpIn(t, simulated(t), "unconfirmed")
			f.equip(t)
			f.claim(t.Context(), g, "a")
			upkept := false
			f.Upkeep = func(context.Context) error { upkept = true; return nil }
			f.HostedCluster.DeletionTimestamp = &now
			counts(f.HostedCluster, 3)
			if test.change != nil {
				test.change(f.HostedCluster)
			}
			step := teardown.New(teardown.Config{
				Management: f.clusters.Management.Client, Live: definitionReader{f.clusters.Management.Client, test.definition, test.err}, Apply: apply.New(),
				Recorder: f.events, Clock: f.clock, DrainTimeout: drainTimeout,
			})
			result, err := step.Reconcile(t.Context(), f.Scope)
			if test.wantErr != "" {
				g.Expect(err).To(MatchError(test.wantErr))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
			}
			keeps := test.want != "" || test.wantErr != ""
			g.Expect(f.claimOf(t.Context(), g, "a").DeletionTimestamp.IsZero()).To(Equal(keeps), "the NodeClaim stays")
			if test.want == "" {
				g.Expect(result.Reason).NotTo(Equal(v1beta1.AutoNodeDrainUnconfirmedReason))
				return
			}
			g.Expect(result).To(And(HaveField("Wait", true), HaveField("Reason", v1beta1.AutoNodeDrainUnconfirmedReason), HaveField("Message", ContainSubstring(test.want))))
			g.Expect(upkept).To(BeTrue(), "Karpenter runs on")
			g.Expect(f.HostedCluster.Status.AutoNode).To(Or(BeNil(), HaveField("DrainStartedTime", BeNil())))
		})
	}
}

func counts(hosted *v1beta1.HostedCluster, nodes int32) {
	hosted.Status.AutoNode = &v1beta1.AutoNodeStatus{NodeCount: ptr.To(nodes), NodeClaimCount: ptr.To(nodes)}
}
