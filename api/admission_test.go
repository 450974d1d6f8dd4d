// SPDX-License-Identifier: Apache-2.0

// Package api_test asks a real API server what it admits: testdata holds one file a case. A comment in the first line
// names the error that the last object of the file has to meet; without it every object is admitted.
package api_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

func TestAdmission(t *testing.T) {
	g := NewWithT(t)
	environment := &envtest.Environment{
		ControlPlaneStartTimeout: 2 * time.Minute, // a loaded machine is slow
		CRDDirectoryPaths:        []string{"../manifests/crds", "../assets/crds"},
		ErrorIfCRDPathMissing:    true,
	}
	t.Cleanup(func() { g.Expect(environment.Stop()).To(Succeed()) }) // even when a CRD is refused, an API server runs
	config, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred())
	admin, err := client.New(config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())

	files, err := filepath.Glob("testdata/*/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "testdata/"), ".yaml")
		t.Run("When "+name+" is applied, it should be admitted as its file says", func(t *testing.T) {
			g := NewWithT(t)
			content, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			firstLine, _, _ := strings.Cut(string(content), "\n")
			wanted, refused := strings.CutPrefix(firstLine, "# error: ")

			steps := decode(g, content)
			for _, object := range steps[:len(steps)-1] {
				g.Expect(apply(t.Context(), admin, object)).To(Succeed())
			}
			err = apply(t.Context(), admin, steps[len(steps)-1])
			if refused {
				g.Expect(err).To(MatchError(ContainSubstring(wanted)))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
			}
		})
	}
}

func decode(g *WithT, content []byte) []*unstructured.Unstructured {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		g.Expect(err).NotTo(HaveOccurred())
		objects = append(objects, object)
	}
}

func apply(ctx context.Context, admin client.Client, object *unstructured.Unstructured) error {
	return admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test"), client.ForceOwnership)
}
