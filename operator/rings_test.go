// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// sharing is the guest for one of several HostedClusters with the same guest: its node classes are another one's, with whose rollouts of
// Karpenter they are annotated.
func sharing(t *testing.T) *rest.Config {
	t.Helper()
	g := NewWithT(t)
	target, err := url.Parse("https://" + strings.TrimPrefix(clusters.Guest.Config.Host, "https://"))
	g.Expect(err).NotTo(HaveOccurred())
	transport, err := rest.TransportFor(clusters.Guest.Config)
	g.Expect(err).NotTo(HaveOccurred())
	server := httptest.NewUnstartedServer(&httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(request *httputil.ProxyRequest) {
		request.SetURL(target)
		if request.Out.Method == http.MethodPatch && strings.Contains(request.Out.URL.Path, "/clusterapinodeclasses/") {
			request.Out.Method, request.Out.Body, request.Out.ContentLength, request.Out.URL.RawQuery = http.MethodGet, http.NoBody, 0, ""
		}
	}})
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}}
}

// rings are two rings of two HostedClusters; each has the guest's only node.
type rings struct {
	canary, late []string
	node         *corev1.Node
}

// rollOut has Karpenter of a payload run everywhere.
func (r rings) rollOut(g Gomega, ctx context.Context, digit string) {
	for _, name := range append(r.canary, r.late...) {
		rollOut(g, ctx, "clusters-"+name, image+strings.Repeat(digit, 64))
	}
}

// expect checks NodesUpToDate, the state of the newest release, and the version that new nodes get.
func (r rings) expect(g Gomega, ctx context.Context, names []string, nodes, message string, state v1beta1.UpdateState, version string) {
	for _, name := range names {
		hostedCluster := get(g, ctx, name)
		g.Expect(reasonOf(hostedCluster, v1beta1.NodesUpToDate)).To(Equal(nodes), name)
		g.Expect(meta.FindStatusCondition(hostedCluster.Status.Conditions, v1beta1.NodesUpToDate).Message).To(ContainSubstring(message))
		g.Expect(hostedCluster.Status.Version.History[0]).To(HaveField("State", state), name)
		g.Expect(deploymentOf(g, ctx, "clusters-"+name).Spec.Template.Spec.Containers[0].Args).To(ContainElement("--node-version=" + version))
	}
}

// runs has the node run a version.
func (r rings) runs(t *testing.T, version string) {
	t.Helper()
	r.node.Status.NodeInfo.KubeletVersion = "v" + version
	NewWithT(t).Expect(clusters.Guest.Client.Status().Update(t.Context(), r.node)).To(Succeed())
}

// reports has Karpenter report on the upgrade of the late ring.
func (r rings) reports(t *testing.T, phase v1alpha1.NodeUpgradePhase, failed ...string) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func(g Gomega) {
		class := scopetest.Get(t.Context(), g, clusters.Guest.Client, "", v1alpha1.DefaultNodeClass, &v1alpha1.ClusterAPINodeClass{})
		class.Status.NodeUpgrade = &v1alpha1.NodeUpgradeStatus{
			Image: get(g, t.Context(), r.late[0]).Status.Version.Desired.Image, Version: "1.36.3", Phase: phase, FailedNodes: failed,
		}
		g.Expect(clusters.Guest.Client.Status().Update(t.Context(), class)).To(Succeed())
	}).Should(Succeed())
}

