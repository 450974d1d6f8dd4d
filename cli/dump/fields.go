// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What of an object stays, beside its metadata and its conditions: a field alone stays whole, and of one with braces these fields. Of all
// other fields, and of kinds that aren't here, the names stay. docs/reference/cli/dump.md lists them.
const (
	containerFields = ` name image imagePullPolicy resources ports restartPolicy securityContext volumeMounts{name mountPath readOnly} env{name
		valueFrom}
		envFrom{configMapRef secretRef prefix} `
	volumeFields = ` name persistentVolumeClaim emptyDir hostPath{path type} configMap{name optional} secret{secretName optional} csi{driver
		readOnly}
		ephemeral{volumeClaimTemplate{metadata spec{accessModes resources storageClassName volumeMode volumeName}}}
		projected{sources{secret{name optional} configMap{name optional} serviceAccountToken{audience expirationSeconds path}}} `
	podFields = ` activeDeadlineSeconds affinity automountServiceAccountToken dnsPolicy hostIPC hostNetwork hostPID hostname
		imagePullSecrets{name} nodeName nodeSelector overhead
		preemptionPolicy priority priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName schedulerName
		schedulingGates
		securityContext serviceAccountName terminationGracePeriodSeconds tolerations topologySpreadConstraints
		containers{` + containerFields + `} initContainers{` + containerFields + `} ephemeralContainers{` + containerFields + `}
		volumes{` + volumeFields + `} `
	workloadFields = `spec{minReadySeconds paused podManagementPolicy progressDeadlineSeconds replicas revisionHistoryLimit selector
		serviceName strategy
		updateStrategy template{metadata spec{` + podFields + `}}} status`

	machineFields = ` bootstrap{configRef dataSecretName} clusterName deletion failureDomain infrastructureRef minReadySeconds
		nodeDeletionTimeout nodeDrainTimeout
		nodeVolumeDetachTimeout providerID readinessGates taints version `
	machineSetFields = `spec{clusterName deletePolicy deletion failureDomains machineNaming machineNamingStrategy minReadySeconds paused
		progressDeadlineSeconds
		providerIDList remediation replicas revisionHistoryLimit rollout rolloutAfter selector strategy template{metadata
		spec{` + machineFields + `}}} status`
	poolFields = ` name class replicas minReadySeconds metadata failureDomain failureDomains deletion healthCheck machineHealthCheck rollout
		strategy variables{overrides{name}} `

	controlPlaneFields = `spec{replicas version rollout rolloutBefore rolloutStrategy remediation remediationStrategy network{serviceAddress
		serviceType}
		infrastructureTemplate{apiVersion kind name namespace} machineTemplate{metadata infrastructureRef deletion nodeDrainTimeout
		spec{infrastructureRef deletion readinessGates}}}
		status{observedGeneration ready initialized initialization replicas readyReplicas availableReplicas upToDateReplicas updatedReplicas
		unavailableReplicas
		version selector phase failureReason failureMessage lastRemediation externalManagedControlPlane}`

	registrationFields = ` joinConfiguration{nodeRegistration{name criSocket taints imagePullPolicy ignorePreflightErrors kubeletExtraArgs}}
		format
		agentConfig{nodeTaints nodeLabels nodeName nodeNamePrefix version} generateType talosVersion `
	bootstrapFields = `spec{` + registrationFields + ` template{metadata spec{` + registrationFields + `}}}
		status{ready initialization dataSecretName observedGeneration failureReason failureMessage}`

	// What profiles read, and what reports where a machine is and what it boots. Names of different providers are side by side: a template of
	// one is text, and of another an object.
	infrastructureSpecFields = ` providerID instanceID failureDomain failureDomains zone zones region location controlPlaneEndpoint
		instanceType vmSize type flavor className os osDisk{osType diskSizeGB} capacityType marketType spotMarketOptions spotVMOptions
		provisioningModel preemptible
		capacityReservationId capacityReservationID capacityReservationPreference tenancy
		numCPUs numCoresPerSocket numCores numSockets vcpuSockets vcpusPerSocket memoryMiB memorySize diskGiB systemDiskSize
		disks{bootVolume{sizeGb}}
		rootVolume{size type} rootDeviceSize rootDeviceType nonRootVolumes{size type deviceName} kubemarkOptions{extendedResources}
		virtualMachineTemplate{spec{runStrategy instancetype{name kind} template{spec{architecture
		domain{cpu memory resources} volumes volumes{name containerDisk{image} dataVolume{name} persistentVolumeClaim{claimName}}}}}}
		ami image imageName imageVersion imageFamily imageLookupFormat imageLookupOrg imageLookupBaseOS installImage{image}
		template templateID templateSelector project{name uuid}
		server datacenter datastore folder resourcePool cloneMode powerOffMode network{devices{networkName dhcp4 dhcp6}} subnet{id name}
		additionalSecurityGroups{id} iamInstanceProfile hostSelector publicIP sshKeyName identityRef{kind name} credentialsRef{kind name
		namespace} secretRef{name namespace} `
	infrastructureFields = `spec{` + infrastructureSpecFields + ` template{metadata spec{` + infrastructureSpecFields + `}}}
		status{ready initialization observedGeneration addresses capacity nodeInfo failureDomains instanceState instanceStatus vmState phase
		region
		failureReason failureMessage errorReason errorMessage interruptible retryAfter taskRef deprecated{v1beta1{failureReason failureMessage}}}`

	patchFields = ` bootstrapPatches{apiGroup kind patches{op path valueFrom{variable}}} patches{op path valueFrom{variable}} `
	eventFields = `action count deprecatedCount deprecatedFirstTimestamp deprecatedLastTimestamp eventTime firstTimestamp involvedObject
		lastTimestamp message note reason
		regarding related reportingComponent reportingController reportingInstance series source type`

	// commonFields stays of every object.
	commonFields = ` apiVersion kind metadata status{conditions v1beta2{conditions} deprecated{v1beta1{conditions}}} `
)

