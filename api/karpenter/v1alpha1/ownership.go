// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// MadeForNodeClaim tells whether an object in the management cluster was made by the provider for a NodeClaim: it has the NodeClaim's
// name, and its labels say so. One that somebody has made from a copy of such an object has its labels too, but another name. Whose
// cluster it belongs to is for Cluster API's own label to say.
func MadeForNodeClaim(object metav1.Object) bool {
	labels := object.GetLabels()
	return labels[NodeClaimUIDLabel] != "" && labels[NodeClaimLabel] == NodeClaimLabelValue(object.GetName())
}

// NodeClaimLabelValue is the value of NodeClaimLabel for a NodeClaim: its name, shortened where that is too long for a label's value,
// and unique all the same.
func NodeClaimLabelValue(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	const suffix = 9 // a dash and eight hex digits
	return strings.TrimRight(name[:validation.LabelValueMaxLength-suffix], "-._") + "-" + hex.EncodeToString(sum[:4])
}
