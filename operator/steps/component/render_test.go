// SPDX-License-Identifier: Apache-2.0

package component

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/payload"
)

var update = flag.Bool("update", false, "write the golden files")

// deployments is a client.Reader of MachineDeployments.
type deployments []clusterv1.MachineDeployment

func (d deployments) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if key.Name == "join" {
		object.SetLabels(map[string]string{v1beta1.BootstrapDataLabel: "true"})
		return nil
	}
	return apierrors.NewNotFound(corev1.Resource("configmaps"), key.Name)
}

func (d deployments) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	options := (&client.ListOptions{}).ApplyOptions(opts)
	into := list.(*clusterv1.MachineDeploymentList)
	for _, deployment := range d {
		if deployment.Namespace == options.Namespace && (options.LabelSelector == nil || options.LabelSelector.Matches(labels.Set(deployment.Labels))) {
			into.Items = append(into.Items, deployment)
		}
	}
	return nil
}

func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{
		{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta1"}, {Group: "bootstrap.cluster.x-k8s.io", Version: "v1beta2"},
	})
	for _, kind := range []string{"KwokMachine", "KwokMachineTemplate", "Metal3Machine", "Metal3MachineTemplate", "VSphereMachine", "VSphereMachineTemplate"} {
		m.Add(schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta1", Kind: kind}, meta.RESTScopeNamespace)
	}
	for _, kind := range []string{"KubeadmConfig", "KubeadmConfigTemplate"} {
		m.Add(schema.GroupVersionKind{Group: "bootstrap.cluster.x-k8s.io", Version: "v1beta2", Kind: kind}, meta.RESTScopeNamespace)
	}
	return m
}

func machineDeployment(name, cluster, kind string) clusterv1.MachineDeployment {
	d := clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters-blue", Name: name, Labels: map[string]string{"team": "web"}}}
	d.Spec.ClusterName = cluster
	d.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: kind, Name: name}
	d.Spec.Template.Spec.Bootstrap.ConfigRef = clusterv1.ContractVersionedObjectReference{APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfigTemplate", Name: name}
	return d
}

func input() Input {
	return Input{
		Profile:   clusterapi.New(clusterapi.DefaultGroups),
		GuestPort: 6443,
		Labels:    map[string]string{v1beta1.HostedClusterLabel: "blue", v1beta1.HostedClusterNamespaceLabel: "clusters"},
		Image:     "registry.example/autonode/karpenter-clusterapi@sha256:" + strings.Repeat("9", 64),
		Input: provider.Input{
			Namespace:   "clusters-blue",
			ClusterName: "blue",
			Names:       v1beta1.DedicatedNames(),
			NodeVersion: "1.36.3",
			Config: &v1beta1.Karpenter{Platform: v1beta1.PlatformClusterAPI, ClusterAPI: &v1beta1.ClusterAPI{
				TemplateSelectors: v1alpha1.TemplateSelectors{InfrastructureTemplateSelectors: []v1alpha1.InfrastructureTemplateSelector{
					{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "KwokMachineTemplate"},
				}},
				Bootstrap: &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
					APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfigTemplate", Name: "default",
				}},
			}},
			Reader: deployments{},
			Mapper: mapper(),
		},
	}
}

// imageLine is a container's image in YAML.
var imageLine = regexp.MustCompile(`(?m)^\s+(?:- )?image: (\S+)$`)

// expectPinned fails unless every image in a manifest is pinned by its digest.
func expectPinned(t *testing.T, manifest string) {
	t.Helper()
	images := imageLine.FindAllStringSubmatch(manifest, -1)
	if len(images) == 0 {
		t.Error("nothing runs")
	}
	for _, image := range images {
		if err := payload.CheckPinned(image[1]); err != nil {
			t.Error(err)
		}
	}
}

