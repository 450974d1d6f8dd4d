// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"fmt"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestEnvironmentOfAPod(t *testing.T) {
	namespace := newNamespace(t)
	t.Run("When a container names ports, mounts and fields, it should see what is true on this machine", func(t *testing.T) {
		g := NewWithT(t)
		pod := create(t, testPod(namespace, "env", func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "work", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, {Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			container := &pod.Spec.Containers[0]
			container.VolumeMounts = []corev1.VolumeMount{{Name: "work", MountPath: "/work"}, {Name: "tmp", MountPath: "/tmp"}}
			container.Env = []corev1.EnvVar{
				{Name: "METRICS_PORT", Value: "8080"},
				{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
				{Name: "DIR", Value: "/work/a"}, {Name: "TEMPLATE", Value: "$$(HOSTNAME)"},
			}
			container.Args = []string{"--listen=:8080", "--write=/work/out"}
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		self := askSelf(t, pod)
		port := processOf(pod).Ports[8080]
		volumes := filepath.Join(agent.Dir, "pods", string(pod.UID), "volumes")
		g.Expect(self.Args).To(Equal([]string{fmt.Sprintf("--listen=:%d", port), "--write=" + volumes + "/work/out"}))
		g.Expect(self.env("METRICS_PORT")).To(Equal(fmt.Sprint(port)))
		g.Expect(self.env("DIR")).To(Equal(volumes + "/work/a"))
		g.Expect(self.env("NAME")).To(Equal("env"))
		g.Expect(self.env("TEMPLATE")).To(Equal("$(HOSTNAME)"))
		g.Expect(self.env("TMPDIR")).To(Equal(volumes + "/tmp"))
		g.Expect(self.env("FROM_IMAGE")).To(Equal("yes"))
		g.Expect(self.env("HOSTNAME")).To(Equal("env"))
		g.Expect(self.env("PATH")).To(BeEmpty(), "the agent's own environment leaks")
		g.Expect(filepath.Join(volumes, "work", "out")).To(BeAnExistingFile())
	})
	t.Run("When a mounted object is missing, it should wait and say which, and start once it is there", func(t *testing.T) {
		g := NewWithT(t)
		pod := create(t, testPod(namespace, "mountless", func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "all", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "later"}, Items: []corev1.KeyToPath{{Key: "k", Path: "deep/file"}}}},
				{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "never"}, Optional: ptr.To(true)}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}},
			}}}}}
			pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "all", MountPath: "/all"}}
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "ALL", Value: "/all"}}
		}))
		g.Eventually(events(t, pod), waitLong, waitPoll).Should(ContainElement("FailedMount"))
		_, err := management.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		all := askSelf(t, pod).env("ALL")
		g.Expect(ask(pod, "/file?path="+all+"/deep/file")).To(Equal("v"))
		g.Expect(ask(pod, "/file?path="+all+"/name")).To(Equal("mountless"))
	})
	t.Run("When a container must not run as root but would, it should say so", func(t *testing.T) {
		pod := create(t, testPod(namespace, "rootless", func(pod *corev1.Pod) {
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](0)}
		}))
		NewWithT(t).Eventually(status(t, pod), waitLong, waitPoll).Should(WithTransform(waitingMessage, ContainSubstring("runAsNonRoot")))
	})
}

func TestMayRun(t *testing.T) {
	for name, c := range map[string]struct {
		image   string
		pod     corev1.PodSecurityContext
		own     corev1.SecurityContext
		wantErr string
	}{
		"When root is allowed, it should run":                       {},
		"When root is forbidden and the image is root, it fails":    {pod: corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}, wantErr: "image will run as root"},
		"When root is forbidden and the image has a name, it fails": {image: "web", own: corev1.SecurityContext{RunAsNonRoot: ptr.To(true)}, wantErr: "non-numeric user (web)"},
		"When root is forbidden and the image isn't, it should run": {image: "65532:65532", pod: corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}},
		"When the pod is root and the container isn't, it should run": {
			image: "0", pod: corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](0)}, own: corev1.SecurityContext{RunAsUser: ptr.To[int64](7)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			img := &image{}
			img.config.Config.User = c.image
			err := mayRun(&corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &c.pod}}, &corev1.Container{SecurityContext: &c.own}, img)
			if c.wantErr == "" {
				NewWithT(t).Expect(err).NotTo(HaveOccurred())
			} else {
				NewWithT(t).Expect(err).To(MatchError(ContainSubstring(c.wantErr)))
			}
		})
	}
}
