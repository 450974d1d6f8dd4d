// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"
)

// kubeconfigFile writes one that leads to https://<name>.
func kubeconfigFile(t *testing.T, name string) string {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + name}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	file := filepath.Join(t.TempDir(), name)
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestTopologies are those of docs/topologies.md. A service account is stood for by the kubeconfig own: it is what a program has
// without any flag.
func TestTopologies(t *testing.T) {
	own, guest, management := kubeconfigFile(t, "own"), kubeconfigFile(t, "guest"), kubeconfigFile(t, "management")
	for _, tc := range []struct {
		name                      string
		args                      []string
		wantManagement, wantGuest string
	}{
		{"When the cluster is joined, it should use one for both", nil, "own", "own"},
		{"When it runs in the management cluster, it should reach the guest by its kubeconfig", []string{"--guest-kubeconfig=" + guest}, "own", "guest"},
		{"When it runs in the guest, it should reach the management cluster by its kubeconfig", []string{"--management-kubeconfig=" + management}, "management", "own"},
		{"When it runs anywhere, it should use both kubeconfigs",
			[]string{"--guest-kubeconfig=" + guest, "--management-kubeconfig=" + management}, "management", "guest"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", own)
			t.Setenv("LEADER_ELECTION_NAMESPACE", "")
			t.Setenv("LEADER_ELECTION_NAME", "")
			opts, err := parseOptions(append(tc.args, "--cluster-name=blue", "--namespace=clusters-blue"), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			managed, err := managementConfig(opts)
			if err != nil {
				t.Fatal(err)
			}
			if err := setEnvironment(opts); err != nil {
				t.Fatal(err)
			}
			guests, err := ctrl.GetConfig()
			if err != nil {
				t.Fatal(err)
			}
			got := []string{managed.Host, guests.Host, os.Getenv("LEADER_ELECTION_NAMESPACE") + "/" + os.Getenv("LEADER_ELECTION_NAME")}
			want := []string{"https://" + tc.wantManagement, "https://" + tc.wantGuest, "clusters-blue/karpenter-leader-election-blue"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("management, guest and Lease (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("When the environment names the Lease, it should keep that", func(t *testing.T) {
		t.Setenv("LEADER_ELECTION_NAMESPACE", "here")
		t.Setenv("LEADER_ELECTION_NAME", "this")
		if err := setEnvironment(Options{Namespace: "clusters-blue", ClusterName: "blue"}); err != nil {
			t.Fatal(err)
		}
		if got := os.Getenv("LEADER_ELECTION_NAMESPACE") + "/" + os.Getenv("LEADER_ELECTION_NAME"); got != "here/this" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("When a kubeconfig doesn't exist, it should say which cluster can't be found", func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "missing")
		if _, err := managementConfig(Options{ManagementKubeconfig: missing}); err == nil || !strings.Contains(err.Error(), "finding the management cluster: ") {
			t.Error(err)
		}
		if err := setEnvironment(Options{GuestKubeconfig: missing}); err == nil || !strings.Contains(err.Error(), "finding the guest cluster: ") {
			t.Error(err)
		}
	})
}

func TestOptions(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"When the Cluster isn't named, it should say which flag does", []string{"--namespace=n"}, "--cluster-name (CLUSTER_NAME) is needed"},
		{"When the namespace isn't named, it should say which flag does", []string{"--cluster-name=blue"}, "--namespace (POD_NAMESPACE) is needed"},
		{"When the Cluster's name can't be one, it should say so", []string{"--cluster-name=Blue", "--namespace=n"}, `--cluster-name "Blue"`},
		{"When the namespace's name can't be one, it should say so", []string{"--cluster-name=blue", "--namespace=a.b"}, `--namespace "a.b"`},
		{"When the version is none, it should say so", []string{"--cluster-name=blue", "--namespace=n", "--node-version=latest"}, `--node-version "latest" isn't a version`},
		{"When the memory overhead is no percentage, it should say so", []string{"--cluster-name=blue", "--namespace=n", "--vm-memory-overhead=0.075"}, `--vm-memory-overhead "0.075" is not a percentage below 100%`},
		{"When both kubeconfigs are the same file, it should say what to set instead",
			[]string{"--cluster-name=blue", "--namespace=n", "--guest-kubeconfig=/k", "--management-kubeconfig=/k"}, "set KUBECONFIG instead"},
		{"When a topology key can't be a CSI driver's, it should name it",
			[]string{"--cluster-name=blue", "--namespace=n", "--zone-topology-keys=kubernetes.io/hostname"}, `--zone-topology-keys and --region-topology-keys: "kubernetes.io/hostname"`},
		{"When there is an argument that is no flag, it should name it", []string{"--cluster-name=blue", "--namespace=n", "please"}, `unexpected argument "please"`},
		{"When a flag isn't known, it should name it", []string{"--cluster-api-kubeconfig=/k"}, "cluster-api-kubeconfig"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, name := range []string{"CLUSTER_NAME", "POD_NAMESPACE", "NODE_VERSION", "GUEST_KUBECONFIG", "MANAGEMENT_KUBECONFIG", "ZONE_TOPOLOGY_KEYS", "REGION_TOPOLOGY_KEYS"} {
				t.Setenv(name, "")
			}
			if _, err := parseOptions(tc.args, io.Discard); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
	t.Run("When the environment holds the options, it should take them from there", func(t *testing.T) {
		t.Setenv("CLUSTER_NAME", "blue")
		t.Setenv("POD_NAMESPACE", "clusters-blue")
		t.Setenv("NODE_VERSION", "v1.36.3")
		t.Setenv("GUEST_KUBECONFIG", "/guest")
		t.Setenv("MANAGEMENT_KUBECONFIG", "/management")
		t.Setenv("ZONE_TOPOLOGY_KEYS", "csi.example.com/zone")
		t.Setenv("REGION_TOPOLOGY_KEYS", "csi.example.com/region")
		t.Setenv("VM_MEMORY_OVERHEAD", "5%")
		t.Setenv("SHARED_CATALOG_NAMESPACE", "autonode-catalogs")
		got, err := parseOptions(nil, io.Discard)
		want := Options{
			GuestKubeconfig: "/guest", ManagementKubeconfig: "/management", ClusterName: "blue", Namespace: "clusters-blue", NodeVersion: "v1.36.3",
			ZoneTopologyKeys: "csi.example.com/zone", RegionTopologyKeys: "csi.example.com/region", MemoryOverhead: "5%",
			SharedCatalogNamespace: "autonode-catalogs",
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("options, %v (-want +got):\n%s", err, diff)
		}
	})
}
