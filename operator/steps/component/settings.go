// SPDX-License-Identifier: Apache-2.0

package component

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/operator/steps/featuregate"
)

// Settings are a platform's settings for the Karpenter of every hosted cluster. They are no part of a HostedCluster: its author could take
// other control planes' room with them. The feature gates that a HostedCluster may set are the exception.
type Settings struct {
	// Resources of Karpenter's container, with two replicas. Each that is named replaces the Deployment's.
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// ResourcesByNodes are Karpenter's replicas and requests by the number of the guest's nodes, ascending from 0, in place of
	// Resources.Requests. Empty: measured ones, unless Resources is set.
	ResourcesByNodes []Size `json:"resourcesByNodes,omitempty"`
	// NodeSelector, Tolerations and PriorityClassName of Karpenter's pods.
	NodeSelector      map[string]string   `json:"nodeSelector,omitempty"`
	Tolerations       []corev1.Toleration `json:"tolerations,omitempty"`
	PriorityClassName string              `json:"priorityClassName,omitempty"`
	// LogLevel is debug, info or error.
	LogLevel string `json:"logLevel,omitempty"`
	// FeatureGates of Karpenter core, of featuregate.Names. The others keep AutoNode's defaults.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`
	// HostedClusterFeatureGates are those that a HostedCluster may set for itself, over FeatureGates.
	HostedClusterFeatureGates []string `json:"hostedClusterFeatureGates,omitempty"`
	// KubeClientQPS and KubeClientBurst bound Karpenter's requests to the guest's API server, per second; zero leaves Karpenter's own, 200 and
	// 300.
	KubeClientQPS   int32 `json:"kubeClientQPS,omitempty"`
	KubeClientBurst int32 `json:"kubeClientBurst,omitempty"`
	// BatchIdleDuration and BatchMaxDuration are Karpenter's batching windows; zero leaves Karpenter's own, 1s and 10s.
	BatchIdleDuration metav1.Duration `json:"batchIdleDuration,omitempty"`
	BatchMaxDuration  metav1.Duration `json:"batchMaxDuration,omitempty"`
	// ZoneTopologyKeys and RegionTopologyKeys are CSI drivers' topology keys whose values are those of the labels topology.kubernetes.io/zone
	// and region, beside those that karpenter-clusterapi has. Karpenter's AWS provider has its own.
	ZoneTopologyKeys   []string `json:"zoneTopologyKeys,omitempty"`
	RegionTopologyKeys []string `json:"regionTopologyKeys,omitempty"`
	// VMMemoryOverhead is the percentage of nominal memory that nodes are assumed to lack, such as 5%; empty leaves Karpenter's own, 7.5%.
	VMMemoryOverhead string `json:"vmMemoryOverhead,omitempty"`
	// RepairPolicies are node conditions for which nodes are replaced, beside those that karpenter-clusterapi has. Karpenter's AWS provider
	// has its own.
	RepairPolicies []v1alpha1.RepairPolicy `json:"repairPolicies,omitempty"`
	// SchedulerConfig is the part of the guests' kube-scheduler configuration that Karpenter mirrors: a KubeSchedulerConfiguration's
	// podTopologySpread, whose defaultConstraints are for pods without constraints of their own. Nil leaves Karpenter's own: none.
	SchedulerConfig json.RawMessage `json:"schedulerConfig,omitempty"`
	// SharedCatalogNamespace is the namespace of the InstanceTypeCatalogs that every hosted cluster may use; empty for none. Whoever sets it
	// grants Karpenter's ServiceAccounts read access to catalogs there, as manifests/catalogs does.
	SharedCatalogNamespace string `json:"sharedCatalogNamespace,omitempty"`
	// NodeRecordDays and NodeRecordLimit bound the NodeRecords of nodes that are gone; zero leaves Karpenter's own, 7 and 1000.
	NodeRecordDays  int `json:"nodeRecordDays,omitempty"`
	NodeRecordLimit int `json:"nodeRecordLimit,omitempty"`
}

