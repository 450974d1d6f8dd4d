// SPDX-License-Identifier: Apache-2.0

package unneeded_test

import (
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/unneeded"
)

// classless is a cloud provider without node classes.
type classless struct {
	karpcloudprovider.CloudProvider
}

// GetSupportedNodeClasses implements cloudprovider.CloudProvider.
func (classless) GetSupportedNodeClasses() []status.Object { return nil }

func TestByScheduler(t *testing.T) {
	t.Run("When no NodePool is ready, it should take every NodeClaim as needed instead of failing", func(t *testing.T) {
		g := NewWithT(t)
		guest := fake.NewClientBuilder().WithIndex(&corev1.Pod{}, "spec.nodeName", func(pod client.Object) []string {
			return []string{pod.(*corev1.Pod).Spec.NodeName}
		}).Build()
		clk, recorder, provider := clocktesting.NewFakeClock(time.Now()), &environment.Recorder{}, classless{}
		cluster := state.NewCluster(clk, guest, provider)
		devices := deviceallocation.NewController(guest)
		devices.Hydrate(t.Context())
		provisioner := provisioning.NewProvisioner(guest, recorder, provider, cluster, clk, devices, virtualpods.NewVirtualPodCache(guest))
		needed := unneeded.ByScheduler(guest, cluster, provisioner, clk, recorder)
		waits := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "waits"}}
		g.Expect(cluster.Synced(t.Context())).To(BeTrue())
		g.Expect(needed(options.ToContext(t.Context(), &options.Options{}), []*karpv1.NodeClaim{waits})).To(HaveKey("waits"))
	})
}
