// SPDX-License-Identifier: Apache-2.0

package catalog_test

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
)

// BenchmarkRead reads a catalog of that many instance types, each in three zones and three capacity types.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{100, 1_000} {
		var text strings.Builder
		text.WriteString(sound)
		for i := range size - 1 {
			fmt.Fprintf(&text, `  - name: t-%d
    capacity: {cpu: %d, memory: %dGi}
    offerings:
      - {zones: [a, b, c], price: "%d.07"}
      - {zones: [a, b, c], capacityType: spot, price: "%d.02"}
      - {zones: [a, b, c], capacityType: reserved, price: "%d.01", reservation: {id: r-%d, count: 5}}
`, i, i%64+1, i%64+1, i, i, i, i)
		}
		spec := &v1alpha1.InstanceTypeCatalogSpec{}
		if err := yaml.UnmarshalStrict([]byte(text.String()), spec); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("types=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if read := catalog.Read(spec); read.Err != nil || len(read.Types) != size || len(read.Problems) > 0 {
					b.Fatal(len(read.Types), read.Err, read.Problems)
				}
			}
		})
	}
}
