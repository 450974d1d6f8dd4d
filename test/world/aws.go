// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/test/world/clusterapi"
	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/ec2"
	"github.com/autonode-io/autonode/test/world/hosting"
	"github.com/autonode-io/autonode/test/world/infrastructure"
	"github.com/autonode-io/autonode/test/world/infrastructure/bootstrap"
	"github.com/autonode-io/autonode/test/world/infrastructure/node"
)

const (
	// awsProvider is the name of Cluster API Provider AWS, of its process and of its log.
	awsProvider = "infrastructure-aws"
	// awsAccessKey is Cluster API Provider AWS', and so is awsSecretKey, which opens nothing outside of the world.
	awsAccessKey = "AKIAWORLDCLUSTERAPI0"
	awsSecretKey = "world"
	// hypervisorShare is the part of an instance's memory, in thousandths, that its operating system never sees.
	hypervisorShare = 55
)

// startAWS starts the EC2 API and what its instances boot on.
func (w *World) startAWS(ctx context.Context) error {
	guests := map[string]*rest.Config{}
	for _, guest := range w.guests {
		guests[guest.Name] = guest.RESTConfig()
	}
	hypervisor := infrastructure.NewHypervisor(infrastructure.HypervisorConfig{Guests: guests, Logger: w.logger("ec2")})
	config := *w.cfg.AWS
	config.AccessKeys = append(slices.Clone(config.AccessKeys), awsAccessKey)
	if config.Boot == nil {
		region := config.RegionName()
		config.Boot = func(ctx context.Context, instance ec2.Instance) { hypervisor.Run(ctx, machineOf(instance, region)) }
	}
	server, err := ec2.Start(context.WithoutCancel(ctx), config)
	if err != nil {
		return err
	}
	w.ec2 = server
	w.addPart(Component{Name: "EC2", Address: server.URL(), About: "EC2 API of " + server.Region(), Log: w.dir.log("ec2")}, func() error {
		hypervisor.Stop()
		return server.Close()
	})
	return nil
}

// machineOf is what an instance is to its software.
func machineOf(instance ec2.Instance, region string) infrastructure.Machine {
	architecture := map[string]string{"x86_64": "amd64", "arm64": "arm64"}[instance.Architecture]
	providerID := fmt.Sprintf("aws:///%s/%s", instance.Zone, instance.ID)
	return infrastructure.Machine{
		Instance: node.Instance{
			ID: instance.ID, ProviderID: providerID, Type: instance.Type, Zone: instance.Zone, Region: region,
			Architecture: architecture, OperatingSystem: "linux", KubeletVersion: infrastructure.Version(instance.ImageName), Address: instance.PrivateIP,
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU:              *resource.NewQuantity(int64(instance.VCPUs), resource.DecimalSI),
				corev1.ResourceMemory:           *resource.NewQuantity(instance.MemoryMiB<<20/1000*(1000-hypervisorShare), resource.BinarySI),
				corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(instance.RootGiB)<<30, resource.BinarySI),
			},
		},
		Metadata: bootstrap.Instance{
			ID: instance.ID, Hostname: instance.PrivateDNSName, ProviderID: providerID, Zone: instance.Zone, Region: region,
		},
		UserData: instance.UserData,
	}
}

// otherProviders are those that run beside Cluster API's own.
func (w *World) otherProviders() []clusterapi.Provider {
	if w.cfg.Infrastructure != InfrastructureAWS {
		return nil
	}
	return []clusterapi.Provider{{
		Name:      awsProvider,
		Program:   w.awsPrograms.ClusterAPIProvider(),
		Manifests: w.awsPrograms.ClusterAPIProviderManifests(),
		// What its kustomization has.
		Labels: map[string]string{
			"cluster.x-k8s.io/v1alpha3": "v1alpha3", "cluster.x-k8s.io/v1alpha4": "v1alpha4", "cluster.x-k8s.io/v1beta1": "v1beta1_v1beta2",
		},
		// There is no EKS here, nor ROSA, and AutoNode makes no machine pools.
		Args: []string{"--feature-gates=EKS=false,MachinePool=false"},
		// --service-endpoints doesn't reach all of its clients: that of AWSMachineTemplates would ask AWS itself.
		Env: []string{
			"AWS_ACCESS_KEY_ID=" + awsAccessKey, "AWS_SECRET_ACCESS_KEY=" + awsSecretKey, "AWS_REGION=" + w.ec2.Region(),
			"AWS_ENDPOINT_URL=" + w.ec2.URL(), "AWS_EC2_METADATA_DISABLED=true", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_CONFIG_FILE=/dev/null",
		},
	}}
}

// infrastructure returns nil for the world's own.
func (w *World) infrastructure() func(string, *controlplane.Cluster) hosting.Infrastructure {
	if w.cfg.Infrastructure != InfrastructureAWS {
		return nil
	}
	return func(namespace string, guest *controlplane.Cluster) hosting.Infrastructure {
		return hosting.Infrastructure{Cluster: awsCluster(namespace, guest, *w.cfg.AWS)}
	}
}

// awsCluster is an AWSCluster whose network the platform that hosts the control plane has built.
func awsCluster(namespace string, guest *controlplane.Cluster, region ec2.Config) *unstructured.Unstructured {
	var subnets []any
	domains := map[string]any{}
	vpc := ""
	for _, subnet := range region.Subnets {
		vpc = subnet.VPC
		domains[subnet.Zone] = map[string]any{"controlPlane": false}
		subnets = append(subnets, map[string]any{
			"id": subnet.ID, "availabilityZone": subnet.Zone, "cidrBlock": subnet.CIDR.String(), "isPublic": subnet.Public,
		})
	}
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "AWSCluster",
		"spec": map[string]any{
			"region":               region.RegionName(),
			"controlPlaneEndpoint": map[string]any{"host": "127.0.0.1", "port": int64(guest.Port)},
			"network":              map[string]any{"vpc": map[string]any{"id": vpc}, "subnets": subnets},
		},
		"status": map[string]any{"ready": true, "failureDomains": domains},
	}}
	cluster.SetNamespace(namespace)
	cluster.SetName(guest.Name)
	cluster.SetLabels(map[string]string{clusterv1.ClusterNameLabel: guest.Name})
	cluster.SetAnnotations(map[string]string{clusterv1.ManagedByAnnotation: "autonode-world"})
	return cluster
}
