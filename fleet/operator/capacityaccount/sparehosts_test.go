// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"context"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
)

// hosts are BareMetalHosts in a fixture's namespace, and what Metal3 does with them.
type hosts struct{ *fixture }

func newHosts(f *fixture) *hosts {
	f.Helper()
	_, err := envtest.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{Paths: []string{"testdata/baremetalhosts.yaml"}, ErrorIfPathMissing: true})
	f.Expect(err).NotTo(HaveOccurred())
	return &hosts{f}
}

// source counts the available hosts of a rack.
func (h *hosts) source() autonodev1alpha1.CapacityLimitSource {
	return autonodev1alpha1.CapacityLimitSource{
		Resource: "machines", APIVersion: "metal3.io/v1alpha1", Kind: "BareMetalHost", Namespace: h.namespace,
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "a"}},
		Where:    &autonodev1alpha1.CapacityObjectCondition{Path: "status.provisioning.state", Values: []string{"available"}},
	}
}

// add creates a host.
func (h *hosts) add(name, rack, state string) *unstructured.Unstructured {
	h.Helper()
	host := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
		"metadata": map[string]any{"namespace": h.namespace, "name": name, "labels": map[string]any{"rack": rack}},
		"spec":     map[string]any{"online": true}, "status": map[string]any{"provisioning": map[string]any{"state": state}},
	}}
	h.create(host)
	return host
}

// provision takes hosts from Machines that are gone and gives available ones to those without a host.
func (h *hosts) provision() {
	h.Helper()
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHostList"}}
	h.Expect(clusters.Management.Client.List(h.Context(), list, client.InNamespace(h.namespace))).To(Succeed())
	waiting := map[client.ObjectKey]bool{}
	for _, k := range h.karpenters {
		for _, machine := range k.list() {
			waiting[client.ObjectKeyFromObject(&machine)] = true
		}
	}
	set := func(host *unstructured.Unstructured, state string, consumer map[string]any) {
		h.Expect(unstructured.SetNestedField(host.Object, state, "status", "provisioning", "state")).To(Succeed())
		unstructured.RemoveNestedField(host.Object, "spec", "consumerRef")
		if consumer != nil {
			h.Expect(unstructured.SetNestedMap(host.Object, consumer, "spec", "consumerRef")).To(Succeed())
		}
		h.Expect(clusters.Management.Client.Update(h.Context(), host)).To(Succeed())
	}
	var spare []*unstructured.Unstructured
	for i := range list.Items {
		host := &list.Items[i]
		consumer, consumed, err := unstructured.NestedStringMap(host.Object, "spec", "consumerRef")
		h.Expect(err).NotTo(HaveOccurred())
		state, _, err := unstructured.NestedString(host.Object, "status", "provisioning", "state")
		h.Expect(err).NotTo(HaveOccurred())
		machine := client.ObjectKey{Namespace: consumer["namespace"], Name: consumer["name"]}
		switch {
		case consumed && !waiting[machine]:
			set(host, "deprovisioning", nil)
		case consumed:
			delete(waiting, machine)
		case state == "deprovisioning":
			set(host, "available", nil)
		case state == "available" && host.GetLabels()["rack"] == "a":
			spare = append(spare, host)
		}
	}
	for machine := range waiting {
		h.Expect(spare).NotTo(BeEmpty(), "no host for Machine %s", machine)
		set(spare[0], "provisioning", map[string]any{"kind": "Metal3Machine", "namespace": machine.Namespace, "name": machine.Name})
		spare = spare[1:]
	}
}

// countFrom lets an account's only quota count by a source.
func (h *hosts) countFrom(source autonodev1alpha1.CapacityLimitSource) {
	h.Helper()
	h.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
		spec.Quotas = []autonodev1alpha1.CapacityQuota{{
			Name: "hosts", Limits: autonodev1alpha1.CapacityAmounts{"machines": scalar.Number(1)}, LimitsFrom: []autonodev1alpha1.CapacityLimitSource{source},
		}}
	})
}

// limit is the sum of the clusters' machines and the quota's limit, once the status has them.
func (h *hosts) limit() string {
	h.Helper()
	h.settleAfter(figures)
	i := slices.IndexFunc(h.account.Status.Pools, func(pool autonodev1alpha1.CapacityPoolStatus) bool { return pool.Name == "quota/hosts/machines" })
	h.Expect(i).To(BeNumerically(">=", 0))
	return fmt.Sprintf("%s/%s", h.account.Status.Pools[i].Used, h.account.Status.Pools[i].Limit)
}

