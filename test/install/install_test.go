// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	karpenterassets "github.com/autonode-io/autonode/assets/karpenter"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
)

var update = flag.Bool("update", false, "write the golden files and the tables of docs/reference/permissions.md")

const (
	root         = "../.."
	installation = root + "/manifests"
)

// profiles are those of operator/run.go.
var profiles = provider.NewProfiles(clusterapi.New(clusterapi.DefaultGroups), aws.New())

// build is kustomize build.
func build(t *testing.T, dir string) resmap.ResMap {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return built
}

// generated are the kinds that `make generate` writes, and checks.
var generated = []string{"CustomResourceDefinition", "ClusterRole", "Role"}

func TestManifests(t *testing.T) {
	t.Run("When kustomize builds manifests, it should make what is installed", func(t *testing.T) {
		var documents []string
		for _, resource := range build(t, installation).Resources() {
			if slices.Contains(generated, resource.GetKind()) {
				continue
			}
			document, err := resource.AsYAML()
			if err != nil {
				t.Fatal(err)
			}
			documents = append(documents, string(document))
		}
		golden(t, "testdata/manifests.yaml", strings.Join(documents, "---\n"))
	})

	t.Run("When an overlay adds monitoring, it should build too", func(t *testing.T) {
		var kinds []string
		for _, resource := range overlay(t, "resources: [BASE]\ncomponents: [BASE/monitoring]\n").Resources() {
			kinds = append(kinds, resource.GetKind())
		}
		for _, kind := range []string{"PodMonitor", "PrometheusRule", "ConfigMap"} {
			if !slices.Contains(kinds, kind) {
				t.Errorf("there is no %s among %v", kind, kinds)
			}
		}
	})

	t.Run("When an overlay is the one in the documentation for registries of a private authority, it should build", func(t *testing.T) {
		page, err := os.ReadFile("../../docs/platform/support.md")
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile("(?s)```yaml\n(resources: \\[.*?)```").FindSubmatch(page)
		if found == nil {
			t.Fatal("docs/platform/support.md shows no overlay")
		}
		kustomization := regexp.MustCompile(`^resources: \[.*\]`).ReplaceAllString(string(found[1]), "resources: [BASE]")
		pod := workloadIn(t, overlay(t, kustomization)).deployment.Spec.Template.Spec
		mounts, volumes := pod.Containers[0].VolumeMounts, pod.Volumes
		mount := mounts[len(mounts)-1] // the overlay's come last
		if len(mounts) != len(volumes) || mount.Name != volumes[len(volumes)-1].Name {
			t.Errorf("%v are mounted, and the pod has %v", mounts, volumes)
		}
		if want := "--registry-ca-file=" + mount.MountPath + "/ca-bundle.crt"; !slices.Contains(pod.Containers[0].Args, want) {
			t.Errorf("the arguments %v lack %s", pod.Containers[0].Args, want)
		}
	})
}

// overlay builds a kustomization.yaml, in which BASE is manifests/.
func overlay(t *testing.T, kustomization string) resmap.ResMap {
	t.Helper()
	dir := t.TempDir()
	base, err := filepath.Abs(installation)
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(dir, base)
	if err != nil {
		t.Fatal(err)
	}
	content := strings.ReplaceAll(kustomization, "BASE", relative)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return build(t, dir)
}

// workload is what runs, and what restricts its connections.
type workload struct {
	deployment *appsv1.Deployment
	policy     *networkingv1.NetworkPolicy
}

func workloads(t *testing.T) map[string]workload {
	t.Helper()
	networkPolicy, err := karpenterassets.NetworkPolicy()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]workload{
		"operator":        workloadIn(t, build(t, installation)),
		"second operator": workloadIn(t, overlay(t, "resources: [BASE/operator]\nnameSuffix: -b\nlabels: [{pairs: {autonode.io/shard: b}, includeSelectors: true}]\n")),
	}
	for _, profile := range profiles {
		deployment, err := profile.Deployment()
		if err != nil {
			t.Fatal(err)
		}
		all["Karpenter of "+profile.Component] = workload{deployment, networkPolicy}
	}
	return all
}

