// SPDX-License-Identifier: Apache-2.0

package cost

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/cli/clitest"
)

var server clitest.Server

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// fleetNamespace begins the names of the control-plane namespaces.
const fleetNamespace = "clusters"

// makeFleet makes the fleet that capacity/cost works by hand, and a cluster without an account.
func makeFleet(t *testing.T) {
	t.Helper()
	for _, cluster := range []string{"blue", "green", "red"} {
		server.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fleetNamespace + "-" + cluster}})
		server.Create(t, &v1beta1.ControlPlaneComponent{ObjectMeta: metav1.ObjectMeta{
			Namespace: fleetNamespace + "-" + cluster, Name: v1beta1.KarpenterComponent,
			Labels: map[string]string{v1beta1.HostedClusterNamespaceLabel: fleetNamespace, v1beta1.HostedClusterLabel: cluster},
		}})
	}
	onDemand := capacity.Offering{InstanceType: "m5.xlarge", Zone: "a", CapacityType: "on-demand"}
	for i := range 5 {
		cluster, nodePool := "blue", "general"
		if i >= 2 {
			cluster, nodePool = "green", "batch"
		}
		server.Create(t, machineOf(cluster, nodePool, fmt.Sprint("covered-", i), onDemand, capacity.Priced{Price: 0.20}))
	}
	server.Create(t, machineOf("blue", "general", "spot", capacity.Offering{InstanceType: "m5.large", Zone: "a", CapacityType: "spot"}, capacity.Priced{Price: 0.03, OnDemand: 0.10}))
	for i := range 2 {
		inBlock := capacity.Offering{InstanceType: "k4", Zone: "a", CapacityType: "reserved", Reservation: "block-10"}
		server.Create(t, machineOf("green", "batch", fmt.Sprint("reserved-", i), inBlock, capacity.Priced{Price: 0.010, OnDemand: 0.139}))
	}
	server.Create(t, machineOf("green", "batch", "unpriced", capacity.Offering{InstanceType: "m5.large", Zone: "a", CapacityType: "on-demand"}, capacity.Priced{}))
	server.Create(t, machineOf("red", "general", "alone", capacity.Offering{InstanceType: "c4", Zone: "a", CapacityType: "spot"}, capacity.Priced{Price: 0.05, OnDemand: 0.14}))
	someoneElses := machineOf("red", "general", "not-karpenters", onDemand, capacity.Priced{Price: 9})
	someoneElses.Labels = nil
	server.Create(t, someoneElses)

	percent := func(n int64) *scalar.Quantity { return ptr.To(scalar.Number(n)) }
	account := &autonodev1alpha1.CapacityAccount{ObjectMeta: metav1.ObjectMeta{Name: "production"}, Spec: autonodev1alpha1.CapacityAccountSpec{
		Reservations: []autonodev1alpha1.CapacityReservation{{ID: "block-10", InstanceType: "k4", Zone: "a", Count: 10, Price: "0.010", Billing: autonodev1alpha1.BilledPrepaid}},
		Commitments: []autonodev1alpha1.CapacityCommitment{
			{
				Name: "plan", Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: "0.28", DiscountPercent: percent(30),
				Selector: autonodev1alpha1.CapacitySelector{CapacityTypes: []string{"on-demand"}},
			},
			{Name: "instances", Kind: autonodev1alpha1.CommitmentReservedInstance, InstanceType: "m5.xlarge", Instances: ptr.To[int32](2), DiscountPercent: percent(40)},
			{
				Name: "idle", Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: "0.50", DiscountPercent: percent(10),
				Selector: autonodev1alpha1.CapacitySelector{InstanceTypes: []string{"p5.*"}},
			},
			{Name: "spare", Kind: autonodev1alpha1.CommitmentReservedInstance, InstanceType: "p5.48xlarge", Instances: ptr.To[int32](3), DiscountPercent: percent(0)},
			{Name: "unreadable", Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: "lots", DiscountPercent: percent(0)},
		},
	}}
	server.Create(t, account)
	for _, cluster := range []string{"blue", "green"} {
		account.Status.Clusters = append(account.Status.Clusters, autonodev1alpha1.CapacityGrant{
			Namespace: fleetNamespace, Name: cluster, ControlPlaneNamespace: fleetNamespace + "-" + cluster, Sequence: 1,
		})
	}
	// It has left the account.
	account.Status.Clusters = append(account.Status.Clusters, autonodev1alpha1.CapacityGrant{
		Namespace: fleetNamespace, Name: "red", ControlPlaneNamespace: fleetNamespace + "-red", Sequence: 1, Released: ptr.To(scalar.Now()),
	})
	NewWithT(t).Expect(server.Admin.Status().Update(t.Context(), account)).To(Succeed())
}

