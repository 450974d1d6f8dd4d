// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// TestInstanceNames: providers find an instance by its name, which is the infrastructure machine's (CAPO's GetInstanceStatusByName,
// CAPK's NewMachine), or the Machine's (CAPV's findVM, CAPX's FindVMByName). Both would adopt, and then destroy, another tenant's.
func TestInstanceNames(t *testing.T) {
	const kind = "AnyMachine"
	long := strings.Repeat("a", 55) + "-x7k2p"
	for name, nodeClaim := range map[string]string{
		"When a NodeClaim's name is short, that of its machine should be the same after the Cluster's hash": "web-x7k2p",
		"When the NodeClaim's name is long, a host should still be able to have the instance's":             long,
		"When the NodeClaim's name doesn't fit a label, it should still be known":                           long + "-" + long,
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			blue, green := cluster("blue"), cluster("green")
			objects, err := machine.Build(planOf(kind, nodeClaim, blue))
			g.Expect(err).NotTo(HaveOccurred())
			prefix := v1alpha1.InstancePrefix(blue.UID)
			g.Expect(objects.Infrastructure.GetName()).To(HavePrefix(prefix))
			g.Expect(len(objects.Infrastructure.GetName())).To(BeNumerically("<=", 63))
			g.Expect(objects.Machine.Spec.InfrastructureRef.Name).To(Equal(objects.Infrastructure.GetName()))
			if len(nodeClaim) < 54 {
				g.Expect(objects.Infrastructure.GetName()).To(Equal(prefix + nodeClaim))
			}
			g.Expect(objects.Machine.Name).To(Equal(objects.Infrastructure.GetName()))
			for _, object := range []metav1.Object{objects.Machine, objects.Infrastructure} {
				g.Expect(v1alpha1.NodeClaimOf(object)).To(Equal(nodeClaim))
				g.Expect(v1alpha1.MadeForNodeClaim(object)).To(BeTrue())
			}
			others, err := machine.Build(planOf(kind, nodeClaim, green))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(others.Infrastructure.GetName()).NotTo(Equal(objects.Infrastructure.GetName()))
		})
	}

	t.Run("When a guest's admin names a NodeClaim like an instance of the Cluster, it should make nothing", func(t *testing.T) {
		g := NewWithT(t)
		blue := cluster("blue")
		_, err := machine.Build(planOf(kind, v1alpha1.InstanceName(blue.UID, "web-x7k2p"), blue))
		g.Expect(err).To(MatchError(ContainSubstring("create the NodeClaim with another name")))
	})
}

func cluster(name string) *clusterv1.Cluster {
	return &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name, UID: types.UID("uid-of-" + name)}}
}

func planOf(kind, nodeClaim string, cluster *clusterv1.Cluster) machine.Plan {
	return machine.Plan{
		NodeClaim: &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: nodeClaim, UID: "uid"}}, Cluster: cluster,
		Template: template.Template{Bootstrap: template.Bootstrap{DataSecretName: "any"}, Infrastructure: &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": kind + "Template",
			"metadata": map[string]any{"namespace": "clusters", "name": "any"}, "spec": map[string]any{"template": map[string]any{"spec": map[string]any{}}},
		}}},
	}
}

// racing is a client that does something after each object that it creates.
type racing struct {
	client.Client
	after func(client.Object) error
}

// Create implements client.Client.
func (r *racing) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	return errors.Join(r.Client.Create(ctx, object, opts...), r.after(object))
}
