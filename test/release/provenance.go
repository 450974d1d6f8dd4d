// SPDX-License-Identifier: Apache-2.0

package release

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	attestationv1 "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	inTotoMediaType = "application/vnd.in-toto+json"
	// provenancePredicate is SLSA's: https://slsa.dev/spec/v1.1/provenance.
	provenancePredicate = "https://slsa.dev/provenance/v1"
	// buildType names the page that reports what the parameters mean.
	buildType = sourceURL + "/blob/main/docs/internals/releasing.md#provenance"
	// BuilderByHand is the builder of a release that a person made.
	BuilderByHand = sourceURL + "/blob/main/docs/internals/releasing.md#by-hand"
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
	source := map[string]any{"name": "source", "uri": "git+" + sourceURL}
	if r.commit != "" {
		source["uri"] = "git+" + sourceURL + "@" + r.commit
		source["digest"] = map[string]string{"gitCommit": r.commit}
	}
	content, err := json.Marshal(map[string]any{
		"buildDefinition": map[string]any{
			"buildType":          buildType,
			"externalParameters": map[string]any{"version": r.Version, "imagePrefix": r.Prefix, "kubernetes": r.Kubernetes},
			"internalParameters": map[string]any{
				"go": built.GoVersion, "environment": environment, "ldflags": r.linkerFlags(), "operatorLdflags": r.operatorLinkerFlags(), "toolLdflags": r.toolLinkerFlags(),
			},
			"resolvedDependencies": []any{source},
		},
		"runDetails": map[string]any{"builder": map[string]string{"id": r.Builder}},
	})
	if err != nil {
		return nil, fmt.Errorf("stating how it was built: %w", err)
	}
	predicate, err := asStruct(content)
	if err != nil {
		return nil, err
	}
	subjects := slices.SortedFunc(slices.Values(r.subjects), func(a, b subject) int {
		return strings.Compare(a.name+"@"+a.sha256, b.name+"@"+b.sha256)
	})
	return statement(subjects, provenancePredicate, predicate)
}
