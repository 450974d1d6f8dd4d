// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
)

func TestFleet(t *testing.T) {
	templates := []v1alpha1.TemplateStatus{
		{InstanceType: "c4-large", CPU: scalar.Text("4"), Price: "0.139", SpotPrice: "0.041"},
		{InstanceType: "c2-small", CPU: scalar.Text("2"), Price: "0.070"},
	}
	node := func(name, instanceType, capacityType string) corev1.Node {
		return corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				corev1.LabelInstanceTypeStable: instanceType, corev1.LabelTopologyZone: "a", karpv1.CapacityTypeLabelKey: capacityType,
			}},
			Status: corev1.NodeStatus{
				NodeInfo:    corev1.NodeSystemInfo{KubeletVersion: "v1.36.2"},
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
			},
		}
	}
	pod := func(node string) corev1.Pod {
		return corev1.Pod{Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")}}}}}}
	}

	t.Run("When nodes run pods, it should show price and utilization, by name", func(t *testing.T) {
		g := NewWithT(t)
		f, err := newFleet([]corev1.Node{node("b", "c2-small", "on-demand"), node("a", "c4-large", "spot")}, []corev1.Pod{pod("a"), pod("a"), pod("")}, templates)
		g.Expect(err).NotTo(HaveOccurred())
		want := "" +
			"NODE  VERSION  TYPE      ZONE  CAPACITY   PRICE/H  CPU            PODS\n" +
			"a     v1.36.2  c4-large  a     spot       $0.041   ██████░░  75%  2\n" +
			"b     v1.36.2  c2-small  a     on-demand  $0.070   ░░░░░░░░   0%  0\n"
		g.Expect(cmp.Diff(want, f.String())).To(BeEmpty())
		g.Expect(f.price).To(BeNumerically("~", 0.111, 1e-9))
	})

	t.Run("When a node's price is unknown, it should say whose", func(t *testing.T) {
		_, err := newFleet([]corev1.Node{node("a", "c9-giant", "spot")}, nil, templates)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("price of spot c9-giant")))
	})

	t.Run("When pods had a node each, it should take the cheapest that holds one", func(t *testing.T) {
		NewWithT(t).Expect(cheapestAlone(10, 500, templates)).To(BeNumerically("~", 0.41, 1e-9))
	})
}

func TestOneAtATime(t *testing.T) {
	for _, tc := range []struct {
		name     string
		replaced []string
		most     int
		ever     []string
		want     string
	}{
		{name: "When nodes were disrupted one after the other, it should be true", replaced: []string{"a", "b"}, most: 1, ever: []string{"a", "b"}},
		{name: "When two were disrupted at once, it should be false", replaced: []string{"a", "b"}, most: 2, ever: []string{"a", "b"}, want: "2 nodes were disrupted at once"},
		{name: "When there were no nodes, it should be false", want: "no node to replace"},
		{name: "When a node disappeared without a disruption, it should be false", replaced: []string{"a", "b"}, most: 1, ever: []string{"a"}, want: "node b went"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := oneAtATime(tc.replaced, tc.most, tc.ever); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v; want %q", err, tc.want)
			}
		})
	}
}
