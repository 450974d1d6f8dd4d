// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// MadeForNodeClaim reports whether the provider created an object of the management cluster for a NodeClaim: the object has the
// NodeClaim's labels, and its name or that of its instance, or was adopted for it. A user's copy of such an object has the labels and
// another name. Cluster API's label names the Cluster that it belongs to.
func MadeForNodeClaim(object metav1.Object) bool {
	label, uid := object.GetLabels()[NodeClaimLabel], object.GetLabels()[NodeClaimUIDLabel]
	return uid != "" && (label == NodeClaimLabelValue(object.GetName()) || isInstance(object.GetName(), label) ||
		object.GetAnnotations()[AdoptedAnnotation] == uid)
}

// NodeClaimOf returns the name of the NodeClaim that an object of the management cluster was made for.
func NodeClaimOf(object metav1.Object) string {
	if name := object.GetAnnotations()[NodeClaimNameAnnotation]; name != "" {
		return name
	}
	if label := object.GetLabels()[NodeClaimLabel]; isInstance(object.GetName(), label) {
		return label
	}
	return object.GetName()
}

// NodeNames returns the names that management gave a Machine, which are those of its node as a rule: its own, and that of its
// infrastructure machine, which may be empty.
func NodeNames(machine, infrastructureMachine string) []string {
	if infrastructureMachine != "" && infrastructureMachine != machine {
		return []string{machine, infrastructureMachine}
	}
	return []string{machine}
}

const (
	// clusterHash is the length of the hash with which the names of a Cluster's instances begin. With the dash and the end of a
	// NodeClaim's name it fits the 15 characters of a Windows host, as infrastructure providers shorten it.
	clusterHash = 8
	// consonants and digits spell no words, so that hardly any name that a person chooses begins like a hash. Some clouds want a letter
	// first.
	consonants = "bcdfghjklmnpqrstvwxz"
	digits     = "2456789"
)

// InstancePrefix begins the names of a Cluster's instances. It is a hash of the Cluster's UID and a dash.
func InstancePrefix(cluster types.UID) string {
	sum := sha256.Sum256([]byte(cluster))
	hash := []byte{consonants[int(sum[0])%len(consonants)]}
	for _, b := range sum[1:clusterHash] {
		hash = append(hash, (consonants + digits)[int(b)%len(consonants+digits)])
	}
	return string(hash) + "-"
}

// InstanceName is the name of a NodeClaim's infrastructure machine, by which infrastructure providers name, and some find, an instance
// in the infrastructure. Clusters share that, and a guest's admin names NodeClaims. It has at most 63 characters.
func InstanceName(cluster types.UID, nodeClaim string) string {
	return instanceName(InstancePrefix(cluster), NodeClaimLabelValue(nodeClaim))
}

func instanceName(prefix, label string) string { return Shorten(prefix+label, prefix+label) }

// isInstance reports whether a name is an instance's, of any Cluster: clusterctl gives a Cluster that it moves another UID.
func isInstance(name, label string) bool {
	if label == "" || len(name) <= clusterHash || strings.Trim(name[:clusterHash], consonants+digits) != "" {
		return false
	}
	return name == instanceName(name[:clusterHash]+"-", label)
}

// NodeClaimLabelValue is the value of NodeClaimLabel for a NodeClaim: its name, shortened to a label's length if necessary, and still
// unique.
func NodeClaimLabelValue(name string) string { return Shorten(name, name) }

// Shorten returns a name of at most 63 characters, which a label's value and a Namespace's name can have. A longer name is cut and ends in
// eight hex digits of a hash of the name that it stands for.
func Shorten(name, standsFor string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(standsFor))
	const suffix = 9 // a dash and eight hex digits
	return strings.TrimRight(name[:validation.LabelValueMaxLength-suffix], "-._") + "-" + hex.EncodeToString(sum[:4])
}
