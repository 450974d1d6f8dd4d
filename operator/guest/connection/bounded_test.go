// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"errors"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// TestAnswers is a guest whose API server answers one call with something else.
func TestAnswers(t *testing.T) {
	scheme := runtime.NewScheme()
	NewWithT(t).Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	scheme.AddKnownTypes(schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}, &karpv1.NodePool{})
	const (
		role = `{"kind":"ClusterRole","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"a"}}`
		pool = `{"kind":"NodePool","apiVersion":"karpenter.sh/v1","spec":{"limits":{"cpu":"1e-999999999"}}}`
		node = `{"kind":"Node","apiVersion":"v1","status":{"capacity":{"cpu":"1e-999999999"}}}`
		pod  = `{"kind":"Pod","apiVersion":"v1","spec":{"containers":[{"resources":{"limits":{"cpu":"1e-999999999"}}}],"volumes":[]}}`
		disk = `{"kind":"Pod","apiVersion":"v1","spec":{"containers":[],"volumes":[{"emptyDir":{"sizeLimit":"1e-999999999"}}]}}`
		list = `{"kind":"NodeList","apiVersion":"v1","items":[`
	)
	bomb := list + strings.Repeat("{},", 1_500_000) + "{}]}"
	for name, test := range map[string]struct {
		code         int
		format, body string
		message      string
	}{
		"an honest answer":                       {200, "application/json", role, ""},
		"a kind whose quantity takes long":       {200, "application/json", pool, "isn't a quantity"},
		"a Node whose quantity takes long":       {200, "application/json", node, "isn't a quantity"},
		"a container's quantity that takes long": {200, "application/json", pod, "isn't a quantity"},
		"a volume's quantity that takes long":    {200, "application/json", disk, "isn't a quantity"},
		"a list of empty objects":                {200, "application/json", bomb, "too much memory"},
		"more than can be read":                  {200, "application/json", strings.Repeat("x", 9<<20), "longer than"},
		"YAML":                                   {200, "application/yaml", "kind: ClusterRole", "text/plain"},
		"an object that names no kind":           {200, "application/json", `{"metadata":{}}`, "text/plain"},
		"a refusal whose quantity takes long":    {409, "application/json", pool, "the server reported a conflict"},
		"a refusal that is a list":               {409, "application/json", bomb, "the server reported a conflict"},
		"a refusal of terminal escapes":          {500, "text/plain", "\x1b[2J" + strings.Repeat("x", 9999), `\\x1b[2J`},
		"a refusal by a Status of empty causes": {409, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","code":409,"details":{"causes":[` +
			strings.Repeat("{},", 300_000) + `{}]}}`, "the server reported a conflict"},
		"a refusal by Status": {409, "application/json", `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"because","reason":"Conflict","code":409}`, "because"},
	} {
		t.Run("When a guest answers with "+name+", only what is harmless should be decoded", func(t *testing.T) {
			g := NewWithT(t)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", test.format)
				w.WriteHeader(test.code)
				_, _ = w.Write([]byte(test.body))
			}))
			defer server.Close()
			config := &rest.Config{Host: server.URL, Timeout: time.Minute}
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return &bounded{next: next, scheme: scheme, charge: func(int) {}}
			})
			c, err := client.New(config, client.Options{Scheme: scheme, Mapper: newMapper(nil)})
			g.Expect(err).NotTo(HaveOccurred())
			before, after := goruntime.MemStats{}, goruntime.MemStats{}
			goruntime.ReadMemStats(&before)
			err = c.Get(t.Context(), client.ObjectKey{Name: "a"}, &rbacv1.ClusterRole{})
			goruntime.ReadMemStats(&after)
			g.Expect(after.TotalAlloc - before.TotalAlloc).To(BeNumerically("<", 128<<20))
			if test.message == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(test.message)))
			g.Expect(len(err.Error())).To(BeNumerically("<", 1024))
			g.Expect(apierrors.IsConflict(err)).To(Equal(test.code == 409))
		})
	}
}

func TestMetadata(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accepted, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
		w.Header().Set("Content-Type", accepted) // as an API server, which sends the first format that it knows
		_, _ = w.Write([]byte(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a","uid":"1"}}`))
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL, Timeout: time.Minute}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &bounded{next: next, scheme: runtime.NewScheme(), charge: func(int) {}}
	})
	c, err := client.New(config, client.Options{Mapper: newMapper(nil)})
	g.Expect(err).NotTo(HaveOccurred())
	read := &metav1.PartialObjectMetadata{}
	read.SetGroupVersionKind(rbacv1.SchemeGroupVersion.WithKind("ClusterRole"))
	g.Expect(c.Get(t.Context(), client.ObjectKey{Name: "a"}, read)).To(Succeed(), "When metadata is read, the guest should be asked for JSON")
	g.Expect(read.UID).To(BeEquivalentTo("1"))
}

func TestExceeded(t *testing.T) {
	g, w, ctx := NewWithT(t), newWorld(t), t.Context()
	guest := w.connected(ctx, g)
	w.exceeded(blue, guest, errTooMuch)
	g.Expect(w.changed).To(Equal(2))
	g.Expect(w.Health(blue).Exceeded).To(MatchError(errTooMuch))
	_, err := w.Guest(blue)
	g.Expect(err).To(MatchError(ErrNotConnected), "When a guest exceeds its bounds, it should be disconnected")
	g.Expect(w.reconcile(ctx, g, probeInterval)).To(Equal(backoff - probeInterval))
	g.Expect(w.probes.Load()).To(BeEquivalentTo(1), "and not be probed during its back-off")
	w.exceeded(blue, guest, errTooMuch)
	g.Expect(w.changed).To(Equal(2), "When the same connection reports it again, nothing should happen")
	w.reconcile(ctx, g, backoff)
	again, err := w.Guest(blue)
	g.Expect(err).NotTo(HaveOccurred(), "When the back-off ends, it should be connected again")
	g.Expect(again).NotTo(BeIdenticalTo(guest))
	g.Expect(w.Health(blue).Exceeded).NotTo(HaveOccurred())
}

const backoff = 5 * time.Minute

var errTooMuch = errors.New("it is too much")
