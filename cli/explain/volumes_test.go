// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/cli/explain"
)

func TestPodWithVolumes(t *testing.T) {
	const driver = "block.csi.example.com"
	limits := platform{volumeLimits: map[string]map[string]int{"small": {driver: 1}, "medium": {driver: 2}, "large": {driver: 4, "other.csi.example.com": 0}}}
	for volumes, want := range map[int]string{1: "small", 2: "medium", 3: "large", 5: ""} {
		t.Run(fmt.Sprintf("When a pod has %d volumes, it should get an instance type that can attach them", volumes), func(t *testing.T) {
			g := NewWithT(t)
			objects := []client.Object{nodeClass(nil), nodePool("general", nil), &storagev1.StorageClass{
				ObjectMeta: metav1.ObjectMeta{Name: "block"}, Provisioner: driver, VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
			}}
			web := pod("web", "1", nil)
			for i := range volumes {
				name := fmt.Sprintf("data-%d", i)
				objects = append(objects, &corev1.PersistentVolumeClaim{
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
					Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("block")},
				})
				web.Spec.Volumes = append(web.Spec.Volumes, corev1.Volume{
					Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}},
				})
			}
			answer, err := simulateWith(t, limits, append(objects, web)...).Pod(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"})
			g.Expect(err).NotTo(HaveOccurred())
			if want == "" {
				g.Expect(answer.Decision).To(Equal(explain.Unschedulable))
				return
			}
			g.Expect(answer.Decision).To(Equal(explain.Launches))
			g.Expect(answer.Summary).To(ContainSubstring("the cheapest " + want + " at"))
		})
	}
}
