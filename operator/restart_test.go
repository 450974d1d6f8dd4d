// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"net/http"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestRestart(t *testing.T) {
	const (
		name, namespace, label       = "restart", "clusters-restart", "restart"
		connectionsMade, undecodable = "autonode_guest_connections_total", "autonode_undecodable_objects"
	)
	ctx, management := t.Context(), clusters.Management.Client
	provide(t)
	host := serveRegistry(t)
	removeAll(t, label)
	options := selecting(label)
	options.MetricsRegistry = nil // the test reads the program's own
	var slow atomic.Bool
	guest := sick(t, func(request *http.Request) {
		if slow.Load() {
			select {
			case <-request.Context().Done():
			case <-time.After(300 * time.Millisecond):
			}
		}
	})

	t.Run("When AutoNode is set, it should run", func(t *testing.T) {
		run(t, clusters.Management.Config, options)
		hosted(t, label, name, push(t, host, "1.36.2"), guest)
		runs(t, name, image+strings.Repeat("2", 64))
		NewWithT(t).Eventually(func(g Gomega) {
			g.Expect(served(g, "goos", goruntime.GOOS)).To(HaveKeyWithValue("autonode_build_info", 1.0))
		}).Should(Succeed())
	})

	t.Run("When another operator takes over and nothing has changed, it should write no status and report no change", func(t *testing.T) {
		g := NewWithT(t)
		slow.Store(true) // so that the operator looks at the HostedCluster before it is connected
		before := statusOf(get(g, ctx, name))
		componentBefore := componentOf(g, ctx, namespace).ResourceVersion
		made := served(g, "name", name)[connectionsMade]
		run(t, clusters.Management.Config, options)
		seen := map[string]bool{}
		look := func(g Gomega) {
			seen[statusOf(get(g, ctx, name))] = true
		}
		g.Eventually(func(g Gomega) {
			look(g)
			g.Expect(served(g, "name", name)[connectionsMade]).To(BeNumerically(">", made))
		}).Should(Succeed())
		g.Consistently(look, 2*time.Second).Should(Succeed())
		g.Expect(seen).To(HaveLen(1))
		g.Expect(seen).To(HaveKey(before))
		g.Expect(componentOf(g, ctx, namespace).ResourceVersion).To(Equal(componentBefore))
	})

	t.Run("When it restarts beside Machines that the API server admits and Go can't decode, it should say so and look after all HostedClusters", func(t *testing.T) {
		g := NewWithT(t)
		slow.Store(false)
		undecodableMachine(t, namespace, name, "before", "2026-12-01t06:00:00z")
		made := served(g, "name", name)[connectionsMade]
		run(t, clusters.Management.Config, options)
		g.Eventually(func(g Gomega) { g.Expect(served(g, "name", name)[connectionsMade]).To(BeNumerically(">", made)) }).Should(Succeed())
		undecodableMachine(t, namespace, name, "while", "2026-12-01T06:00:00+99:99") // the watch meets it
		for _, machine := range []string{"before", "while"} {
			g.Eventually(func(g Gomega) {
				g.Expect(notes(g, ctx, namespace, machine)).To(ContainElement(And(ContainSubstring("status.lastUpdated"), ContainSubstring("delete"))))
				g.Expect(notes(g, ctx, "clusters", name)).To(ContainElement(ContainSubstring("Machine " + namespace + "/" + machine)))
			}).Should(Succeed())
		}
		g.Eventually(func(g Gomega) { g.Expect(served(g, "kind", "Machine")).To(HaveKeyWithValue(undecodable, 2.0)) }).Should(Succeed())
		for _, machine := range []string{"before", "while"} {
			g.Expect(management.Delete(ctx, &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: machine}})).To(Succeed())
		}
		g.Eventually(func(g Gomega) { g.Expect(served(g, "kind", "Machine")).NotTo(HaveKey(undecodable)) }).Should(Succeed())
		// What the steps do still follows what is asked for.
		hostedCluster := get(g, ctx, name)
		hostedCluster.Spec.Release.Image = push(t, host, "1.36.3")
		g.Expect(management.Update(ctx, hostedCluster)).To(Succeed())
		g.Eventually(func(g Gomega) { rollOut(g, ctx, namespace, image+strings.Repeat("3", 64)) }).Should(Succeed())
	})
}

// undecodableMachine makes a Machine of Karpenter's with a time that its schema admits and Go's type can't hold.
func undecodableMachine(t *testing.T, namespace, cluster, name, at string) {
	t.Helper()
	machine := &unstructured.Unstructured{}
	machine.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("Machine"))
	machine.SetNamespace(namespace)
	machine.SetName(name)
	machine.SetLabels(map[string]string{clusterv1.ClusterNameLabel: cluster, v1alpha1.NodeClaimLabel: name, v1alpha1.NodeClaimUIDLabel: "uid-" + name})
	machine.Object["spec"] = map[string]any{"clusterName": cluster}
	g := NewWithT(t)
	g.Expect(clusters.Management.Client.Create(t.Context(), machine)).To(Succeed())
	machine.Object["status"] = map[string]any{"phase": "Running", "lastUpdated": at}
	g.Expect(clusters.Management.Client.Status().Update(t.Context(), machine)).To(Succeed())
}

// notes are those of the events about an object that say it can't be decoded.
func notes(g Gomega, ctx context.Context, namespace, name string) (notes []string) {
	list := &eventsv1.EventList{}
	g.Expect(clusters.Management.Client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
	for _, event := range list.Items {
		if event.Regarding.Name == name && event.Reason == v1beta1.UndecodableReason {
			notes = append(notes, event.Note)
		}
	}
	return notes
}

// statusOf is what a list of HostedClusters shows and an alert looks at.
func statusOf(hostedCluster *v1beta1.HostedCluster) string {
	parts := []string{hostedCluster.ResourceVersion, string(hostedCluster.Status.AutoNode.State), hostedCluster.Status.AutoNode.Message}
	for _, condition := range hostedCluster.Status.Conditions {
		parts = append(parts, condition.Type, string(condition.Status), condition.Reason)
	}
	return strings.Join(parts, " ")
}