func TestSpareHosts(t *testing.T) {
	f := newFixture(t, "spare", "blue", "green")
	h, blue, green := newHosts(f), f.karpenters["blue"], f.karpenters["green"]
	for _, name := range []string{"h-1", "h-2", "h-3"} {
		h.add(name, "a", "available")
	}
	h.add("h-inspecting", "a", "inspecting")
	h.add("h-other-rack", "b", "available")
	operator := rest.CopyConfig(clusters.Management.Config)
	operator.Impersonate.UserName = "system:serviceaccount:autonode-system:autonode-operator"
	live, err := client.NewWithWatch(operator, client.Options{})
	f.Expect(err).NotTo(HaveOccurred())
	// Two hosts a page, as if there were hundreds.
	f.Controller.Live = interceptor.NewClient(live, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			return c.List(ctx, list, append(options, client.Limit(2))...)
		},
	})
	later := func() { f.settleAfter(quotaInterval) }
	list := func() error { // the API server learns of roles by and by
		return live.List(t.Context(), &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHostList"}}, client.InNamespace(h.namespace))
	}
	h.countFrom(h.source())
	blue.want(2)
	green.want(3)

	t.Run("When the operator may not list the hosts, the quota's own limit should count, and the account should name the right", func(t *testing.T) {
		g := NewWithT(t)
		f.settle()
		g.Expect(h.limit()).To(Equal("1/1"))
		g.Expect(f.account.Status.Unusable).To(ConsistOf(And(HaveField("Field", "quotas[hosts].limitsFrom[machines]"), HaveField("Message",
			"its limit stays 1: the operator may not list BareMetalHost in namespace spare; give its ServiceAccount a role"))))
		h.provision()
	})
	t.Run("When the platform grants it, both clusters should share the available hosts and the one in use", func(t *testing.T) {
		g := NewWithT(t)
		f.create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: h.namespace, Name: "hosts"}, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"metal3.io"}, Resources: []string{"baremetalhosts"}, Verbs: []string{"list"},
		}}})
		f.create(&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: h.namespace, Name: "hosts"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "hosts"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "autonode-system", Name: "autonode-operator"}},
		})
		g.Eventually(list).Should(Succeed())
		later()
		g.Expect(h.limit()).To(Equal("3/3"))
		g.Expect([]int{blue.machines(), green.machines()}).To(ConsistOf(1, 2))
		g.Expect(f.account.Status.Unusable).To(BeEmpty())
	})
	t.Run("When the machines have got the hosts, the limit should stay", func(t *testing.T) {
		g := NewWithT(t)
		later() // before they have: no host counts twice
		g.Expect(h.limit()).To(Equal("3/3"))
		h.provision()
		later()
		g.Expect(h.limit()).To(Equal("3/3"))
	})
	t.Run("When another host is available, it should serve the next request", func(t *testing.T) {
		g := NewWithT(t)
		h.add("h-4", "a", "available")
		later()
		h.provision()
		g.Expect(h.limit()).To(Equal("4/4"))
		g.Expect(blue.machines() + green.machines()).To(Equal(4))
	})
	t.Run("When a cluster removes a machine, its host should serve the other cluster once it is available again", func(t *testing.T) {
		g := NewWithT(t)
		owner := map[bool]*karpenter{true: blue, false: green}[blue.machines() == 2]
		other := map[bool]*karpenter{true: green, false: blue}[owner == blue]
		before := other.machines()
		owner.remove(1)
		g.Expect(h.limit()).To(Equal("3/3"), "the host of a deleted Machine isn't spare at once")
		h.provision()
		later()
		g.Expect(h.limit()).To(Equal("3/3"), "it is deprovisioning")
		h.provision()
		later()
		h.provision()
		g.Expect(h.limit()).To(Equal("4/4"))
		g.Expect(other.machines()).To(Equal(before + 1))
	})
	t.Run("When another program has a host, it should not count", func(t *testing.T) {
		g := NewWithT(t)
		host := h.add("h-5", "a", "available")
		g.Expect(unstructured.SetNestedStringMap(host.Object, map[string]string{"name": "control-plane"}, "spec", "consumerRef")).To(Succeed())
		g.Expect(clusters.Management.Client.Update(t.Context(), host)).To(Succeed())
		later()
		g.Expect(h.limit()).To(Equal("4/4"))
	})
	t.Run("When the hosts can't be listed any more and another operator starts, the last limit should stay", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(clusters.Management.Client.Delete(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: h.namespace, Name: "hosts"}})).To(Succeed())
		g.Eventually(list).Should(MatchError(apierrors.IsForbidden, "forbidden"))
		later()
		g.Expect(h.limit()).To(Equal("4/4"))
		f.Controller = New(f.Controller.Config)
		g.Expect(h.limit()).To(Equal("4/4"))
		g.Expect(f.account.Status.Unusable).To(ConsistOf(HaveField("Message", HavePrefix("its limit stays 4: the operator may not list"))))
	})
}

