// SPDX-License-Identifier: Apache-2.0

package kubeadm_test

import (
	"crypto"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/cluster-api/util/certs"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/karpenter/providers/kubeadm"
)

const token = "abcdef.0123456789abcdef"

var known = kubeadm.Discovery{Endpoint: "10.0.0.1:6443", CACertHashes: []string{"sha256:" + strings.Repeat("0", 64)}}

// minimal is what a template declares that leaves everything to Cluster API.
const minimal = `{}`

// nodeRegistration is what Karpenter writes into each config.
const nodeRegistration = `
joinConfiguration:
  nodeRegistration:
    name: '{{ ds.meta_data.local_hostname }}'
    kubeletExtraArgs:
      - {name: node-labels, value: "team=web,node.kubernetes.io/instance-type=c4-large"}
      - {name: provider-id, value: "kwok://{{ ds.meta_data.instance_id }}"}
    taints:
      - {key: karpenter.sh/unregistered, effect: NoExecute}
`

// everything that can be rendered without reading more.
const everything = `
format: cloud-config
verbosity: 4
bootCommands: ["echo boot"]
preKubeadmCommands: ["hostnamectl set-hostname '{{ ds.meta_data.hostname }}'", "echo \"quoted\""]
postKubeadmCommands: ["echo after"]
files:
  - {path: /etc/plain, owner: "root:root", permissions: "0644", content: "first\nsecond\n"}
  - {path: /etc/encoded, content: "aGVsbG8=", encoding: base64}
  - {path: /etc/more, content: "more", append: true}
users:
  - {name: core, sudo: "ALL=(ALL) NOPASSWD:ALL", sshAuthorizedKeys: ["ssh-ed25519 AAAA core"], lockPassword: true, passwd: "$6$x"}
ntp: {servers: [ntp.example], enabled: true}
mounts: [[LABEL=data, /data]]
diskSetup:
  partitions: [{device: /dev/sdb, layout: true, overwrite: false, tableType: gpt}]
  filesystems: [{device: /dev/sdb1, filesystem: ext4, label: data}]
joinConfiguration:
  timeouts: {tlsBootstrapSeconds: 120}
  nodeRegistration:
    imagePullPolicy: IfNotPresent
    ignorePreflightErrors: [Swap]
    kubeletExtraArgs: [{name: max-pods, value: "58"}]
    taints: [{key: node.cluster.x-k8s.io/uninitialized, effect: NoSchedule}]
  discovery:
    bootstrapToken: {apiServerEndpoint: "api.example:6443", unsafeSkipCAVerification: false}
`

// config returns a KubeadmConfig with a spec written as YAML.
func config(t *testing.T, spec string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{}}
	var parsed map[string]any
	NewWithT(t).Expect(yaml.Unmarshal([]byte(spec), &parsed)).To(Succeed())
	object.Object["spec"] = parsed
	object.SetGroupVersionKind(kubeadm.Kind)
	object.SetNamespace("clusters-blue")
	object.SetName("web-1")
	return object
}

// authority is the certificate of an authority, as PEM.
func authority(t *testing.T) []byte {
	t.Helper()
	private, err := keyutil.MakeEllipticPrivateKeyPEM()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	parsed, err := keyutil.ParsePrivateKeyPEM(private)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	signed, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "kubernetes"}, parsed.(crypto.Signer))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: signed.Raw})
}

// The golden files were written by Cluster API's bootstrap provider v1.14.2, for a Cluster with that endpoint. An end-to-end test compares with
// the provider that runs there.
func TestRender(t *testing.T) {
	for name, test := range map[string]struct{ spec, version, golden string }{
		"a template declares nothing":                   {spec: minimal, version: "v1.36.2", golden: "nothing.yaml"},
		"Karpenter has written the node's registration": {spec: nodeRegistration, version: "1.36.2", golden: "registration.yaml"},
		"a template declares all that can be rendered":  {spec: everything, version: "v1.36.2", golden: "everything.yaml"},
		"the machine runs an older Kubernetes":          {spec: nodeRegistration, version: "v1.30.4", golden: "older.yaml"},
	} {
		t.Run("When "+name+", it should render what Cluster API's bootstrap provider does", func(t *testing.T) {
			g := NewWithT(t)
			parsed, err := kubeadm.Parse(config(t, test.spec), test.version, known)
			g.Expect(err).NotTo(HaveOccurred())
			data, err := parsed.Render(token)
			g.Expect(err).NotTo(HaveOccurred())
			wanted, err := os.ReadFile(filepath.Join("testdata", test.golden))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(data["value"])).To(Equal(string(wanted)))
			g.Expect(data).To(And(HaveLen(2), HaveKeyWithValue("format", []byte("cloud-config"))))
		})
	}

	t.Run("When a config is rendered twice, the second token should not meet the first", func(t *testing.T) {
		g := NewWithT(t)
		parsed, err := kubeadm.Parse(config(t, nodeRegistration), "v1.36.2", known)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = parsed.Render(token)
		g.Expect(err).NotTo(HaveOccurred())
		second, err := parsed.Render("ghijkl.0123456789abcdef")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(second["value"])).To(And(ContainSubstring("ghijkl.0123456789abcdef"), Not(ContainSubstring(token))))
	})
}

