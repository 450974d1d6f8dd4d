// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// document is the part of a KubeletConfiguration that decides a node's capacity for pods and its taints at registration.
type document struct {
	MaxPods                       *int32            `json:"maxPods"`
	PodsPerCore                   int32             `json:"podsPerCore"`
	KubeReserved                  map[string]string `json:"kubeReserved"`
	SystemReserved                map[string]string `json:"systemReserved"`
	EvictionHard                  map[string]string `json:"evictionHard"`
	ReservedSystemCPUs            string            `json:"reservedSystemCPUs"`
	RegisterWithTaints            []any             `json:"registerWithTaints"`
	LocalStorageCapacityIsolation *bool             `json:"localStorageCapacityIsolation"`
	TopologyManagerPolicy         string            `json:"topologyManagerPolicy"`
	CPUManagerPolicy              string            `json:"cpuManagerPolicy"`
	CPUManagerPolicyOptions       map[string]string `json:"cpuManagerPolicyOptions"`
	StaticPodPath                 string            `json:"staticPodPath"`
	StaticPodURL                  string            `json:"staticPodURL"`
}

// readFields are the fields of document, and mergeDefaultEvictionSettings, which counts in the first file alone.
var readFields = []string{
	"cpuManagerPolicy", "cpuManagerPolicyOptions", "evictionHard", "kubeReserved", "localStorageCapacityIsolation", "maxPods",
	"mergeDefaultEvictionSettings", "podsPerCore", "registerWithTaints", "reservedSystemCPUs", "staticPodPath", "staticPodURL",
	"systemReserved", "topologyManagerPolicy",
}

// otherFields are those of Kubernetes 1.36's KubeletConfiguration that Karpenter's plans don't depend on. evictionSoft doesn't
// reduce a node's allocatable resources, and neither do enforceNodeAllocatable, reservedMemory and memorySwap.
var otherFields = []string{
	"address", "allowedUnsafeSysctls", "apiVersion", "authentication", "authorization", "cgroupDriver", "cgroupRoot", "cgroupsPerQOS",
	"clusterDNS", "clusterDomain", "configMapAndSecretChangeDetectionStrategy", "containerLogMaxFiles", "containerLogMaxSize",
	"containerLogMaxWorkers", "containerLogMonitorInterval", "containerRuntimeEndpoint", "contentType", "cpuCFSQuota", "cpuCFSQuotaPeriod",
	"cpuManagerReconcilePeriod", "crashLoopBackOff", "enableContentionProfiling", "enableControllerAttachDetach", "enableDebugFlagsHandler",
	"enableDebuggingHandlers", "enableProfilingHandler", "enableServer", "enableSystemLogHandler", "enableSystemLogQuery",
	"enforceNodeAllocatable", "eventBurst", "eventRecordQPS", "evictionMaxPodGracePeriod", "evictionMinimumReclaim",
	"evictionPressureTransitionPeriod", "evictionSoft", "evictionSoftGracePeriod", "failCgroupV1", "failSwapOn", "featureGates",
	"fileCheckFrequency", "hairpinMode", "healthzBindAddress", "healthzPort", "httpCheckFrequency", "imageGCHighThresholdPercent",
	"imageGCLowThresholdPercent", "imageMaximumGCAge", "imageMinimumGCAge", "imagePullCredentialsVerificationPolicy", "imageServiceEndpoint",
	"iptablesDropBit", "iptablesMasqueradeBit", "kernelMemcgNotification", "kind", "kubeAPIBurst", "kubeAPIQPS", "kubeReservedCgroup",
	"kubeletCgroups", "logging", "makeIPTablesUtilChains", "maxOpenFiles", "maxParallelImagePulls", "memoryManagerPolicy",
	"memoryReservationPolicy", "memorySwap", "memoryThrottlingFactor", "nodeLeaseDurationSeconds", "nodeStatusMaxImages",
	"nodeStatusReportFrequency", "nodeStatusUpdateFrequency", "oomScoreAdj", "podCIDR", "podLogsDir", "podPidsLimit", "port",
	"preloadedImagesVerificationAllowlist", "protectKernelDefaults", "providerID", "qosReserved", "readOnlyPort", "registerNode",
	"registryBurst", "registryPullQPS", "reservedMemory", "resolvConf", "rotateCertificates", "runOnce", "runtimeRequestTimeout",
	"seccompDefault", "serializeImagePulls", "serverTLSBootstrap", "showHiddenMetricsForVersion", "shutdownGracePeriod",
	"shutdownGracePeriodByPodPriority", "shutdownGracePeriodCriticalPods", "singleProcessOOMKill", "staticPodURLHeader",
	"streamingConnectionIdleTimeout", "syncFrequency", "systemCgroups", "systemReservedCgroup", "tlsCertFile", "tlsCipherSuites",
	"tlsCurvePreferences", "tlsMinVersion", "tlsPrivateKeyFile", "topologyManagerPolicyOptions", "topologyManagerScope", "tracing",
	"userNamespaces", "volumePluginDir", "volumeStatsAggPeriod",
}

// setDocument reads a KubeletConfiguration. merged reports that the kubelet has filled its thresholds with the default ones. A field
// that isn't known is unread: it may be one of a newer kubelet.
func (r *reader) setDocument(content map[string]any, merged bool) {
	for _, field := range slices.Sorted(maps.Keys(content)) {
		if !slices.Contains(readFields, field) {
			delete(content, field)
			if !slices.Contains(otherFields, field) {
				r.unread("KubeletConfiguration, "+field, "the provider doesn't know this field")
			}
		}
	}
	raw, err := yaml.Marshal(content)
	if err != nil {
		r.unread("KubeletConfiguration", err.Error())
		return
	}
	var read document
	if err := yaml.Unmarshal(raw, &read); err != nil {
		r.unread("KubeletConfiguration", err.Error())
		return
	}
	if read.MaxPods != nil && *read.MaxPods > 0 {
		r.settings.MaxPods = read.MaxPods
	}
	r.settings.PodsPerCore = perCore(read.PodsPerCore)
	r.settings.KubeReserved = typed[v1alpha1.ReservedQuantity](read.KubeReserved)
	r.settings.SystemReserved = typed[v1alpha1.ReservedQuantity](read.SystemReserved)
	r.settings.EvictionHard = typed[v1alpha1.EvictionThreshold](read.EvictionHard)
	r.settings.MergeEvictionDefaults = merged && read.EvictionHard != nil
	r.settings.NoLocalStorage = read.LocalStorageCapacityIsolation != nil && !*read.LocalStorageCapacityIsolation
	r.topology, r.cpuPolicy, r.cpuOptions = read.TopologyManagerPolicy, read.CPUManagerPolicy, read.CPUManagerPolicyOptions
	if read.StaticPodPath != "" {
		r.staticPods = read.StaticPodPath
	}
	r.staticPodURL = read.StaticPodURL
	if problem := r.reserveCPUs(read.ReservedSystemCPUs); problem != "" {
		r.unread("KubeletConfiguration, reservedSystemCPUs", fmt.Sprintf("%q %s", read.ReservedSystemCPUs, problem))
	}
	if len(read.RegisterWithTaints) == 0 || r.settings.Taints != nil {
		return // kubeadm makes a flag of its own taints
	}
	if r.settings.Taints, err = Taints(read.RegisterWithTaints); err != nil {
		r.unread("KubeletConfiguration, registerWithTaints", err.Error())
	}
}

func typed[V ~string](values map[string]string) map[string]V {
	if values == nil {
		return nil
	}
	result := make(map[string]V, len(values))
	for key, value := range values {
		result[key] = V(value)
	}
	return result
}
