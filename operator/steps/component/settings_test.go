// SPDX-License-Identifier: Apache-2.0

package component

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestReadSettings(t *testing.T) {
	read := func(t *testing.T, content string) (Settings, error) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "settings.yaml")
		NewWithT(t).Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
		return ReadSettings(path)
	}
	for name, test := range map[string]struct{ content, want string }{
		"a field is unknown":                   {"resource: {}", `unknown field "resource"`},
		"a quantity is none":                   {"resources: {requests: {cpu: much}}", `resources.requests.cpu: "much" is not a quantity`},
		"a quantity takes half an hour":        {"resources: {limits: {cpu: '1e-999999999'}}", `resources.limits.cpu: "1e-999999999" is not a quantity`},
		"a resource is none of a container's":  {"resources: {requests: {pods: 1}}", `resources.requests: "pods" is not one of cpu, ephemeral-storage, memory`},
		"a resource is nothing":                {"resources: {limits: {cpu: 0}}", "resources.limits.cpu: 0 is not more than 0"},
		"a resource is claimed":                {"resources: {claims: [{name: gpu}]}", "resources.claims: not supported"},
		"a request exceeds its limit":          {"resources: {requests: {cpu: 2}, limits: {cpu: 1}}", "resources.requests.cpu: 2 is more than the limit 1"},
		"sizes don't begin at 0":               {"resourcesByNodes: [{nodes: 1, replicas: 1, requests: {cpu: 1}}]", "resourcesByNodes[0].nodes: 1 is not 0"},
		"sizes don't ascend":                   {"resourcesByNodes: [{replicas: 1, requests: {cpu: 1}}, {replicas: 2, requests: {cpu: 2}}]", "resourcesByNodes[1].nodes: 0 is not more than that of the entry before"},
		"a size has no replica":                {"resourcesByNodes: [{requests: {cpu: 1}}]", "resourcesByNodes[0].replicas: 0 is not between 1 and 5"},
		"a size has no requests":               {"resourcesByNodes: [{replicas: 1}]", "resourcesByNodes[0].requests: required"},
		"a size requests what nothing has":     {"resourcesByNodes: [{replicas: 1, requests: {pods: 1}}]", `resourcesByNodes[0].requests: "pods" is not one of cpu, ephemeral-storage, memory`},
		"a size exceeds the limit":             {"{resources: {limits: {cpu: 1}}, resourcesByNodes: [{replicas: 1, requests: {cpu: 2}}]}", "resourcesByNodes[0].requests.cpu: 2 is more than the limit 1"},
		"a size's quantity takes half an hour": {"resourcesByNodes: [{replicas: 1, requests: {cpu: '1e-999999999'}}]", `resourcesByNodes[0].requests.cpu: "1e-999999999" is not a quantity`},
		"sizes are beside requests":            {"{resources: {requests: {cpu: 1}}, resourcesByNodes: [{replicas: 1, requests: {cpu: 1}}]}", "resources.requests: not beside resourcesByNodes"},
		"a priority class has no name of one":  {"priorityClassName: A/B", `priorityClassName: "A/B"`},
		"a node label has no value of one":     {"nodeSelector: {role: a b}", "nodeSelector: role=a b"},
		"a log level is unknown":               {"logLevel: trace", `logLevel: "trace" is not one of debug, info, error`},
		"a feature gate is unknown":            {"featureGates: {Quantum: true}", `featureGates: "Quantum" is not one of CapacityBuffer, DynamicResourceAllocation, NodeOverlay, NodeRepair`},
		"a gate of tenants is unknown":         {"hostedClusterFeatureGates: [Quantum]", `hostedClusterFeatureGates: "Quantum" is not one of CapacityBuffer, DynamicResourceAllocation, NodeOverlay, NodeRepair`},
		"a rate is negative":                   {"kubeClientQPS: -1", "kubeClientQPS and kubeClientBurst: -1 and 0 have to be more than 0"},
		"a burst is less than the rate":        {"{kubeClientQPS: 10, kubeClientBurst: 5}", "kubeClientBurst: 5 is less than kubeClientQPS, 10"},
		"a window is long":                     {"batchMaxDuration: 1h", "batchMaxDuration: 1h0m0s is not between 0s and 5m0s"},
		"a window is longer than the longest":  {"{batchIdleDuration: 20s, batchMaxDuration: 10s}", "batchIdleDuration: 20s is longer than batchMaxDuration, 10s"},
		"a topology key is none of a label":    {"zoneTopologyKeys: [a/b/c]", `zoneTopologyKeys and regionTopologyKeys: "a/b/c" is not the key of a label`},
		"a topology key is Kubernetes' own":    {"regionTopologyKeys: [kubernetes.io/hostname]", `"kubernetes.io/hostname" is a label of Kubernetes or Karpenter`},
		"a topology key is of both kinds":      {"{zoneTopologyKeys: [x.io/a], regionTopologyKeys: [x.io/a]}", `"x.io/a" is a key of zones and of regions`},
		"an overhead is no percentage":         {"vmMemoryOverhead: 0.075", `vmMemoryOverhead: "0.075" is not a percentage`},
		"a repair policy makes no sense":       {"repairPolicies: [{conditionType: A, conditionStatus: Bad, tolerationDuration: 10m}]", `repairPolicies[0].conditionStatus: "Bad" is not one of`},
		"a repair policy has another field":    {"repairPolicies: [{type: A}]", `unknown field "type"`},
		"a repair policy's reason is none":     {"repairPolicies: [{conditionType: A, conditionStatus: 'False', tolerationDuration: 10m, reason: 'X('}]", `repairPolicies[0].reason: "X(" is not a regular expression`},
		"a repair policy can't be done":        {"repairPolicies: [{conditionType: A, conditionStatus: 'False', tolerationDuration: 10m, action: Reinstall}]", `repairPolicies[0].action: "Reinstall" is not one of Replace, Reboot`},
		"a spread has no skew":                 {"schedulerConfig: {podTopologySpread: {defaultConstraints: [{topologyKey: a, whenUnsatisfiable: DoNotSchedule}]}}", "schedulerConfig: validating scheduler config, podTopologySpread.defaultConstraints[0].maxSkew must be greater than 0"},
		"a scheduler has another field":        {"schedulerConfig: {nodeResourcesFit: {}}", `schedulerConfig: decoding scheduler config, error unmarshaling JSON: while decoding JSON: json: unknown field "nodeResourcesFit"`},
		"a namespace is none":                  {"sharedCatalogNamespace: a/b", `sharedCatalogNamespace: "a/b"`},
		"the file is large":                    {"#" + strings.Repeat("x", maxSettings), "exceed the limit of 65536"},
		"records are kept for ages":            {"nodeRecordDays: 366", "nodeRecordDays and nodeRecordLimit: 366 and 0 are not in 0 to 365 and 0 to 10000"},
		"records would fill Karpenter":         {"nodeRecordLimit: 10001", "0 and 10001 are not in 0 to 365"},
		"records are less than none":           {"nodeRecordDays: -1", "-1 and 0 are not in 0 to 365"},
	} {
		t.Run("When "+name+", it should say so", func(t *testing.T) {
			_, err := read(t, test.content)
			NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring("settings.yaml"), ContainSubstring(test.want))))
		})
	}

	t.Run("When several fields make no sense, it should name each", func(t *testing.T) {
		_, err := read(t, "{logLevel: trace, kubeClientQPS: -1}")
		NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring("logLevel"), ContainSubstring("kubeClientQPS"))))
	})
	t.Run("When there is no file, it should say so", func(t *testing.T) {
		_, err := ReadSettings(filepath.Join(t.TempDir(), "none"))
		NewWithT(t).Expect(err).To(MatchError(os.ErrNotExist))
	})
	t.Run("When the file is empty, it should change nothing", func(t *testing.T) {
		g := NewWithT(t)
		settings, err := read(t, "")
		g.Expect(err).NotTo(HaveOccurred())
		deployment := &appsv1.Deployment{}
		deployment.Spec.Template.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: "FEATURE_GATES", Value: "NodeRepair=true"}}}}
		before := deployment.DeepCopy()
		settings.adapt(deployment)
		g.Expect(deployment).To(Equal(before))
	})
}

