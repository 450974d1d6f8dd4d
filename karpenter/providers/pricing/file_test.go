// SPDX-License-Identifier: Apache-2.0

package pricing

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/template"
)

const list = `
- instanceType: c2-small
  price: "0.021"
- instanceType: c2-small
  zone: b
  price: 0.025
- instanceType: c2-small
  capacityType: spot
  price: "0.007"
`

func write(t *testing.T, path, text string) {
	t.Helper()
	// As people and programs do that write files: beside it, then in its place.
	gomega.NewWithT(t).Expect(os.WriteFile(path+".new", []byte(text), 0o600)).To(gomega.Succeed())
	gomega.NewWithT(t).Expect(os.Rename(path+".new", path)).To(gomega.Succeed())
}

func TestFile(t *testing.T) {
	small := sized("2", "4Gi", 0)
	small.InstanceType = "c2-small"
	annotated := 9.0
	small.Price = &annotated
	path := filepath.Join(t.TempDir(), "prices.yaml")
	write(t, path, list)
	source := New(NewFile(path))
	for _, tc := range []struct {
		name, zone, capacityType string
		tmpl                     *template.Template
		want                     float64
		known                    bool
	}{
		{"When the file has a price, it should take the place of the annotation", "a", karpv1.CapacityTypeOnDemand, small, 0.021, true},
		{"When the file has a price for the zone, it should be that", "b", karpv1.CapacityTypeOnDemand, small, 0.025, true},
		{"When the file has a spot price, it should be that in every zone", "b", karpv1.CapacityTypeSpot, small, 0.007, true},
		{"When the file has no price, it should be the estimate", "a", karpv1.CapacityTypeOnDemand, sized("2", "4Gi", 0), 2*CPUPrice + 4*MemoryPrice, true},
		{"When no source has a spot price, it should be unknown", "a", karpv1.CapacityTypeSpot, sized("2", "4Gi", 0), 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, known := source.Price(tc.tmpl, tc.zone, tc.capacityType)
			if known != tc.known || got-tc.want > 1e-9 || tc.want-got > 1e-9 {
				t.Errorf("got %v, %v; want %v, %v", got, known, tc.want, tc.known)
			}
		})
	}
}

func TestFileProblems(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"no list", "c2-small: 0.021", "it isn't a list of {instanceType, zone, capacityType, price}"},
		{"no YAML", "\t- ]", "it isn't a list"},
		{"an unknown key", "- {instanceType: a, prize: 1}", `unknown field "prize"`},
		{"no instance type", "- {price: 1}", `entry 1: instanceType: "" is not the name of an instance type`},
		{"a zone", "- {instanceType: a, zone: 'b c', price: 1}", `entry 1: zone: "b c" is not the name of a zone`},
		{"a capacity type", "- {instanceType: a, price: 1}\n- {instanceType: a, capacityType: Spot, price: 1}", `entry 2: capacityType: "Spot" is neither on-demand nor spot`},
		{"no price", "- {instanceType: a}", `entry 1: price: "" is not a price in US dollars an hour, such as 0.096`},
		{"a negative price", "- {instanceType: a, price: -1}", `entry 1: price: "-1" is not a price`},
		{"a price in words", "- {instanceType: a, price: cheap}", `cheap`},
		{"an exponent", "- {instanceType: a, price: '1e9'}", `entry 1: price: "1e9" is not a price`},
		{"the same twice", "- {instanceType: a, price: 1}\n- {instanceType: a, capacityType: on-demand, price: 2}", `entry 2: instanceType a, zone "", capacityType on-demand has a price already`},
		{"too much", strings.Repeat("#", MaxFileSize+1), "it is larger than 4194304 bytes"},
	} {
		t.Run("When the file is wrong in: "+tc.name+", it should say so and know no price", func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "prices.yaml")
			write(t, path, tc.text)
			f := NewFile(path)
			if f.Problem() == nil || !strings.Contains(f.Problem().Error(), tc.want) || !strings.HasPrefix(f.Problem().Error(), "price file "+path) {
				t.Errorf("got %v, want %s", f.Problem(), tc.want)
			}
			if f.state.Load().read || len(f.state.Load().prices) > 0 {
				t.Error("it is taken to be complete")
			}
		})
	}
	for name, text := range map[string]string{"is empty": "", "is an empty list": "[]", "holds a comment": "# none yet\n"} {
		t.Run("When the file "+name+", it should know no price and say nothing", func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "prices.yaml")
			write(t, path, text)
			if f := NewFile(path); f.Problem() != nil || !f.state.Load().read {
				t.Errorf("problem: %v", f.Problem())
			}
		})
	}
	t.Run("When the file doesn't exist, it should know no price and say nothing", func(t *testing.T) {
		if f := NewFile(filepath.Join(t.TempDir(), "none", "prices.yaml")); f.Problem() != nil || !f.state.Load().read {
			t.Errorf("problem: %v", f.Problem())
		}
	})
	t.Run("When there is no path, it should know no price and say nothing", func(t *testing.T) {
		f := NewFile("")
		if price, known := f.Price(sized("2", "4Gi", 0), "a", karpv1.CapacityTypeOnDemand); known || f.Problem() != nil || f.Sequence() != 0 {
			t.Errorf("price %g, problem: %v", price, f.Problem())
		}
	})
}

