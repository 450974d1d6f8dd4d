// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// ownTimeout limits the patch that sets the owner: a launch succeeds without it.
const ownTimeout = 2 * time.Second

// own makes a Machine the controller of its infrastructure machine: providers start no instance before it has one. Cluster API does the
// same in its second reconcile of the Machine, a second later or, where many machines come and go, when it gets to it, and finds nothing
// to do then. So a failure is none of the launch.
//
// It leaves a replacement to Cluster API, because nothing waits for that. One that failed within a second would even cost a machine: Karpenter
// core would launch another one for the pods of the node that stays (docs/upstream/failed-replacements.md).
func (p *Provider) own(ctx context.Context, nodeClaim string, machine *clusterv1.Machine, infrastructure *unstructured.Unstructured) {
	if metav1.GetControllerOfNoCopy(infrastructure) != nil || machine.Spec.Bootstrap.DataSecretName == nil {
		return // it is owned, or the instance waits for the bootstrap provider
	}
	if p.IsReplacement != nil && p.IsReplacement(nodeClaim) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, ownTimeout)
	defer cancel()
	patch, err := ownPatch(machine, infrastructure)
	if err == nil {
		err = p.Management.Patch(ctx, infrastructure.DeepCopy(), patch, FieldOwner)
	}
	if err != nil {
		log.FromContext(ctx).V(1).Info("leaving it to Cluster API to make the Machine the owner of its infrastructure machine",
			"Machine", klog.KObj(machine), "kind", infrastructure.GetKind(), "error", err.Error())
	}
}

// ownPatch adds a Machine to the owners that its infrastructure machine had when it was created. It can't be applied to an object of
// another UID, or that has other owners by now.
func ownPatch(machine *clusterv1.Machine, infrastructure *unstructured.Unstructured) (client.Patch, error) {
	owners := infrastructure.GetOwnerReferences()
	data, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": infrastructure.GetUID()},
		{"op": "test", "path": "/metadata/ownerReferences", "value": owners},
		{"op": "add", "path": "/metadata/ownerReferences/-", "value": metav1.OwnerReference{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: machine.Name, UID: machine.UID, Controller: ptr.To(true),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("encoding a patch of owner references: %w", err)
	}
	return client.RawPatch(types.JSONPatchType, data), nil
}
