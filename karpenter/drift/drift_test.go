// SPDX-License-Identifier: Apache-2.0

package drift_test

import (
	"testing"

	"github.com/blang/semver/v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/drift"
	"github.com/autonode-io/autonode/karpenter/instancetype"
	"github.com/autonode-io/autonode/karpenter/nodeclass"
	"github.com/autonode-io/autonode/karpenter/pricing"
	"github.com/autonode-io/autonode/karpenter/shape"
	"github.com/autonode-io/autonode/karpenter/version"
)

// world is what there is: a node class and its shapes now, and a node that was made from them.
type world struct {
	nodeClass *v1alpha1.ClusterAPINodeClass
	shapes    []shape.Shape
	nodeClaim *karpv1.NodeClaim
	machine   *clusterv1.Machine
	server    string
	payload   string
	reachable bool
}

func settled() *world {
	nodeClass := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	sh := shape.Shape{
		Source:       shape.Source{GroupKind: schema.GroupKind{Group: "infrastructure.cluster.x-k8s.io", Kind: "TestMachineTemplate"}, Name: "c4"},
		Template:     &unstructured.Unstructured{},
		ContentHash:  "content",
		Bootstrap:    shape.Bootstrap{DataSecretName: "data", Hash: "bootstrap"},
		InstanceType: "c4",
		Arch:         "amd64",
		OS:           "linux",
		Capacity:     corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
		Price:        ptr.To(0.1),
	}
	return &world{
		nodeClass: nodeClass,
		shapes:    []shape.Shape{sh},
		nodeClaim: &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			v1alpha1.NodeClassHashAnnotation:        nodeclass.Hash(nodeClass),
			v1alpha1.NodeClassHashVersionAnnotation: nodeclass.HashVersion,
		}}},
		machine: &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				v1alpha1.ShapeSourceAnnotation:   sh.Source.Annotation(),
				v1alpha1.ShapeHashAnnotation:     "content",
				v1alpha1.BootstrapHashAnnotation: "bootstrap",
			}},
			Spec: clusterv1.MachineSpec{Version: "v1.36.2"},
		},
		server:    "1.36.2",
		payload:   "1.36.2",
		reachable: true,
	}
}

func (w *world) reason() cloudprovider.DriftReason {
	store := instancetype.NewStore(instancetype.Config{Pricing: pricing.Default()})
	if w.shapes != nil {
		store.Set(w.nodeClass, w.shapes, shape.Cluster{FailureDomains: []string{"a", "b"}})
	}
	detector := drift.New(drift.Config{
		InstanceTypes: store,
		Version: func(nodeClass *v1alpha1.ClusterAPINodeClass) (version.Result, bool) {
			in := version.Input{Spec: nodeClass.Spec.Version, Payload: w.payload, Current: nodeClass.Status.Version}
			if w.server != "" {
				server := semver.MustParse(w.server)
				in.Server = &server
			}
			return version.Resolve(in), w.reachable
		},
	})
	return detector.Reason(w.nodeClass, w.nodeClaim, w.machine)
}

func kubelet(w *world) {
	w.nodeClass.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To[int32](20)}
}

func TestReason(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*world)
		want   cloudprovider.DriftReason
	}{
		"When nothing has changed, it should find no drift": {func(*world) {}, ""},

		"When the kubelet's settings have changed, it should find it": {kubelet, drift.NodeClassDrifted},
		"When the hash was made by another rule, it should not compare it": {func(w *world) {
			kubelet(w)
			w.nodeClaim.Annotations[v1alpha1.NodeClassHashVersionAnnotation] = "v0"
		}, ""},
		"When the template's content has changed, it should find it": {func(w *world) { w.shapes[0].ContentHash = "new" }, drift.ShapeDrifted},
		"When the bootstrap template's content has changed, it should find it": {
			func(w *world) { w.shapes[0].Bootstrap.Hash = "new" }, drift.BootstrapDrifted,
		},
		"When the shape isn't offered any more, it should not replace the node for that": {func(w *world) {
			w.shapes[0].Source.Name = "other"
			w.shapes[0].ContentHash = "new"
		}, ""},
		"When the shapes haven't been read yet, it should wait":               {func(w *world) { w.shapes = nil }, ""},
		"When a machine says nothing of its shape, it should wait":            {func(w *world) { w.machine.Annotations = nil }, ""},
		"When the machine follows its template's version, it should leave it": {func(w *world) { w.machine.Spec.Version = "" }, ""},

		"When the payload and the API server are upgraded, it should find the node's version old": {
			func(w *world) { w.payload, w.server = "1.36.3", "1.36.3" }, drift.VersionDrifted,
		},
		"When the node class asks for another version that the API server allows, it should find it": {
			func(w *world) { w.nodeClass.Spec.Version = "1.36.1" }, drift.VersionDrifted,
		},
		"When the payload is newer than the API server, it should find nothing, whatever else has changed": {func(w *world) {
			w.payload = "1.36.3"
			kubelet(w)
			w.shapes[0].ContentHash = "new"
		}, ""},
		"When the node class asks for more than the API server has, it should find nothing": {func(w *world) {
			w.nodeClass.Spec.Version = "1.37.0"
			kubelet(w)
		}, ""},
		"When the API server's version is unknown, it should find nothing": {func(w *world) {
			w.server = ""
			kubelet(w)
		}, ""},
		"When the API server can't be reached, it should find nothing": {func(w *world) {
			w.reachable = false
			kubelet(w)
		}, ""},
		"When AutoNode is being turned off, it should find nothing: the nodes go anyway": {func(w *world) {
			w.nodeClass.Annotations = map[string]string{v1alpha1.DrainingAnnotation: "true"}
			kubelet(w)
		}, ""},
		"When the node class is being deleted, it should find nothing": {func(w *world) {
			w.nodeClass.DeletionTimestamp = ptr.To(metav1.Now())
			kubelet(w)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := settled()
			tc.change(w)
			if got := w.reason(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// BenchmarkReason: Karpenter asks for every node whenever a pod changes.
func BenchmarkReason(b *testing.B) {
	w := settled()
	store := instancetype.NewStore(instancetype.Config{Pricing: pricing.Default()})
	store.Set(w.nodeClass, w.shapes, shape.Cluster{FailureDomains: []string{"a", "b"}})
	detector := drift.New(drift.Config{
		InstanceTypes: store,
		Version: func(*v1alpha1.ClusterAPINodeClass) (version.Result, bool) {
			return version.Result{Version: "1.36.2", Outcome: version.Desired}, true
		},
	})
	b.ReportAllocs()
	for b.Loop() {
		detector.Reason(w.nodeClass, w.nodeClaim, w.machine)
	}
}