// machineOf is one that Karpenter has launched.
func machineOf(cluster, nodePool, name string, offering capacity.Offering, prices capacity.Priced) *clusterv1.Machine {
	m := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: fleetNamespace + "-" + cluster, Name: name, Labels: map[string]string{
			v1alpha1.NodeClaimLabel: name, v1alpha1.NodeClaimUIDLabel: "uid-" + name, karpv1.NodePoolLabelKey: nodePool,
			corev1.LabelInstanceTypeStable: offering.InstanceType, corev1.LabelTopologyZone: offering.Zone, karpv1.CapacityTypeLabelKey: offering.CapacityType,
		}},
		Spec: clusterv1.MachineSpec{
			ClusterName: cluster, Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("any")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "AnyMachine", Name: name},
		},
	}
	if offering.Reservation != "" {
		m.Labels[v1alpha1.ReservationIDLabel] = offering.Reservation
	}
	if prices != (capacity.Priced{}) {
		prices.Offering = offering
		m.Annotations = map[string]string{v1alpha1.MachineSizeAnnotation: annotation.FormatMachineSize(prices)}
	}
	return m
}

// costs runs the command.
func costs(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return clitest.Run(t, NewCommand(), append([]string{"--kubeconfig", server.Kubeconfig}, args...)...)
}

func TestCost(t *testing.T) {
	t.Run("When there is nothing, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		out, err := costs(t)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(Equal("no CapacityAccounts, and no Machines that Karpenter launched\n"))
		_, err = costs(t, "--account", "production")
		g.Expect(err).To(MatchError(ContainSubstring(`there is no CapacityAccount "production"; there are none; leave out --account`)))
	})
	makeFleet(t)
	t.Run("When a fleet is worked by hand, it should print what the golden file has", func(t *testing.T) {
		var all strings.Builder
		for _, args := range [][]string{
			nil, {"--by", "account"}, {"--by", "nodepool"}, {"--by", "type", "--account", "production"}, {"--by", "capacity-type"}, {"-o", "yaml"},
			{"--by", "account", "-o", "json"}, {"-o", "csv"},
		} {
			out, err := costs(t, args...)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			fmt.Fprintf(&all, "$ %s\n%s\n", strings.Join(append([]string{"autonode cost"}, args...), " "), out)
		}
		const golden = "testdata/cost.golden"
		if *clitest.Update {
			NewWithT(t).Expect(os.MkdirAll("testdata", 0o755)).To(Succeed())
			NewWithT(t).Expect(os.WriteFile(golden, []byte(all.String()), 0o600)).To(Succeed())
		}
		want, err := os.ReadFile(golden)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		if diff := cmp.Diff(string(want), all.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("When the documentation shows the fleet, it should show what the command prints", func(t *testing.T) {
		out, err := costs(t)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		clitest.Shown(t, "docs/reference/cli/cost.md", "autonode cost", out)
	})
	t.Run("When it watches, it should print another table when a machine has come, and end when it is interrupted", func(t *testing.T) {
		g := NewWithT(t)
		out, interrupt := server.Watch(t, NewCommand())
		g.Eventually(out).Should(gbytes.Say(`without an account: 1 machine for \$0\.050 an hour`))
		server.Create(t, machineOf("red", "general", "second", capacity.Offering{InstanceType: "c4", Zone: "a", CapacityType: "spot"}, capacity.Priced{Price: 0.05}))
		g.Eventually(out).Should(gbytes.Say(`without an account: 2 machines for \$0\.100 an hour`))
		interrupt()
	})
	t.Run("When there is no such account, it should name those that are there", func(t *testing.T) {
		_, err := costs(t, "--account", "testing")
		NewWithT(t).Expect(err).To(MatchError(`there is no CapacityAccount "testing"; there are production; leave out --account to see all machines`))
	})
	t.Run("When the user may not list something, it should say what, watching or not", func(t *testing.T) {
		g := NewWithT(t)
		path := server.AlteredKubeconfig(t, func(config *clientcmdapi.Config) {
			for _, user := range config.AuthInfos {
				user.Impersonate = "without-rights"
			}
		})
		for _, args := range [][]string{nil, {"--watch"}} {
			_, err := clitest.Run(t, NewCommand(), append([]string{"--kubeconfig", path}, args...)...)
			g.Expect(err).To(MatchError(And(HavePrefix("listing CapacityAccounts: capacityaccounts.autonode.io is forbidden"), HaveSuffix("ask for permission to list them in all namespaces of the management cluster"))))
		}
	})
	t.Run("When the API server is away, it should say how to check", func(t *testing.T) {
		_, err := clitest.Run(t, NewCommand(), "--kubeconfig", server.AlteredKubeconfig(t, clitest.Away))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("check the cluster with `kubectl cluster-info`")))
	})
}
