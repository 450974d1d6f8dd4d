// SPDX-License-Identifier: Apache-2.0

package bootstrap_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	certutil "k8s.io/client-go/util/cert"

	"github.com/autonode-io/autonode/test/world/infrastructure/bootstrap"
	"github.com/autonode-io/autonode/test/world/pki"
)

var instance = bootstrap.Instance{Hostname: "m-1", ProviderID: "kwok://ns/m-1", Zone: "a", Region: "here"}

// cloudConfig wraps kubeadm's configuration as Cluster API's kubeadm bootstrap provider does.
func cloudConfig(join string) string {
	return fmt.Sprintf("## template: jinja\n#cloud-config\n\nwrite_files:\n"+
		"-   path: %s\n    owner: root:root\n    permissions: '0640'\n    content: |\n      %s\n"+
		"runcmd:\n  - kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml  && echo success\n",
		bootstrap.JoinConfigurationPath, strings.ReplaceAll(strings.TrimSpace(join), "\n", "\n      "))
}

// join is a JoinConfiguration with a node registration.
func join(registration string) string {
	return "---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration:\n  " +
		strings.ReplaceAll(strings.TrimSpace(registration), "\n", "\n  ") + "\n"
}

func TestRead(t *testing.T) {
	maxPods := func(n int64) *int64 { return &n }
	quantity := resource.MustParse
	for name, test := range map[string]struct {
		userData string
		want     bootstrap.Kubelet
	}{
		"When the arguments are a list, it should read them (v1beta4)": {
			cloudConfig(join(`
imagePullPolicy: IfNotPresent
kubeletExtraArgs:
- {name: node-labels, value: "karpenter.sh/nodepool=web, node.kubernetes.io/role=x,"}
- {name: max-pods, value: "30"}
- {name: max-pods, value: "31"}
taints:
- {key: karpenter.sh/unregistered, effect: NoExecute}
- {key: node.cluster.x-k8s.io/uninitialized, effect: NoSchedule}`)),
			bootstrap.Kubelet{
				NodeName: "m-1",
				Labels:   map[string]string{"karpenter.sh/nodepool": "web", "node.kubernetes.io/role": "x"},
				Taints: []corev1.Taint{
					{Key: "karpenter.sh/unregistered", Effect: "NoExecute"},
					{Key: "node.cluster.x-k8s.io/uninitialized", Effect: "NoSchedule"},
				},
				MaxPods: maxPods(31),
			},
		},
		"When values refer to the instance's metadata, it should read them, and what is reserved": {
			cloudConfig(join(`
name: '{{ ds.meta_data.local_hostname }}'
kubeletExtraArgs:
- {name: node-labels, value: "topology.kubernetes.io/zone={{ v1.availability_zone }},team=web"}
- {name: provider-id, value: '{{ ds.meta_data["provider_id"] }}'}
- {name: system-reserved, value: "cpu=100m,memory=256Mi,pid=1000"}
- {name: kube-reserved, value: "cpu=200m,ephemeral-storage=1Gi"}
- {name: eviction-hard, value: "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%"}
taints: []`)),
			bootstrap.Kubelet{
				NodeName: "m-1",
				Labels:   map[string]string{"topology.kubernetes.io/zone": "a", "team": "web"},
				Reserved: corev1.ResourceList{
					"cpu": quantity("300m"), "memory": quantity("356Mi"), "ephemeral-storage": quantity("1Gi"),
				},
				EvictionShares: map[corev1.ResourceName]float64{"ephemeral-storage": 0.1},
			},
		},
		"When flags set what no Node shows, it should read them, and the pods per core": {
			cloudConfig(join(`
kubeletExtraArgs:
- {name: cluster-dns, value: "10.96.0.10,fd00::a"}
- {name: pods-per-core, value: "8"}
- {name: eviction-soft, value: "memory.available<500Mi,nodefs.available<15%"}
- {name: eviction-soft-grace-period, value: "memory.available=1m30s,nodefs.available=2m"}
- {name: eviction-max-pod-grace-period, value: "-1"}
- {name: image-gc-high-threshold, value: "70"}
- {name: image-gc-low-threshold, value: "60"}
- {name: cpu-cfs-quota, value: "false"}
- {name: pod-max-pids, value: "4096"}`)),
			bootstrap.Kubelet{NodeName: "m-1", PodsPerCore: 8, Settings: map[string]string{
				"cluster-dns": "10.96.0.10,fd00::a", "eviction-soft": "memory.available<500Mi,nodefs.available<15%",
				"eviction-soft-grace-period": "memory.available=1m30s,nodefs.available=2m", "eviction-max-pod-grace-period": "-1",
				"image-gc-high-threshold": "70", "image-gc-low-threshold": "60", "cpu-cfs-quota": "false", "pod-max-pids": "4096",
			}},
		},
		"When the name is given, the node should have it": {
			cloudConfig(join(`name: other.example`)),
			bootstrap.Kubelet{NodeName: "other.example"},
		},
		"When other files have an encoding, it should not matter": {
			strings.Replace(cloudConfig(join("{}")), "write_files:\n", "write_files:\n- {path: /x, encoding: gz+b64, content: H4sI}\n", 1),
			bootstrap.Kubelet{NodeName: "m-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := bootstrap.Read(map[string][]byte{"value": []byte(test.userData)}, instance)
			if err != nil {
				t.Fatalf("unexpected error: %v\n%s", err, test.userData)
			}
			equalQuantities := cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })
			if diff := cmp.Diff(&test.want, got, cmpopts.EquateEmpty(), equalQuantities); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDiscovery(t *testing.T) {
	authority, err := pki.NewAuthority("blue")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.NewAuthority("green")
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := certutil.ParseCertsPEM(authority.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	pin := fmt.Sprintf("sha256:%x", sha256.Sum256(certificate[0].RawSubjectPublicKeyInfo))
	read := func(t *testing.T, discovery string) *bootstrap.Kubelet {
		t.Helper()
		kubelet, err := bootstrap.Read(map[string][]byte{"value": []byte(cloudConfig(join("{}") + "discovery:\n  " + discovery))}, instance)
		if err != nil {
			t.Fatal(err)
		}
		return kubelet
	}

	t.Run("When there is a bootstrap token, it should be found, and only the CA that is pinned be trusted", func(t *testing.T) {
		got := read(t, `bootstrapToken: {apiServerEndpoint: "127.0.0.1:6443", token: abcdef.0123456789abcdef, caCertHashes: [`+pin+`]}`).Discovery
		if got == nil || got.Server != "https://127.0.0.1:6443" || got.Token != "abcdef.0123456789abcdef" {
			t.Fatalf("got %+v", got)
		}
		if err := got.Trusts(authority.Certificate); err != nil {
			t.Error(err)
		}
		if err := got.Trusts(other.Certificate); err == nil {
			t.Error("another CA is trusted")
		}
		if err := got.Trusts(append(slices.Clone(other.Certificate), authority.Certificate...)); err != nil {
			t.Error(err)
		}
	})

	t.Run("When there is another token for the certificate, it should be used", func(t *testing.T) {
		got := read(t, `{tlsBootstrapToken: ghijkl.0123456789abcdef, bootstrapToken: {apiServerEndpoint: "a:1", unsafeSkipCAVerification: true}}`).Discovery
		if got == nil || got.Token != "ghijkl.0123456789abcdef" || got.Trusts(other.Certificate) != nil {
			t.Errorf("got %+v", got)
		}
	})

	t.Run("When there is no bootstrap token, there should be no discovery", func(t *testing.T) {
		if got := read(t, `{file: {kubeConfigPath: /etc/kubernetes/bootstrap.conf}}`).Discovery; got != nil {
			t.Errorf("got %+v", got)
		}
	})

	t.Run("When the kubelet is configured to request its serving certificate, it should", func(t *testing.T) {
		document := join(`kubeletExtraArgs: [{name: rotate-server-certificates, value: "true"}]`)
		kubelet, err := bootstrap.Read(map[string][]byte{"value": []byte(cloudConfig(document))}, instance)
		if err != nil || !kubelet.ServingCertificate {
			t.Errorf("%+v, %v", kubelet, err)
		}
	})
}

func TestReadMalformed(t *testing.T) {
	args := func(name, value string) string {
		return cloudConfig(join(fmt.Sprintf("kubeletExtraArgs: [{name: %s, value: %q}]", name, value)))
	}
	const file = bootstrap.JoinConfigurationPath + ": "
	for name, test := range map[string]struct {
		userData string
		want     string
	}{
		"nothing":                {"", `not a cloud-config: it starts with "" instead of "#cloud-config"`},
		"no YAML":                {"#cloud-config\nwrite_files: [", "reading the cloud-config: "},
		"an unknown jinja":       {"## template: jinja\n#cloud-config\n# {{ ds.meta_data.rack }}", "rendering the cloud-config: no such instance metadata: ds.meta_data.rack"},
		"no join file":           {"#cloud-config\nwrite_files: []", "write_files has no /run/kubeadm/kubeadm-join-config.yaml"},
		"an encoded join file":   {"#cloud-config\nwrite_files: [{path: " + bootstrap.JoinConfigurationPath + ", content: H4sI, encoding: gz}]", `has the encoding "gz"; none is wanted`},
		"an init file":           {cloudConfig("apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration"), file + `apiVersion "kubeadm.k8s.io/v1beta4" and kind "InitConfiguration": `},
		"patches":                {cloudConfig(join("{}") + "patches: {directory: /p}"), file + "patches: the world's machines don't apply"},
		"another provider ID":    {args("provider-id", "aws:///i-1"), `provider-id: it is "aws:///i-1", but the machine's is "kwok://ns/m-1"`},
		"no registration":        {args("register-node", "false"), "don't know register-node"},
		"arguments of a kind":    {cloudConfig(join("kubeletExtraArgs: 7")), file + "JoinConfiguration: "},
		"a bad node name":        {cloudConfig(join("name: Not_A_Name")), file + `nodeRegistration.name "Not_A_Name": `},
		"labels without value":   {args("node-labels", "a,b=c"), `node-labels: "a": key=value is wanted`},
		"a bad label key":        {args("node-labels", "a/b/c=d"), `node-labels: "a/b/c": `},
		"a bad label value":      {args("node-labels", "a=b c"), `node-labels: a="b c": `},
		"a label of Kubernetes":  {args("node-labels", "node-role.kubernetes.io/web="), `node-labels: "node-role.kubernetes.io/web": a kubelet refuses`},
		"no token":               {cloudConfig(join("{}") + "discovery: {bootstrapToken: {apiServerEndpoint: 'a:1', unsafeSkipCAVerification: true}}"), "discovery.bootstrapToken.token is no bootstrap token"},
		"a token without server": {cloudConfig(join("{}") + "discovery: {bootstrapToken: {token: abcdef.0123456789abcdef}}"), "discovery.bootstrapToken.apiServerEndpoint is missing"},
		"a token without a pin":  {cloudConfig(join("{}") + "discovery: {bootstrapToken: {apiServerEndpoint: 'a:1', token: abcdef.0123456789abcdef}}"), "neither caCertHashes nor"},
		"a flag that isn't one":  {args("rotate-server-certificates", "maybe"), `rotate-server-certificates: "maybe" is neither true nor false`},
		"a bad taint as field":   {cloudConfig(join("taints: [{key: a, effect: Never}]")), `nodeRegistration.taints[0]: effect "Never": `},
		"max-pods in words":      {args("max-pods", "many"), `max-pods: "many" is no number`},
		"negative max-pods":      {args("max-pods", "-1"), `max-pods: -1 is negative`},
		"a bad reservation":      {args("kube-reserved", "cpu=four"), `kube-reserved: cpu: "four" is not a quantity`},
		"a negative reservation": {args("system-reserved", "memory=-1Gi"), `system-reserved: memory: "-1Gi" is negative`},
		"an unknown reservation": {args("kube-reserved", "gpu=1"), `kube-reserved: "gpu" can't be reserved`},
		"an unknown signal":      {args("eviction-hard", "mood<1"), `eviction-hard: "mood" is no eviction signal`},
		"a bad DNS server":       {args("cluster-dns", "dns.example"), `cluster-dns: "dns.example" is no IP address`},
		"a threshold alone":      {args("eviction-soft", "memory.available<1Gi"), "eviction-soft: grace period must be specified for the soft eviction threshold memory.available"},
		"an unknown soft signal": {args("eviction-soft", "mood<1"), `eviction-soft: "mood" is no eviction signal`},
		"a bad soft threshold":   {args("eviction-soft", "memory.available<much"), `eviction-soft: memory.available: "much" is not a quantity`},
		"a bad grace period":     {args("eviction-soft-grace-period", "memory.available=soon"), `eviction-soft-grace-period: memory.available: "soon" is no grace period`},
		"a share above 100":      {args("image-gc-high-threshold", "101"), `image-gc-high-threshold: "101" is not between 0 and 100`},
		"shares upside down":     {args("image-gc-high-threshold", "70"), "image-gc-low-threshold: 80 must be less than image-gc-high-threshold 70"},
		"a quota of words":       {args("cpu-cfs-quota", "maybe"), `cpu-cfs-quota: "maybe" is neither true nor false`},
		"processes in words":     {args("pod-max-pids", "many"), `pod-max-pids: "many" is no number`},
		"pods per core in words": {args("pods-per-core", "many"), `pods-per-core: "many" is no number`},
		"a bad share":            {args("eviction-hard", "memory.available<200%"), `eviction-hard: memory.available: "200"% is not a percentage`},
	} {
		t.Run("When the bootstrap data is "+name+", it should name that", func(t *testing.T) {
			_, err := bootstrap.Read(map[string][]byte{"value": []byte(test.userData)}, instance)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
	for name, test := range map[string]struct {
		data map[string][]byte
		want string
	}{
		"When the Secret has no value, it should say so":              {nil, `key "value" is missing`},
		"When the format is another, it should name what it supports": {map[string][]byte{"value": nil, "format": []byte("ignition")}, `key "format" is "ignition"; only cloud-config`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := bootstrap.Read(test.data, instance)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(cloudConfig(join("taints: [{key: a, effect: NoSchedule}]"))))
	f.Fuzz(func(t *testing.T, userData []byte) {
		kubelet, err := bootstrap.Read(map[string][]byte{"value": userData}, instance)
		if (kubelet == nil) == (err == nil) {
			t.Errorf("got %v and %v: either is wanted", kubelet, err)
		}
	})
}

func TestReadScript(t *testing.T) {
	t.Run("When bootstrap data have files and commands, it should read both, rendered", func(t *testing.T) {
		script, err := bootstrap.ReadScript([]byte(`## template: jinja
#cloud-config
write_files:
- {path: /etc/a, owner: "root:root", permissions: '0640', content: "{{ ds.meta_data.provider_id }}", append: true}
runcmd:
- kubeadm join
- [echo, 1, "a b"]
`), instance)
		if err != nil {
			t.Fatal(err)
		}
		want := &bootstrap.Script{
			Files:    []bootstrap.File{{Path: "/etc/a", Owner: "root:root", Permissions: "0640", Content: "kwok://ns/m-1", Append: true}},
			Commands: [][]string{{"kubeadm join"}, {"echo", "1", "a b"}},
		}
		if diff := cmp.Diff(want, script); diff != "" {
			t.Errorf("script (-want +got):\n%s", diff)
		}
	})
	for name, test := range map[string]struct{ data, want string }{
		"data are of another format":          {"{ignition: {}}", "not a cloud-config"},
		"data ask for another module":         {"#cloud-config\nusers: [{name: a}]\n", `unknown field "users"`},
		"a command is neither line nor words": {"#cloud-config\nruncmd: [{a: b}]\n", "runcmd[0] is neither a line nor a list of words"},
		"metadata are unknown":                {"## template: jinja\n#cloud-config\nruncmd: ['{{ ds.meta_data.color }}']\n", "no such instance metadata"},
	} {
		t.Run("When "+name+", it should say so", func(t *testing.T) {
			if _, err := bootstrap.ReadScript([]byte(test.data), instance); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
