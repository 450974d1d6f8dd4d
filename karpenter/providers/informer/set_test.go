// SPDX-License-Identifier: Apache-2.0

package informer_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
)

var templates = schema.GroupKind{Group: environment.TestMachine.Group, Kind: "TestMachineTemplate"}

// network is between a client and the API server, and can be cut.
type network struct {
	next http.RoundTripper

	mu      sync.Mutex
	cut     bool
	stalled bool
	bodies  map[io.ReadCloser]bool
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	cut, stalled := n.cut, n.stalled
	n.mu.Unlock()
	if stalled {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if cut {
		return nil, errors.New("network is unreachable")
	}
	response, err := n.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bodies[response.Body] = true
	return response, nil
}

// set cuts or mends the network. What is open breaks.
func (n *network) set(cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
	for body := range n.bodies {
		_ = body.Close()
	}
	n.bodies = map[io.ReadCloser]bool{}
}

type fixture struct {
	*GomegaWithT
	*environment.Environment
	set     *informer.Set
	network *network
	changes chan schema.GroupKind
}

func start(t *testing.T, user string) *fixture {
	f := &fixture{GomegaWithT: NewWithT(t), Environment: environment.New(t), network: &network{bodies: map[io.ReadCloser]bool{}}, changes: make(chan schema.GroupKind, 1000)}
	f.SetDefaultEventuallyPollingInterval(20 * time.Millisecond)
	config := rest.CopyConfig(f.Management.GetConfig())
	config.Impersonate.UserName = user
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		f.network.next = next
		return f.network
	})
	management, err := dynamic.NewForConfig(config)
	f.Expect(err).NotTo(HaveOccurred())
	f.set = informer.New(informer.Config{Management: management, Mapper: f.Management.GetRESTMapper(), Namespace: f.Namespace})
	f.set.OnChange(func(gk schema.GroupKind) { f.changes <- gk })
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.set.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) names(ctx context.Context, gk schema.GroupKind) ([]string, error) {
	objects, err := f.set.List(ctx, gk, labels.Everything())
	var names []string
	for _, o := range objects {
		names = append(names, o.GetName())
	}
	return names, err
}

func (f *fixture) create(ctx context.Context, name string) *unstructured.Unstructured {
	u := f.InfrastructureTemplate.DeepCopy()
	u.SetName(name)
	u.SetResourceVersion("")
	f.Expect(f.Admin.Create(ctx, u)).To(Succeed())
	return u
}

