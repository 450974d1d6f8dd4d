// SPDX-License-Identifier: Apache-2.0

package minsize_test

import (
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

func TestPerson(t *testing.T) {
	t.Run("When a person holds a node, it should count it and never touch it", func(t *testing.T) {
		f := newFixture(t)
		f.minimum(2)
		for _, name := range []string{"a", "b", "c"} {
			f.node(name)
		}
		f.annotate("c", karpv1.DoNotDisruptAnnotationKey, "true")
		f.Expect(f.settle()).To(Equal("a c?"))
		f.minimum(0)
		f.Expect(f.settle()).To(Equal("c?"))
	})
	t.Run("When a person takes a kept node's do-not-disrupt off, it should get it again", func(t *testing.T) {
		f := newFixture(t)
		f.minimum(1)
		f.node("a")
		f.Expect(f.settle()).To(Equal("a"))
		f.annotate("a", karpv1.DoNotDisruptAnnotationKey, nil)
		f.Expect(f.settle()).To(Equal("a"))
		f.annotate("a", karpv1.DoNotDisruptAnnotationKey, "false")
		f.Expect(f.settle()).To(Equal("a"))
	})
	t.Run("When a person makes a kept node theirs, it should stay theirs", func(t *testing.T) {
		f := newFixture(t)
		f.minimum(1)
		f.node("a")
		f.Expect(f.settle()).To(Equal("a"))
		f.annotate("a", v1alpha1.KeptForMinimumAnnotation, nil)
		f.minimum(0)
		f.Expect(f.settle()).To(Equal("a?"))
	})
}