func TestFollow(t *testing.T) {
	small := sized("2", "4Gi", 0)
	small.InstanceType = "c2-small"
	start := func(t *testing.T, path string) (*gomega.WithT, *File, func() float64) {
		t.Helper()
		g := gomega.NewWithT(t)
		f := NewFile(path)
		done := make(chan error, 1)
		go func() { done <- f.Start(t.Context()) }()
		t.Cleanup(func() {
			g.Expect(<-done).To(gomega.Succeed())
		})
		return g, f, func() float64 {
			price, _ := f.Price(small, "a", karpv1.CapacityTypeOnDemand)
			return price
		}
	}
	t.Run("When the file comes, changes, is malformed and goes, it should follow, and keep the last prices while it is malformed", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "prices.yaml")
		g, f, price := start(t, path)
		changed := make(chan struct{}, 100)
		f.OnChange(func() { changed <- struct{}{} })
		g.Expect(price()).To(gomega.BeZero())

		sequence := f.Sequence()
		write(t, path, list)
		g.Eventually(price).Should(gomega.Equal(0.021))
		g.Eventually(changed).Should(gomega.Receive())
		g.Expect(f.Sequence()).NotTo(gomega.Equal(sequence))

		write(t, path, "- {instanceType: c2-small, price: nothing}")
		g.Eventually(f.Problem).Should(gomega.MatchError(gomega.ContainSubstring("the prices read before stay in use")))
		g.Expect(price()).To(gomega.Equal(0.021))
		g.Expect(f.state.Load().read).To(gomega.BeTrue())

		write(t, path, "- {instanceType: c2-small, price: 0.5}")
		g.Eventually(price).Should(gomega.Equal(0.5))
		g.Expect(f.Problem()).NotTo(gomega.HaveOccurred())

		g.Expect(os.Remove(path)).To(gomega.Succeed())
		g.Eventually(price).Should(gomega.BeZero())
	})
	t.Run("When the kubelet replaces a mounted ConfigMap, it should follow", func(t *testing.T) {
		dir := t.TempDir()
		mount := func(version, text string) {
			t.Helper()
			g := gomega.NewWithT(t)
			g.Expect(os.Mkdir(filepath.Join(dir, version), 0o700)).To(gomega.Succeed())
			g.Expect(os.WriteFile(filepath.Join(dir, version, "prices.yaml"), []byte(text), 0o600)).To(gomega.Succeed())
			g.Expect(os.Symlink(version, filepath.Join(dir, "..data_tmp"))).To(gomega.Succeed())
			g.Expect(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))).To(gomega.Succeed())
		}
		mount("..1", list)
		gomega.NewWithT(t).Expect(os.Symlink(filepath.Join("..data", "prices.yaml"), filepath.Join(dir, "prices.yaml"))).To(gomega.Succeed())
		g, _, price := start(t, filepath.Join(dir, "prices.yaml"))
		g.Expect(price()).To(gomega.Equal(0.021))
		mount("..2", "- {instanceType: c2-small, price: 0.03}")
		g.Eventually(price).Should(gomega.Equal(0.03))
	})
}

// FuzzParse: whatever the file holds, nothing panics, and a price that is accepted is one.
func FuzzParse(f *testing.F) {
	for _, text := range []string{list, "", "[]", "- {}", "- {instanceType: a, price: 1}", "- [a]", "a: b", "- {instanceType: a, price: .inf}", "- {instanceType: a, price: 0x10}", "- &a [*a]"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		prices, err := parse([]byte(text))
		if err != nil && len(prices) > 0 {
			t.Error("half a file is accepted")
		}
		for p, price := range prices {
			if p.InstanceType == "" || !(price >= 0 && price < 1e13) {
				t.Errorf("%v costs %v", p, price)
			}
		}
	})
}
