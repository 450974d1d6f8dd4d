// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	kjson "sigs.k8s.io/json"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/message"
)

const (
	// maxOther bounds the other fields of a node class together, in bytes.
	maxOther = 16 << 10
	// dropIns is the first minor version whose kubelets read a --config-dir without further ado.
	dropIns = 30
)

// since are the first minor versions of fields that came later: earlier kubelets ignore them.
var since = map[string]uint{
	"failCgroupV1": 31, "crashLoopBackOff": 32, "singleProcessOOMKill": 32, "imagePullCredentialsVerificationPolicy": 33,
	"preloadedImagesVerificationAllowlist": 33, "userNamespaces": 33, "memoryReservationPolicy": 36,
}

// endless are quantities that Go computes with for minutes.
var endless = regexp.MustCompile(`"[-+]?[0-9.]+[eE][-+]?[0-9]{3,}"`)

// Check returns why kubelets of a version don't take a node class's other fields, each as "<field>: <why>". The types are those of
// Kubernetes 1.36, whatever the version; an empty one is any.
func Check(nodeClass *v1alpha1.KubeletConfiguration, version string) (problems []string) {
	if nodeClass == nil {
		return nil
	}
	size, minor := 0, uint(1<<10)
	if v, err := utilversion.ParseGeneric(version); err == nil {
		minor = v.Minor()
	}
	for _, field := range slices.Sorted(maps.Keys(nodeClass.Other)) {
		raw := nodeClass.Other[field].Raw
		if size += len(raw); size > maxOther {
			return append(problems, fmt.Sprintf("%s: the fields have more than %d bytes", field, maxOther))
		}
		first := max(since[field], dropIns)
		if problem := checkType(field, raw); problem != "" {
			problems = append(problems, field+": "+problem)
		} else if minor < first {
			problems = append(problems, fmt.Sprintf("%s: kubelets have it since 1.%d, and nodes have version %s", field, first, version))
		}
	}
	return problems
}

func checkType(field string, raw []byte) string {
	if endless.Match(raw) {
		return "a quantity has an exponent of more than two digits"
	}
	document, err := json.Marshal(map[string]json.RawMessage{field: raw})
	if err != nil {
		return "it isn't JSON"
	}
	strict, err := kjson.UnmarshalStrict(document, &kubeletconfig.KubeletConfiguration{}, kjson.DisallowUnknownFields)
	var mismatch *json.UnmarshalTypeError
	switch {
	case errors.As(err, &mismatch):
		return fmt.Sprintf("%s is a %s, and Kubernetes 1.36 has the type %s", mismatch.Field, mismatch.Value, mismatch.Type)
	case err != nil:
		return message.Cut(err.Error(), 200)
	case len(strict) > 0:
		return message.Cut(strict[0].Error(), 200) + " in Kubernetes 1.36"
	}
	return ""
}
