// SPDX-License-Identifier: Apache-2.0

package hostile_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/autonode-io/autonode/api/v1beta1"
)

var supervisor = schema.GroupKind{Group: "vmware.infrastructure.cluster.x-k8s.io", Kind: "VSphereMachine"}

// platformTemplates are specs of a platform's own templates.
var platformTemplates = map[schema.GroupKind]string{
	infrastructureKind("VSphereMachine"): `{server: vc, datacenter: dc, folder: clusters/blue/workers, template: ubuntu, cloneMode: fullClone, network: {devices: [{networkName: nodes}]}}`,
	supervisor:                           `{className: small, imageName: ubuntu, storageClass: fast}`,
	infrastructureKind("GCPMachine"):     `{instanceType: n2, serviceAccounts: {email: workers@p.iam, scopes: [https://www.googleapis.com/auth/devstorage.read_only]}}`,
	infrastructureKind("ProxmoxMachine"): `{sourceNode: pve1, templateID: 100, full: true}`,
	infrastructureKind("Metal3Machine"):  `{image: {url: x, checksum: y}, hostSelector: {matchLabels: {role: worker}}}`,
	infrastructureKind("AWSMachine"):     `{instanceType: m5, iamInstanceProfile: workers, subnet: {id: subnet-blue}}`,
	kubevirt: `{virtualMachineTemplate: {spec: {
		dataVolumeTemplates: [{metadata: {name: d}, spec: {storage: {}, source: {registry: {url: docker://nodes}}}}],
		template: {metadata: {labels: {a: b}}, spec: {volumes: [{name: root, containerDisk: {image: i}}, {name: w, secret: {secretName: workers}}]}}}}}`,
}

