// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
)

func TestWrong(t *testing.T) {
	condition := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason}
	}
	hostedCluster := &v1beta1.HostedCluster{}
	hostedCluster.Status.Conditions = []metav1.Condition{
		condition(v1beta1.NodeClassReady, metav1.ConditionFalse, "NoTemplates"),
		condition(v1beta1.AutoNodeEnabled, metav1.ConditionFalse, v1beta1.AutoNodeProgressingReason),
		condition(v1beta1.GuestReachable, metav1.ConditionUnknown, v1beta1.GuestConnectingReason),
		condition(v1beta1.ReleaseResolved, metav1.ConditionFalse, v1beta1.ImageNotFoundReason),
		condition("Foreign", metav1.ConditionFalse, "Other"),
	}
	component := &v1beta1.ControlPlaneComponent{}
	component.Status.Conditions = []metav1.Condition{
		condition(v1beta1.Available, metav1.ConditionFalse, v1beta1.ReplicasUnavailableReason),
		condition(v1beta1.RolloutComplete, metav1.ConditionFalse, v1beta1.RollingOutReason),
	}
	types := func(conditions []metav1.Condition) (types []string) {
		for _, c := range conditions {
			types = append(types, c.Type)
		}
		return types
	}
	t.Run("When conditions are False, it should return those that are wrong, causes first", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(types(WrongOfHostedCluster(hostedCluster))).To(Equal([]string{v1beta1.ReleaseResolved, v1beta1.NodeClassReady}))
		g.Expect(types(WrongOfComponent(component))).To(Equal([]string{v1beta1.RolloutComplete, v1beta1.Available}))
	})
	t.Run("When a reason isn't known, it should refer to the message", func(t *testing.T) {
		NewWithT(t).Expect(Fix("Unheard")).To(Equal("fix the problem in the message; docs/platform/failures.md and docs/cluster-admins/node-class.md explain the reason Unheard"))
	})
}

// TestFixes reads the reasons in the API's source: each that a False condition may have needs a fix here.
func TestFixes(t *testing.T) {
	// They come with status True, or never decide anything.
	others := []string{v1beta1.AsExpectedReason, v1beta1.DefaultReleaseReason, v1beta1.SignatureUnknownReason, v1beta1.OverriddenReason, v1beta1.DefinitionNotOwnedReason, v1beta1.FallingAsleepReason}
	file, err := parser.ParseFile(token.NewFileSet(), "../../api/v1beta1/conditions.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, declaration := range file.Decls {
		constants, ok := declaration.(*ast.GenDecl)
		if !ok || constants.Doc == nil || !strings.HasPrefix(constants.Doc.Text(), "Reasons of ") || strings.HasPrefix(constants.Doc.Text(), "Reasons of the events") {
			continue
		}
		for _, spec := range constants.Specs {
			value, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			literal, ok := value.Values[0].(*ast.BasicLit)
			if !ok {
				t.Fatalf("%s isn't a literal", value.Names[0].Name)
			}
			reason, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			count++
			t.Run("When the reason is "+reason+", it should say what to do, or that it is expected", func(t *testing.T) {
				if fixes[reason] == "" && !expected[reason] && !slices.Contains(others, reason) {
					t.Errorf("fixes has nothing for %s", value.Names[0].Name)
				}
			})
		}
	}
	if count < 50 {
		t.Errorf("%d reasons were found", count)
	}
}