const (
	// maxSettings bounds the file, in bytes.
	maxSettings = 64 << 10
	// maxBatch is the longest batching window: pods wait for as long.
	maxBatch = 5 * time.Minute
	// maxRecordDays and maxRecords bound NodeRecords: Karpenter holds them in memory.
	maxRecordDays, maxRecords = 365, 10000

	// defaultCPURequests is Karpenter's default for its own CPU, in millicores. It scales its workers by that.
	defaultCPURequests = 1000
)

var (
	logLevels  = []string{"debug", "info", "error"}
	percentage = regexp.MustCompile(`^[0-9]{1,2}(\.[0-9]{1,12})?%$`)
	resources  = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceEphemeralStorage, corev1.ResourceMemory}
)

// ReadSettings reads a YAML file of Settings. A field that is unknown or makes no sense is an error, which reports the allowed values.
func ReadSettings(path string) (Settings, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return Settings{}, err
	}
	settings, err := ParseSettings(content)
	if err != nil {
		return Settings{}, fmt.Errorf("%s: %w", path, err)
	}
	return settings, nil
}

// ParseSettings is ReadSettings of the file's content.
func ParseSettings(content []byte) (Settings, error) {
	if len(content) > maxSettings {
		return Settings{}, fmt.Errorf("%d bytes exceed the limit of %d", len(content), maxSettings)
	}
	if err := boundQuantities(content); err != nil {
		return Settings{}, err
	}
	settings := Settings{}
	if err := yaml.UnmarshalStrict(content, &settings); err != nil {
		return Settings{}, err
	}
	if err := settings.validate(); err != nil {
		return Settings{}, err
	}
	return settings, nil
}

