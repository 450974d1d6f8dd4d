// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/test/world/pki"
	"github.com/autonode-io/autonode/test/world/port"
)

const (
	waitLong = 5 * time.Minute
	waitPoll = 50 * time.Millisecond
	nodeName = "agent"
)

// What every test shares: an API server, a registry with the test image, and one agent.
var (
	config     *rest.Config
	management kubernetes.Interface
	agent      *Agent
	testLayer  v1.Layer
	testImage  string // by digest
	testLogger logr.Logger
	buildDir   string
	logClients *pki.Authority
	ports      = port.New()
)

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		fmt.Fprintln(os.Stderr, "KUBEBUILDER_ASSETS isn't set: it names the directory of etcd and kube-apiserver; `make test` sets it")
		return 1
	}
	fail := func(doing string, err error) int {
		fmt.Fprintf(os.Stderr, "%s: %v\n", doing, err)
		return 1
	}
	var err error
	if buildDir, err = os.MkdirTemp("", "nodeagent-test-"); err != nil {
		return fail("making a directory", err)
	}
	defer func() { _ = os.RemoveAll(buildDir) }()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	if testLayer, err = buildTestLayer(); err != nil {
		return fail("building the test program", err)
	}
	if testImage, err = pushTestImage(strings.TrimPrefix(server.URL, "http://")); err != nil {
		return fail("pushing the test image", err)
	}
	clientCertificate, clientKey := filepath.Join(buildDir, "kubelet-client.crt"), filepath.Join(buildDir, "kubelet-client.key")
	if err = makeLogClient(clientCertificate, clientKey); err != nil {
		return fail("making the API server's client certificate", err)
	}
	defer ports.Close()
	ctrl.SetLogger(logr.Discard()) // envtest's
	environment := apiserver.New(envtest.CRDInstallOptions{})
	environment.ControlPlane.GetAPIServer().Configure().
		Disable("disable-admission-plugins"). // pods get their service-account tokens as anywhere
		Set("kubelet-client-certificate", clientCertificate).
		Set("kubelet-client-key", clientKey)
	if config, err = environment.Start(); err != nil {
		return fail("starting the API server", err)
	}
	defer func() { _ = environment.Stop() }()
	if management, err = kubernetes.NewForConfig(config); err != nil {
		return fail("making a client", err)
	}
	testLogger = logr.Discard()
	if os.Getenv("NODEAGENT_TEST_LOG") != "" {
		testLogger = funcr.New(func(prefix, args string) { fmt.Println(time.Now().Format("05.000"), prefix, args) }, funcr.Options{})
	}
	ctx := context.Background()
	if agent, err = startAgent(ctx, nodeName, filepath.Join(buildDir, "agent")); err != nil {
		return fail("starting the agent", err)
	}
	defer agent.Stop()
	return m.Run()
}

func startAgent(ctx context.Context, name, dir string) (*Agent, error) {
	return Start(ctx, Config{
		Management: config, NodeName: name, Dir: dir, Ports: ports, Logger: testLogger,
		BackOffBase: time.Second, BackOffMax: 4 * time.Second, StopGrace: 3 * time.Second, LogClientCA: logClients.Certificate,
	})
}

// makeLogClient makes the client certificate with which the API server requests logs.
func makeLogClient(certificate, key string) (err error) {
	if logClients, err = pki.NewAuthority("logs"); err != nil {
		return err
	}
	pair, err := logClients.Client("kube-apiserver")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(certificate, pair.Certificate, 0o600), os.WriteFile(key, pair.Key, 0o600))
}

// buildTestLayer builds the test program and packs it.
func buildTestLayer() (v1.Layer, error) {
	program := filepath.Join(buildDir, "testpod")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "./testdata/testpod")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	return layerOf(tarEntry{Name: "testpod", Mode: 0o755, Content: content}, tarEntry{Name: "etc/in-image", Mode: 0o644, Content: []byte("in the image")})
}

// pushTestImage pushes the test image to a registry; the result names it by digest.
func pushTestImage(host string) (string, error) {
	return pushImage(host, "test/testpod", v1.Config{Entrypoint: []string{"/testpod"}, Env: []string{"FROM_IMAGE=yes"}, User: "65532"}, testLayer)
}

func pushImage(host, repository string, config v1.Config, layers ...v1.Layer) (string, error) {
	image, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return "", err
	}
	if image, err = mutate.Config(image, config); err != nil {
		return "", err
	}
	digest, err := image.Digest()
	if err != nil {
		return "", err
	}
	ref, err := name.NewDigest(host + "/" + repository + "@" + digest.String())
	if err != nil {
		return "", err
	}
	return ref.Name(), remote.Write(ref.Context().Tag("latest"), image)
}

type tarEntry struct {
	Name     string
	Type     byte
	Mode     int64
	Content  []byte
	Linkname string
}

func tarOf(entries ...tarEntry) ([]byte, error) {
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	for _, entry := range entries {
		if entry.Type == 0 {
			entry.Type = tar.TypeReg
		}
		header := &tar.Header{Name: entry.Name, Typeflag: entry.Type, Mode: entry.Mode, Size: int64(len(entry.Content)), Linkname: entry.Linkname}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(entry.Content); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), archive.Close()
}

