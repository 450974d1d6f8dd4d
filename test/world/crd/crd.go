// SPDX-License-Identifier: Apache-2.0

// Package crd installs CustomResourceDefinitions in the world's clusters.
package crd

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/test/world/process"
)

// concurrency of creation: an API server handles more, but builds a schema for each.
const concurrency = 8

// establishTimeout is the timeout for CRDs to be served. It is a second on an idle machine, and a minute where several worlds start at once.
const establishTimeout = 5 * time.Minute

// Read reads the CRDs in a folder, one per file.
func Read(dir string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	return ReadFS(os.DirFS(dir), ".")
}

// ReadFS reads the CRDs in a folder of a file system, one per file.
func ReadFS(fsys fs.FS, dir string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("reading CRDs: %w", err)
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, entry := range entries {
		if entry.IsDir() || !strings.HasSuffix(entry.Name(), ".yaml") {
			continue
		}
		data, err := fs.ReadFile(fsys, path.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading CRDs: %w", err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, crd); err != nil {
			return nil, fmt.Errorf("reading CRD %s: %w", entry.Name(), err)
		}
		crds = append(crds, crd)
	}
	return crds, nil
}

// Install creates CRDs and returns when all are served. It leaves those that it is given as they are: they may be for several
// clusters. They are created, not applied: some of Cluster API's are too
// big for the annotation of a client-side apply.
func Install(ctx context.Context, c client.Client, crds ...*apiextensionsv1.CustomResourceDefinition) error {
	ctx, cancel := context.WithTimeout(ctx, establishTimeout)
	defer cancel()
	crds = slices.Clone(crds)
	for i := range crds {
		crds[i] = crds[i].DeepCopy()
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for _, crd := range crds {
		group.Go(func() error {
			if err := c.Create(groupCtx, crd); err != nil {
				return fmt.Errorf("creating CRD %s: %w", crd.Name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return process.Poll(ctx, "CRDs to be served", nil, nil, func(ctx context.Context) error {
		for _, crd := range crds {
			if established(crd) {
				continue
			}
			if err := c.Get(ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
				return fmt.Errorf("reading CRD %s: %w", crd.Name, err)
			}
			if !established(crd) {
				return fmt.Errorf("CRD %s isn't Established", crd.Name)
			}
		}
		return nil
	})
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
}
