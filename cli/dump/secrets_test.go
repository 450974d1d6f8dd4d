// SPDX-License-Identifier: Apache-2.0

package dump_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/cli/dump"
)

// Secrets as programs make them. None is one.
const (
	awsSecret   = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	password    = "correct-horse7 battery,staple"
	word        = "Tr0ub4dor&3"
	encoded     = "Y2x1c3RlcjpUcjB1YjRkb3I="
	apiToken    = "q8Zr2LxT5vNw0BdKc7Yp3JhM9sFgA1eU"
	hexadecimal = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822c"
	github      = "ghp_0123456789abcdefghijklmnopqrstuvwxyz"
	bootstrap   = "abcdef.0123456789abcdef"
	jwt         = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJrYXJwZW50ZXIifQ.c2lnbmF0dXJlLW9mLWl0"
	pem         = `-----BEGIN PRIVATE KEY-----\nMIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSk\n-----END PRIVATE KEY-----`
)

// TestSecrets has fifty secrets in fifty places of a cluster.
func TestSecrets(t *testing.T) {
	pod := func(container string) string {
		return `{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {nodeName: kept, containers: [{name: c, image: "registry.example/c:1", ` + container + `}]}}`
	}
	object := func(apiVersion, kind, rest string) string {
		return fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: kept}, %s}", apiVersion, kind, rest)
	}
	controlPlane := func(spec string) string {
		return object("controlplane.cluster.x-k8s.io/v1beta2", "KubeadmControlPlane", "spec: {replicas: 3, kubeadmConfigSpec: {"+spec+"}}")
	}
	infrastructure := func(spec string) string {
		return object("infrastructure.cluster.x-k8s.io/v1beta1", "XMachine", "spec: {providerID: 'x://kept', "+spec+"}")
	}
	annotated := func(apiVersion, kind, annotations string) string {
		return fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: kept, annotations: {%s}}}", apiVersion, kind, annotations)
	}
	event := func(message string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Event, metadata: {name: e}, reason: kept, message: %q}", message)
	}
	condition := func(message string) string {
		return object("cluster.x-k8s.io/v1beta2", "Machine", fmt.Sprintf("status: {conditions: [{type: Ready, status: 'False', reason: kept, message: %q, secret: %q}]}", message, word))
	}
	for _, test := range []struct {
		place, secret string
		// object is in YAML, and text of a log.
		object, text string
		ours         bool
	}{
		// Kinds.
		{place: "a Secret", secret: encoded, object: object("v1", "Secret", "type: kept, data: {value: "+encoded+"}")},
		{place: "the name of a Secret's file", secret: hexadecimal, object: object("v1", "Secret", "type: kept, data: {"+hexadecimal+": YQ==}")},
		{place: "a ConfigMap", secret: password, object: object("v1", "ConfigMap", "data: {settings: '"+password+"'}")},
		{place: "a commands of a control plane", secret: awsSecret, object: controlPlane(`preKubeadmCommands: ["AWS_SECRET_ACCESS_KEY=` + awsSecret + ` /setup"]`)},
		{place: "an argument of an API server", secret: word,
			object: controlPlane(`clusterConfiguration: {apiServer: {extraArgs: [{name: oidc-client-secret, value: "` + word + `"}]}}`)},
		{place: "a file of a control plane", secret: password, object: controlPlane(`files: [{path: /etc/x, content: "` + password + `"}]`)},
		{place: "a user of a control plane", secret: word, object: controlPlane(`users: [{name: a, passwd: "` + word + `"}]`)},
		{place: "a Talos patch", secret: encoded, object: object("controlplane.cluster.x-k8s.io/v1alpha3", "TalosControlPlane",
			`spec: {version: kept, controlPlaneConfig: {controlplane: {strategicPatches: ["machine: {registries: {config: {r.example: {auth: {auth: `+encoded+`}}}}}"]}}}`)},
		{place: "values of a chart", secret: word, object: object("addons.cluster.x-k8s.io/v1alpha1", "HelmChartProxy", `spec: {valuesTemplate: "adminPass: `+word+`"}`)},
		{place: "a patch of a ClusterClass", secret: word, object: object("cluster.x-k8s.io/v1beta2", "ClusterClass",
			`spec: {patches: [{name: p, definitions: [{jsonPatches: [{op: add, path: /spec/x, value: "curl -u admin:`+word+` https://x"}]}]}]}`)},
		{place: "a default of a ClusterClass's variable", secret: password, object: object("cluster.x-k8s.io/v1beta2", "ClusterClass",
			`status: {variables: [{name: v, definitions: [{schema: {openAPIV3Schema: {default: "`+password+`"}}}]}]}`)},
		{place: "a variable of a Cluster", secret: word, object: object("cluster.x-k8s.io/v1beta2", "Cluster",
			`spec: {topology: {version: v1.36.3, variables: [{name: v, value: {x: "`+word+`"}}]}}`)},
		{place: "a command of a bootstrap config", secret: word, object: object("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfig",
			`spec: {preKubeadmCommands: ["echo `+word+` | passwd --stdin root"]}`)},
		{place: "a token of a bootstrap config", secret: bootstrap, object: object("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfigTemplate",
			`spec: {template: {spec: {joinConfiguration: {discovery: {bootstrapToken: {token: `+bootstrap+`}}, nodeRegistration: {name: kept}}}}}`)},
		{place: "an argument of a kubelet", secret: word, object: object("bootstrap.cluster.x-k8s.io/v1beta1", "KubeadmConfig",
			`spec: {joinConfiguration: {nodeRegistration: {kubeletExtraArgs: {node-labels: "a=b", x-opaque: "`+word+`"}}}}`)},
		{place: "an argument of a kubelet, in a list", secret: word, object: object("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfig",
			`spec: {joinConfiguration: {nodeRegistration: {kubeletExtraArgs: [{name: x-opaque, value: "`+word+`"}]}}}`)},
		{place: "an encryption key of a machine", secret: encoded, object: infrastructure("encryptionKey: {name: k, key: " + encoded + "}")},
		{place: "credentials of a machine", secret: word, object: infrastructure(`credentials: {key: "` + word + `"}`)},
		{place: "credentials in a machine template", secret: word, object: object("infrastructure.cluster.x-k8s.io/v1beta1", "XMachineTemplate",
			`spec: {template: {spec: {providerID: "x://kept", credentials: {key: "`+word+`"}}}}`)},
		{place: "user data of a machine", secret: encoded, object: infrastructure("userData: " + encoded)},
		{place: "metadata of a machine's provider", secret: word, object: infrastructure(`metadata: {startup-script: "` + word + `"}, customMetadata: {x: "` + word + `"}`)},
		{place: "the key of a map", secret: apiToken, object: infrastructure("tags: {" + apiToken + ": a}")},
		{place: "the status of a machine", secret: password, object: object("infrastructure.cluster.x-k8s.io/v1beta1", "XMachine", `status: {ready: true, console: "`+password+`"}`)},
		{place: "an unknown kind", secret: password, object: object("other.cluster.x-k8s.io/v1", "Unheard", `spec: {list: [{one: "`+password+`"}], deep: {deeper: "`+password+`"}}`)},
		{place: "a top-level field of it", secret: password, object: object("other.cluster.x-k8s.io/v1", "Unheard", `settings: "`+password+`"`)},
		{place: "a revision of a DaemonSet", secret: word, object: object("apps/v1", "ControllerRevision",
			`data: {spec: {template: {spec: {containers: [{env: [{name: A, value: "`+word+`"}]}]}}}}`)},
		{place: "a patch of a catalog", secret: word, object: object("karpenter.cluster.x-k8s.io/v1alpha1", "InstanceTypeCatalog",
			`spec: {templateRef: {name: kept}, patches: [{op: add, path: /spec/x, valueFrom: {template: "`+word+`"}}]}`)},
		{place: "a patch of a node class", secret: awsSecret, object: object("karpenter.cluster.x-k8s.io/v1alpha1", "ClusterAPINodeClass",
			`spec: {version: v1.36.3, bootstrapPatches: [{kind: X, patches: [{op: add, path: /spec/x, value: "`+awsSecret+`"}]}]}`)},
		{place: "user data of an EC2NodeClass", secret: password, object: object("karpenter.k8s.aws/v1", "EC2NodeClass", `spec: {role: kept, userData: "`+password+`"}`)},
		{place: "an option of a StorageClass", secret: word, object: object("storage.k8s.io/v1", "StorageClass",
			`provisioner: kept, mountOptions: ["password=`+word+`"], parameters: {opaque: "`+word+`"}`)},

		// Environment, flags and more of containers.
		{place: "an environment variable", secret: word, object: pod(`env: [{name: PLAIN, value: "` + word + `"}]`)},
		{place: "an argument", secret: password, object: pod(`args: ["` + password + `"]`)},
		{place: "a probe's header", secret: encoded, object: pod("livenessProbe: {httpGet: {httpHeaders: [{name: X-Kept, value: " + encoded + "}]}}")},
		{place: "a flag of AutoNode's", secret: word, ours: true, object: pod(`args: ["--cluster-name=kept", "--registry-password=` + word + `"]`)},
		{place: "a flag of AutoNode's and its value", secret: word, ours: true, object: pod(`args: ["--registry-password", "` + word + `"]`)},
		{place: "a proxy of AutoNode's", secret: "p/w@" + word, ours: true, object: pod(`args: ["--proxy=https://user:p/w@` + word + `@proxy.example"]`)},

		// Annotations and labels.
		{place: "an annotation of a stranger's", secret: word, object: annotated("v1", "Node", `vault.example.com/x: "`+word+`"`)},
		{place: "kubeadm's annotation", secret: word, object: annotated("cluster.x-k8s.io/v1beta2", "Machine",
			`controlplane.cluster.x-k8s.io/kubeadm-cluster-configuration: '{"apiServer":{"extraArgs":{"x":"`+word+`"}}}'`)},
		{place: "an annotation of Karpenter's", secret: awsSecret, object: annotated("v1", "Node", `karpenter.sh/note: "`+awsSecret+`"`)},
		{place: "the object that kubectl keeps", secret: word, object: annotated("v1", "Node", `kubectl.kubernetes.io/last-applied-configuration: '{"x":"`+word+`"}'`)},

		// Events and conditions.
		{place: "an event with a key", secret: awsSecret, object: event("kept: aws_secret_access_key = " + awsSecret)},
		{place: "an event with a private key", secret: pem, object: event("kept " + pem)},
		{place: "an event with a URL", secret: "p/w@" + word, object: event("kept https://user:p/w@" + word + "@host/path")},
		{place: "a condition with a quoted value", secret: password, object: condition(`kept password: '` + password + `'`)},
		{place: "a condition with JSON", secret: encoded, object: condition(`kept {"auth":"` + encoded + `"} of {"auths":{"r.example":{"auth": "` + encoded + `"}}}`)},
		{place: "a condition with JSON in JSON", secret: password, object: condition(`kept "{\"password\":\"` + password + `\"}"`)},

		// Logs.
		{place: "a field of a log", secret: password, text: `2026-11-26T03:00:00Z {"level":"info","msg":"kept","password":"` + password + `"}` + "\n"},
		{place: "a message of a log", secret: github, text: `{"level":"info","msg":"kept: cloning with ` + github + `"}`},
		{place: "an object in a log", secret: word, text: `{"level":"info","msg":"kept","credentials":{"user":"a","x":"` + word + `"},"Secret":{"name":"kept"}}`},
		{place: "a query in a log", secret: "abc%2Fdef" + hexadecimal, text: "kept GET https://blob.example/x?sv=2027&sig=abc%2Fdef" + hexadecimal + "&se=2027"},
		{place: "a token in a log", secret: jwt, text: "kept " + jwt},
		{place: "a token without a name in a log", secret: apiToken, text: "kept: refused " + apiToken + " of host"},
		{place: "digits without a name in a log", secret: hexadecimal, text: "kept: refused " + hexadecimal},
		{place: "a secret key without a name in a log", secret: awsSecret, text: "kept: (" + awsSecret + ")"},
		{place: "a connection string", secret: encoded, text: "kept DefaultEndpointsProtocol=https;AccountName=a;AccountKey=" + encoded + ";EndpointSuffix=x"},
		{place: "a data source", secret: word, text: "kept dial db:" + word + "@tcp(10.0.0.1:3306)/x"},
		{place: "a variable of a shell", secret: word, text: "kept\nexport VSPHERE_PASS=" + word + "\n"},
		{place: "a flag of curl", secret: word, text: "kept: curl -u admin:" + word + " https://x"},
		{place: "a flag of sshpass", secret: word, text: "kept: sshpass -p " + word + " ssh x"},
		{place: "a flag and its value", secret: word, text: "kept: run --client-secret " + word + " --zone a"},
		{place: "YAML", secret: apiToken, text: "kept\nclient_key: |\n  MIIEvg" + apiToken + "\n  more" + apiToken + "\nother: kept\n"},
		{place: "a phrase", secret: word, text: "kept: login with password " + word + " failed"},
		{place: "an unquoted password with blanks", secret: "correct-horse7 battery staple", text: "kept\npassword: correct-horse7 battery staple\n"},
		{place: "a header", secret: word, text: "kept\nX-Auth-Token: " + word + "\nCookie: a=b; session=" + word + "\n"},
		{place: "another header", secret: hexadecimal, text: "kept Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20261126/x, Signature=" + hexadecimal},
		{place: "a struct that Go printed", secret: word, text: "kept {Name:a Password:" + word + " Secret:{Key:" + word + "}}"},
	} {
		t.Run("When "+test.place+" has a secret, the bundle should not", func(t *testing.T) {
			g := NewWithT(t)
			out := ""
			if test.object != "" {
				out = redacted(t, test.object, test.ours)
				g.Expect(test.object).To(ContainSubstring(strings.Split(test.secret, `\n`)[0]), "the place has it")
			} else {
				out = dump.Text(test.text)
			}
			for _, part := range parts(test.secret) {
				g.Expect(out).NotTo(ContainSubstring(part))
			}
			if strings.Contains(test.object+test.text, "kept") {
				g.Expect(out).To(ContainSubstring("kept"))
			}
		})
	}
}

// parts are the words of a secret, none of which may stay either.
func parts(secret string) []string {
	found := []string{secret}
	for _, part := range regexp.MustCompile(`[^A-Za-z0-9]+`).Split(secret, -1) {
		if len(part) >= 4 && part != "BEGIN" && part != "PRIVATE" {
			found = append(found, part)
		}
	}
	return found
}
