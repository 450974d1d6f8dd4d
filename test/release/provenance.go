// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	provenancev1 "github.com/in-toto/attestation/go/predicates/provenance/v1"
	attestationv1 "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	inTotoMediaType = "application/vnd.in-toto+json"
	// provenancePredicate is SLSA's: https://slsa.dev/spec/v1.1/provenance.
	provenancePredicate = "https://slsa.dev/provenance/v1"
	// buildType names the page that says what the parameters mean.
	buildType = sourceURL + "/blob/main/docs/releasing.md#provenance"
	// BuilderByHand is the builder of a release that a person made.
	BuilderByHand = sourceURL + "/blob/main/docs/releasing.md#by-hand"
)

// statement is an in-toto statement of a predicate about the subjects.
func statement(subjects []subject, predicateType string, predicate *structpb.Struct) ([]byte, error) {
	content := &attestationv1.Statement{Type: attestationv1.StatementTypeUri, PredicateType: predicateType, Predicate: predicate}
	for _, s := range subjects {
		content.Subject = append(content.Subject, &attestationv1.ResourceDescriptor{Name: s.name, Digest: map[string]string{"sha256": s.sha256}})
	}
	if err := content.Validate(); err != nil {
		return nil, fmt.Errorf("making a statement of type %s: %w", predicateType, err)
	}
	return encode(content)
}

// encode is protojson without the spaces that it adds at random.
func encode(message proto.Message) ([]byte, error) {
	spaced, err := protojson.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encoding a message: %w", err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, spaced); err != nil {
		return nil, fmt.Errorf("encoding a message: %w", err)
	}
	return compact.Bytes(), nil
}

// asStruct converts what encodes as an object of JSON.
func asStruct(content []byte) (*structpb.Struct, error) {
	converted := &structpb.Struct{}
	if err := protojson.Unmarshal(content, converted); err != nil {
		return nil, fmt.Errorf("converting a predicate: %w", err)
	}
	return converted, nil
}

// provenance states how everything in the release was built.
func (r *release) provenance(built *debug.BuildInfo) ([]byte, error) {
	kubernetes := make([]any, len(r.Kubernetes))
	for i, version := range r.Kubernetes {
		kubernetes[i] = version
	}
	parameters, err := structpb.NewStruct(map[string]any{"version": r.Version, "imagePrefix": r.Prefix, "kubernetes": kubernetes})
	if err != nil {
		return nil, fmt.Errorf("stating the parameters: %w", err)
	}
	environment := build{}.environment()
	variables := make([]any, 0, len(environment))
	for _, variable := range environment {
		if !strings.HasPrefix(variable, "GOOS=") && !strings.HasPrefix(variable, "GOARCH=") {
			variables = append(variables, variable)
		}
	}
	internal, err := structpb.NewStruct(map[string]any{
		"go": built.GoVersion, "environment": variables, "ldflags": build{version: r.Version}.linkerFlags(),
		"toolLdflags": build{version: r.Version, operator: r.image(operatorProgram, r.digestOf(operatorProgram))}.linkerFlags(),
	})
	if err != nil {
		return nil, fmt.Errorf("stating the environment: %w", err)
	}
	source := &attestationv1.ResourceDescriptor{Name: "source", Uri: "git+" + sourceURL}
	if r.commit != "" {
		source.Uri += "@" + r.commit
		source.Digest = map[string]string{"gitCommit": r.commit}
	}
	predicate := &provenancev1.Provenance{
		BuildDefinition: &provenancev1.BuildDefinition{
			BuildType: buildType, ExternalParameters: parameters, InternalParameters: internal,
			ResolvedDependencies: []*attestationv1.ResourceDescriptor{source},
		},
		RunDetails: &provenancev1.RunDetails{Builder: &provenancev1.Builder{Id: r.Builder}},
	}
	if err := predicate.Validate(); err != nil {
		return nil, fmt.Errorf("stating how it was built: %w", err)
	}
	encoded, err := encode(predicate)
	if err != nil {
		return nil, err
	}
	converted, err := asStruct(encoded)
	if err != nil {
		return nil, err
	}
	subjects := slices.SortedFunc(slices.Values(r.subjects), func(a, b subject) int {
		return strings.Compare(a.name+"@"+a.sha256, b.name+"@"+b.sha256)
	})
	return statement(subjects, provenancePredicate, converted)
}
