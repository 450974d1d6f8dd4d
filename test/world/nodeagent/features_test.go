// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

func createSecret(t *testing.T, secret *corev1.Secret) *corev1.Secret {
	t.Helper()
	created, err := management.CoreV1().Secrets(secret.Namespace).Create(t.Context(), secret, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func phase(status corev1.PodStatus) corev1.PodPhase { return status.Phase }

func restarts(status corev1.PodStatus) int32 { return mainContainer(status).RestartCount }

func waitingMessage(status corev1.PodStatus) string {
	if waiting := mainContainer(status).State.Waiting; waiting != nil {
		return waiting.Message
	}
	return ""
}

func TestEnvironmentOfAPod(t *testing.T) {
	namespace := newNamespace(t)
	t.Run("When a container names ports, mounts and fields, it should see what is true on this machine", func(t *testing.T) {
		g := NewWithT(t)
		pod := create(t, testPod(namespace, "env", func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "work", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, {Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			container := &pod.Spec.Containers[0]
			container.VolumeMounts = []corev1.VolumeMount{{Name: "work", MountPath: "/work"}, {Name: "work", MountPath: "/deep", SubPathExpr: "$(NAME)/x"}, {Name: "tmp", MountPath: "/tmp"}}
			container.Env = []corev1.EnvVar{
				{Name: "METRICS_PORT", Value: "8080"},
				{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
				{Name: "DIR", Value: "/work/a"}, {Name: "DEEP", Value: "/deep"},
			}
			container.Args = []string{"--listen=:$(METRICS_PORT)", "--write=/work/out"}
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		self := askSelf(t, pod)
		port, err := agent.Port(key(pod), 8080)
		g.Expect(err).NotTo(HaveOccurred())
		volumes := filepath.Join(agent.dir, "pods", string(pod.UID), "volumes")
		g.Expect(self.Args).To(Equal([]string{fmt.Sprintf("--listen=:%d", port), "--write=" + volumes + "/work/out"}))
		g.Expect(self.env("METRICS_PORT")).To(Equal(fmt.Sprint(port)))
		g.Expect(self.env("DIR")).To(Equal(volumes + "/work/a"))
		g.Expect(self.env("DEEP")).To(Equal(volumes + "/work/env/x"))
		g.Expect(self.env("TMPDIR")).To(Equal(volumes + "/tmp"))
		g.Expect(self.env("FROM_IMAGE")).To(Equal("yes"))
		g.Expect(self.env("HOSTNAME")).To(Equal("env"))
		g.Expect(self.env("PATH")).To(BeEmpty(), "the agent's own environment leaks")
		g.Expect(filepath.Join(volumes, "work", "out")).To(BeAnExistingFile())
		if os.Geteuid() == 0 {
			g.Expect(self.UID).To(Equal(65532), "the image's user")
		} else {
			g.Expect(self.UID).To(Equal(os.Geteuid()))
		}
	})
	t.Run("When the pod has a service-account token, it should be able to talk to the API server as that account", func(t *testing.T) {
		g := NewWithT(t)
		pod := create(t, testPod(namespace, "token"))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		access, err := clientcmd.BuildConfigFromFlags("", askSelf(t, pod).env("KUBECONFIG"))
		g.Expect(err).NotTo(HaveOccurred())
		client, err := kubernetes.NewForConfig(access)
		g.Expect(err).NotTo(HaveOccurred())
		who, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(who.Status.UserInfo.Username).To(Equal("system:serviceaccount:" + namespace + ":default"))
		g.Expect(who.Status.UserInfo.Extra).To(HaveKeyWithValue("authentication.kubernetes.io/pod-uid", authenticationv1.ExtraValue{string(pod.UID)}))
		info, err := os.Stat(access.BearerTokenFile)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	})
	t.Run("When a secret's key is missing, it should wait and say which, and start once it is there", func(t *testing.T) {
		g := NewWithT(t)
		pod := create(t, testPod(namespace, "keyless", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: "late"}, Key: "k",
			}}}}
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(WithTransform(waitingReason, Equal("CreateContainerConfigError")),
			WithTransform(waitingMessage, Equal(`secret "late" not found`)), WithTransform(phase, Equal(corev1.PodPending))))
		createSecret(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "late"}, Data: map[string][]byte{"k": []byte("v")}})
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		g.Expect(askSelf(t, pod).env("A")).To(Equal("v"))
	})
	t.Run("When a mounted object is missing, it should wait and say which, and start once it is there", func(t *testing.T) {
		g := NewWithT(t)
		pod := create(t, testPod(namespace, "mountless", func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "all", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "later"}, Items: []corev1.KeyToPath{{Key: "k", Path: "deep/file"}}}},
				{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "never"}, Optional: ptr.To(true)}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
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
		g.Expect(ask(pod, "/file?path="+all+"/labels")).To(Equal(`app="mountless"`))
		pod, err = management.CoreV1().Pods(namespace).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"other"}}}`), metav1.PatchOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() (string, error) { return ask(pod, "/file?path="+all+"/labels") }, waitLong, waitPoll).Should(Equal(`app="other"`))
	})
	t.Run("When a container must not run as root but would, it should say so", func(t *testing.T) {
		pod := create(t, testPod(namespace, "rootless", func(pod *corev1.Pod) {
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](0)}
		}))
		NewWithT(t).Eventually(status(t, pod), waitLong, waitPoll).Should(WithTransform(waitingMessage, ContainSubstring("runAsNonRoot")))
	})
}

// guarded is a registry that wants a password.
func guarded(t *testing.T) (host string) {
	t.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	open := httptest.NewServer(inner)
	t.Cleanup(open.Close)
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		if user, password, _ := request.BasicAuth(); user != "user" || password != "secret" {
			out.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			out.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(out, request)
	}))
	t.Cleanup(server.Close)
	if _, err := pushTestImage(strings.TrimPrefix(open.URL, "http://")); err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(server.URL, "http://")
}

func TestImages(t *testing.T) {
	namespace, host := newNamespace(t), guarded(t)
	_, path, _ := strings.Cut(testImage, "/")
	private := host + "/" + path
	pullSecret := func(name, password string) {
		auth := base64.StdEncoding.EncodeToString([]byte("user:" + password))
		createSecret(t, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"` + host + `":{"auth":"` + auth + `"}}}`)},
		})
	}
	pullSecret("wrong", "no")
	pullSecret("right", "secret")
	privatePod := func(name string, secrets ...string) *corev1.Pod {
		return testPod(namespace, name, func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = private, corev1.PullAlways
			for _, secret := range secrets {
				pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
			}
		})
	}
	t.Run("When the registry refuses, it should say so and try again with back-off", func(t *testing.T) {
		g, pod := NewWithT(t), create(t, privatePod("refused", "wrong"))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(WithTransform(waitingReason, Equal("ErrImagePull")))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(WithTransform(waitingReason, Equal("ImagePullBackOff")),
			WithTransform(waitingMessage, ContainSubstring("401"))))
		g.Expect(status(t, pod)().Phase).To(Equal(corev1.PodPending))
		g.Eventually(events(t, pod), waitLong, waitPoll).Should(ContainElements("Pulling", "Failed", "BackOff"))
	})
	t.Run("When one of several pull secrets fits, it should pull with it", func(t *testing.T) {
		g, pod := NewWithT(t), create(t, privatePod("allowed", "wrong", "absent", "right"))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		g.Expect(mainContainer(status(t, pod)()).ImageID).To(Equal(private))
	})
	t.Run("When an image's name is none, it should say so", func(t *testing.T) {
		pod := create(t, testPod(namespace, "misnamed", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "no/such image" }))
		NewWithT(t).Eventually(status(t, pod), waitLong, waitPoll).Should(WithTransform(waitingReason, Equal("InvalidImageName")))
	})
	t.Run("When the program isn't in the image, it should say so and try again", func(t *testing.T) {
		g, pod := NewWithT(t), create(t, testPod(namespace, "missing", func(pod *corev1.Pod) { pod.Spec.Containers[0].Command = []string{"/no-such-program"} }))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(WithTransform(restarts, BeNumerically(">", 0)),
			WithTransform(func(s corev1.PodStatus) string {
				return ptr.Deref(mainContainer(s).LastTerminationState.Terminated, corev1.ContainerStateTerminated{}).Reason
			}, Equal("StartError"))))
	})
	t.Run("When a running pod's image changes, it should restart with the new one", func(t *testing.T) {
		g, pod := NewWithT(t), create(t, testPod(namespace, "updated"))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		other := strings.Split(testImage, "@")[0] + ":latest"
		_, err := management.CoreV1().Pods(namespace).Patch(t.Context(), pod.Name, types.StrategicMergePatchType,
			[]byte(`{"spec":{"containers":[{"name":"main","image":"`+other+`"}]}}`), metav1.PatchOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(beReady(), WithTransform(restarts, Equal(int32(1)))))
		g.Expect(mainContainer(status(t, pod)()).Image).To(Equal(other))
	})
}

