// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestNodeRecordName(t *testing.T) {
	const uid = "1a2b3c4d-0000-4000-8000-000000000000"
	for name, test := range map[string]struct {
		claim string
		uid   types.UID
		want  string
	}{
		"When a NodeClaim has a UID, the name should end in its start":            {"web-x1", uid, "web-x1-1a2b3c4d"},
		"When a name is as long as it can be, it should make room for that":       {strings.Repeat("n", 253), uid, strings.Repeat("n", 244) + "-1a2b3c4d"},
		"When a guest answers with a NodeClaim without a UID, it shouldn't panic": {"web-x1", "", "web-x1-"},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(NodeRecordName(&metav1.ObjectMeta{Name: test.claim, UID: test.uid})).To(Equal(test.want))
		})
	}
}
