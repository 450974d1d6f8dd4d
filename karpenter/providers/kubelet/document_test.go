// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// fields returns the names of a type's fields in JSON.
func fields(of reflect.Type) (names []string) {
	for i := range of.NumField() {
		name, options, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if options == "inline" {
			names = append(names, fields(of.Field(i).Type)...)
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestFields(t *testing.T) {
	t.Run("When a KubeletConfiguration has a field, it should be known whether that decides what a node can hold", func(t *testing.T) {
		known := slices.Concat(readFields, otherFields)
		slices.Sort(known)
		NewWithT(t).Expect(known).To(Equal(fields(reflect.TypeFor[kubeletconfig.KubeletConfiguration]())), "put each new field into one of both lists")
	})
	t.Run("When a field is said to be read, it should be", func(t *testing.T) {
		read := append(fields(reflect.TypeFor[document]()), "mergeDefaultEvictionSettings")
		slices.Sort(read)
		NewWithT(t).Expect(read).To(Equal(readFields))
	})
}
