// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/payload"
)

// firsts are the kinds that were written, each when it was written first: "guest clusterroles", "guest serviceaccounts/token".
type firsts struct {
	mu    sync.Mutex
	kinds []string
	// at is called before the first write of a kind.
	at map[string]func()
}

func (f *firsts) see(cluster string, request *http.Request) {
	if request.Method == http.MethodGet {
		return
	}
	kind := cluster + " " + resourceOf(request.URL.Path)
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Contains(f.kinds, kind) {
		return
	}
	f.kinds = append(f.kinds, kind)
	if at := f.at[kind]; at != nil {
		at()
	}
}

// seen returns those of the kinds given that were written, in the order of their first writes.
func (f *firsts) seen(kinds []string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.kinds), func(kind string) bool { return !slices.Contains(kinds, kind) })
}

// resourceOf takes the resource, with its subresource, from an API server's path.
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	parts = parts[min(len(parts), map[string]int{"api": 2, "apis": 3}[parts[0]]):] // without group and version
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	switch len(parts) {
	case 0:
		return path
	case 3:
		return parts[0] + "/" + parts[2]
	default:
		return parts[0]
	}
}

func TestOrder(t *testing.T) {
	const name, label = "order", "order"
	g, ctx, guest := NewWithT(t), t.Context(), clusters.Guest.Client
	provide(t)
	removeAll(t, label)

	// One definition that the guest doesn't have yet, whatever ran there before.
	extra := scopetest.Definition("order.test", "Widget", "widgets", "v1")
	extra.TypeMeta = metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"}
	t.Cleanup(func() { _ = guest.Delete(context.Background(), extra) })
	content, err := yaml.Marshal(extra)
	g.Expect(err).NotTo(HaveOccurred())
	img, err := payload.Build(payload.Spec{Version: "1.36.2", Components: []payload.ComponentSpec{{
		Name: "karpenter-clusterapi", Image: image + strings.Repeat("2", 64), Versions: map[string]string{payload.KubernetesVersion: "1.36.2"}, CRDs: [][]byte{content},
	}}})
	g.Expect(err).NotTo(HaveOccurred())
	release := serveRegistry(t) + "/release:order"
	_, err = payload.Push(ctx, release, img, payload.Options{})
	g.Expect(err).NotTo(HaveOccurred())

	var established, waiting []string
	writes := &firsts{at: map[string]func(){"guest serviceaccounts": func() {
		list := &apiextensionsv1.CustomResourceDefinitionList{}
		if err := guest.List(ctx, list, client.MatchingLabels{apply.LabelManagedBy: apply.FieldOwner}); err != nil {
			t.Errorf("listing definitions: %v", err)
		}
		for i := range list.Items {
			into := &waiting
			for _, c := range list.Items[i].Status.Conditions {
				if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
					into = &established
				}
			}
			*into = append(*into, list.Items[i].Name)
		}
	}}}
	config := rest.CopyConfig(clusters.Management.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			writes.see("management", request)
			return next.RoundTrip(request)
		})
	})
	run(t, config, selecting(label))
	hosted(t, label, name, release, sick(t, func(request *http.Request) { writes.see("guest", request) }))

	t.Run("When Karpenter is installed, its definitions should be established first, then come its rights, its token, Karpenter, and its node class", func(t *testing.T) {
		g := NewWithT(t)
		order := []string{
			"guest validatingadmissionpolicies",
			"guest customresourcedefinitions",
			"guest serviceaccounts", "guest clusterroles", "guest clusterrolebindings",
			"guest serviceaccounts/token", "management secrets",
			"management serviceaccounts", "management roles", "management rolebindings", "management deployments",
			"guest clusterapinodeclasses",
		}
		g.Eventually(func(g Gomega) { g.Expect(writes.seen(order)).To(HaveLen(len(order))) }).Should(Succeed())
		g.Expect(writes.seen(order)).To(Equal(order))
		g.Expect(waiting).To(BeEmpty(), "not established when the first right was given")
		g.Expect(established).To(ContainElements("widgets.order.test", "nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "clusterapinodeclasses.karpenter.cluster.x-k8s.io"))
	})
}
