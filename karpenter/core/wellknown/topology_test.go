// SPDX-License-Identifier: Apache-2.0

package wellknown_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/karpenter/core/wellknown"
)

// alternatives is what Karpenter's scheduler demands of a node for a pod's only volume.
func alternatives(t *testing.T, objects ...client.Object) []karpscheduling.Requirements {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-0"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
		Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"}},
	}}}}
	found, err := scheduling.NewVolumeTopology(fake.NewClientBuilder().WithObjects(objects...).Build()).GetRequirements(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func bound(key string) []client.Object {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data-db-0"}}
	claim.Spec.VolumeName = "pv-1"
	// Karpenter core requests it with the pod's namespace, which only an API server ignores.
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pv-1"}}
	volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}},
	}}}}
	return []client.Object{claim, volume}
}

func restricted(key string) []client.Object {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data-db-0"}}
	claim.Spec.StorageClassName = ptr.To("fast")
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}}
	class.AllowedTopologies = []corev1.TopologySelectorTerm{{
		MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: key, Values: []string{"b"}}},
	}}
	return []client.Object{claim, class}
}

func TestTopologyKeys(t *testing.T) {
	// A NodeClaim of a NodePool that reports nothing about zones, and what its offerings have.
	inZone := func(zone string) karpscheduling.Requirements {
		return karpscheduling.NewRequirements(
			karpscheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, zone),
			karpscheduling.NewRequirement(corev1.LabelTopologyRegion, corev1.NodeSelectorOpIn, zone),
		)
	}
	check := func(t *testing.T, key string) {
		t.Helper()
		for name, objects := range map[string][]client.Object{"PersistentVolume": bound(key), "StorageClass": restricted(key)} {
			for _, demanded := range alternatives(t, objects...) {
				nodeClaim := karpscheduling.NewRequirements()
				if err := nodeClaim.Compatible(demanded, karpscheduling.AllowUndefinedWellKnownLabels); err != nil {
					t.Errorf("%s with %s: no NodeClaim may have it: %v", name, key, err)
				}
				nodeClaim.Add(demanded.Values()...)
				if nodeClaim.Intersects(inZone("b")) != nil || nodeClaim.Intersects(inZone("a")) == nil {
					t.Errorf("%s with %s: a node in b fits %v, a node in a doesn't", name, key, nodeClaim)
				}
			}
		}
	}
	for _, key := range []string{
		"topology.cinder.csi.openstack.org/zone", "topology.csi.vmware.com/k8s-zone", "topology.disk.csi.azure.com/zone",
		"topology.ebs.csi.aws.com/zone", "topology.gke.io/zone", "topology.manila.csi.openstack.org/zone", "topology.csi.vmware.com/k8s-region",
	} {
		t.Run("When a volume is limited by the driver's key "+key+", its pod should get a node there and nowhere else", func(t *testing.T) {
			check(t, key)
		})
	}
	t.Run("When a platform names more keys, their volumes' pods should get a node too", func(t *testing.T) {
		keys, err := wellknown.ParseTopologyKeys("csi.example.com/zone, topology.example.org/rack,", "csi.example.com/region")
		if err != nil {
			t.Fatal(err)
		}
		wellknown.Normalize(keys)
		for _, key := range []string{"csi.example.com/zone", "topology.example.org/rack", "csi.example.com/region"} {
			check(t, key)
		}
	})
}

func TestParseTopologyKeys(t *testing.T) {
	for name, tc := range map[string]struct{ zone, region, want string }{
		"When a key is none of a label, it should name it":          {"a b/c/d", "", `"b/c/d" is not the key of a label`},
		"When a key is the node's name, it should reject it":        {"kubernetes.io/hostname", "", `"kubernetes.io/hostname" is a label of Kubernetes or Karpenter`},
		"When a key is Karpenter's, it should reject it":            {"karpenter.sh/capacity-type", "", `"karpenter.sh/capacity-type" is a label of`},
		"When a key is the provider's, it should reject it":         {wellknown.InstanceCPULabel, "", `"karpenter.cluster.x-k8s.io/instance-cpu" is a label of`},
		"When a key is that of regions itself, it should reject it": {"", "topology.kubernetes.io/region", `"topology.kubernetes.io/region" is a label of`},
		"When a key means an architecture, it should reject it":     {"beta.kubernetes.io/arch", "", `"beta.kubernetes.io/arch" is a label of`},
		"When a key is in both lists, it should say so":             {"x.io/a", "x.io/a", `"x.io/a" is a key of zones and of regions`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := wellknown.ParseTopologyKeys(tc.zone, tc.region); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
	t.Run("When there are no keys, it should add none", func(t *testing.T) {
		if keys, err := wellknown.ParseTopologyKeys("", ""); err != nil || len(keys.Zone)+len(keys.Region) > 0 {
			t.Error(keys, err)
		}
	})
}
