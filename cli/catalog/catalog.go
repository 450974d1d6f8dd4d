// SPDX-License-Identifier: Apache-2.0

// Package catalog is `autonode catalog`, which imports, checks, compares and refreshes InstanceTypeCatalogs.
package catalog

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/file"
)

// maxCatalog is the size at which an import begins another catalog, in bytes of JSON: an object in etcd is limited to 1.5 MB.
const maxCatalog = 1_000_000

// NewCommand returns `autonode catalog`.
func NewCommand() *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "catalog",
		Short: "Import, check, compare and refresh InstanceTypeCatalogs",
	}, newImportCommand(), newCheckCommand(), newDiffCommand(), newRefreshCommand())
}

// partName is the name of a part, counted from 0, of what is too large for one catalog.
func partName(name string, part int) string {
	if part == 0 {
		return name
	}
	return fmt.Sprintf("%s-%d", name, part+1)
}

func priced(entry *v1alpha1.CatalogInstanceType) bool {
	return slices.ContainsFunc(entry.Offerings, func(o v1alpha1.CatalogOffering) bool { return o.Price != "" })
}

// split divides instance types among catalogs of the same template and patches.
func split(spec v1alpha1.InstanceTypeCatalogSpec, types []v1alpha1.CatalogInstanceType) ([]v1alpha1.InstanceTypeCatalogSpec, error) {
	var parts []v1alpha1.InstanceTypeCatalogSpec
	size := maxCatalog
	for i := range types {
		raw, err := json.Marshal(&types[i])
		if err != nil {
			return nil, fmt.Errorf("encoding %s: %w", types[i].Name, err)
		}
		if size+len(raw) > maxCatalog || len(parts[len(parts)-1].InstanceTypes) == catalog.MaxTypes {
			parts, size = append(parts, *spec.DeepCopy()), 0
		}
		last := &parts[len(parts)-1]
		last.InstanceTypes = append(last.InstanceTypes, types[i])
		size += len(raw)
	}
	return parts, nil
}

// readCatalogs reads the catalogs of files. Other objects are left out.
func readCatalogs(stdin io.Reader, files []string) ([]*v1alpha1.InstanceTypeCatalog, file.Objects, error) {
	objects, err := file.ReadObjects(stdin, files)
	if err != nil {
		return nil, nil, err
	}
	var catalogs []*v1alpha1.InstanceTypeCatalog
	for _, object := range objects {
		if object.GroupVersionKind().Group != v1alpha1.Group || object.GetKind() != "InstanceTypeCatalog" {
			continue
		}
		raw, err := object.MarshalJSON()
		if err != nil {
			return nil, nil, err
		}
		c := &v1alpha1.InstanceTypeCatalog{}
		if err := yaml.UnmarshalStrict(raw, c); err != nil {
			return nil, nil, fmt.Errorf("InstanceTypeCatalog %s: %w", object.GetName(), err)
		}
		catalogs = append(catalogs, c)
	}
	if len(catalogs) == 0 {
		return nil, nil, fmt.Errorf("%s: no InstanceTypeCatalog", strings.Join(files, ", "))
	}
	return catalogs, objects, nil
}
