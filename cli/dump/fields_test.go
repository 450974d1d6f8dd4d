// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// TestKeptParses is for whoever adds a kind.
func TestKeptParses(t *testing.T) {
	g := NewWithT(t)
	fields := allowed()
	g.Expect(yaml.UnmarshalStrict(fieldsYAML, &struct {
		Common, Metadata, Condition, Kubelet, Parts, Kinds, AutoNode any
	}{})).To(Succeed())
	for _, table := range []any{fields.Common, fields.Kinds, fields.AutoNode, fields.Metadata, fields.Condition, fields.Kubelet} {
		g.Expect(table).NotTo(BeEmpty())
	}
	var check func(kind string, t tree)
	check = func(kind string, t tree) {
		g.Expect(t).NotTo(BeEmpty(), kind)
		for field, inner := range t {
			g.Expect(field).To(Or(Equal(anyText), MatchRegexp(`^[A-Za-z0-9]+$`)), kind)
			if inner != nil {
				check(kind+"."+field, inner)
			}
		}
	}
	for _, table := range []map[string]tree{fields.Kinds, fields.AutoNode} {
		for kind, fields := range table {
			check(kind, fields)
		}
	}
}

// varies matches the list of fields in which machines may differ from their template.
var varies = regexp.MustCompile(`(?m)^  varies:(?: \[[^#]*?\]$|(?:\n    [-#] .*)+)`)

// TestKeptOfProfiles has every field by which Karpenter finds out what a machine has and what became of it.
func TestKeptOfProfiles(t *testing.T) {
	g := NewWithT(t)
	files := os.DirFS("../../assets/infrastructure")
	names, err := fs.Glob(files, "*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	paths := map[string]bool{}
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		g.Expect(err).NotTo(HaveOccurred())
		read := varies.ReplaceAllString(string(content), "") // Karpenter writes those
		for _, path := range regexp.MustCompile(`\b(?:spec|status)\.[A-Za-z0-9.]+`).FindAllString(read, -1) {
			paths[path] = true
		}
	}
	g.Expect(len(paths)).To(BeNumerically(">", 30))
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		kind := "XMachine"
		if strings.HasPrefix(path, "spec.template.") {
			kind = "XMachineTemplate"
		}
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": kind}}
		fields := strings.Split(path, ".")
		g.Expect(unstructured.SetNestedField(object.Object, "c4", fields...)).To(Succeed())
		Object(object, false)
		value, _, err := unstructured.NestedFieldNoCopy(object.Object, fields...)
		g.Expect(value, err).To(Equal("c4"), path)
	}
}

