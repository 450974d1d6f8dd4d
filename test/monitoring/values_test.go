// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/prometheus/model/labels"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	cloudprovidermetrics "sigs.k8s.io/karpenter/pkg/cloudprovider/metrics"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	fleetmetrics "github.com/autonode-io/autonode/fleet/operator/metrics"
)

// values that labels can have, by metric and label.
type values map[string]map[string][]string

// of returns the values of a metric's labels. A condition has the reasons of its type.
func (v values) of(metric string, matchers []*labels.Matcher) map[string][]string {
	for _, matcher := range matchers {
		if ofType, ok := v[metric+" of "+matcher.Value]; ok && matcher.Name == "type" && matcher.Type == labels.MatchEqual {
			return ofType
		}
	}
	return v[metric]
}

// constants of the API, by what the comment above their block opens with.
type constants map[string][]string

// readConstants reads the string constants of a package.
func readConstants(t *testing.T, folder string) constants {
	t.Helper()
	g := NewWithT(t)
	all := constants{}
	files, err := os.ReadDir(folder)
	g.Expect(err).NotTo(HaveOccurred())
	for _, entry := range files {
		if !strings.HasSuffix(entry.Name(), ".go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), folder+"/"+entry.Name(), nil, parser.ParseComments)
		g.Expect(err).NotTo(HaveOccurred())
		for _, declaration := range file.Decls {
			block, ok := declaration.(*ast.GenDecl)
			if !ok || block.Tok != token.CONST {
				continue
			}
			title, _, _ := strings.Cut(strings.ReplaceAll(block.Doc.Text(), "\n", " "), ".")
			for _, spec := range block.Specs {
				for _, value := range spec.(*ast.ValueSpec).Values {
					if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.STRING {
						text, err := strconv.Unquote(literal.Value)
						g.Expect(err).NotTo(HaveOccurred())
						all[title] = append(all[title], text)
					}
				}
			}
		}
	}
	return all
}

// reasons of a condition, or of any.
func (c constants) reasons(conditionType string) []string {
	if conditionType != "" {
		return append(slices.Clone(c["Reasons shared by several conditions"]), c["Reasons of "+conditionType]...)
	}
	var all []string
	for title, names := range c {
		if strings.HasPrefix(title, "Reasons ") {
			all = append(all, names...)
		}
	}
	return all
}

var conditionTypes = []string{
	v1beta1.ValidConfiguration, v1beta1.ReleaseResolved, v1beta1.GuestReachable, v1beta1.AutoNodeEnabled, v1beta1.NodesUpToDate, v1beta1.ImageOverridden,
	v1beta1.FeatureGatesAccepted, v1beta1.NodeClassReady, v1beta1.OfferingsAvailable, v1beta1.NodeIdentityEnforced,
}

// known are the values that an expression may name. Those of conditions depend on the type that the same selector requests.
func known(t *testing.T) values {
	t.Helper()
	g := NewWithT(t)
	api := readConstants(t, "../../api/v1beta1")
	for _, conditionType := range conditionTypes {
		g.Expect(len(api.reasons(conditionType))).To(BeNumerically(">=", 2), "reasons of %s", conditionType)
	}
	v := values{
		"autonode_condition": {
			"type":   conditionTypes,
			"status": {string(metav1.ConditionTrue), string(metav1.ConditionFalse), string(metav1.ConditionUnknown)},
			"reason": api.reasons(""),
		},
		"autonode_state": {"state": {
			string(v1beta1.AutoNodeStateEnabled), string(v1beta1.AutoNodeStateProgressing), string(v1beta1.AutoNodeStateUpgrading),
			string(v1beta1.AutoNodeStateWaiting), string(v1beta1.AutoNodeStateDegraded), string(v1beta1.AutoNodeStatePaused), string(v1beta1.AutoNodeStateDraining),
		}},
		"karpenter_clusterapi_machines": {"phase": {
			string(clusterv1.MachinePhasePending), string(clusterv1.MachinePhaseProvisioning), string(clusterv1.MachinePhaseProvisioned),
			string(clusterv1.MachinePhaseRunning), string(clusterv1.MachinePhaseUpdating), string(clusterv1.MachinePhaseDeleting), string(clusterv1.MachinePhaseDeleted),
			"Failed", string(clusterv1.MachinePhaseUnknown), // no controller of Cluster API's sets the former any more; others may
		}},
		"karpenter_clusterapi_machine_launch_duration_seconds": {
			"stage": readConstants(t, "../../karpenter/controllers/nodeclaim")["Stages of a launch, values of the label stage"],
		},
		// Karpenter core writes strconv.FormatBool.
		"karpenter_pods_state": {
			"phase": {
				string(corev1.PodPending), string(corev1.PodRunning), string(corev1.PodSucceeded), string(corev1.PodFailed), string(corev1.PodUnknown),
			},
			"scheduled": {strconv.FormatBool(true), strconv.FormatBool(false)},
		},
		"karpenter_cloudprovider_errors_total": {"error": {
			cloudprovidermetrics.InsufficientCapacityError.Name, cloudprovidermetrics.NodeClaimNotFoundError.Name, cloudprovidermetrics.NodeClassNotReadyError.Name,
			cloudprovidermetrics.MetricLabelErrorDefaultVal,
		}},
		// Karpenter core writes the names of resources, with underscores.
		"karpenter_cluster_utilization_percent": {"resource_type": {string(corev1.ResourceCPU), string(corev1.ResourceMemory)}},
		"karpenter_nodepools_usage":             {"resource_type": {string(corev1.ResourceCPU), string(corev1.ResourceMemory)}},
		"leader_election_master_status":         {"name": leases(t)},
	}
	v["autonode_cost_saved_dollars_per_hour"] = map[string][]string{"by": {fleetmetrics.BySpot, fleetmetrics.ByReservations, fleetmetrics.ByCommitments}}
	for _, figure := range []string{"limit", "granted", "used", "waiting", "expiry_timestamp_seconds"} {
		v["autonode_capacity_pool_"+figure] = map[string][]string{"pool": {autonodev1alpha1.QuotaPool("any", "cpu"), autonodev1alpha1.ReservationPool("any")}}
	}
	// What counts from zero reports itself which values there are.
	families, err := crmetrics.Registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != "autonode_certificate_requests_total" {
			continue
		}
		v[family.GetName()] = map[string][]string{}
		for _, metric := range family.GetMetric() {
			for _, pair := range metric.GetLabel() {
				v[family.GetName()][pair.GetName()] = append(v[family.GetName()][pair.GetName()], pair.GetValue())
			}
		}
	}
	g.Expect(v).To(HaveKey("autonode_certificate_requests_total"))
	for _, name := range conditionTypes {
		v["autonode_condition of "+name] = map[string][]string{"type": {name}, "status": v["autonode_condition"]["status"], "reason": api.reasons(name)}
	}
	accounts := readConstants(t, "../../api/v1alpha1")
	for _, name := range []string{autonodev1alpha1.EntriesUsable, autonodev1alpha1.MembersGranted} {
		v["autonode_capacity_account_condition of "+name] = map[string][]string{
			"type": {name}, "status": v["autonode_condition"]["status"], "reason": append(accounts.reasons(name), autonodev1alpha1.AsExpectedReason),
		}
	}
	return v
}

// leases are those that the programs' leaders hold: Karpenter's, as its Deployment declares, and the operator's, which has the shard's name behind it.
func leases(t *testing.T) []string {
	t.Helper()
	g := NewWithT(t)
	const karpenters = "karpenter-leader-election"
	deployment, err := os.ReadFile("../../assets/karpenter/deployment.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(deployment)).To(ContainSubstring("value: " + karpenters + "\n"))
	for title, names := range readConstants(t, "../../operator") {
		if strings.HasPrefix(title, "leaseName is ") {
			return append(names, karpenters, v1beta1.SharedNames("blue").LeaderElection)
		}
	}
	t.Fatal("the operator has no leaseName")
	return nil
}
