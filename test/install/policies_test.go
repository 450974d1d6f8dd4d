// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"testing"

	"github.com/google/cel-go/cel"
	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"
)

// TestPolicies compiles the policies for the oldest management cluster that docs/reference/compatibility.md promises, which no test runs: newer API servers know
// more functions.
func TestPolicies(t *testing.T) {
	oldest := utilversion.MajorMinor(1, 31)
	set := environment.MustBaseEnvSet(oldest)
	for _, object := range render(t) {
		if object.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}
		t.Run("When Kubernetes is 1.31, policy "+object.GetName()+" should compile", func(t *testing.T) {
			g := NewWithT(t)
			policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}
			g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, policy)).To(Succeed())
			g.Expect(policy.Spec.ParamKind).To(BeNil(), "a kind that is missing when an API server starts would reject every request")
			expressions := map[string]string{}
			for _, condition := range policy.Spec.MatchConditions {
				expressions[condition.Name] = condition.Expression
			}
			for _, variable := range policy.Spec.Variables {
				expressions[variable.Name] = variable.Expression
			}
			for _, validation := range policy.Spec.Validations {
				expressions[validation.Expression], expressions[validation.MessageExpression] = validation.Expression, validation.MessageExpression
			}
			delete(expressions, "")
			variables := cel.Variable("variables", cel.DynType)
			extended, err := set.Extend(environment.VersionedOptions{IntroducedVersion: utilversion.MajorMinor(1, 0), EnvOptions: []cel.EnvOption{
				cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("request", cel.DynType),
				cel.Variable("authorizer", library.AuthorizerType), variables,
			}})
			g.Expect(err).NotTo(HaveOccurred())
			env, err := extended.Env(environment.NewExpressions)
			g.Expect(err).NotTo(HaveOccurred())
			for name, expression := range expressions {
				_, issues := env.Compile(expression)
				g.Expect(issues.Err()).NotTo(HaveOccurred(), name)
			}
		})
	}
}