func TestInitContainers(t *testing.T) {
	namespace := newNamespace(t)
	shared := func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "shared", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "shared", MountPath: "/shared"}}
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "SHARED", Value: "/shared/lines"}}
	}
	writer := func(name, line string) corev1.Container {
		return corev1.Container{
			Name: name, Image: testImage, Args: []string{"--write=/shared/lines", "--exit=0"},
			Env: []corev1.EnvVar{{Name: "LINE", Value: line}}, VolumeMounts: []corev1.VolumeMount{{Name: "shared", MountPath: "/shared"}},
		}
	}
	t.Run("When there are init containers and a sidecar, it should run them in order, before the others", func(t *testing.T) {
		g := NewWithT(t)
		pod := create(t, testPod(namespace, "ordered", shared, func(pod *corev1.Pod) {
			sidecar := writer("sidecar", "sidecar")
			sidecar.Args, sidecar.RestartPolicy = sidecar.Args[:1], ptr.To(corev1.ContainerRestartPolicyAlways)
			sidecar.StartupProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/testpod", "--stat=/shared/lines", "--exit=0"}}}}
			pod.Spec.InitContainers = []corev1.Container{writer("one", "1"), sidecar, writer("two", "2")}
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		g.Expect(ask(pod, "/file?path="+askSelf(t, pod).env("SHARED"))).To(Equal("1\nsidecar\n2\n"))
		got := status(t, pod)()
		g.Expect(got.InitContainerStatuses[0].State.Terminated.Reason).To(Equal("Completed"))
		g.Expect(got.InitContainerStatuses[1].State.Running).NotTo(BeNil())
		g.Expect(agent.Processes()).To(ContainElement(HaveField("Container", "sidecar")))
		g.Expect(agent.Kill(t.Context(), key(pod), "sidecar")).To(Succeed())
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(beReady(),
			WithTransform(func(s corev1.PodStatus) int32 { return s.InitContainerStatuses[1].RestartCount }, Equal(int32(1)))))
	})
	t.Run("When an init container fails for good, the pod should have failed", func(t *testing.T) {
		pod := create(t, testPod(namespace, "failing", shared, func(pod *corev1.Pod) {
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			bad := writer("bad", "x")
			bad.Args = []string{"--exit=3"}
			pod.Spec.InitContainers = []corev1.Container{bad}
		}))
		NewWithT(t).Eventually(status(t, pod), waitLong, waitPoll).Should(WithTransform(phase, Equal(corev1.PodFailed)))
	})
	for policy, codes := range map[corev1.RestartPolicy]map[int]corev1.PodPhase{
		corev1.RestartPolicyNever:     {0: corev1.PodSucceeded, 5: corev1.PodFailed},
		corev1.RestartPolicyOnFailure: {0: corev1.PodSucceeded},
	} {
		for code, want := range codes {
			t.Run(fmt.Sprintf("When a container ends with %d and the policy is %s, the pod should be %s", code, policy, want), func(t *testing.T) {
				g := NewWithT(t)
				pod := create(t, testPod(namespace, fmt.Sprintf("%s-%d", strings.ToLower(string(policy)), code), func(pod *corev1.Pod) {
					pod.Spec.RestartPolicy = policy
					pod.Spec.Containers[0].Args = []string{fmt.Sprintf("--exit=%d", code)}
					pod.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
				}))
				g.Eventually(status(t, pod), waitLong, waitPoll).Should(WithTransform(phase, Equal(want)))
				terminated := mainContainer(status(t, pod)()).State.Terminated
				g.Expect(terminated.ExitCode).To(Equal(int32(code)))
				g.Expect(terminated.Message).To(WithTransform(func(m string) bool { return strings.Contains(m, "testpod") }, Equal(code != 0)))
				g.Expect(restarts(status(t, pod)())).To(BeZero())
			})
		}
	}
}

func TestProbes(t *testing.T) {
	namespace := newNamespace(t)
	t.Run("When there is a startup probe, the others should wait for it", func(t *testing.T) {
		g := NewWithT(t)
		pod := create(t, testPod(namespace, "slow", func(pod *corev1.Pod) {
			container := &pod.Spec.Containers[0]
			container.Args = append(container.Args, "--start-after=1500ms")
			container.StartupProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 30, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/started", Port: portNamed("http")}}}
			container.LivenessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/started", Port: portNamed("http")}}}
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(WithTransform(phase, Equal(corev1.PodRunning)),
			WithTransform(func(s corev1.PodStatus) bool { return *mainContainer(s).Started }, BeFalse())))
		g.Expect(status(t, pod)()).NotTo(beReady())
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		g.Expect(restarts(status(t, pod)())).To(BeZero())
	})
	t.Run("When the startup probe gives up, it should restart the container", func(t *testing.T) {
		pod := create(t, testPod(namespace, "dull", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].StartupProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}}
		}))
		NewWithT(t).Eventually(status(t, pod), waitLong, waitPoll).Should(WithTransform(restarts, BeNumerically(">", 0)))
	})

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	healthy := map[string]byte{"": 1, "good": 1, "bad": 2}
	server := &http.Server{Protocols: &http.Protocols{}, Handler: http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		service := ""
		if len(body) > 7 {
			service = string(body[7:])
		}
		out.Header().Set("Trailer", "Grpc-Status")
		if state, ok := healthy[service]; ok {
			_, _ = out.Write([]byte{0, 0, 0, 0, 2, 8, state})
			out.Header().Set("Grpc-Status", "0")
		} else {
			out.Header().Set("Grpc-Status", "5")
		}
	})}
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	h := handler{container: &corev1.Container{}, ports: podPorts{}.actual}
	for name, c := range map[string]struct {
		probe corev1.ProbeHandler
		want  OmegaMatcher
	}{
		"When a gRPC server serves, it should be healthy":           {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port}}, Succeed()},
		"When a gRPC service serves, it should be healthy":          {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port, Service: ptr.To("good")}}, Succeed()},
		"When a gRPC service doesn't serve, it should be unhealthy": {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port, Service: ptr.To("bad")}}, MatchError(ContainSubstring("unhealthy"))},
		"When a gRPC service is unknown, it should be unhealthy":    {corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port, Service: ptr.To("none")}}, MatchError(ContainSubstring(`"5"`))},
		"When a port is open, it should be healthy":                 {corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}, Succeed()},
		"When a port's name is unknown, it should say so":           {corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: portNamed("none")}}, MatchError(ContainSubstring(`"none"`))},
		"When a probe says nothing to do, it should say so":         {corev1.ProbeHandler{}, MatchError(ContainSubstring("no handler"))},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(h.probe(t.Context(), &corev1.Probe{ProbeHandler: c.probe})).To(c.want)
		})
	}
}