func TestSet(t *testing.T) {
	t.Run("When a kind is read for the first time, it should be complete, ordered and of this namespace only", func(t *testing.T) {
		f, other := start(t, ""), environment.New(t)
		f.create(t.Context(), "b")
		f.create(t.Context(), "a")
		f.Expect(f.names(t.Context(), templates)).To(Equal([]string{"a", "b", "c4-large"}))
		f.Expect(f.set.Get(t.Context(), templates, "a")).To(HaveField("GetNamespace()", f.Namespace))
		_, err := f.set.Get(t.Context(), templates, "none")
		f.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
		f.Expect(other.Namespace).NotTo(Equal(f.Namespace))
	})

	t.Run("When an object comes, changes or goes, it should notify, and have it", func(t *testing.T) {
		f := start(t, "")
		f.Expect(f.names(t.Context(), templates)).To(Equal([]string{"c4-large"}))
		drain := func() {
			for len(f.changes) > 0 {
				<-f.changes
			}
		}
		f.Eventually(f.changes).Should(Receive(Equal(templates)))
		u := f.create(t.Context(), "a")
		f.Eventually(func() ([]string, error) { return f.names(t.Context(), templates) }).Should(Equal([]string{"a", "c4-large"}))
		drain()
		u.SetAnnotations(map[string]string{"a": "b"})
		f.Expect(f.Admin.Update(t.Context(), u)).To(Succeed())
		f.Eventually(f.changes).Should(Receive(Equal(templates)))
		drain()
		f.Expect(f.Admin.Delete(t.Context(), u)).To(Succeed())
		f.Eventually(f.changes).Should(Receive(Equal(templates)))
		f.Eventually(func() ([]string, error) { return f.names(t.Context(), templates) }).Should(Equal([]string{"c4-large"}))
	})

	t.Run("When it is narrowed, it should know and report nothing else", func(t *testing.T) {
		f := start(t, "")
		var err error
		f.set.Selector, err = labels.Parse("team=web")
		f.Expect(err).NotTo(HaveOccurred())
		objects := make(chan string, 100)
		f.set.OnObject(func(gk schema.GroupKind, u *unstructured.Unstructured) {
			objects <- gk.Kind + "/" + u.GetName() + "/" + u.GetLabels()["rank"]
		})
		f.Expect(f.names(t.Context(), templates)).To(BeEmpty())
		f.create(t.Context(), "other")
		u := f.InfrastructureTemplate.DeepCopy()
		u.SetName("ours")
		u.SetResourceVersion("")
		u.SetLabels(map[string]string{"team": "web"})
		f.Expect(f.Admin.Create(t.Context(), u)).To(Succeed())
		f.Eventually(objects).Should(Receive(Equal("TestMachineTemplate/ours/")))
		f.Expect(f.names(t.Context(), templates)).To(Equal([]string{"ours"}))
		u.SetLabels(map[string]string{"team": "web", "rank": "1"})
		f.Expect(f.Admin.Update(t.Context(), u)).To(Succeed())
		f.Eventually(objects).Should(Receive(Equal("TestMachineTemplate/ours/1")))
		f.Expect(f.Admin.Delete(t.Context(), u)).To(Succeed())
		f.Eventually(objects).Should(Receive(Equal("TestMachineTemplate/ours/1")))
		f.Eventually(func() ([]string, error) { return f.names(t.Context(), templates) }).Should(BeEmpty())
	})

	t.Run("When a kind isn't served, it should say so at once, and read it once it is", func(t *testing.T) {
		f := start(t, "")
		late := schema.GroupKind{Group: "late.example.com", Kind: "LateTemplate"}
		_, err := f.names(t.Context(), late)
		var unreadable *informer.UnreadableError
		f.Expect(errors.As(err, &unreadable)).To(BeTrue(), "%v", err)
		f.Expect(unreadable.Permanent()).To(BeTrue())
		f.Expect(err.Error()).To(ContainSubstring("reading LateTemplate.late.example.com in namespace " + f.Namespace))

		crd := &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "latetemplates.late.example.com"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: late.Group, Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: late.Kind, ListKind: late.Kind + "List", Plural: "latetemplates", Singular: "latetemplate"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}},
			},
		}
		scheme := runtime.NewScheme()
		f.Expect(apiextensionsv1.AddToScheme(scheme)).To(Succeed())
		admin, err := client.New(f.Management.GetConfig(), client.Options{Scheme: scheme})
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(admin.Create(t.Context(), crd)).To(Succeed())
		f.Eventually(func() error {
			_, err := f.names(t.Context(), late)
			return err
		}).Should(Succeed())

		t.Run("When it is no longer served, it should say so", func(t *testing.T) {
			f.Expect(admin.Delete(t.Context(), crd)).To(Succeed())
			f.Eventually(func() bool {
				_, err := f.names(t.Context(), late)
				return errors.As(err, &unreadable) && unreadable.Permanent()
			}).Should(BeTrue())
		})
	})

	t.Run("When a kind may not be read, it should report that at once and block no other kind", func(t *testing.T) {
		f := start(t, "nobody")
		_, err := f.names(t.Context(), templates)
		f.Expect(informer.IsUnreadable(err)).To(BeTrue(), "%v", err)
		f.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		_, err = f.names(t.Context(), templates)
		f.Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
	})

	t.Run("When the management cluster is away from the start, it should say so and not hang", func(t *testing.T) {
		f := start(t, "")
		f.network.set(true)
		_, err := f.names(t.Context(), templates)
		var unreadable *informer.UnreadableError
		f.Expect(errors.As(err, &unreadable)).To(BeTrue(), "%v", err)
		f.Expect(unreadable.Permanent()).To(BeFalse())
		f.network.set(false)
		f.Eventually(func() ([]string, error) { return f.names(t.Context(), templates) }).Should(Equal([]string{"c4-large"}))
	})

	t.Run("When the management cluster goes away, it should keep what it has read, and catch up later", func(t *testing.T) {
		f := start(t, "")
		f.Expect(f.names(t.Context(), templates)).To(Equal([]string{"c4-large"}))
		f.network.set(true)
		f.create(t.Context(), "a")
		f.Consistently(func() ([]string, error) { return f.names(t.Context(), templates) }, "1s").Should(Equal([]string{"c4-large"}))
		f.network.set(false)
		f.Eventually(func() ([]string, error) { return f.names(t.Context(), templates) }).Should(Equal([]string{"a", "c4-large"}))
	})

	t.Run("When the management cluster doesn't answer and the caller gives up, it should too", func(t *testing.T) {
		f := start(t, "")
		f.network.stalled = true
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := f.names(ctx, templates)
		f.Expect(err).To(MatchError(context.DeadlineExceeded))
	})
}