// allowed holds what stays, by KIND.GROUP. A "*" is all kinds of a group, and of those that end in it.
var allowed = map[string]string{
	"*.autonode.io":  "spec status",
	"*.karpenter.sh": "spec status",
	"ClusterAPINodeClass.karpenter.cluster.x-k8s.io": `spec{scalableResourceSelector infrastructureTemplateSelectors catalogSelectors
		bootstrap version kubelet
		defaultArchitecture deadlines failureReasons driftPolicy ` + patchFields + `} status`,
	"InstanceTypeCatalog.karpenter.cluster.x-k8s.io": `spec{templateRef ` + patchFields + `
		instanceTypes{name architecture operatingSystem capacity memoryOverhead overhead labels offerings ` + patchFields + `}} status`,
	"EC2NodeClass.karpenter.k8s.aws": `spec{amiFamily amiSelectorTerms subnetSelectorTerms securityGroupSelectorTerms
		capacityReservationSelectorTerms
		associatePublicIPAddress role instanceProfile blockDeviceMappings instanceStorePolicy kubelet metadataOptions detailedMonitoring} status`,

	"Cluster.cluster.x-k8s.io": `spec{availabilityGates clusterNetwork controlPlaneEndpoint controlPlaneRef infrastructureRef paused
		topology{class classNamespace classRef version rollout rolloutAfter controlPlane{metadata replicas deletion healthCheck
		machineHealthCheck variables{overrides{name}}}
		workers{machineDeployments{` + poolFields + `} machinePools{` + poolFields + `}} variables{name}}} status`,
	"ClusterClass.cluster.x-k8s.io": `spec{infrastructure{ref templateRef} controlPlane{ref templateRef machineInfrastructure metadata}
		workers{machineDeployments{class bootstrap infrastructure template{metadata bootstrap{ref} infrastructure{ref}}}} variables{name required}
		patches{name definitions{selector jsonPatches{op path valueFrom{variable}}}}} status{observedGeneration}`,
	"Machine.cluster.x-k8s.io":                   "spec{" + machineFields + "} status",
	"MachineSet.cluster.x-k8s.io":                machineSetFields,
	"MachineDeployment.cluster.x-k8s.io":         machineSetFields,
	"MachinePool.cluster.x-k8s.io":               machineSetFields,
	"MachineHealthCheck.cluster.x-k8s.io":        "spec status",
	"MachineDrainRule.cluster.x-k8s.io":          "spec status",
	"*.controlplane.cluster.x-k8s.io":            controlPlaneFields,
	"*.bootstrap.cluster.x-k8s.io":               bootstrapFields,
	"*.infrastructure.cluster.x-k8s.io":          infrastructureFields,
	"ClusterResourceSet.addons.cluster.x-k8s.io": "spec{clusterSelector resources{kind name} strategy} status",

	"Secret": "type",
	"Pod": "spec{" + podFields + `} status{phase message reason nominatedNodeName hostIP podIP startTime qosClass resize
		containerStatuses initContainerStatuses ephemeralContainerStatuses}`,
	"Deployment.apps":  workloadFields,
	"ReplicaSet.apps":  workloadFields,
	"StatefulSet.apps": workloadFields,
	"DaemonSet.apps":   workloadFields,
	"Node": "spec{providerID taints unschedulable podCIDR podCIDRs} status{addresses allocatable capacity nodeInfo " +
		"phase volumesInUse volumesAttached}",
	"PersistentVolumeClaim":      "spec{accessModes resources storageClassName volumeMode volumeName} status",
	"PodDisruptionBudget.policy": "spec status",
	"StorageClass.storage.k8s.io": "provisioner reclaimPolicy allowVolumeExpansion volumeBindingMode allowedTopologies " +
		"parameters{type}",
	"Lease.coordination.k8s.io": "spec",
	"Event":                     eventFields,
	"Event.events.k8s.io":       eventFields,
	"CertificateSigningRequest.certificates.k8s.io": "spec{signerName username usages expirationSeconds}",
}

