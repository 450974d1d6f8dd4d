// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	guestassets "github.com/autonode-io/autonode/assets/guest"
	"github.com/autonode-io/autonode/operator/scope"
)

// maxPatches bounds the bootstrap patches that a policy compares with, in bytes: the expression parser takes a hundred kilobytes.
// Karpenter refuses others than those all the same, and reports it in the node class's conditions.
const maxPatches = 64 << 10

// Input has the facts that the policies depend on.
type Input struct {
	// Operator is the operator's user in the guest.
	Operator string
	// Owner is who decides, as messages name it: "HostedCluster clusters/blue".
	Owner string
	// NodeVersion is the version of new nodes, and the newest that an admin may ask for; empty for any.
	NodeVersion string
	// NodeClasses: the policy about node classes is for the guest's.
	NodeClasses bool
	// Default is the default node class as the HostedCluster declares it; nil if it declares none.
	Default *v1alpha1.ClusterAPINodeClass
	// KubeletBounds bound spec.kubelet of node classes; nil for none.
	KubeletBounds *v1alpha1.KubeletBounds
}

func inputFor(s *scope.Scope, operator string) Input {
	in := Input{
		Operator: operator,
		Owner:    "its HostedCluster",
	}
	if s.Release != nil {
		// What nodes get may be a former payload's, for as long as the platform team holds it. A later step reports it: this is the last word
		// of that.
		in.NodeVersion, _ = s.Karpenter.NodeVersion() // the release step has looked
		if known := s.HostedCluster.Status.Version; known != nil && known.NodeVersion != "" {
			in.NodeVersion = known.NodeVersion
		}
	}
	// A guest without its own endpoint may belong to several HostedClusters, which would overwrite each other's
	// policies forever.
	if s.Cluster != nil && s.Cluster.Spec.ControlPlaneEndpoint.Host != "" {
		in.Owner = fmt.Sprintf("HostedCluster %s/%s", s.HostedCluster.Namespace, s.HostedCluster.Name)
	}
	if s.Profile != nil {
		in.NodeClasses = s.Profile.NodeClass.Guarded
		if autoNode := s.HostedCluster.Spec.AutoNode; autoNode != nil && s.Profile.DefaultNodeClass != nil {
			if config := autoNode.ProvisionerConfig.Karpenter.ClusterAPI; config != nil {
				in.KubeletBounds = config.KubeletBounds
			}
			in.Default, _ = s.Profile.DefaultNodeClass(autoNode.ProvisionerConfig.Karpenter).(*v1alpha1.ClusterAPINodeClass)
		}
	}
	return in
}

// controllers of the guest's own control plane, which clean up after deletions.
var controllers = []string{
	"system:apiserver",
	"system:kube-controller-manager",
	"system:serviceaccount:kube-system:generic-garbage-collector",
	"system:serviceaccount:kube-system:namespace-controller",
}

// Desired renders the policies with their bindings, in the order in which they are applied.
//
// What they depend on is written into their expressions. A parameter object would have to be protected itself, and one that is
// missing or broken would decide for every request; an expression that can't be evaluated refuses a request about our own kinds.
func Desired(in Input) ([]client.Object, error) {
	policies, err := guestassets.Policies()
	if err != nil {
		return nil, err
	}
	account, err := guestassets.ServiceAccount()
	if err != nil {
		return nil, err
	}
	karpenter := "system:serviceaccount:" + account.Namespace + ":" + account.Name
	users := append([]string{in.Operator, karpenter}, controllers...)
	quoted := make([]string, len(users))
	for i, user := range users {
		quoted[i] = strconv.Quote(user)
	}
	throughs := admissionregistrationv1.MatchCondition{
		Name: "not-the-platform", Expression: "!(request.userInfo.username in [" + strings.Join(quoted, ", ") + "])",
	}

	var objects []client.Object
	for _, policy := range policies {
		condition := throughs
		if policy.Name == guestassets.BootstrapTokenPolicy || policy.Name == guestassets.PodPolicy {
			condition = admissionregistrationv1.MatchCondition{
				Name: "karpenter", Expression: "request.userInfo.username == " + strconv.Quote(karpenter),
			}
		}
		policy.Spec.MatchConditions = append(policy.Spec.MatchConditions, condition)
		given := []admissionregistrationv1.Variable{{Name: "owner", Expression: strconv.Quote(in.Owner)}}
		if policy.Name == guestassets.NodeClassPolicy {
			if !in.NodeClasses {
				continue
			}
			compared, err := in.variables()
			if err != nil {
				return nil, err
			}
			given = append(given, compared...)
			rules, err := in.defaultRules()
			if err != nil {
				return nil, err
			}
			policy.Spec.Validations = append(append(policy.Spec.Validations, rules...), in.kubeletRules()...)
		}
		if policy.Name == guestassets.BootstrapTokenPolicy {
			given = append(given,
				admissionregistrationv1.Variable{Name: "groups", Expression: strconv.Quote(v1alpha1.BootstrapTokenGroups)},
				admissionregistrationv1.Variable{
					Name:       "encodedGroups",
					Expression: strconv.Quote(base64.StdEncoding.EncodeToString([]byte(v1alpha1.BootstrapTokenGroups))),
				},
			)
		}
		policy.Spec.Variables = append(given, policy.Spec.Variables...)

		binding, err := guestassets.PolicyBinding()
		if err != nil {
			return nil, err
		}
		binding.Name, binding.Spec.PolicyName = policy.Name, policy.Name
		objects = append(objects, policy, binding)
	}
	return objects, nil
}