func TestActiveDeadline(t *testing.T) {
	namespace := newNamespace(t)
	t.Run("When a pod is active for longer than it may, it should have failed", func(t *testing.T) {
		g, pod := NewWithT(t), create(t, testPod(namespace, "long", func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](2) }))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(WithTransform(phase, Equal(corev1.PodFailed)),
			WithTransform(func(s corev1.PodStatus) string { return s.Reason }, Equal("DeadlineExceeded")),
			WithTransform(func(s corev1.PodStatus) *corev1.ContainerStateTerminated { return mainContainer(s).State.Terminated }, Not(BeNil()))))
	})
}

func TestHooks(t *testing.T) {
	namespace := newNamespace(t)
	t.Run("When there are hooks, it should run them after the start and before the end", func(t *testing.T) {
		g, dir := NewWithT(t), t.TempDir()
		pod := create(t, testPod(namespace, "hooked", func(pod *corev1.Pod) {
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)}
			pod.Spec.Volumes = []corev1.Volume{{Name: "out", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}}}
			container := &pod.Spec.Containers[0]
			container.VolumeMounts = []corev1.VolumeMount{{Name: "out", MountPath: "/out"}}
			container.Lifecycle = &corev1.Lifecycle{
				PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/testpod", "--write=/out/began", "--exit=0"}}},
				PreStop:   &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/testpod", "--write=/out/ended", "--exit=0"}}},
			}
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		g.Eventually(func() string { return filepath.Join(dir, "began") }, waitLong, waitPoll).Should(BeAnExistingFile())
		g.Expect(filepath.Join(dir, "ended")).NotTo(BeAnExistingFile())
		deleteAndWait(t, pod)
		g.Expect(filepath.Join(dir, "ended")).To(BeAnExistingFile())
	})
}

