// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/wellknown"
)

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
		{"When the bounds of kubelets aren't an object of theirs, it should say so",
			[]string{"--cluster-name=blue", "--namespace=n", `--kubelet-bounds={"max":{"pods":1}}`}, "--kubelet-bounds isn't an object with forbidden, max, min and allowedFields, in JSON"},
		{"When the allowed bootstrap patches are null, it should say so, as it would allow any",
			[]string{"--cluster-name=blue", "--namespace=n", "--allowed-bootstrap-patches=null"}, "--allowed-bootstrap-patches isn't a list as spec.bootstrapPatches of a node class has it, in JSON: it is null"},
		{"When an allowed bootstrap patch has an unknown field, it should name it",
			[]string{"--cluster-name=blue", "--namespace=n", `--allowed-bootstrap-patches=[{"kinds":"A"}]`}, `unknown field "kinds"`},
		{"When no NodeRecord would be kept, it should say so",
			[]string{"--cluster-name=blue", "--namespace=n", "--node-record-limit=0"}, "--node-record-days 7 and --node-record-limit 0 must be positive"},
		{"When there is an argument that is no flag, it should name it", []string{"--cluster-name=blue", "--namespace=n", "please"}, `unexpected argument "please"`},
		{"When a flag isn't known, it should name it", []string{"--cluster-api-kubeconfig=/k"}, "cluster-api-kubeconfig"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, name := range []string{"CLUSTER_NAME", "POD_NAMESPACE", "NODE_VERSION", "GUEST_KUBECONFIG", "MANAGEMENT_KUBECONFIG", "ZONE_TOPOLOGY_KEYS", "REGION_TOPOLOGY_KEYS"} {
				t.Setenv(name, "")
			}
			if _, _, err := ParseOptions(tc.args, io.Discard); err == nil || !strings.Contains(err.Error(), tc.want) {
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
		t.Setenv("ALLOWED_BOOTSTRAP_PATCHES", "[]")
		t.Setenv("NODE_RECORD_DAYS", "30")
		t.Setenv("KUBELET_BOUNDS", `{"forbidden":["clusterDNS"]}`)
		got, _, err := ParseOptions(nil, io.Discard)
		want := Options{
			GuestKubeconfig: "/guest", ManagementKubeconfig: "/management", ClusterName: "blue", Namespace: "clusters-blue", NodeVersion: "v1.36.3",
			ZoneTopologyKeys: "csi.example.com/zone", RegionTopologyKeys: "csi.example.com/region", MemoryOverhead: "5%",
			SharedCatalogNamespace: "autonode-catalogs", KubeletBounds: `{"forbidden":["clusterDNS"]}`,
			AllowedBootstrapPatches: "[]", NodeRecordDays: 30, NodeRecordLimit: 1000,
			Parsed: Parsed{
				AllowedPatches: []v1alpha1.BootstrapPatches{},
				KubeletBounds:  &v1alpha1.KubeletBounds{Forbidden: []v1alpha1.KubeletField{"clusterDNS"}},
				TopologyKeys:   wellknown.TopologyKeys{Zone: []string{"csi.example.com/zone"}, Region: []string{"csi.example.com/region"}},
				MemoryOverhead: 0.05,
			},
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("options, %v (-want +got):\n%s", err, diff)
		}
	})
}
