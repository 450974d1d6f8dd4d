// SPDX-License-Identifier: Apache-2.0

package hosting

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/controlplane"
	controlplanev1 "github.com/autonode-io/autonode/test/world/infrastructure/api/controlplane/v1beta1"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

const (
	// TemplatePoolLabel selects the machine templates that the world makes, with TemplatePool.
	TemplatePoolLabel = "autonode.io/template-pool"
	// TemplatePool is that label's value.
	TemplatePool = "general"
	// BootstrapTemplate is the name of the KubeadmConfigTemplate in every control-plane namespace; in a shared one it follows TemplatePrefix.
	BootstrapTemplate = "default"
)

// AutoNode returns a HostedCluster's spec.autoNode that selects the world's machine templates of a pool, and a KubeadmConfigTemplate by name.
func AutoNode(templatePool, bootstrapTemplate string) *v1beta1.AutoNode {
	return &v1beta1.AutoNode{ProvisionerConfig: v1beta1.ProvisionerConfig{
		Name: v1beta1.ProvisionerKarpenter,
		Karpenter: &v1beta1.Karpenter{
			Platform: v1beta1.PlatformClusterAPI,
			ClusterAPI: &v1beta1.ClusterAPI{
				TemplateSelectors: v1alpha1.TemplateSelectors{
					InfrastructureTemplateSelectors: []v1alpha1.InfrastructureTemplateSelector{{
						APIGroup: infrav1.GroupVersion.Group, Kind: "KwokMachineTemplate",
						Selector: metav1.LabelSelector{MatchLabels: map[string]string{TemplatePoolLabel: templatePool}},
					}},
				},
				Bootstrap: &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
					APIGroup: bootstrapv1.GroupVersion.Group, Kind: "KubeadmConfigTemplate", Name: bootstrapTemplate,
				}},
			},
		},
	}}
}

// Zones of every guest.
var zones = []string{"a", "b", "c"}

// instanceType is a machine of the world's cloud. Prices are in US dollars per hour.
type instanceType struct {
	name         string
	architecture infrav1.Architecture
	cpus, gibs   int64
	price, spot  string
}

var instanceTypes = []instanceType{
	{"c2-small", infrav1.ArchitectureAmd64, 2, 4, "0.070", "0.021"},
	{"c4-large", infrav1.ArchitectureAmd64, 4, 8, "0.139", "0.041"},
	{"c8-xlarge", infrav1.ArchitectureAmd64, 8, 16, "0.277", "0.083"},
	{"c4-arm", infrav1.ArchitectureArm64, 4, 8, "0.111", "0.035"},
}

// NewClient returns a client for the management cluster that has all kinds of this package.
func NewClient(cfg *rest.Config) (client.Client, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the management cluster: %w", err)
	}
	return c, nil
}

func objectMeta(namespace, name, cluster string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: cluster}}
}

func capiCluster(namespace, home string, guest *controlplane.Cluster, infrastructure client.Object) *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: guest.Name, Annotations: map[string]string{v1beta1.ConsentAnnotation: home + "/" + guest.Name},
		},
		Spec: clusterv1.ClusterSpec{
			ClusterNetwork: clusterv1.ClusterNetwork{
				Pods:     clusterv1.NetworkRanges{CIDRBlocks: []string{podRange}},
				Services: clusterv1.NetworkRanges{CIDRBlocks: []string{serviceRange}},
			},
			ControlPlaneEndpoint: endpoint(guest),
			ControlPlaneRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: controlplanev1.GroupVersion.Group, Kind: "HostedControlPlane", Name: guest.Name,
			},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: infrastructure.GetObjectKind().GroupVersionKind().Group, Kind: infrastructure.GetObjectKind().GroupVersionKind().Kind,
				Name: infrastructure.GetName(),
			},
		},
	}
}

func endpoint(guest *controlplane.Cluster) clusterv1.APIEndpoint {
	return clusterv1.APIEndpoint{Host: "127.0.0.1", Port: int32(guest.Port)}
}

func hostedControlPlane(namespace string, guest *controlplane.Cluster) *controlplanev1.HostedControlPlane {
	return &controlplanev1.HostedControlPlane{
		ObjectMeta: objectMeta(namespace, guest.Name, guest.Name),
		Spec: controlplanev1.HostedControlPlaneSpec{
			Version:              guest.Version(),
			ControlPlaneEndpoint: endpoint(guest),
		},
	}
}

func kwokCluster(namespace, guest string) *infrav1.KwokCluster {
	cluster := &infrav1.KwokCluster{ObjectMeta: objectMeta(namespace, guest, guest)}
	for _, zone := range zones {
		cluster.Spec.FailureDomains = append(cluster.Spec.FailureDomains, clusterv1.FailureDomain{Name: zone})
	}
	return cluster
}

