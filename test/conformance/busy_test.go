// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestBusy(t *testing.T) {
	measured := func(loops, claims int, all float64) Measurement {
		return Measurement{Size: apart(BusyPods), BusyLoops: loops, NodeClaims: claims, Machines: claims, All: all}
	}
	for name, c := range map[string]struct {
		measurements []Measurement
		want         []string
	}{
		"all is well": {[]Measurement{measured(0, 150, 50), measured(2, 150, 99), measured(0, 150, 40)}, nil},
		"a burst took too long": {
			[]Measurement{measured(0, 150, 50), measured(2, 150, 60), measured(2, 150, 104), measured(0, 150, 40)},
			[]string{"2.60 times as long as without, and at most 2.5 are allowed"},
		},
		"a node more was made": {
			[]Measurement{measured(0, 150, 50), measured(2, 151, 60), measured(0, 150, 50)},
			[]string{"151 NodeClaims and 151 Machines for 150 pods"},
		},
	} {
		t.Run("When "+name+", it should say so", func(t *testing.T) {
			NewWithT(t).Expect(checkBusy(&ScaleReport{Measurements: c.measurements})).To(Equal(c.want))
		})
	}

	t.Run("When bursts are to run beside busy loops, it should measure those, and otherwise one of each size", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(ScaleConfig{Sizes: sizes(3, 50)}.bursts()).To(Equal([]burst{{Size: apart(3)}, {Size: apart(50)}}))
		g.Expect(ScaleConfig{Sizes: sizes(3), series: []burst{{apart(150), 2}}}.bursts()).To(Equal([]burst{{apart(150), 2}}))
	})

	t.Run("When busy loops are stopped, none should be left", func(t *testing.T) {
		g := NewWithT(t)
		loops, err := startLoops(BusyLoops)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(loops.children).To(And(HaveLen(BusyLoops), HaveEach(HaveField("Ended()", false))))
		loops.stop()
		g.Expect(loops.children).To(HaveEach(HaveField("Ended()", true)))
	})
}
