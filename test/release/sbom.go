// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"runtime/debug"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const (
	bomMediaType = "application/vnd.cyclonedx+json"
	// bomPredicate is the type of an attestation that is an SBOM.
	bomPredicate = "https://cyclonedx.org/bom"
)

// bom is a program whose SBOM is to be written.
type bom struct {
	program  string
	platform Platform
	file     string
	// image is the program's; nil for a program that is in an archive.
	image *v1.Descriptor
}

// name of the file.
func (b bom) name(version string) string {
	return fmt.Sprintf("%s_%s_%s_%s.cdx.json", b.program, strings.TrimPrefix(version, "v"), b.platform.OS, b.platform.Arch)
}

// encode lists the modules that the program reports it was built from, which are those that it links.
func (b bom) encode(version string) ([]byte, *debug.BuildInfo, error) {
	info, err := buildinfo.ReadFile(b.file)
	if err != nil {
		return nil, nil, fmt.Errorf("reading what %s was built from: %w", b.program, err)
	}
	sum, err := sum(b.file)
	if err != nil {
		return nil, nil, err
	}
	properties := []cyclonedx.Property{{Name: "cdx:gomod:binary:name", Value: b.program}}
	for _, setting := range info.Settings {
		properties = append(properties, cyclonedx.Property{Name: "cdx:gomod:build:env:" + setting.Key, Value: setting.Value})
	}
	main := cyclonedx.Component{
		Type: cyclonedx.ComponentTypeApplication, Name: b.program, Version: version,
		PackageURL: packageURL(info.Main.Path, version) + "#cmd/" + b.program,
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: sum}},
		Licenses:   &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
		Properties: &properties,
	}
	main.BOMRef = main.PackageURL
	components := []cyclonedx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		switch {
		case module.Replace == nil:
		case strings.HasPrefix(module.Replace.Path, "./"): // our API, whose version is the release's
			module = &debug.Module{Path: module.Path, Version: version}
		default:
			module = module.Replace
		}
		components = append(components, library(module.Path, module.Version))
	}
	linked := make([]string, len(components))
	for i, component := range components {
		linked[i] = component.BOMRef
	}
	document := cyclonedx.NewBOM()
	document.Metadata = &cyclonedx.Metadata{Component: &main}
	document.Components = &components
	document.Dependencies = &[]cyclonedx.Dependency{{Ref: main.BOMRef, Dependencies: &linked}}
	var content bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&content, cyclonedx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).Encode(document); err != nil {
		return nil, nil, fmt.Errorf("encoding the SBOM of %s: %w", b.program, err)
	}
	return content.Bytes(), info, nil
}

func library(module, version string) cyclonedx.Component {
	url := packageURL(module, version)
	return cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: module, Version: version, PackageURL: url}
}

// packageURL names a module: https://github.com/package-url/purl-spec. Of what a module's name and version may contain, only "+"
// is to be encoded.
func packageURL(module, version string) string {
	return "pkg:golang/" + module + "@" + strings.ReplaceAll(version, "+", "%2B")
}
