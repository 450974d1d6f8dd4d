// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/hosting"
)

var karpenterGroupVersion = schema.GroupVersion{Group: apis.Group, Version: "v1"}

// guestHasKarpenter reports whether Karpenter's CRDs are in the guest.
func (c *cluster) guestHasKarpenter(g Gomega, ctx context.Context) bool {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	err := c.guest.Get(ctx, client.ObjectKey{Name: "nodeclaims." + apis.Group}, crd)
	g.Expect(client.IgnoreNotFound(err)).NotTo(HaveOccurred())
	return err == nil && crd.DeletionTimestamp == nil
}

// clear removes a test's workloads and NodePools and waits until its nodes have gone.
func (c *cluster) clear(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	g.Expect(c.guest.DeleteAllOf(ctx, &policyv1.PodDisruptionBudget{}, client.InNamespace(metav1.NamespaceDefault))).To(Succeed())
	g.Expect(c.guest.DeleteAllOf(ctx, &appsv1.Deployment{}, client.InNamespace(metav1.NamespaceDefault))).To(Succeed())
	if c.guestHasKarpenter(g, ctx) {
		g.Expect(c.guest.DeleteAllOf(ctx, &karpv1.NodePool{})).To(Succeed())
	}
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(c.leftovers(g, ctx)).To(BeEmpty())
	}).WithContext(ctx).WithTimeout(eventually).WithPolling(interval).Should(Succeed(), "a test leaves no node behind")
}

// describe writes what a person would look at after a failure into a file among the world's logs, which are kept then. The test's own
// output stays short, with the reason of the failure at its end.
func (c *cluster) describe(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventually)
	defer cancel()
	var out bytes.Buffer
	show := func(reader client.Client, list client.ObjectList, options ...client.ListOption) {
		if err := reader.List(ctx, list, options...); err != nil {
			if !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
				fmt.Fprintf(&out, "listing %T: %v\n", list, err)
			}
			return
		}
		_ = meta.EachListItem(list, func(item runtime.Object) error {
			object := item.(client.Object)
			object.SetManagedFields(nil)
			content, err := yaml.Marshal(object)
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, "%T\n%s\n", object, content)
			return nil
		})
	}
	inNamespace := client.InNamespace(c.namespace())
	show(c.management, &v1beta1.HostedClusterList{}, client.InNamespace(hosting.Namespace))
	show(c.management, &v1beta1.ControlPlaneComponentList{}, inNamespace)
	show(c.guest, &v1alpha1.ClusterAPINodeClassList{})
	show(c.guest, &karpv1.NodePoolList{})
	show(c.guest, &karpv1.NodeClaimList{})
	show(c.management, &clusterv1.MachineList{}, inNamespace)
	c.events(ctx, &out, c.management, c.namespace(), hosting.Namespace)
	c.events(ctx, &out, c.guest, metav1.NamespaceDefault)
	for _, container := range c.world.Agent().Processes() {
		path := c.world.Agent().LogPath(container.Pod, container.Container)
		fmt.Fprintf(&out, "log of %s: %s\n%s\n", container.Pod, path, tail(path, 200))
	}

	path := filepath.Join(c.world.LogDir(), "failure-"+strings.NewReplacer("/", "_", "'", "").Replace(t.Name())+"-"+c.name+".txt")
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Logf("describing the cluster: %v", err)
		return
	}
	t.Logf("what was there when it failed: %s", path)
}

func (c *cluster) events(ctx context.Context, out io.Writer, reader client.Client, namespaces ...string) {
	for _, namespace := range namespaces {
		list := &corev1.EventList{}
		if err := reader.List(ctx, list, client.InNamespace(namespace)); err != nil {
			fmt.Fprintf(out, "listing events: %v\n", err)
			continue
		}
		slices.SortFunc(list.Items, func(a, b corev1.Event) int { return eventTime(a).Compare(eventTime(b)) })
		fmt.Fprintf(out, "events in %s\n", namespace)
		for _, event := range list.Items {
			fmt.Fprintf(out, "%s %s %s/%s %s: %s\n", eventTime(event).Format(time.TimeOnly), event.Type,
				event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Reason, event.Message)
		}
	}
}

func eventTime(event corev1.Event) time.Time {
	switch {
	case !event.LastTimestamp.IsZero():
		return event.LastTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	}
	return event.CreationTimestamp.Time
}

// tail returns the last lines of a file, or why it can't be read.
func tail(path string, lines int) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	split := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	return string(bytes.Join(split[max(0, len(split)-lines):], []byte("\n")))
}
