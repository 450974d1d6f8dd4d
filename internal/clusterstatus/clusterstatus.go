// SPDX-License-Identifier: Apache-2.0

// Package clusterstatus reads why a Cluster, its machines or a pod of its control plane make no progress.
package clusterstatus

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/internal/message"
)

// maxSaid limits an infrastructure provider's message, in bytes.
const maxSaid = 500

// NotReady returns why the infrastructure of a Cluster isn't ready, in the provider's words; empty while it is, or reports nothing. A
// provider that can't log in, or that doesn't find the datacenter, reports it here alone: it patches no machine before it has a session.
// Cluster API repeats the conditions of the infrastructure cluster, in the Cluster's own or in those of the contract v1beta1.
func NotReady(cluster *clusterv1.Cluster) string {
	if cluster == nil || !cluster.DeletionTimestamp.IsZero() {
		return ""
	}
	reason, text, found := current(cluster)
	if !found || text == "" {
		formerReason, formerText, formerFound := former(cluster)
		if formerFound && (!found || formerText != "") {
			reason, text, found = formerReason, formerText, true
		}
	}
	if !found {
		return ""
	}
	said := strings.TrimSpace(text)
	switch {
	case said == "" && reason == "":
		said = "no reason is given"
	case said == "":
		said = reason
	case reason != "":
		said = reason + ": " + said
	}
	return fmt.Sprintf("the infrastructure of Cluster %s/%s isn't ready: %s", cluster.Namespace, cluster.Name, message.Cut(said, maxSaid))
}

// Provisioned reports whether the infrastructure was ready once. It stays so.
func Provisioned(cluster *clusterv1.Cluster) bool {
	return cluster.Status.Initialization.InfrastructureProvisioned != nil && *cluster.Status.Initialization.InfrastructureProvisioned
}

// ControlPlaneAsleep reports whether a control plane that was initialized is to have no replicas, as Kamaji's while it sleeps. The Cluster
// may be nil.
func ControlPlaneAsleep(cluster *clusterv1.Cluster) bool {
	return cluster != nil && ptr.Deref(cluster.Status.Initialization.ControlPlaneInitialized, false) &&
		cluster.Status.ControlPlane != nil && ptr.Deref(cluster.Status.ControlPlane.DesiredReplicas, 1) == 0
}

func current(cluster *clusterv1.Cluster) (reason, text string, found bool) {
	for i := range cluster.Status.Conditions {
		if c := &cluster.Status.Conditions[i]; c.Type == clusterv1.ClusterInfrastructureReadyCondition && c.Status == metav1.ConditionFalse {
			return c.Reason, c.Message, true
		}
	}
	return "", "", false
}

// former are the conditions of the contract v1beta1. They are as current as the others, and some providers say more in them.
//
//nolint:staticcheck // deprecated together with the contract v1beta1, which many providers still follow.
func former(cluster *clusterv1.Cluster) (reason, text string, found bool) {
	for i := range cluster.Status.Conditions {
		if c := &cluster.Status.Conditions[i]; c.Type == clusterv1.ClusterInfrastructureReadyCondition && c.Status == metav1.ConditionTrue {
			return "", "", false
		}
	}
	if cluster.Status.Deprecated == nil || cluster.Status.Deprecated.V1Beta1 == nil {
		return "", "", false
	}
	for i := range cluster.Status.Deprecated.V1Beta1.Conditions {
		if c := &cluster.Status.Deprecated.V1Beta1.Conditions[i]; c.Type == clusterv1.InfrastructureReadyV1Beta1Condition &&
			c.Status == corev1.ConditionFalse {
			return c.Reason, c.Message, true
		}
	}
	return "", "", false
}