// hostileObjects differ from a platform's templates only in what they attack.
func hostileObjects(t *testing.T, namespace string) map[string]*unstructured.Unstructured {
	t.Helper()
	of := func(kind schema.GroupKind, spec string) *unstructured.Unstructured {
		return withSpec(t, kind, namespace, spec)
	}
	vm := func(volumes, more string) *unstructured.Unstructured {
		return of(kubevirt, strings.NewReplacer("VOLUMES", volumes, "MORE", more).Replace(`{virtualMachineTemplate: {spec: {VOLUMES
			template: {metadata: {labels: {a: b}}, spec: {volumes: [{name: root, containerDisk: {image: i}}, {name: w, secret: {secretName: workers}}]MORE}}}}}`))
	}
	const same = `dataVolumeTemplates: [{metadata: {name: d}, spec: {storage: {}, source: {registry: {url: docker://nodes}}}}],`
	vsphere, gcp, proxmox, metal3 := infrastructureKind("VSphereMachine"), infrastructureKind("GCPMachine"), infrastructureKind("ProxmoxMachine"), infrastructureKind("Metal3Machine")
	return map[string]*unstructured.Unstructured{
		"the CA's key as a file": of(kubeadm, `files: [{path: /a, contentFrom: {secret: {name: blue-ca, key: tls.key}}}]`),
		"a password":             of(kubeadm, `users: [{name: a, passwdFrom: {secret: {name: blue-kubeconfig, key: value}}}]`),
		"a field that kubeadm's kind doesn't have yet": of(kubeadm, `diskSetup: {luks: [{passphrase: {from: {name: blue-ca, key: tls.key}}}]}`),
		"a virtual machine with etcd's volume":         of(kubevirt, `virtualMachineTemplate: {spec: {template: {spec: {volumes: [{name: a, persistentVolumeClaim: {claimName: data-etcd-0}}]}}}}`),
		"a virtual machine with a ServiceAccount":      of(kubevirt, `virtualMachineTemplate: {spec: {template: {spec: {volumes: [{name: a, serviceAccount: {serviceAccountName: etcd}}]}}}}`),
		"a data volume that CSI clones from etcd's claim": vm(
			`dataVolumeTemplates: [{metadata: {name: d}, spec: {storage: {}, source: {registry: {url: docker://nodes}}, pvc: {dataSource: {kind: PersistentVolumeClaim, name: data-etcd-0}}}}],`, ""),
		"the same by storage.dataSourceRef": vm(
			`dataVolumeTemplates: [{metadata: {name: d}, spec: {storage: {dataSourceRef: {kind: PersistentVolumeClaim, name: data-etcd-0}}, source: {registry: {url: docker://nodes}}}}],`, ""),
		"a snapshot of another namespace by sourceRef": vm(
			`dataVolumeTemplates: [{metadata: {name: d}, spec: {storage: {}, sourceRef: {kind: DataSource, namespace: clusters-green, name: etcd}}}],`, ""),
		"a hook sidecar that mounts etcd's claim": of(kubevirt, `{virtualMachineTemplate: {spec: {`+same+`
			template: {metadata: {labels: {a: b}, annotations: {hooks.kubevirt.io/hookSidecars: '[{"image":"evil","pvc":{"name":"data-etcd-0"}}]'}},
			spec: {volumes: [{name: root, containerDisk: {image: i}}, {name: w, secret: {secretName: workers}}]}}}}}`),
		"a virtual machine that preempts the management cluster's pods":                 vm(same, `, priorityClassName: system-node-critical`),
		"a virtual machine in another tenant's network":                                 vm(same, `, networks: [{name: n, multus: {networkName: clusters-green/nodes}}]`),
		"vSphere, API v1beta2: the name of another's virtual machine":                   of(vsphere, `{server: vc, datacenter: dc, folder: clusters/blue/workers, template: ubuntu, cloneMode: fullClone, network: {devices: [{networkName: nodes}]}, naming: {template: blue-control-plane-x}}`),
		"vSphere: no folder, though each template has one":                              of(vsphere, `{server: vc, datacenter: dc, template: ubuntu, cloneMode: fullClone, network: {devices: [{networkName: nodes}]}}`),
		"vSphere: a clone of another's virtual machine":                                 of(vsphere, `{server: vc, datacenter: dc, folder: clusters/blue/workers, template: /dc/vm/clusters/green/control-plane, cloneMode: fullClone, network: {devices: [{networkName: nodes}]}}`),
		"vSphere: addresses of another Cluster's pool":                                  of(vsphere, `{server: vc, datacenter: dc, folder: clusters/blue/workers, template: ubuntu, cloneMode: fullClone, network: {devices: [{networkName: nodes, addressesFromPools: [{kind: InClusterIPPool, name: green}]}]}}`),
		"vSphere supervisor: the name of another's virtual machine":                     of(supervisor, `{className: small, imageName: ubuntu, storageClass: fast, namingStrategy: {template: blue-control-plane-x}}`),
		"vSphere supervisor, API v1beta2: the same":                                     of(supervisor, `{className: small, imageName: ubuntu, storageClass: fast, naming: {template: blue-control-plane-x}}`),
		"Proxmox: a clone of another's virtual machine":                                 of(proxmox, `{sourceNode: pve1, templateID: 104, full: true}`),
		"Metal3: the data template of another namespace":                                of(metal3, `{image: {url: x, checksum: y}, hostSelector: {matchLabels: {role: worker}}, dataTemplate: {name: green-data, namespace: clusters-green}}`),
		"Metal3: a host that is kept for control planes":                                of(metal3, `{image: {url: x, checksum: y}, hostSelector: {matchLabels: {role: control-plane}}}`),
		"GCP: no service account, so that the provider takes the project's default one": of(gcp, `{instanceType: n2}`),
		"AWS: another's placement group":                                                of(infrastructureKind("AWSMachine"), `{instanceType: m5, iamInstanceProfile: workers, subnet: {id: subnet-blue}, placementGroupName: victim}`),
		"AWS: a network interface, subnet and security groups of another cluster":       of(infrastructureKind("AWSMachine"), `{instanceType: m5, iamInstanceProfile: workers, networkInterfaces: [eni-victim], subnet: {id: subnet-victim}}`),
		"AWS: another role of its instances":                                            of(infrastructureKind("AWSMachine"), `{instanceType: m5, iamInstanceProfile: control-plane, subnet: {id: subnet-blue}}`),
		"an object of a kind without a list of fields":                                  of(unknownKind, `hardwareName: victim`),
		"an object of such a kind without fields":                                       of(unknownKind, `{}`),
		"a list of lists": of(kubevirt, `a: [[[{secret: blue-ca}]]]`),
		"an object that is deeper than the policy looks":             of(kubevirt, strings.Repeat("a: {", 25)+"secret: blue-ca"+strings.Repeat("}", 25)),
		"an object with a list that is deeper than the policy looks": of(kubevirt, "a: "+strings.Repeat("[", 25)+"{secret: blue-ca}"+strings.Repeat("]", 25)),
		"an object with more fields than the policy sorts":           of(kubevirt, "{"+strings.Repeat("a", 60)+": b"+manyFields()+"}"),
	}
}

func manyFields() string {
	var b strings.Builder
	for i := range 70 {
		b.WriteString(", f" + strings.Repeat("x", i) + ": b")
	}
	return b.String()
}

// bindGroup lets the ServiceAccount karpenter of a namespace write all objects of one more API group.
func bindGroup(t *testing.T, namespace, group string) {
	t.Helper()
	g, meta := NewWithT(t), metav1.ObjectMeta{Namespace: namespace, Name: group}
	g.Expect(clusters.Management.Client.Create(t.Context(), &rbacv1.Role{
		ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{"*"}, Verbs: []string{"*"}}},
	})).To(Succeed())
	g.Expect(clusters.Management.Client.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: group},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: v1beta1.KarpenterComponent}},
	})).To(Succeed())
}