func TestProviderNeeded(t *testing.T) {
	for name, test := range map[string]struct {
		spec      string
		discovery kubeadm.Discovery
		version   string
		change    func(*unstructured.Unstructured)
	}{
		"a file is read from a Secret":         {spec: `{files: [{path: /etc/x, contentFrom: {secret: {name: x, key: y}}}]}`, discovery: known},
		"a file is a template":                 {spec: `{files: [{path: /etc/x, content: "{{ .controlPlane.version }}", contentFormat: Template}]}`, discovery: known},
		"a password is read from a Secret":     {spec: `{users: [{name: core, passwdFrom: {secret: {name: x, key: y}}}]}`, discovery: known},
		"it is Ignition":                       {spec: `{format: ignition}`, discovery: known},
		"it joins a control plane":             {spec: `{joinConfiguration: {controlPlane: {}}}`, discovery: known},
		"it discovers the cluster by a file":   {spec: `{joinConfiguration: {discovery: {file: {kubeConfigPath: /etc/x}}}}`, discovery: known},
		"it has a token":                       {spec: `{joinConfiguration: {discovery: {bootstrapToken: {token: abcdef.0123456789abcdef}}}}`, discovery: known},
		"it has a token for TLS bootstrapping": {spec: `{joinConfiguration: {discovery: {tlsBootstrapToken: abcdef.0123456789abcdef}}}`, discovery: known},
		"a field isn't known":                  {spec: `{fromTheFuture: 1}`, discovery: known},
		"a field has another type":             {spec: `{files: 7}`, discovery: known},
		"the machine has no version":           {spec: minimal, discovery: known, version: "-"},
		"the endpoint isn't known":             {spec: minimal, discovery: kubeadm.Discovery{CACertHashes: known.CACertHashes}},
		"the authority isn't known":            {spec: minimal, discovery: kubeadm.Discovery{Endpoint: known.Endpoint}},
		"it is of another API version": {spec: minimal, discovery: known, change: func(object *unstructured.Unstructured) {
			object.SetAPIVersion("bootstrap.cluster.x-k8s.io/v1beta1")
		}},
		"it is of another kind": {spec: minimal, discovery: known, change: func(object *unstructured.Unstructured) { object.SetKind("RKE2Config") }},
	} {
		t.Run("When "+name+", it should leave the config to the bootstrap provider", func(t *testing.T) {
			object := config(t, test.spec)
			if test.change != nil {
				test.change(object)
			}
			version := "v1.36.2"
			if test.version != "" {
				version = ""
			}
			_, err := kubeadm.Parse(object, version, test.discovery)
			NewWithT(t).Expect(errors.Is(err, kubeadm.ErrProviderNeeded)).To(BeTrue(), "%v", err)
		})
	}
}

func TestCACertHashes(t *testing.T) {
	certificate := authority(t)
	other := authority(t)

	t.Run("When a connection trusts an authority, it should pin it as Cluster API does", func(t *testing.T) {
		g := NewWithT(t)
		wanted, err := (&secret.Certificate{KeyPair: &certs.KeyPair{Cert: certificate}}).Hashes()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(kubeadm.CACertHashes(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: certificate}})).To(Equal(wanted))
	})

	t.Run("When a connection trusts two authorities, it should pin both", func(t *testing.T) {
		g := NewWithT(t)
		file := filepath.Join(t.TempDir(), "ca.crt")
		g.Expect(os.WriteFile(file, append(append([]byte{}, certificate...), other...), 0o600)).To(Succeed())
		g.Expect(kubeadm.CACertHashes(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: file}})).To(HaveLen(2))
	})

	t.Run("When a connection trusts the system's authorities, it should pin none", func(t *testing.T) {
		NewWithT(t).Expect(kubeadm.CACertHashes(&rest.Config{})).To(BeEmpty())
	})

	t.Run("When there is no certificate in the file, it should say so", func(t *testing.T) {
		_, err := kubeadm.CACertHashes(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: []byte("none")}})
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("certificate authority")))
	})
}