// autonodeFields stays beside that of what runs AutoNode.
var autonodeFields = map[string]string{
	"Pod":             "spec{containers{args command} initContainers{args command}}",
	"Deployment.apps": "spec{template{spec{containers{args command} initContainers{args command}}}}",
	"ReplicaSet.apps": "spec{template{spec{containers{args command} initContainers{args command}}}}",
}

// tree is what of an object stays: fields with what of them stays. text is that of a field that is an object in other kinds.
type tree struct {
	whole, text bool
	fields      map[string]*tree
}

// parse adds fields to a tree.
func (t *tree) parse(text string) {
	text = strings.NewReplacer("{", " { ", "}", " } ").Replace(text)
	words := strings.Fields(text)
	open := []*tree{t}
	for i, word := range words {
		at := open[len(open)-1]
		switch {
		case word == "{":
			continue // its field has opened it
		case word == "}":
			open = open[:len(open)-1]
			continue
		case at.fields == nil:
			at.fields = map[string]*tree{}
		}
		field := at.fields[word]
		if field == nil {
			field = &tree{}
			at.fields[word] = field
		}
		if i+1 < len(words) && words[i+1] == "{" {
			open = append(open, field)
			field.whole, field.text = false, field.whole
		} else {
			field.whole = true
		}
	}
}

// trees are those of the kinds that treeOf was called for: a cluster has many objects of a kind.
var trees sync.Map

// treeOf returns the fields of a kind that stay.
func treeOf(gk schema.GroupKind, ours bool) *tree {
	key := struct {
		schema.GroupKind
		ours bool
	}{gk, ours}
	if known, ok := trees.Load(key); ok {
		return known.(*tree)
	}
	t := &tree{}
	t.parse(commonFields)
	t.parse(allowedFields(gk))
	if ours {
		t.parse(autonodeFields[gk.String()])
	}
	trees.Store(key, t)
	return t
}

func allowedFields(gk schema.GroupKind) string {
	if text, ok := allowed[gk.String()]; ok {
		return text
	}
	for group := gk.Group; group != ""; {
		if text, ok := allowed["*."+group]; ok {
			return text
		}
		_, group, _ = strings.Cut(group, ".")
	}
	return ""
}
