// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// guarded is a registry that requires a password.
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
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(WithTransform(waitingReason, Equal("ImagePullBackOff")),
			WithTransform(waitingMessage, ContainSubstring("401"))))
		g.Expect(status(t, pod)().Phase).To(Equal(corev1.PodPending))
		g.Eventually(events(t, pod), waitLong, waitPoll).Should(ContainElements("Pulling", "Failed"))
	})
	t.Run("When one of several pull secrets fits, it should pull with it", func(t *testing.T) {
		g, pod := NewWithT(t), create(t, privatePod("allowed", "wrong", "absent", "right"))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		g.Expect(mainContainer(status(t, pod)()).ImageID).To(Equal(private))
	})
	t.Run("When an image's name is none, it should say so", func(t *testing.T) {
		pod := create(t, testPod(namespace, "misnamed", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "no/such image" }))
		NewWithT(t).Eventually(status(t, pod), waitLong, waitPoll).Should(WithTransform(waitingMessage, ContainSubstring("couldn't parse image name")))
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

func TestUnpackTar(t *testing.T) {
	for name, c := range map[string]struct {
		entries []tarEntry
		want    map[string]string
		wantErr string
	}{
		"When there are files and links, they should be made inside": {
			entries: []tarEntry{{Name: "bin/a", Content: []byte("x")}, {Name: "soft", Type: tar.TypeSymlink, Linkname: "bin/a"}},
			want:    map[string]string{"bin/a": "x", "soft": "-> bin/a"},
		},
		"When a name is that of a directory, it should lie inside": {
			entries: []tarEntry{{Name: "etc/", Type: tar.TypeDir, Mode: 0o555}, {Name: "./etc/x", Content: []byte("x")}}, want: map[string]string{"etc/x": "x"},
		},
		"When a name climbs out, it should be refused": {
			entries: []tarEntry{{Name: "a/../../evil"}}, wantErr: "path escapes",
		},
		"When a file goes through a link that leads out, it should be refused": {
			entries: []tarEntry{{Name: "a", Type: tar.TypeSymlink, Linkname: "/tmp"}, {Name: "a/evil", Content: []byte("x")}}, wantErr: "path escapes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, dir := NewWithT(t), t.TempDir()
			content, err := tarOf(c.entries...)
			g.Expect(err).NotTo(HaveOccurred())
			err = unpackTar(dir, bytes.NewReader(content))
			if c.wantErr != "" {
				g.Expect(err).To(MatchError(ContainSubstring(c.wantErr)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			if diff := cmp.Diff(c.want, tree(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
