// SPDX-License-Identifier: Apache-2.0

package world

import (
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/controlplane"
	"github.com/autonode-io/autonode/test/world/hosting"
)

const (
	// OperatorServiceAccount is the operator's, in OperatorNamespace.
	OperatorServiceAccount = "autonode-operator"
	// KarpenterServiceAccount is Karpenter's, in a guest in GuestNamespace, and in each control-plane namespace that guests don't share; see
	// World.KarpenterAccount.
	KarpenterServiceAccount = "karpenter"
	// OperatorInGuest is the user of Cluster API's kubeconfig, by which the operator comes into a guest, and Cluster API too.
	OperatorInGuest = "cluster-api"
	// FaultProxy is the user of a proxy of package fault, which impersonates its clients.
	FaultProxy = "fault-proxy"
	// GuestNamespace is the namespace of Karpenter's ServiceAccount in a guest.
	GuestNamespace = "kube-system"
)

// audit returns the audit configuration of a cluster's API server.
func (w *World) audit(cluster string) controlplane.Audit {
	if len(w.cfg.AuditAllBut) > 0 {
		return controlplane.Audit{Everybody: true, Except: w.cfg.AuditAllBut, File: w.dir.auditLog(cluster)}
	}
	if !w.cfg.Audit {
		return controlplane.Audit{}
	}
	users := []string{serviceAccount(GuestNamespace, KarpenterServiceAccount), OperatorInGuest, FaultProxy}
	if cluster == Management {
		users = []string{serviceAccount(OperatorNamespace, OperatorServiceAccount), FaultProxy}
		for _, guest := range w.cfg.Guests {
			users = append(users, serviceAccount(w.KarpenterAccount(guest)))
		}
	}
	return controlplane.Audit{Users: users, File: w.dir.auditLog(cluster)}
}

// KarpenterAccount returns the namespace and the name of the ServiceAccount that a guest's Karpenter has in the management cluster.
func (w *World) KarpenterAccount(guest string) (namespace, name string) {
	if w.cfg.SharedNamespace != "" {
		return w.cfg.SharedNamespace, v1beta1.SharedNames(guest).Karpenter
	}
	return hosting.ControlPlaneNamespace(guest), KarpenterServiceAccount
}

func serviceAccount(namespace, name string) string {
	return "system:serviceaccount:" + namespace + ":" + name
}
