// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

func TestUnsupported(t *testing.T) {
	container := func(edit func(*corev1.Container)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { edit(&pod.Spec.Containers[0]) }
	}
	volume := func(source corev1.VolumeSource) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
	}
	projection := func(source corev1.VolumeProjection) func(*corev1.Pod) {
		return volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{source}}})
	}
	variable := func(variable corev1.EnvVar) func(*corev1.Pod) {
		return container(func(c *corev1.Container) { c.Env = []corev1.EnvVar{variable} })
	}
	probe := func(handler corev1.ProbeHandler) func(*corev1.Pod) {
		return container(func(c *corev1.Container) { c.LivenessProbe = &corev1.Probe{ProbeHandler: handler} })
	}
	field := func(path string) *corev1.ObjectFieldSelector { return &corev1.ObjectFieldSelector{FieldPath: path} }
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		want string
	}{
		"When a pod is like ours, it should run it": {edit: func(*corev1.Pod) {}},
		"When it has init containers, it should say so": {
			func(pod *corev1.Pod) { pod.Spec.InitContainers = pod.Spec.Containers }, "init containers",
		},
		"When it has a second container, it should say so": {
			func(pod *corev1.Pod) { pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{}) }, "several containers",
		},
		"When it restarts on failure only, it should say so": {
			func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }, "restartPolicy OnFailure",
		},
		"When it has a deadline, it should say so": {
			func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) }, "activeDeadlineSeconds",
		},
		"When it has readiness gates, it should say so": {
			func(pod *corev1.Pod) { pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{}} }, "readiness gates",
		},
		"When it requires the host's network, it should say so": {
			func(pod *corev1.Pod) { pod.Spec.HostNetwork = true }, "host's namespaces",
		},
		"When it mounts a path of the host, it should say so": {
			volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}), `volume "v"`,
		},
		"When it projects a resource, it should say so": {
			projection(corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{ResourceFieldRef: &corev1.ResourceFieldSelector{}}}}}), `volume "v"`,
		},
		"When it projects a trust bundle, it should say so": {
			projection(corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}), `volume "v"`,
		},
		"When it projects a field, it should run it": {
			edit: projection(corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{FieldRef: field("metadata.namespace")}}}}),
		},
		"When it has hooks, it should say so": {
			container(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{} }), "lifecycle hooks",
		},
		"When it has a startup probe, it should say so": {
			container(func(c *corev1.Container) { c.StartupProbe = &corev1.Probe{} }), "startup probes",
		},
		"When a probe runs a command, it should say so": {
			probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{}}), "probes other than httpGet",
		},
		"When a probe uses gRPC, it should say so": {
			probe(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}), "probes other than httpGet",
		},
		"When a probe has a grace of its own, it should say so": {
			container(func(c *corev1.Container) {
				c.ReadinessProbe.TerminationGracePeriodSeconds = ptr.To[int64](1)
			}), "terminationGracePeriodSeconds",
		},
		"When it requires a port of the host, it should say so": {
			container(func(c *corev1.Container) { c.Ports[0].HostPort = 80 }), "host ports",
		},
		"When it mounts a part of a volume, it should say so": {
			container(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{{MountPath: "/m", SubPath: "a"}} }), "subPath of mount /m",
		},
		"When it never pulls, it should say so": {
			container(func(c *corev1.Container) { c.ImagePullPolicy = corev1.PullNever }), "imagePullPolicy Never",
		},
		"When it takes its variables from an object, it should say so": {
			container(func(c *corev1.Container) { c.EnvFrom = []corev1.EnvFromSource{{}} }), "envFrom",
		},
		"When a variable is a Secret's, it should say so": {
			variable(corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}}), "valueFrom of variable A",
		},
		"When a variable is a field that it doesn't know, it should say so": {
			variable(corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: field("metadata.labels['a']")}}), "valueFrom of variable A",
		},
		"When a variable refers to another, it should say so": {
			variable(corev1.EnvVar{Name: "A", Value: "$(B)"}), "references such as that of variable A",
		},
		"When a variable only looks as if it referred to another, it should run it": {
			edit: variable(corev1.EnvVar{Name: "A", Value: "$$(B)"}),
		},
		"When an argument refers to a variable, it should say so": {
			container(func(c *corev1.Container) { c.Args = []string{"--a=$(A)"} }), "references such as --a=$(A)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := testPod("n", "p", func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways }, c.edit)
			if got := unsupported(pod); c.want == "" {
				NewWithT(t).Expect(got).To(BeEmpty())
			} else {
				NewWithT(t).Expect(got).To(And(HavePrefix("the world's node agent doesn't have "), ContainSubstring(c.want)))
			}
		})
	}
}

func TestUnsupportedPod(t *testing.T) {
	namespace := newNamespace(t)
	t.Run("When a pod requests what the agent doesn't have, it should say so and let it be deleted", func(t *testing.T) {
		g := NewWithT(t)
		pod := create(t, testPod(namespace, "hooked", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
		}))
		const message = "the world's node agent doesn't have lifecycle hooks"
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(WithTransform(waitingReason, Equal("CreateContainerConfigError")),
			WithTransform(waitingMessage, Equal(message)), WithTransform(phase, Equal(corev1.PodPending))))
		got := status(t, pod)()
		for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodReady} {
			g.Expect(got.Conditions[conditionIndex(got.Conditions, kind)]).To(And(
				HaveField("Status", corev1.ConditionFalse), HaveField("Reason", "Unsupported"), HaveField("Message", message)))
		}
		g.Eventually(events(t, pod), waitLong, waitPoll).Should(ContainElement("Unsupported"))
		deleteAndWait(t, pod)
	})
}

// Our own Deployments, as they are kept and as the operator renders them.
func TestOurDeployments(t *testing.T) {
	const root = "../../../"
	files, err := filepath.Glob(root + "operator/steps/component/testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	kept := []string{root + "manifests/operator/deployment.yaml", root + "assets/karpenter/deployment.yaml", root + "operator/provider/aws/deployment.yaml"}
	for _, file := range append(kept, files...) {
		t.Run("When a pod is of "+strings.TrimPrefix(file, root)+", the agent should have all that it requests", func(t *testing.T) {
			g := NewWithT(t)
			content, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			found := false
			for document := range strings.SplitSeq(string(content), "\n---\n") {
				deployment := &appsv1.Deployment{}
				if yaml.Unmarshal([]byte(document), deployment) != nil || deployment.Kind != "Deployment" {
					continue
				}
				found = true
				pod := &corev1.Pod{Spec: deployment.Spec.Template.Spec}
				pod.Spec.RestartPolicy = corev1.RestartPolicyAlways // the API server's default
				g.Expect(unsupported(pod)).To(BeEmpty())
			}
			g.Expect(found).To(BeTrue(), "there is no Deployment")
		})
	}
}