func layerOf(entries ...tarEntry) (v1.Layer, error) {
	content, err := tarOf(entries...)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
}

func portNamed(name string) intstr.IntOrString { return intstr.FromString(name) }

func createSecret(t *testing.T, secret *corev1.Secret) *corev1.Secret {
	t.Helper()
	created, err := management.CoreV1().Secrets(secret.Namespace).Create(t.Context(), secret, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// newNamespace makes a namespace with what the controller manager would put into it.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace, err := management.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = management.CoreV1().ServiceAccounts(namespace.Name).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = management.CoreV1().ConfigMaps(namespace.Name).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": string(config.CAData)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return namespace.Name
}

// testPod is a pod bound to the agent's node, with one container that serves on port 8080.
func testPod(namespace, name string, edit ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: nodeName, TerminationGracePeriodSeconds: ptr.To[int64](5),
			Containers: []corev1.Container{{
				Name: "main", Image: testImage, Args: []string{"--listen=:8080"},
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
				ReadinessProbe: &corev1.Probe{
					PeriodSeconds: 1,
					ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz", Port: portNamed("http")}},
				},
			}},
		},
	}
	for _, e := range edit {
		e(pod)
	}
	return pod
}

func create(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := management.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		deleteAndWait(t, pod)
		if t.Failed() {
			if log, err := os.ReadFile(agent.LogPath(key(pod), "main")); err == nil {
				t.Logf("log of %s:\n%s", pod.Name, log)
			}
		}
	})
	return created
}

// deleteAndWait deletes a pod, if it is there, and waits for its node to have done its part.
func deleteAndWait(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	ctx := context.Background() // a test's own ends before its cleanup
	_ = management.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})
	NewWithT(t).Eventually(func() error {
		_, err := management.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		return err
	}, waitLong, waitPoll).Should(Satisfy(apierrors.IsNotFound))
}

func key(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// status polls a pod's status.
func status(t *testing.T, pod *corev1.Pod) func() corev1.PodStatus {
	return func() corev1.PodStatus {
		got, err := management.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return corev1.PodStatus{Message: err.Error()}
		}
		return got.Status
	}
}

func condition(kind corev1.PodConditionType) func(corev1.PodStatus) corev1.ConditionStatus {
	return func(status corev1.PodStatus) corev1.ConditionStatus {
		if index := conditionIndex(status.Conditions, kind); index >= 0 {
			return status.Conditions[index].Status
		}
		return corev1.ConditionUnknown
	}
}

func beReady() OmegaMatcher {
	return WithTransform(condition(corev1.PodReady), Equal(corev1.ConditionTrue))
}

func mainContainer(status corev1.PodStatus) corev1.ContainerStatus {
	if len(status.ContainerStatuses) == 0 {
		return corev1.ContainerStatus{}
	}
	return status.ContainerStatuses[0]
}

func waitingMessage(status corev1.PodStatus) string {
	if waiting := mainContainer(status).State.Waiting; waiting != nil {
		return waiting.Message
	}
	return ""
}

func phase(status corev1.PodStatus) corev1.PodPhase { return status.Phase }

func restarts(status corev1.PodStatus) int32 { return mainContainer(status).RestartCount }

func waitingReason(status corev1.PodStatus) string {
	if waiting := mainContainer(status).State.Waiting; waiting != nil {
		return waiting.Reason
	}
	return ""
}

// processOf is the pod's running process, nil where there is none.
func processOf(pod *corev1.Pod) *Process {
	for _, process := range agent.Processes() {
		if process.Pod == key(pod) {
			return &process
		}
	}
	return nil
}

// ask sends a request to the pod's server.
func ask(pod *corev1.Pod, path string) (string, error) {
	process := processOf(pod)
	if process == nil {
		return "", fmt.Errorf("pod %s doesn't run", pod.Name)
	}
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", process.Ports[8080], path))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", response.StatusCode, content)
	}
	return string(content), err
}

// self is what the pod's program reports about itself.
type self struct {
	Args    []string `json:"args"`
	Env     []string `json:"env"`
	Dir     string   `json:"dir"`
	Program string   `json:"program"`
	PID     int      `json:"pid"`
}

func (s self) env(name string) string {
	for _, line := range s.Env {
		if key, value, ok := strings.Cut(line, "="); ok && key == name {
			return value
		}
	}
	return ""
}

func askSelf(t *testing.T, pod *corev1.Pod) self {
	t.Helper()
	answer, err := ask(pod, "/self")
	if err != nil {
		t.Fatal(err)
	}
	var result self
	if err := json.Unmarshal([]byte(answer), &result); err != nil {
		t.Fatal(err)
	}
	return result
}

// events lists the reasons of a pod's events.
func events(t *testing.T, pod *corev1.Pod) func() []string {
	return func() []string {
		list, err := management.CoreV1().Events(pod.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return []string{err.Error()}
		}
		var reasons []string
		for _, event := range list.Items {
			if event.InvolvedObject.Name == pod.Name {
				reasons = append(reasons, event.Reason)
			}
		}
		return reasons
	}
}
