// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/hosting"
)

func (d *demo) conditionIs(name, conditionType string, status metav1.ConditionStatus) expectation {
	return expectation{name, func(ctx context.Context) (bool, string, error) {
		hosted, err := d.hostedCluster(ctx)
		if err != nil {
			return false, "", err
		}
		condition := meta.FindStatusCondition(hosted.Status.Conditions, conditionType)
		if condition == nil {
			return false, "no condition " + conditionType + " yet", nil
		}
		return condition.Status == status && condition.ObservedGeneration == hosted.Generation,
			fmt.Sprintf("%s=%s/%s: %s", condition.Type, condition.Status, condition.Reason, condition.Message), nil
	}}
}

func (d *demo) crdsEstablished(ctx context.Context) (bool, string, error) {
	for _, name := range []string{"nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "clusterapinodeclasses." + v1alpha1.Group} {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := d.guest.Get(ctx, client.ObjectKey{Name: name}, crd); err != nil {
			return false, "", client.IgnoreNotFound(err)
		}
		if !slices.ContainsFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
		}) {
			return false, name + " is not established", nil
		}
	}
	return true, "", nil
}

// rolledOut reports whether the component runs the payload of that release image, whole.
func (d *demo) rolledOut(release string) func(context.Context) (bool, string, error) {
	return func(ctx context.Context) (bool, string, error) {
		hosted, err := d.hostedCluster(ctx)
		if err != nil {
			return false, "", err
		}
		version := hosted.Status.Version
		if version == nil || version.Desired == nil || version.Desired.Requested != release {
			return false, "the release isn't resolved", nil
		}
		component := &v1beta1.ControlPlaneComponent{}
		err = d.management.Get(ctx, client.ObjectKey{Namespace: hosting.ControlPlaneNamespace(d.Guest), Name: v1beta1.KarpenterComponent}, component)
		if err != nil {
			return false, "", client.IgnoreNotFound(err)
		}
		complete := meta.FindStatusCondition(component.Status.Conditions, v1beta1.RolloutComplete)
		if complete == nil {
			return false, "no condition RolloutComplete yet", nil
		}
		return complete.Status == metav1.ConditionTrue && component.Status.Version == version.Desired.Version, complete.Message, nil
	}
}

func (d *demo) nodeClassReady(ctx context.Context) (bool, string, error) {
	class := &v1alpha1.ClusterAPINodeClass{}
	if err := d.guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class); err != nil {
		return false, "", client.IgnoreNotFound(err)
	}
	ready := class.StatusConditions().Get("Ready")
	if ready == nil {
		return false, "no condition Ready yet", nil
	}
	return ready.IsTrue(), fmt.Sprintf("Ready=%s: %s", ready.Status, ready.Message), nil
}

func (d *demo) completed(ctx context.Context) (bool, string, error) {
	hosted, err := d.hostedCluster(ctx)
	if err != nil {
		return false, "", err
	}
	if hosted.Status.Version == nil || len(hosted.Status.Version.History) == 0 {
		return false, "no history", nil
	}
	newest := hosted.Status.Version.History[0]
	return newest.State == v1beta1.UpdateCompleted, fmt.Sprintf("%s is %s", newest.Version, newest.State), nil
}

func (d *demo) nothingLeft(ctx context.Context) (bool, string, error) {
	nodes, err := d.nodes(ctx)
	if err != nil {
		return false, "", err
	}
	machines := &clusterv1.MachineList{}
	if err := d.management.List(ctx, machines, client.InNamespace(hosting.ControlPlaneNamespace(d.Guest))); err != nil {
		return false, "", err
	}
	return len(nodes)+len(machines.Items) == 0, fmt.Sprintf("%d nodes, %d Machines", len(nodes), len(machines.Items)), nil
}

func (d *demo) countsNone(ctx context.Context) (bool, string, error) {
	hosted, err := d.hostedCluster(ctx)
	if err != nil || hosted.Status.AutoNode == nil {
		return false, "", err
	}
	count := ptr.Deref(hosted.Status.AutoNode.NodeCount, 0)
	return count == 0, fmt.Sprintf("%d nodes", count), nil
}
