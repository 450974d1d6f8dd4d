// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestVolumeLimits(t *testing.T) {
	limited := func(limits map[string]int) *template.Template { return &template.Template{VolumeLimits: limits} }
	for name, test := range map[string]struct {
		templates []*template.Template
		want      map[string]int
	}{
		"When a template declares none, it should be unlimited": {[]*template.Template{limited(nil)}, nil},
		"When a template declares some, it should have them": {
			[]*template.Template{limited(map[string]int{"a.csi": 25, "b.csi": 0})}, map[string]int{"a.csi": 25, "b.csi": 0},
		},
		"When templates of a type differ, it should have what each can attach": {
			[]*template.Template{limited(map[string]int{"a.csi": 25}), limited(map[string]int{"a.csi": 8, "b.csi": 4}), limited(nil)}, map[string]int{"a.csi": 8, "b.csi": 4},
		},
	} {
		t.Run(name, func(t *testing.T) { NewWithT(t).Expect(volumeLimitsOf(test.templates)).To(Equal(test.want)) })
	}
}
