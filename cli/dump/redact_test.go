// SPDX-License-Identifier: Apache-2.0

package dump_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/cli/dump"
)

// marker is a secret. It has no shape that gives it away.
const marker = "mellon"

func redacted(t *testing.T, content string, ours bool) string {
	t.Helper()
	g := NewWithT(t)
	object := &unstructured.Unstructured{}
	g.Expect(yaml.Unmarshal([]byte(content), &object.Object)).To(Succeed())
	dump.Object(object, ours)
	out, err := yaml.Marshal(object.Object)
	g.Expect(err).NotTo(HaveOccurred())
	return string(out)
}

func TestObject(t *testing.T) {
	for name, test := range map[string]struct {
		object string
		ours   bool
		// want is what has to stay, because it reports what is wrong.
		want []string
	}{
		"When it is a Secret, its name and type should be all that stays": {
			object: `{apiVersion: v1, kind: Secret, metadata: {name: blue-kubeconfig}, type: cluster.x-k8s.io/secret, data: {value: mellon}, stringData: {value: mellon}}`,
			want:   []string{"blue-kubeconfig", "cluster.x-k8s.io/secret"},
		},
		"When it is a ConfigMap of others, its name should be all that stays": {
			object: `{apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {settings: mellon}, binaryData: {b: mellon}}`, want: []string{"app"},
		},
		"When it is a ConfigMap of AutoNode's, its data should stay": {
			object: `{apiVersion: v1, kind: ConfigMap, metadata: {name: karpenter-prices}, data: {prices.yaml: "- {instanceType: c4, price: 0.1}"}}`, ours: true,
			want: []string{"instanceType: c4"},
		},
		"When metadata repeats the object, it should not": {
			object: `{apiVersion: v1, kind: Node, metadata: {name: n, managedFields: [{fieldsV1: {"f:mellon": {}}}], annotations: {
				kubectl.kubernetes.io/last-applied-configuration: mellon, vault.example.com/secret: mellon, plain: mellon, example.com/note: mellon,
				karpenter.cluster.x-k8s.io/infrastructure-patches: "[{op: add, path: /spec/userData, value: mellon}]", karpenter.sh/do-not-disrupt: "true"}}}`,
			want: []string{"karpenter.sh/do-not-disrupt: \"true\"", "example.com/note"},
		},
		"When a pod has environment variables, arguments, probes and hooks, it should lose their values": {
			object: `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {imagePullSecrets: [{name: pull}], serviceAccountName: app, containers: [{name: c, image: "registry.example/c:1",
				command: [run, mellon], args: ["--password=mellon", mellon], env: [{name: PASSWORD, value: mellon}, {name: PLAIN, value: mellon}, {name: REF, valueFrom: {secretKeyRef: {name: db, key: password}}}],
				livenessProbe: {httpGet: {path: /mellon, httpHeaders: [{name: Authorization, value: mellon}]}}, lifecycle: {postStart: {exec: {command: [mellon]}}},
				resources: {requests: {cpu: "1"}}}], initContainers: [{name: i, env: [{name: A, value: mellon}]}]}}`,
			want: []string{"registry.example/c:1", "name: pull", "name: db", "name: PASSWORD", "cpu: \"1\"", "serviceAccountName: app"},
		},
		"When a Deployment is AutoNode's, its arguments should stay but for secret ones": {
			object: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: karpenter}, spec: {template: {metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: mellon}}, spec: {containers: [{name: karpenter,
				args: ["--cluster-name=blue", "--token=mellon", "https://user:mellon@proxy.example"], env: [{name: ALLOWED_BOOTSTRAP_PATCHES, value: mellon}]}]}}}}`, ours: true,
			want: []string{"--cluster-name=blue", "--token=REMOVED"},
		},
		"When it is a bootstrap config, it should keep the registration alone": {
			object: `{apiVersion: bootstrap.cluster.x-k8s.io/v1beta2, kind: KubeadmConfig, metadata: {name: b}, spec: {files: [{path: /etc/x, content: mellon}], users: [{name: a, passwd: mellon}],
				preKubeadmCommands: ["echo mellon"], ntp: {servers: [mellon]}, joinConfiguration: {discovery: {bootstrapToken: {token: mellon}}, nodeRegistration: {name: node-1}}}, status: {dataSecretName: b}}`,
			want: []string{"name: node-1", "dataSecretName: b"},
		},
		"When it is a bootstrap template, it should keep the registration alone": {
			object: `{apiVersion: bootstrap.cluster.x-k8s.io/v1beta2, kind: RKE2ConfigTemplate, metadata: {name: b}, spec: {template: {spec: {agentConfig: {x: mellon}, joinConfiguration: {nodeRegistration: {name: node-1}}}}}}`,
			want:   []string{"name: node-1"},
		},
		"When an infrastructure machine has user data and credentials, they should go": {
			object: `{apiVersion: infrastructure.cluster.x-k8s.io/v1, kind: CloudMachine, metadata: {name: m}, spec: {userData: mellon, cloudInit: {networkData: mellon}, ignition: {config: mellon},
				credentialsRef: {kind: Secret, name: cloud}, credentials: {password: mellon, name: creds}, sshKeyName: ops, apiKey: mellon, instanceType: c4,
				volumes: [{cloudInitNoCloud: {userData: mellon, secretRef: {name: cloud-init}}}], endpoint: "https://user:mellon@cloud.example", kubeconfig: mellon}}`,
			want: []string{"name: cloud", "sshKeyName: ops", "instanceType: c4", "cloudInitNoCloud:", "endpoint: REMOVED"},
		},
		"When patches write secrets, their values should go": {
			object: `{apiVersion: karpenter.cluster.x-k8s.io/v1alpha1, kind: InstanceTypeCatalog, metadata: {name: c}, spec: {patches: [{op: add, path: /spec/userData, value: mellon}, {op: add, path: /spec/size, value: large}, {op: add, path: /spec/zone, valueFrom: {variable: zone}}],
				bootstrapPatches: [{kind: KubeadmConfig, patches: [{op: add, path: /spec/files, value: [{content: mellon}]}]}]}}`,
			want: []string{"path: /spec/size", "/spec/userData", "variable: zone"},
		},
		"When a Cluster has variables, their values should go": {
			object: `{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: c}, spec: {topology: {version: v1.36.3, variables: [{name: x, value: {inner: mellon}}]}}}`,
			want:   []string{"version: v1.36.3", "name: x"},
		},
		"When a StorageClass has parameters, secret ones should go": {
			object: `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: s}, parameters: {adminSecretName: ceph, password: mellon, type: gp3}}`,
			want:   []string{"adminSecretName: REMOVED", "type: gp3"},
		},
		"When a request for a certificate is kept, its content should go": {
			object: `{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: r}, spec: {request: mellon, extra: {x: [mellon]}}, status: {conditions: [{type: Approved}]}}`,
			want:   []string{"Approved"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			out := redacted(t, test.object, test.ours)
			g.Expect(out).NotTo(ContainSubstring(marker))
			for _, want := range test.want {
				g.Expect(out).To(ContainSubstring(want))
			}
		})
	}
}

func TestText(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"When it has a private key, the key should go": {
			"before -----BEGIN RSA PRIVATE KEY-----\nmellon\n-----END RSA PRIVATE KEY----- after", "before REMOVED after",
		},
		"When a private key is cut off, the rest should go": {"-----BEGIN PRIVATE KEY-----\nmellon", "REMOVED"},
		"When it has a service account's token, it should go": {
			"got eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJtZWxsb24ifQ.c2lnbmF0dXJl from", "got REMOVED from",
		},
		"When it has a bootstrap token, it should go":             {"token abcdef.0123456789abcdef is", "token REMOVED is"},
		"When a URL has a password, it should go":                 {"get https://user:mellon@registry.example/v2/", "get https://REMOVED@registry.example/v2/"},
		"When it has a bearer token, it should go":                {"Authorization: Bearer mellon, next", "Authorization: Bearer REMOVED, next"},
		"When it has an access key, it should go":                 {"key AKIAIOSFODNN7EXAMPLE used", "key REMOVED used"},
		"When a field of a log is a password, it should go":       {`{"level":"info","password":"mellon","x":1}`, `{"level":"info","password":"REMOVED","x":1}`},
		"When a flag is a secret key, it should go":               {"--secret-key=mellon --zone=a", "--secret-key=REMOVED --zone=a"},
		"When a message names a condition, it should stay":        {"machine failed: InsufficientCapacity in zone a", "machine failed: InsufficientCapacity in zone a"},
		"When a message names an image by digest, it should stay": {"pulling registry.example/a@sha256:0123", "pulling registry.example/a@sha256:0123"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(dump.Text(test.text)).To(Equal(test.want))
			g.Expect(strings.Contains(dump.Text(test.text), marker)).To(BeFalse())
		})
	}
}
