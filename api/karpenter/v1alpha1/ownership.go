// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// MadeForNodeClaim reports whether the provider created an object of the management cluster for a NodeClaim: the object has the
// NodeClaim's name and its labels. A user's copy of such an object has the labels and another name. Cluster API's label says which
// Cluster it belongs to.
func MadeForNodeClaim(object metav1.Object) bool {
	labels := object.GetLabels()
	return labels[NodeClaimUIDLabel] != "" && labels[NodeClaimLabel] == NodeClaimLabelValue(object.GetName())
}

// NodeClaimLabelValue is the value of NodeClaimLabel for a NodeClaim: its name, shortened to a label's length if necessary, and still
// unique.
func NodeClaimLabelValue(name string) string { return Shorten(name, name) }

// Shorten returns a name of at most 63 characters, which a label's value and a Namespace's name can have. A longer name is cut and ends in
// eight hex digits of a hash of what it stands for.
func Shorten(name, standsFor string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(standsFor))
	const suffix = 9 // a dash and eight hex digits
	return strings.TrimRight(name[:validation.LabelValueMaxLength-suffix], "-._") + "-" + hex.EncodeToString(sum[:4])
}
