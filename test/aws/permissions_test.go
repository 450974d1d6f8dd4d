// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"os"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/test/audit"
	localworld "github.com/autonode-io/autonode/test/world"
)

const karpenterIdentity = "Karpenter's AWS provider in the guest"

// exceptions are the permissions of Karpenter's AWS provider in a guest that the tests don't use, each with what needs it.
var exceptions = []audit.Exception{
	{
		Identity: karpenterIdentity, Group: "karpenter.sh", Resources: []string{"nodeclaims"}, Verbs: []string{"get"}, Sometimes: true,
		Reason: "read past the cache, before what belongs to a NodeClaim that seems to be gone is removed",
	}, {
		Identity: karpenterIdentity, Group: "karpenter.sh", Resources: []string{"nodeoverlays/status"}, Verbs: []string{"patch"},
		Reason: "no test has a NodeOverlay",
	}, {
		Identity: karpenterIdentity, Group: "karpenter.sh", Resources: []string{"nodepools/finalizers", "nodeclaims/finalizers"}, Verbs: []string{"update"},
		Reason: "requested by admission (OwnerReferencesPermissionEnforcement), which leaves no trace; without it no node registers",
	}, {
		Identity: karpenterIdentity, Resources: []string{"namespaces"}, Verbs: []string{"list", "watch"}, Sometimes: true,
		Reason: "read as soon as a pod has an affinity across namespaces; no test's has",
	}, {
		Identity: karpenterIdentity, Resources: []string{"pods"}, Verbs: []string{"delete"}, Sometimes: true,
		Reason: "a pod that outlives its NodeClaim's terminationGracePeriod; no test's does for sure",
	}, {
		Identity: karpenterIdentity, Resources: []string{"persistentvolumes", "persistentvolumeclaims"}, Verbs: []string{"list", "watch"},
		Reason: "read as soon as a pod has a volume; no test's has one on AWS",
	}, {
		Identity: karpenterIdentity, Group: "storage.k8s.io", Resources: []string{"storageclasses"}, Verbs: []string{"list", "watch"},
		Reason: "read as soon as a pod has a volume; no test's has one on AWS",
	}, {
		Identity: karpenterIdentity, Group: "karpenter.sh", Resources: []string{"nodeclaims"}, Verbs: []string{"create"}, Denied: true,
		Reason: "while AutoNode is being turned off, Karpenter makes no nodes for the pods that it evicts",
	},
}

// permitted compares what Karpenter may do in the guest with what it did there, and was denied.
func (h *hosted) permitted(t *testing.T) {
	g := NewWithT(t)
	profile := aws.New()
	role, err := profile.ClusterRole()
	g.Expect(err).NotTo(HaveOccurred())
	roles, err := profile.Roles()
	g.Expect(err).NotTo(HaveOccurred())
	identity := audit.Identity{Name: karpenterIdentity, Grants: []audit.Grant{{Kind: "ClusterRole", Name: role.Name, Rules: role.Rules}}}
	for _, object := range roles {
		if role, ok := object.(*rbacv1.Role); ok {
			identity.Grants = append(identity.Grants, audit.Grant{Kind: "Role", Name: role.Name, Namespace: role.Namespace, Rules: role.Rules})
		}
	}
	guest := world.Guest(h.name)
	for _, start := range guest.Starts() {
		identity.Starts = append(identity.Starts, audit.Start(start))
	}
	log, err := os.Open(world.AuditLog(h.name))
	g.Expect(err).NotTo(HaveOccurred())
	defer log.Close()
	events, err := audit.Read(log)
	g.Expect(err).NotTo(HaveOccurred())
	user := "system:serviceaccount:" + localworld.GuestNamespace + ":" + localworld.KarpenterServiceAccount
	identity.Events = slices.DeleteFunc(events, func(e audit.Event) bool { return e.User != user })
	g.Expect(audit.Compare(identity, exceptions)).To(BeEmpty())
}