// TestKept is what a support case needs.
func TestKept(t *testing.T) {
	for name, test := range map[string]struct{ object, want string }{
		"When it is a Node, what it has and its conditions should stay": {
			`{apiVersion: v1, kind: Node, metadata: {name: n, labels: {topology.kubernetes.io/zone: a}, managedFields: [{}]}, spec: {providerID: "x://1", taints: [{key: a, effect: NoSchedule}]},
				status: {allocatable: {cpu: 3920m}, addresses: [{type: InternalIP, address: 10.0.0.1}], nodeInfo: {kubeletVersion: v1.36.3}, images: [{names: [x]}],
				conditions: [{type: Ready, status: "False", reason: KubeletNotReady, message: "cni config uninitialized", other: x}]}}`,
			`{apiVersion: v1, kind: Node, metadata: {name: n, labels: {topology.kubernetes.io/zone: a}}, spec: {providerID: "x://1", taints: [{key: a, effect: NoSchedule}]},
				status: {allocatable: {cpu: 3920m}, addresses: [{type: InternalIP, address: 10.0.0.1}], nodeInfo: {kubeletVersion: v1.36.3}, images: [{names: [REMOVED]}],
				conditions: [{type: Ready, status: "False", reason: KubeletNotReady, message: "cni config uninitialized"}]}}`,
		},
		"When it is a Pod, what the scheduler reads and why it waits should stay": {
			`{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {nodeSelector: {a: b}, tolerations: [{operator: Exists}], containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}, tty: true}],
				volumes: [{name: v, persistentVolumeClaim: {claimName: d}}, {name: w, nfs: {server: s}}]},
				status: {phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: Unschedulable}], containerStatuses: [{name: c, state: {waiting: {reason: ImagePullBackOff}}}]}}`,
			`{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {nodeSelector: {a: b}, tolerations: [{operator: Exists}], containers: [{name: c, image: i, resources: {requests: {cpu: "1"}}, tty: REMOVED}],
				volumes: [{name: v, persistentVolumeClaim: {claimName: d}}, {name: w, nfs: {server: REMOVED}}]},
				status: {phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: Unschedulable}], containerStatuses: [{name: c, state: {waiting: {reason: ImagePullBackOff}}}]}}`,
		},
		"When it is a NodePool, it should stay whole": {
			`{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: general, generation: 3}, spec: {template: {metadata: {labels: {team: web}, annotations: {x.example/y: z}}, spec: {requirements: [{key: a, operator: In, values: [b]}]}},
				limits: {cpu: 64}}, status: {resources: {cpu: "12"}}}`,
			`{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: general, generation: 3}, spec: {template: {metadata: {labels: {team: web}, annotations: {x.example/y: REMOVED}}, spec: {requirements: [{key: a, operator: In, values: [b]}]}},
				limits: {cpu: 64}}, status: {resources: {cpu: "12"}}}`,
		},
		"When it is a Machine, what it is made of and what became of it should stay": {
			`{apiVersion: cluster.x-k8s.io/v1beta2, kind: Machine, metadata: {name: m, annotations: {karpenter.cluster.x-k8s.io/price: "0.1"}}, spec: {clusterName: blue, version: v1.36.3,
				bootstrap: {dataSecretName: m}, infrastructureRef: {kind: XMachine, name: m}}, status: {phase: Provisioning, deprecated: {v1beta1: {failureMessage: no capacity}}}}`,
			`{apiVersion: cluster.x-k8s.io/v1beta2, kind: Machine, metadata: {name: m, annotations: {karpenter.cluster.x-k8s.io/price: "0.1"}}, spec: {clusterName: blue, version: v1.36.3,
				bootstrap: {dataSecretName: m}, infrastructureRef: {kind: XMachine, name: m}}, status: {phase: Provisioning, deprecated: {v1beta1: {failureMessage: no capacity}}}}`,
		},
		"When it is a control plane, its version and replicas should stay": {
			`{apiVersion: controlplane.cluster.x-k8s.io/v1beta2, kind: KubeadmControlPlane, metadata: {name: k}, spec: {version: v1.36.3, replicas: 3, kubeadmConfigSpec: {preKubeadmCommands: [a, b], verbosity: 4}},
				status: {readyReplicas: 2, conditions: [{type: Available, status: "True"}]}}`,
			`{apiVersion: controlplane.cluster.x-k8s.io/v1beta2, kind: KubeadmControlPlane, metadata: {name: k}, spec: {version: v1.36.3, replicas: 3, kubeadmConfigSpec: {preKubeadmCommands: [REMOVED], verbosity: REMOVED}},
				status: {readyReplicas: 2, conditions: [{type: Available, status: "True"}]}}`,
		},
		"When it is a kubelet's registration, what it plans with should stay": {
			`{apiVersion: bootstrap.cluster.x-k8s.io/v1beta2, kind: KubeadmConfigTemplate, metadata: {name: b}, spec: {template: {spec: {joinConfiguration: {nodeRegistration: {
				taints: [{key: a}], kubeletExtraArgs: [{name: max-pods, value: "58"}, {name: tls-private-key-file, value: /x}]}}}}}}`,
			`{apiVersion: bootstrap.cluster.x-k8s.io/v1beta2, kind: KubeadmConfigTemplate, metadata: {name: b}, spec: {template: {spec: {joinConfiguration: {nodeRegistration: {
				taints: [{key: a}], kubeletExtraArgs: [{name: max-pods, value: "58"}, {name: tls-private-key-file, value: REMOVED}]}}}}}}`,
		},
		"When the kind is unknown, its conditions and the names of its fields should stay": {
			`{apiVersion: x.cluster.x-k8s.io/v1, kind: X, metadata: {name: x, finalizers: [a/b]}, spec: {size: 3, list: [{a: 1}, {a: 2}, {b: 3}], Tags: {x: y}, deep: {a-b: c}},
				status: {phase: up, conditions: [{type: Ready, status: "False", message: why}], v1beta2: {conditions: [{type: Ready, message: too}]}}}`,
			`{apiVersion: x.cluster.x-k8s.io/v1, kind: X, metadata: {name: x, finalizers: [a/b]}, spec: {size: REMOVED, list: [{a: REMOVED}, {b: REMOVED}], REMOVED: 1 fields, deep: {REMOVED: 1 fields}},
				status: {phase: REMOVED, conditions: [{type: Ready, status: "False", message: why}], v1beta2: {conditions: [{type: Ready, message: too}]}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			object, want := &unstructured.Unstructured{}, map[string]any{}
			g.Expect(yaml.Unmarshal([]byte(test.object), &object.Object)).To(Succeed())
			g.Expect(yaml.Unmarshal([]byte(test.want), &want)).To(Succeed())
			Object(object, false)
			g.Expect(object.Object).To(BeComparableTo(want))
		})
	}
}

func TestKeptOfGroups(t *testing.T) {
	for name, test := range map[string]struct {
		kind schema.GroupKind
		want tree
	}{
		"When a group is another's child, its parent's fields should stay": {schema.GroupKind{Group: "vmware.infrastructure.cluster.x-k8s.io",
			Kind: "VSphereMachine"}, allowed().Kinds["*.infrastructure.cluster.x-k8s.io"]},
		"When a kind has its own fields, those should stay": {schema.GroupKind{Group: "karpenter.cluster.x-k8s.io",
			Kind: "InstanceTypeCatalog"}, allowed().Kinds["InstanceTypeCatalog.karpenter.cluster.x-k8s.io"]},
		"When a group only ends like another, none should": {schema.GroupKind{Group: "my-autonode.io", Kind: "X"}, nil},
	} {
		t.Run(name, func(t *testing.T) { NewWithT(t).Expect(allowedFields(test.kind)).To(Equal(test.want)) })
	}
}