func TestSettings(t *testing.T) {
	adapted := func(settings Settings) corev1.Container {
		deployment := &appsv1.Deployment{}
		deployment.Spec.Template.Spec.Containers = []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")}},
		}}
		settings.adapt(deployment)
		return deployment.Spec.Template.Spec.Containers[0]
	}
	limited := func(name corev1.ResourceName, quantity string) Settings {
		return Settings{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{name: resource.MustParse(quantity)}}}
	}

	t.Run("When a limit is less than the default request, it should lower the request", func(t *testing.T) {
		memory := adapted(limited(corev1.ResourceMemory, "128Mi")).Resources.Requests[corev1.ResourceMemory]
		NewWithT(t).Expect(memory.String()).To(Equal("128Mi"))
	})
	t.Run("When Karpenter may use less than a CPU, it should have its usual number of workers", func(t *testing.T) {
		settings := Settings{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m")}}}
		NewWithT(t).Expect(adapted(settings).Env).To(BeEmpty())
	})
	t.Run("When a value has a dollar sign, Karpenter should get it as it is", func(t *testing.T) {
		g := NewWithT(t)
		policies := []v1alpha1.RepairPolicy{{ConditionType: "GPUHealthy", ConditionStatus: corev1.ConditionFalse, Reason: "^Xid$(79)$", TolerationDuration: metav1.Duration{Duration: time.Minute}}}
		env := adapted(Settings{RepairPolicies: policies}).Env
		g.Expect(env).To(HaveLen(1))
		g.Expect(v1alpha1.ParseRepairPolicies(strings.ReplaceAll(env[0].Value, "$$", "$"))).To(Equal(policies))
	})
	t.Run("When pods spread by default, Karpenter should read what the platform wrote", func(t *testing.T) {
		g := NewWithT(t)
		settings := Settings{SchedulerConfig: json.RawMessage(
			`{"podTopologySpread":{"defaultConstraints":[{"maxSkew":3,"topologyKey":"topology.kubernetes.io/zone","whenUnsatisfiable":"ScheduleAnyway"}]}}`)}
		g.Expect(settings.validate()).To(Succeed())
		env := adapted(settings).Env
		g.Expect(env).To(HaveLen(1))
		g.Expect(env[0].Name).To(Equal("SCHEDULER_CONFIG"))
		t.Setenv(env[0].Name, env[0].Value)
		flags, options := &options.FlagSet{FlagSet: flag.NewFlagSet("karpenter", flag.ContinueOnError)}, &options.Options{}
		options.AddFlags(flags)
		g.Expect(options.Parse(flags)).To(Succeed())
		g.Expect(options.SchedulerConfig.PodTopologySpread.DefaultConstraints).To(ConsistOf(corev1.TopologySpreadConstraint{
			MaxSkew: 3, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway,
		}))
	})
	for name, config := range map[string]string{"nothing": "", "null": "null", "no constraint": `{"podTopologySpread":{}}`} {
		t.Run("When the scheduler's configuration is "+name+", Karpenter should get none", func(t *testing.T) {
			g := NewWithT(t)
			settings := Settings{SchedulerConfig: json.RawMessage(config)}
			g.Expect(settings.validate()).To(Succeed())
			g.Expect(settings.SpreadsByDefault()).To(BeFalse())
			g.Expect(adapted(settings).Env).To(BeEmpty())
		})
	}
}