// boundQuantities rejects quantities that take long to decode. Whatever else is wrong with the content is for the decoder to say.
func boundQuantities(content []byte) error {
	written := struct {
		Resources        struct{ Requests, Limits map[string]scalar.Quantity }
		ResourcesByNodes []struct{ Requests map[string]scalar.Quantity }
	}{}
	_ = yaml.Unmarshal(content, &written)
	var problems []error
	lists := map[string]map[string]scalar.Quantity{
		"resources.requests": written.Resources.Requests, "resources.limits": written.Resources.Limits,
	}
	for i, size := range written.ResourcesByNodes {
		lists[fmt.Sprintf("resourcesByNodes[%d].requests", i)] = size.Requests
	}
	for where, list := range lists {
		for name, quantity := range list {
			if _, err := scalar.ParseQuantity(quantity.String()); err != nil {
				problems = append(problems, fmt.Errorf("%s.%s: %q %w", where, name, message.Cut(quantity.String(), scalar.MaxQuantity), err))
			}
		}
	}
	slices.SortFunc(problems, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

func (s Settings) validate() error {
	var problems []error
	report := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }

	if len(s.Resources.Claims) > 0 {
		report("resources.claims: not supported")
	}
	lists := map[string]corev1.ResourceList{"resources.requests": s.Resources.Requests, "resources.limits": s.Resources.Limits}
	for i := range s.ResourcesByNodes {
		lists[fmt.Sprintf("resourcesByNodes[%d].requests", i)] = s.ResourcesByNodes[i].Requests
	}
	for where, list := range lists {
		for name, quantity := range list {
			limit, limited := s.Resources.Limits[name]
			switch {
			case !slices.Contains(resources, name):
				report("%s: %q is not one of %s", where, name, joined(resources))
			case quantity.Sign() <= 0:
				report("%s.%s: %s is not more than 0", where, name, quantity.String())
			case limited && quantity.Cmp(limit) > 0:
				report("%s.%s: %s is more than the limit %s", where, name, quantity.String(), limit.String())
			}
		}
	}
	s.validateSizes(report)
	if s.PriorityClassName != "" {
		for _, problem := range validation.IsDNS1123Subdomain(s.PriorityClassName) {
			report("priorityClassName: %q: %s", s.PriorityClassName, problem)
		}
	}
	for key, value := range s.NodeSelector {
		for _, problem := range slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)) {
			report("nodeSelector: %s=%s: %s", key, value, problem)
		}
	}
	if s.LogLevel != "" && !slices.Contains(logLevels, s.LogLevel) {
		report("logLevel: %q is not one of %s", s.LogLevel, joined(logLevels))
	}
	for gate := range s.FeatureGates {
		if !slices.Contains(featuregate.Names(), gate) {
			report("featureGates: %q is not one of %s", gate, joined(featuregate.Names()))
		}
	}
	for _, gate := range s.HostedClusterFeatureGates {
		if !slices.Contains(featuregate.Names(), gate) {
			report("hostedClusterFeatureGates: %q is not one of %s", gate, joined(featuregate.Names()))
		}
	}
	if s.KubeClientQPS < 0 || s.KubeClientBurst < 0 {
		report("kubeClientQPS and kubeClientBurst: %d and %d have to be more than 0", s.KubeClientQPS, s.KubeClientBurst)
	}
	if s.KubeClientBurst > 0 && s.KubeClientBurst < s.KubeClientQPS {
		report("kubeClientBurst: %d is less than kubeClientQPS, %d", s.KubeClientBurst, s.KubeClientQPS)
	}
	for field, window := range map[string]time.Duration{
		"batchIdleDuration": s.BatchIdleDuration.Duration, "batchMaxDuration": s.BatchMaxDuration.Duration,
	} {
		if window < 0 || window > maxBatch {
			report("%s: %s is not between 0s and %s", field, window, maxBatch)
		}
	}
	if idle, limit := s.BatchIdleDuration.Duration, s.BatchMaxDuration.Duration; limit > 0 && idle > limit {
		report("batchIdleDuration: %s is longer than batchMaxDuration, %s", idle, limit)
	}
	for _, problem := range v1alpha1.TopologyKeyProblems(s.ZoneTopologyKeys, s.RegionTopologyKeys) {
		report("zoneTopologyKeys and regionTopologyKeys: %s", problem)
	}
	if s.VMMemoryOverhead != "" && !percentage.MatchString(s.VMMemoryOverhead) {
		report("vmMemoryOverhead: %q is not a percentage below 100%%, such as 7.5%%", s.VMMemoryOverhead)
	}
	for _, problem := range v1alpha1.RepairPolicyProblems(s.RepairPolicies) {
		report("repairPolicies%s", problem)
	}
	if _, err := options.ParseSchedulerConfiguration(string(s.SchedulerConfig)); err != nil {
		report("schedulerConfig: %w", err)
	}
	if s.SharedCatalogNamespace != "" {
		for _, problem := range validation.IsDNS1123Label(s.SharedCatalogNamespace) {
			report("sharedCatalogNamespace: %q: %s", s.SharedCatalogNamespace, problem)
		}
	}
	if days, limit := s.NodeRecordDays, s.NodeRecordLimit; min(days, limit) < 0 || days > maxRecordDays || limit > maxRecords {
		report("nodeRecordDays and nodeRecordLimit: %d and %d are not in 0 to %d and 0 to %d", days, limit, maxRecordDays, maxRecords)
	}
	slices.SortFunc(problems, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

// adapt writes the settings into Karpenter's Deployment, which has one container.
func (s Settings) adapt(deployment *appsv1.Deployment) {
	pod := &deployment.Spec.Template.Spec
	container := &pod.Containers[0]
	for _, list := range []struct {
		into *corev1.ResourceList
		from corev1.ResourceList
	}{{&container.Resources.Requests, s.Resources.Requests}, {&container.Resources.Limits, s.Resources.Limits}} {
		for name, quantity := range list.from {
			if *list.into == nil {
				*list.into = corev1.ResourceList{}
			}
			(*list.into)[name] = quantity
		}
	}
	// A limit alone is a request as well, and may be less than the default's.
	for name, limit := range container.Resources.Limits {
		if request, ok := container.Resources.Requests[name]; ok && request.Cmp(limit) > 0 {
			container.Resources.Requests[name] = limit
		}
	}
	for key, value := range s.NodeSelector {
		if pod.NodeSelector == nil {
			pod.NodeSelector = map[string]string{}
		}
		pod.NodeSelector[key] = value
	}
	pod.Tolerations = append(pod.Tolerations, s.Tolerations...)
	if s.PriorityClassName != "" {
		pod.PriorityClassName = s.PriorityClassName
	}
	for _, variable := range s.variables() {
		i := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == variable.Name })
		if i < 0 {
			container.Env = append(container.Env, variable)
		} else {
			container.Env[i] = variable
		}
	}
}