func TestCountedObjects(t *testing.T) {
	f := newFixture(t, "counted")
	h := newHosts(f)
	read := func(source *autonodev1alpha1.CapacityLimitSource) (limitReading, error) {
		return (&reconciliation{Controller: f.Controller}).readQuota(t.Context(), source)
	}
	for name, test := range map[string]struct {
		change  func(source *autonodev1alpha1.CapacityLimitSource)
		message string
	}{
		"When the path is malformed, it should say so": {
			func(s *autonodev1alpha1.CapacityLimitSource) { s.Where.Path = "..state" }, `path "..state" is not a path`,
		},
		"When the selector is malformed, it should say so": {
			func(s *autonodev1alpha1.CapacityLimitSource) { s.Selector.MatchLabels["a"] = "b c" }, "reading BareMetalHost in namespace counted: selector: ",
		},
		"When the cluster has no such kind, it should say so": {
			func(s *autonodev1alpha1.CapacityLimitSource) { s.Kind = "Server" }, "the management cluster has no kind Server of metal3.io/v1alpha1",
		},
		"When Secrets are to be counted, they should not be read": {
			func(s *autonodev1alpha1.CapacityLimitSource) { s.APIVersion, s.Kind = "v1", "Secret" }, "a limit isn't read from a Secret",
		},
	} {
		t.Run(name, func(t *testing.T) {
			source := h.source()
			test.change(&source)
			_, err := read(&source)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.message)))
		})
	}
	t.Run("When no namespace is set, the hosts of all should count, and those without the field where values have an empty one, but none that is deleted", func(t *testing.T) {
		g := NewWithT(t)
		h.add("h-1", "counted", "available")
		h.add("h-2", "counted", "")
		deleted := h.add("h-3", "counted", "")
		deleted.SetFinalizers([]string{"example.com/power-off"})
		g.Expect(clusters.Management.Client.Update(t.Context(), deleted)).To(Succeed())
		g.Expect(clusters.Management.Client.Delete(t.Context(), deleted)).To(Succeed())
		source := h.source()
		source.Namespace, source.Selector.MatchLabels["rack"], source.Where.Values = "", "counted", []string{"", "ready"}
		found, err := read(&source)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found.text).To(Equal("1"))
	})
	t.Run("When there are more than 5000 objects, it should say so, and read no more of them", func(t *testing.T) {
		g := NewWithT(t)
		pages := 0
		inner, err := client.NewWithWatch(clusters.Management.Config, client.Options{})
		g.Expect(err).NotTo(HaveOccurred())
		f.Controller.Live = interceptor.NewClient(inner, interceptor.Funcs{
			List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
				pages++
				found := list.(*unstructured.UnstructuredList)
				found.Items = make([]unstructured.Unstructured, pageObjects)
				found.SetContinue("more")
				return nil
			},
		})
		source := h.source()
		_, err = read(&source)
		g.Expect(err).To(MatchError("reading BareMetalHost in namespace counted: the selector matches more than 5000"))
		g.Expect(pages).To(Equal(maxObjects/pageObjects + 1))
	})
	t.Run("When clusters share a namespace, hosts of each one's Machines should count for it, at most as many as the quota counts", func(t *testing.T) {
		g := NewWithT(t)
		const pool, shared = "quota/hosts/machines", "counted-shared"
		for cluster, names := range map[string][]string{"blue": {"a", "b", "other"}, "green": {"c"}, "red": {"d"}} {
			for _, name := range names {
				made := (&karpenter{namespace: shared}).machine(name, "", capacity.Machine{})
				if name == "other" {
					made.Labels[corev1.LabelInstanceTypeStable] = name // which the quota doesn't count
				}
				made.Labels[clusterv1.ClusterNameLabel] = cluster
				g.Expect(v1alpha1.MadeForNodeClaim(made)).To(BeTrue())
				f.Controller.counter.set(made)
			}
		}
		r := &reconciliation{
			Controller: f.Controller, consumers: map[string]map[string][]string{pool: {shared: {"a", "b", "other", "c", "d", "gone"}}},
			account: &account{pools: []autonodev1alpha1.LeasedPool{
				{Name: pool, Resource: autonodev1alpha1.PoolMachines, Selector: autonodev1alpha1.CapacitySelector{InstanceTypes: []string{typeName}}}, {Name: reserved},
			}, limits: map[string]int64{pool: 3, reserved: 10}},
			clusters: map[string]*cluster{
				"spare/blue":  {home: home{shared, "blue"}, used: map[string]int64{pool: 3, reserved: 2}},
				"spare/green": {home: home{shared, "green"}, used: map[string]int64{pool: 0}},
			},
		}
		r.countConsumers()
		g.Expect(r.account.limits).To(BeEquivalentTo(map[string]int64{pool: 5, reserved: 10}))
	})
}