// machinePatches have the cloud make spot machines where Karpenter chose spot.
const machinePatches = `[{op: add, path: /spec/capacityType, valueFrom: {variable: capacityType}}]`

func machineTemplates(namespace, guest, prefix string) []*infrav1.KwokMachineTemplate {
	var templates []*infrav1.KwokMachineTemplate
	for _, s := range instanceTypes {
		meta := objectMeta(namespace, prefix+s.name, guest)
		meta.Labels[TemplatePoolLabel] = TemplatePool
		meta.Annotations = map[string]string{
			v1alpha1.PriceAnnotation: s.price, v1alpha1.SpotPriceAnnotation: s.spot, v1alpha1.InfrastructurePatchesAnnotation: machinePatches,
			// Its machines have all the memory that they are called to have.
			v1alpha1.MemoryOverheadAnnotation: "0%",
		}
		templates = append(templates, &infrav1.KwokMachineTemplate{
			ObjectMeta: meta,
			Spec: infrav1.KwokMachineTemplateSpec{Template: infrav1.KwokMachineTemplateResource{
				Spec: infrav1.KwokMachineSpec{
					Capacity: corev1.ResourceList{
						corev1.ResourceCPU:    *resource.NewQuantity(s.cpus, resource.DecimalSI),
						corev1.ResourceMemory: *resource.NewQuantity(s.gibs<<30, resource.BinarySI),
						// As much disk for each type.
						corev1.ResourceEphemeralStorage: *resource.NewQuantity(100<<30, resource.BinarySI),
					},
					Architecture:    s.architecture,
					OperatingSystem: "linux",
				},
			}},
		})
	}
	return templates
}

// kubeadmConfigTemplate makes nodes that request serving certificates if a controller approves them.
func kubeadmConfigTemplate(namespace, guest, prefix string, servingCertificates bool) *bootstrapv1.KubeadmConfigTemplate {
	verbosity, rotate := "2", strconv.FormatBool(servingCertificates)
	template := &bootstrapv1.KubeadmConfigTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: prefix + BootstrapTemplate}}
	if prefix != "" {
		template.Labels = map[string]string{clusterv1.ClusterNameLabel: guest}
	}
	template.Spec.Template.Spec.JoinConfiguration.NodeRegistration.KubeletExtraArgs = []bootstrapv1.Arg{
		{Name: "v", Value: &verbosity}, {Name: "rotate-server-certificates", Value: &rotate},
	}
	return template
}

// Workers returns a MachineDeployment of a guest, of the smallest instance type.
func Workers(guest *controlplane.Cluster, replicas int32) *clusterv1.MachineDeployment {
	const name = "workers"
	own := map[string]string{clusterv1.MachineDeploymentNameLabel: name}
	return &clusterv1.MachineDeployment{
		ObjectMeta: objectMeta(ControlPlaneNamespace(guest.Name), name, guest.Name),
		Spec: clusterv1.MachineDeploymentSpec{
			ClusterName: guest.Name, Replicas: &replicas, Selector: metav1.LabelSelector{MatchLabels: own},
			Template: clusterv1.MachineTemplateSpec{
				ObjectMeta: clusterv1.ObjectMeta{Labels: own},
				Spec: clusterv1.MachineSpec{
					ClusterName: guest.Name, Version: guest.Version(),
					Bootstrap: clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{
						APIGroup: bootstrapv1.GroupVersion.Group, Kind: "KubeadmConfigTemplate", Name: BootstrapTemplate,
					}},
					InfrastructureRef: clusterv1.ContractVersionedObjectReference{
						APIGroup: infrav1.GroupVersion.Group, Kind: "KwokMachineTemplate", Name: instanceTypes[0].name,
					},
				},
			},
		},
	}
}

// clusterSecrets are the kubeconfig that Cluster API's contract requires of a control plane provider, and the CA that the kubeadm
// bootstrap provider pins in a node's join configuration.
func clusterSecrets(owner *controlplanev1.HostedControlPlane, guest *controlplane.Cluster) ([]*corev1.Secret, error) {
	kubeconfig, err := guest.Kubeconfig("cluster-api", "system:masters")
	if err != nil {
		return nil, err
	}
	var secrets []*corev1.Secret
	for name, data := range map[string]map[string][]byte{
		guest.Name + "-kubeconfig": {"value": kubeconfig},
		guest.Name + "-ca":         {corev1.TLSCertKey: guest.CA.Certificate, corev1.TLSPrivateKeyKey: guest.CA.Key},
	} {
		meta := objectMeta(owner.Namespace, name, guest.Name)
		meta.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(owner, controlplanev1.GroupVersion.WithKind("HostedControlPlane")),
		}
		secrets = append(secrets, &corev1.Secret{ObjectMeta: meta, Type: clusterv1.ClusterSecretType, Data: data})
	}
	return secrets, nil
}