func pullSecret() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "pull-secret"},
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{}}`), "other": []byte("stays")},
	}
}

func TestRender(t *testing.T) {
	for _, test := range []struct {
		name, golden string
		change       func(*Input)
	}{
		{
			name: "When a cluster selects templates, it should render Karpenter for their kind", golden: "templates",
		}, {
			name:   "When there are node images, a pull secret, monitoring, an unusual port and bounds of kubelets, it should write the first, copy the second, add a PodMonitor, open the port and hand over the last",
			golden: "everything",
			change: func(in *Input) {
				in.PayloadVersion = "1.36.3"
				in.NodeImages = payload.NodeImages{"amd64": {"aws": {"us-east-1": "ami-1"}}}
				in.Monitoring = true
				in.GuestPort = 31443
				in.Config.ClusterAPI.KubeletBounds = &v1alpha1.KubeletBounds{
					Forbidden: []v1alpha1.KubeletField{"clusterDNS"}, Max: &v1alpha1.KubeletMaximums{MaxPods: ptr.To(int32(250))},
				}
				in.PullSecret = pullSecret()
			},
		}, {
			name: "When the platform has settings for Karpenter, it should run with them", golden: "settings",
			change: func(in *Input) {
				in.FeatureGates = map[string]bool{"SpotToSpotConsolidation": true, "NodeRepair": false}
				in.Settings = Settings{
					Resources: corev1.ResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
						Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
					},
					NodeSelector:      map[string]string{"role": "control-planes"},
					Tolerations:       []corev1.Toleration{{Key: "control-planes", Operator: corev1.TolerationOpExists}},
					PriorityClassName: "hosted-control-plane",
					LogLevel:          "debug",
					KubeClientQPS:     500, KubeClientBurst: 1000, NodeRecordDays: 30, NodeRecordLimit: 5000,
					BatchIdleDuration: metav1.Duration{Duration: 500 * time.Millisecond},
					ZoneTopologyKeys:  []string{"csi.example.com/zone", "csi.example.org/rack"}, RegionTopologyKeys: []string{"csi.example.com/region"},
					RepairPolicies: []v1alpha1.RepairPolicy{{
						ConditionType: "GPUHealthy", ConditionStatus: corev1.ConditionFalse, Reason: "^Xid79$", TolerationDuration: metav1.Duration{Duration: 10 * time.Minute},
						TerminationGracePeriod: &metav1.Duration{Duration: 5 * time.Minute}, Priority: 50, Action: v1alpha1.RepairReboot,
					}},
				}
			},
		}, {
			name: "When the control plane is in the HostedCluster's namespace, it should use the pull secret as it is", golden: "same-namespace",
			change: func(in *Input) {
				in.PullSecret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: in.Namespace, Name: "pull-secret"}}
			},
		}, {
			name: "When HostedClusters share the namespace, everything should have the Cluster's name and select its own", golden: "shared-namespace",
			change: func(in *Input) {
				in.Names = v1beta1.SharedNames("blue")
				in.Namespace, in.Labels[v1beta1.HostedClusterNamespaceLabel] = "team", "team"
				in.Monitoring = true
				in.PayloadVersion = "1.36.3"
				in.NodeImages = payload.NodeImages{"amd64": {"aws": {"us-east-1": "ami-1"}}}
				in.PullSecret = pullSecret()
			},
		}, {
			name: "When a cluster selects MachineDeployments, it should grant the kinds of its own that are served", golden: "machinedeployments",
			change: func(in *Input) {
				in.Config.ClusterAPI = &v1beta1.ClusterAPI{
					TemplateSelectors: v1alpha1.TemplateSelectors{ScalableResourceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}},
					Bootstrap:         &v1alpha1.Bootstrap{DataSecretName: "join"},
					BootstrapPatches: []v1alpha1.BootstrapPatches{{
						APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "RKE2Config",
						Patches: []v1alpha1.JSONPatch{
							{Op: v1alpha1.JSONPatchAdd, Path: "/spec/agentConfig/nodeTaints", ValueFrom: &v1alpha1.JSONPatchValue{Variable: "taintList"}},
							{Op: v1alpha1.JSONPatchAdd, Path: "/spec/agentConfig/nodeName", ValueFrom: &v1alpha1.JSONPatchValue{Template: "$(HOSTNAME)"}},
						},
					}},
				}
				in.Reader = deployments{
					machineDeployment("own", "blue", "VSphereMachineTemplate"),
					machineDeployment("gone", "blue", "AWSMachineTemplate"),
					machineDeployment("foreign", "green", "KwokMachineTemplate"),
				}
			},
		}, {
			name: "When the platform is AWS, it should render the AWS provider, which may do nothing in management", golden: "aws",
			change: func(in *Input) {
				in.Profile = aws.New()
				in.Image = "registry.example/autonode/karpenter-aws@sha256:" + strings.Repeat("8", 64)
				in.Monitoring = true
				in.Endpoint, in.CA = "https://10.0.0.1:6443", []byte("certificates")
				in.Config = &v1beta1.Karpenter{Platform: v1beta1.PlatformAWS, AWS: &v1beta1.AWS{
					RoleARN: "arn:aws:iam::123456789012:role/karpenter", Region: "eu-central-1", InterruptionQueue: "blue-events",
				}}
				in.Cluster = &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "blue.example", Port: 443}}}
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := input()
			if test.change != nil {
				test.change(&in)
			}
			objects, err := render(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			var documents []string
			for _, object := range objects {
				data, err := yaml.Marshal(object)
				if err != nil {
					t.Fatal(err)
				}
				documents = append(documents, string(data))
			}
			got := strings.Join(documents, "---\n")
			expectPinned(t, got)
			file := filepath.Join("testdata", test.golden+".yaml")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s differs; go test -update writes it (-want +got):\n%s", file, diff)
			}
		})
	}
}

// variables are those of Karpenter's container.
func variables(objects []client.Object) []corev1.EnvVar {
	for _, object := range objects {
		if deployment, ok := object.(*appsv1.Deployment); ok {
			return deployment.Spec.Template.Spec.Containers[0].Env
		}
	}
	return nil
}

func TestRenderUpgrades(t *testing.T) {
	t.Run("When nodes may not be upgraded at any time, it should pass the provider the window", func(t *testing.T) {
		window := &v1beta1.MaintenanceWindow{Schedule: "0 2 * * 6", Duration: scalar.Duration{Duration: 4 * time.Hour}, TimeZone: "Europe/Zurich"}
		for _, c := range []struct {
			upgrades provider.Upgrades
			want     string
		}{
			{},
			{upgrades: provider.Upgrades{Hold: true}, want: "never"},
			{upgrades: provider.Upgrades{Window: window}, want: `{"schedule":"0 2 * * 6","duration":"4h0m0s","timeZone":"Europe/Zurich"}`},
		} {
			in := input()
			in.Upgrades = c.upgrades
			objects, err := render(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, env := range variables(objects) {
				if env.Name == "NODE_UPGRADE_WINDOW" {
					got = env.Value
				}
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		}
	})

	t.Run("When a kind that the spec names isn't served, it should be an error and not a smaller Role", func(t *testing.T) {
		in := input()
		in.Config.ClusterAPI.InfrastructureTemplateSelectors[0].Kind = "AWSMachineTemplate"
		if _, err := render(t.Context(), in); err == nil || !strings.Contains(err.Error(), "AWSMachine") {
			t.Errorf("got %v", err)
		}
	})
}

func TestRenderReboots(t *testing.T) {
	for kind, want := range map[string]bool{"Metal3MachineTemplate": true, "VSphereMachineTemplate": false} {
		t.Run("When templates are of kind "+kind+", Karpenter should reboot machines and look for health checks only if those can be rebooted", func(t *testing.T) {
			in := input()
			in.Config.ClusterAPI.InfrastructureTemplateSelectors[0].Kind = kind
			objects, err := render(t.Context(), in)
			if err != nil {
				t.Fatal(err)
			}
			reboots, looks := slices.Contains(variables(objects), corev1.EnvVar{Name: "IN_PLACE_REBOOT", Value: "true"}), false
			for _, object := range objects {
				if object, ok := object.(*rbacv1.Role); ok {
					looks = slices.ContainsFunc(object.Rules, func(rule rbacv1.PolicyRule) bool {
						return slices.Equal(rule.Resources, []string{"machinehealthchecks"}) && slices.Equal(rule.Verbs, []string{"list"})
					})
				}
			}
			if reboots != want || looks != want {
				t.Errorf("it reboots machines: %t, and lists health checks: %t; want %t", reboots, looks, want)
			}
		})
	}
}