func workloadIn(t *testing.T, built resmap.ResMap) workload {
	t.Helper()
	w := workload{&appsv1.Deployment{}, &networkingv1.NetworkPolicy{}}
	for _, resource := range built.Resources() {
		into := map[string]any{"Deployment": w.deployment, "NetworkPolicy": w.policy}[resource.GetKind()]
		if into == nil {
			continue
		}
		document, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(document, into); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func TestWorkloads(t *testing.T) {
	for name, w := range workloads(t) {
		pod := w.deployment.Spec.Template
		t.Run("When the "+name+" runs, it should keep to the restricted Pod Security Standard, on a read-only root", func(t *testing.T) {
			for _, violation := range violations(t, pod) {
				t.Error(violation)
			}
			for _, container := range pod.Spec.Containers {
				if security := container.SecurityContext; security == nil || security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem {
					t.Errorf("the root of container %s can be written", container.Name)
				}
			}
		})

		t.Run("When the "+name+" runs, its NetworkPolicy should select it and let only metrics in", func(t *testing.T) {
			spec := w.policy.Spec
			selector, err := metav1.LabelSelectorAsSelector(&spec.PodSelector)
			if err != nil {
				t.Fatal(err)
			}
			if selector.Empty() || !selector.Matches(labels.Set(pod.Labels)) {
				t.Errorf("%s doesn't select %v", selector, pod.Labels)
			}
			if want := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}; !cmp.Equal(want, spec.PolicyTypes) {
				t.Errorf("it restricts %v only", spec.PolicyTypes)
			}
			var served []string
			for _, container := range pod.Spec.Containers {
				for _, port := range container.Ports {
					served = append(served, port.Name)
				}
			}
			for _, rule := range spec.Ingress {
				if len(rule.From) == 0 {
					t.Error("an ingress rule is for everybody")
				}
				for _, port := range rule.Ports {
					if port.Port.String() != "http-metrics" || !slices.Contains(served, port.Port.String()) {
						t.Errorf("port %s is open, of %v", port.Port, served)
					}
				}
			}
			for _, rule := range spec.Egress {
				if len(rule.Ports) == 0 {
					t.Error("an egress rule is for every port")
				}
			}
		})
	}

	t.Run("When a pod isn't restricted, the check itself should say so", func(t *testing.T) {
		pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "a"}}}}
		if got := violations(t, pod); len(got) < 2 {
			t.Errorf("found only %v", got)
		}
	})
}

func violations(t *testing.T, pod corev1.PodTemplateSpec) []string {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, result := range evaluator.EvaluatePod(api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}, &pod.ObjectMeta, &pod.Spec) {
		if !result.Allowed {
			found = append(found, result.ForbiddenReason+": "+result.ForbiddenDetail)
		}
	}
	return found
}

var numericUser = regexp.MustCompile(`^[1-9][0-9]*:[1-9][0-9]*$`)

func TestContainerfile(t *testing.T) {
	content, err := os.ReadFile(root + "/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	stages := map[string][]string{} // lines, by the stage's name
	stage := ""
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if fields[0] == "FROM" {
			if len(fields) != 4 || fields[1] != "scratch" || fields[2] != "AS" {
				t.Fatalf("%q: an image starts from nothing, and has a name", line)
			}
			stage = fields[3]
			continue
		}
		stages[stage] = append(stages[stage], strings.Join(fields, " "))
	}
	for _, program := range []string{"autonode-operator", "karpenter-clusterapi"} {
		t.Run("When the image of "+program+" is built, it should hold the program alone and run it as a numeric user", func(t *testing.T) {
			lines := stages[program]
			if len(lines) != 3 {
				t.Fatalf("it has the lines %q", lines)
			}
			user, isUser := strings.CutPrefix(lines[1], "USER ")
			if lines[0] != "COPY bin/linux/"+program+" /"+program || lines[2] != `ENTRYPOINT ["/`+program+`"]` || !isUser || !numericUser.MatchString(user) {
				t.Errorf("it has the lines %q", lines)
			}
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
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
}