func TestLogs(t *testing.T) {
	namespace := newNamespace(t)
	g, pod := NewWithT(t), create(t, testPod(namespace, "logs"))
	g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
	logs := func(options *corev1.PodLogOptions) (string, error) {
		content, err := management.CoreV1().Pods(namespace).GetLogs(pod.Name, options).DoRaw(t.Context())
		return string(content), err
	}
	t.Run("When the log is asked for through the API server, it should be the container's", func(t *testing.T) {
		NewWithT(t).Expect(logs(&corev1.PodLogOptions{})).To(HavePrefix("testpod "))
	})
	t.Run("When part of it is asked for, it should be that part", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(logs(&corev1.PodLogOptions{LimitBytes: ptr.To[int64](4)})).To(Equal("test"))
		g.Expect(logs(&corev1.PodLogOptions{TailLines: ptr.To[int64](0)})).To(BeEmpty())
	})
	t.Run("When a log is followed, it should go on until the container ends, and be the previous one then", func(t *testing.T) {
		g := NewWithT(t)
		stream, err := management.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		defer stream.Close()
		first := make([]byte, 7)
		_, err = io.ReadFull(stream, first)
		g.Expect(err).NotTo(HaveOccurred())
		_, _ = ask(pod, "/exit?code=4")
		rest, err := io.ReadAll(stream)
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(beReady(), WithTransform(restarts, Equal(int32(1)))))
		g.Expect(logs(&corev1.PodLogOptions{Previous: true})).To(Equal(string(first) + string(rest)))
	})
	t.Run("When someone without a certificate asks, it should refuse", func(t *testing.T) {
		response, err := probeClient.Get(fmt.Sprintf("https://127.0.0.1:%d/containerLogs/%s/logs/main", agent.logPort, namespace))
		if err == nil {
			response.Body.Close()
		}
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("certificate")))
	})
}