// variables are the values that the policy about node classes compares with.
func (in Input) variables() ([]admissionregistrationv1.Variable, error) {
	const anyPatches = "object == null ? [] : object.?spec.?bootstrapPatches.orValue([])"
	newest := "[]"
	if v, err := utilversion.ParseGeneric(in.NodeVersion); err == nil {
		newest = fmt.Sprintf("[%d, %d, %d]", v.Major(), v.Minor(), v.Patch())
	}
	patches, secret := anyPatches, "object == null ? '' : object.?spec.?bootstrap.?dataSecretName.orValue('')"
	if in.Default != nil {
		secret = `""`
		if bootstrap := in.Default.Spec.Bootstrap; bootstrap != nil {
			secret = strconv.Quote(bootstrap.DataSecretName)
		}
		allowed, err := literal(in.Default.Spec.BootstrapPatches)
		if err != nil {
			return nil, err
		}
		if len(allowed) <= maxPatches {
			patches = allowed
		}
	}
	return []admissionregistrationv1.Variable{
		{Name: "newestVersion", Expression: newest},
		{Name: "bootstrapPatches", Expression: patches},
		{Name: "dataSecretName", Expression: secret},
	}, nil
}

// literal writes patches as an expression. A literal map has values of one type, so dyn hides that they differ.
func literal(all []v1alpha1.BootstrapPatches) (string, error) {
	kinds := make([]string, 0, len(all))
	for _, p := range all {
		raw, err := json.Marshal(p)
		if err != nil {
			return "", fmt.Errorf("encoding the bootstrap patches for %s: %w", p.Kind, err)
		}
		var decoded any
		if err := utiljson.Unmarshal(raw, &decoded); err != nil {
			return "", fmt.Errorf("decoding the bootstrap patches for %s: %w", p.Kind, err)
		}
		kinds = append(kinds, expression(decoded))
	}
	return "[" + strings.Join(kinds, ", ") + "]", nil
}

// expression writes JSON as an expression.
func expression(value any) string {
	var parts []string
	switch v := value.(type) {
	case string:
		return strconv.Quote(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		// An exponent makes it a double whatever its value.
		return strconv.FormatFloat(v, 'e', -1, 64)
	case bool:
		return strconv.FormatBool(v)
	case []any:
		for _, item := range v {
			parts = append(parts, "dyn("+expression(item)+")")
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, strconv.Quote(key)+": dyn("+expression(v[key])+")")
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return "null"
}

// defaultRules guard each field of the default node class that the HostedCluster names. The others are the admin's.
func (in Input) defaultRules() ([]admissionregistrationv1.Validation, error) {
	if in.Default == nil {
		return nil, nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(in.Default)
	if err != nil {
		return nil, fmt.Errorf("converting the default node class: %w", err)
	}
	spec, _ := content["spec"].(map[string]any)
	reason := metav1.StatusReasonForbidden
	var rules []admissionregistrationv1.Validation
	for _, field := range owned(spec) {
		path, shown := "", "spec"
		for _, part := range field {
			if identifier.MatchString(part) {
				path, shown = path+".?"+part, shown+"."+part
			} else {
				path, shown = path+"[?"+strconv.Quote(part)+"]", shown+"["+part+"]"
			}
		}
		rules = append(rules, admissionregistrationv1.Validation{
			Expression: fmt.Sprintf(
				"request.operation != 'UPDATE' || !variables.isDefault || object.?spec%[1]s == oldObject.?spec%[1]s", path),
			MessageExpression: strconv.Quote(shown+" of node class "+in.Default.Name+" belongs to the platform: ") +
				" + variables.owner + ' decides it'",
			Reason: &reason,
		})
	}
	return rules, nil
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// owned lists the fields of a spec that server-side apply makes the operator's: the members of kubelet each, and the entries of its
// maps; any other field is a whole.
func owned(spec map[string]any) [][]string {
	var fields [][]string
	for _, name := range slices.Sorted(maps.Keys(spec)) {
		members, ok := spec[name].(map[string]any)
		if name != "kubelet" || !ok {
			fields = append(fields, []string{name})
			continue
		}
		for _, member := range slices.Sorted(maps.Keys(members)) {
			entries, ok := members[member].(map[string]any)
			if !ok {
				fields = append(fields, []string{name, member})
				continue
			}
			for _, entry := range slices.Sorted(maps.Keys(entries)) {
				fields = append(fields, []string{name, member, entry})
			}
		}
	}
	return fields
}
