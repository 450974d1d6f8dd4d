// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
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
	downward := func(item corev1.DownwardAPIVolumeFile) func(*corev1.Pod) {
		return projection(corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{item}}})
	}
	variable := func(variable corev1.EnvVar) func(*corev1.Pod) {
		return container(func(c *corev1.Container) { c.Env = []corev1.EnvVar{variable} })
	}
	field := func(path string) *corev1.ObjectFieldSelector { return &corev1.ObjectFieldSelector{FieldPath: path} }
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		want string // empty where it is run
	}{
		"is like ours":              {func(*corev1.Pod) {}, ""},
		"has init containers":       {func(pod *corev1.Pod) { pod.Spec.InitContainers = pod.Spec.Containers }, "init containers"},
		"has several containers":    {func(pod *corev1.Pod) { pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{}) }, "several containers"},
		"restarts on failure":       {func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }, "restartPolicy OnFailure"},
		"has a deadline":            {func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) }, "activeDeadlineSeconds"},
		"has readiness gates":       {func(pod *corev1.Pod) { pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{}} }, "readiness gates"},
		"uses the host's network":   {func(pod *corev1.Pod) { pod.Spec.HostNetwork = true }, "host's namespaces"},
		"mounts a path of the host": {volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}), `volume "v"`},
		"projects a resource":       {downward(corev1.DownwardAPIVolumeFile{ResourceFieldRef: &corev1.ResourceFieldSelector{}}), `volume "v"`},
		"projects a trust bundle":   {projection(corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}), `volume "v"`},
		"projects a field":          {downward(corev1.DownwardAPIVolumeFile{FieldRef: field("metadata.namespace")}), ""},
		"has hooks":                 {container(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{} }), "lifecycle hooks"},
		"has a startup probe":       {container(func(c *corev1.Container) { c.StartupProbe = &corev1.Probe{} }), "startup probes"},
		"has a probe that runs a command": {container(func(c *corev1.Container) {
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}}
		}), "probes other than httpGet"},
		"has a probe with a grace period":                    {container(func(c *corev1.Container) { c.ReadinessProbe.TerminationGracePeriodSeconds = ptr.To[int64](1) }), "terminationGracePeriodSeconds"},
		"uses a port of the host":                            {container(func(c *corev1.Container) { c.Ports[0].HostPort = 80 }), "host ports"},
		"mounts a part of a volume":                          {container(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{{MountPath: "/m", SubPath: "a"}} }), "subPath of mount /m"},
		"never pulls":                                        {container(func(c *corev1.Container) { c.ImagePullPolicy = corev1.PullNever }), "imagePullPolicy Never"},
		"takes variables from an object":                     {container(func(c *corev1.Container) { c.EnvFrom = []corev1.EnvFromSource{{}} }), "envFrom"},
		"takes a variable from a Secret":                     {variable(corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{}}}), "valueFrom of variable A"},
		"takes a variable from a field that the agent lacks": {variable(corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: field("metadata.labels['a']")}}), "valueFrom of variable A"},
		"has a variable that refers to another":              {variable(corev1.EnvVar{Name: "A", Value: "$(B)"}), "references such as that of variable A"},
		"has a variable that only looks so":                  {variable(corev1.EnvVar{Name: "A", Value: "$$(B)"}), ""},
		"has an argument that refers to a variable":          {container(func(c *corev1.Container) { c.Args = []string{"--a=$(A)"} }), "references such as --a=$(A)"},
	} {
		t.Run("When a pod "+name+", it should be run, or the agent say what it lacks", func(t *testing.T) {
			pod := testPod("n", "p", func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyAlways }, c.edit)
			want := BeEmpty()
			if c.want != "" {
				want = And(HavePrefix("the world's node agent doesn't have "), ContainSubstring(c.want))
			}
			NewWithT(t).Expect(unsupported(pod)).To(want)
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