func TestRings(t *testing.T) {
	const label = "rings"
	ctx, management, guest := t.Context(), clusters.Management.Client, clusters.Guest.Client
	r := rings{canary: []string{"ring-a", "ring-b"}, late: []string{"ring-c", "ring-d"}}
	provide(t)
	host := serveRegistry(t)
	t.Cleanup(func() { // with what was reported on it, once no operator makes it again
		g, class := NewWithT(t), &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultNodeClass}}
		g.Expect(client.IgnoreNotFound(guest.Patch(context.Background(), class, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))).To(Succeed())
		g.Expect(client.IgnoreNotFound(guest.Delete(context.Background(), class))).To(Succeed())
	})
	removeAll(t, label)
	r.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ringed", Labels: map[string]string{karpv1.NodePoolLabelKey: "general"}}}
	NewWithT(t).Expect(guest.Create(ctx, r.node)).To(Succeed())
	t.Cleanup(func() { NewWithT(t).Expect(guest.Delete(context.Background(), r.node)).To(Succeed()) })
	r.runs(t, "1.36.2")
	for i, name := range append(r.canary, r.late...) {
		hostedCluster := newHosted("clusters", name, push(t, host, "1.36.2"), label)
		if hostedCluster.Labels["ring"] = "canary"; i >= len(r.canary) {
			hostedCluster.Labels["ring"] = "late"
		}
		config := clusters.Guest.Config
		if i > 0 {
			config = sharing(t)
		}
		platformIn(t, "clusters", name, config)
		NewWithT(t).Expect(management.Create(ctx, hostedCluster)).To(Succeed())
	}
	next := push(t, host, "1.36.3")
	after := func(soak time.Duration) []v1beta1.NodeUpgradeAfter {
		return []v1beta1.NodeUpgradeAfter{{
			HostedClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"ring": "canary"}}, SoakDuration: scalar.Duration{Duration: soak},
		}}
	}
	change := func(names []string, change func(*v1beta1.HostedCluster)) {
		for _, name := range names {
			patch(NewWithT(t), ctx, name, change)
		}
	}
	// phase has another operator take over, which knows nothing but what is written, and see the phase before, too.
	var before func(g Gomega)
	phase := func(name string, change func(t *testing.T), expect func(g Gomega)) {
		if t.Failed() {
			return // each phase begins where the one before has ended
		}
		t.Run(name, func(t *testing.T) {
			run(t, clusters.Management.Config, selecting(label))
			if before != nil {
				NewWithT(t).Eventually(before).Should(Succeed())
			}
			change(t)
			NewWithT(t).Eventually(expect).Should(Succeed())
			before = expect
		})
	}
	phase("When all run a release, it should be completed", func(t *testing.T) {
		NewWithT(t).Eventually(func(g Gomega) {
			scopetest.Get(ctx, g, guest, "", v1alpha1.DefaultNodeClass, &v1alpha1.ClusterAPINodeClass{})
		}).Should(Succeed())
	}, func(g Gomega) {
		r.rollOut(g, ctx, "2")
		reportReady(g, ctx)
		r.expect(g, ctx, append(r.canary, r.late...), "True/AsExpected", "", v1beta1.UpdateCompleted, "1.36.2")
	})
	phase("When another release comes, the late ring should wait for the canaries, and its Karpenter shouldn't", func(*testing.T) {
		change(r.late, func(hc *v1beta1.HostedCluster) {
			hc.Spec.AutoNode.NodeUpgrade = &v1beta1.NodeUpgrade{Canary: &v1beta1.NodeUpgradeCanary{Nodes: 1}, After: after(168 * time.Hour)}
		})
		change(append(r.late, r.canary...), func(hc *v1beta1.HostedCluster) { hc.Spec.Release.Image = next })
	}, func(g Gomega) {
		r.rollOut(g, ctx, "3")
		r.expect(g, ctx, r.canary, "False/NodesOutdated", "", v1beta1.UpdatePartial, "1.36.3")
		r.expect(g, ctx, r.late, "False/WaitsForRing", "HostedCluster ring-a hasn't completed it; HostedCluster ring-b hasn't", v1beta1.UpdatePartial, "1.36.2")
	})
	phase("When the canaries have completed it, the late ring should wait for their soak", func(t *testing.T) { r.runs(t, "1.36.3") }, func(g Gomega) {
		r.expect(g, ctx, r.canary, "True/AsExpected", "", v1beta1.UpdateCompleted, "1.36.3")
		r.expect(g, ctx, r.late, "False/WaitsForRing", "HostedCluster ring-a soaks until ", v1beta1.UpdatePartial, "1.36.2")
	})
	phase("When the soak is over, the late ring should begin with its own canary", func(*testing.T) {
		change(r.late, func(hc *v1beta1.HostedCluster) { hc.Spec.AutoNode.NodeUpgrade.After = after(0) })
	}, func(g Gomega) {
		r.rollOut(g, ctx, "3")
		r.expect(g, ctx, r.late, "False/UpgradeProving", "", v1beta1.UpdatePartial, "1.36.3")
	})
	phase("When its canary fails, it should halt", func(t *testing.T) { r.reports(t, v1alpha1.NodeUpgradeHalted, "general-a/LaunchTimeout") }, func(g Gomega) {
		r.expect(g, ctx, r.late, "False/UpgradeHalted", "resume with: ", v1beta1.UpdatePartial, "1.36.3")
	})
	phase("When its canary has soaked, it should complete the release", func(t *testing.T) { r.reports(t, v1alpha1.NodeUpgradeRolling) }, func(g Gomega) {
		r.expect(g, ctx, r.late, "True/AsExpected", "", v1beta1.UpdateCompleted, "1.36.3")
	})
	valid := func(g Gomega, want string) {
		for _, name := range append(r.canary, r.late...) {
			g.Expect(reasonOf(get(g, ctx, name), v1beta1.ValidConfiguration)).To(Equal(want), name)
		}
	}
	phase("When the rings wait for each other, all should be invalid while their labels say so", func(t *testing.T) {
		change(r.canary, func(hc *v1beta1.HostedCluster) {
			hc.Spec.AutoNode.NodeUpgrade = &v1beta1.NodeUpgrade{After: after(0)}
			hc.Spec.AutoNode.NodeUpgrade.After[0].HostedClusterSelector.MatchLabels["ring"] = "late"
		})
		for range 3 { // a guest that is connected wakes them, too, but once
			change(r.late, func(hc *v1beta1.HostedCluster) { hc.Labels["ring"] = "late" })
			NewWithT(t).Eventually(func(g Gomega) { valid(g, "False/InvalidSpec") }).Should(Succeed())
			change(r.late, func(hc *v1beta1.HostedCluster) { hc.Labels["ring"] = "later" })
			NewWithT(t).Eventually(func(g Gomega) { valid(g, "True/AsExpected") }).Should(Succeed())
		}
	}, func(Gomega) {})
}