// variables are the environment that Karpenter core reads its options from (pkg/operator/options).
func (s Settings) variables() []corev1.EnvVar {
	var variables []corev1.EnvVar
	set := func(name, value string, wanted bool) {
		if wanted {
			variables = append(variables, corev1.EnvVar{Name: name, Value: value})
		}
	}
	set("LOG_LEVEL", s.LogLevel, s.LogLevel != "")
	set("KUBE_CLIENT_QPS", strconv.Itoa(int(s.KubeClientQPS)), s.KubeClientQPS > 0)
	set("KUBE_CLIENT_BURST", strconv.Itoa(int(s.KubeClientBurst)), s.KubeClientBurst > 0)
	set("BATCH_IDLE_DURATION", s.BatchIdleDuration.Duration.String(), s.BatchIdleDuration.Duration > 0)
	set("BATCH_MAX_DURATION", s.BatchMaxDuration.Duration.String(), s.BatchMaxDuration.Duration > 0)
	set("ZONE_TOPOLOGY_KEYS", strings.Join(s.ZoneTopologyKeys, ","), len(s.ZoneTopologyKeys) > 0)
	set("REGION_TOPOLOGY_KEYS", strings.Join(s.RegionTopologyKeys, ","), len(s.RegionTopologyKeys) > 0)
	policies, err := json.Marshal(s.RepairPolicies)
	set("REPAIR_POLICIES", literal(string(policies)), err == nil && len(s.RepairPolicies) > 0) // strings only: it can't fail
	set("SCHEDULER_CONFIG", literal(string(s.SchedulerConfig)), s.SpreadsByDefault())
	set("VM_MEMORY_OVERHEAD", s.VMMemoryOverhead, s.VMMemoryOverhead != "")
	set("SHARED_CATALOG_NAMESPACE", s.SharedCatalogNamespace, s.SharedCatalogNamespace != "")
	set("NODE_RECORD_DAYS", strconv.Itoa(s.NodeRecordDays), s.NodeRecordDays > 0)
	set("NODE_RECORD_LIMIT", strconv.Itoa(s.NodeRecordLimit), s.NodeRecordLimit > 0)
	// More workers where there is more CPU; not fewer, since a request isn't a limit.
	cpu := s.Resources.Requests[corev1.ResourceCPU]
	set("CPU_REQUESTS", strconv.FormatInt(cpu.MilliValue(), 10), cpu.MilliValue() > defaultCPURequests)
	memory := s.Resources.Limits[corev1.ResourceMemory]
	set("MEMORY_LIMIT", strconv.FormatInt(memory.Value(), 10), !memory.IsZero())
	return variables
}

// SpreadsByDefault reports whether pods have topology spread constraints by default. Karpenter then reads the objects that select pods in
// the guest.
func (s Settings) SpreadsByDefault() bool {
	config, err := options.ParseSchedulerConfiguration(string(s.SchedulerConfig))
	return err == nil && config != nil && config.PodTopologySpread != nil && len(config.PodTopologySpread.DefaultConstraints) > 0
}

// literal keeps the kubelet from replacing variables in an environment variable's value.
func literal(value string) string { return strings.ReplaceAll(value, "$", "$$") }

func joined[T ~string](items []T) string {
	texts := make([]string, 0, len(items))
	for _, item := range items {
		texts = append(texts, string(item))
	}
	return strings.Join(texts, ", ")
}
