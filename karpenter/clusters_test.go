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

	"github.com/autonode-io/autonode/karpenter/operator"
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

// TestTopologies are those of docs/platform/topologies.md. A service account is stood for by the kubeconfig own: it is what a program has
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
			opts, _, err := operator.ParseOptions(append(tc.args, "--cluster-name=blue", "--namespace=clusters-blue"), io.Discard)
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
		if err := setEnvironment(operator.Options{Namespace: "clusters-blue", ClusterName: "blue"}); err != nil {
			t.Fatal(err)
		}
		if got := os.Getenv("LEADER_ELECTION_NAMESPACE") + "/" + os.Getenv("LEADER_ELECTION_NAME"); got != "here/this" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("When a kubeconfig doesn't exist, it should say which cluster can't be found", func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "missing")
		if _, err := managementConfig(operator.Options{ManagementKubeconfig: missing}); err == nil || !strings.Contains(err.Error(), "finding the management cluster: ") {
			t.Error(err)
		}
		if err := setEnvironment(operator.Options{GuestKubeconfig: missing}); err == nil || !strings.Contains(err.Error(), "finding the guest cluster: ") {
			t.Error(err)
		}
	})
}
