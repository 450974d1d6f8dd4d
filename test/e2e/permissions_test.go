// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/references"
	"github.com/autonode-io/autonode/operator/steps/featuregate"
	"github.com/autonode-io/autonode/test/audit"
	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/controlplane"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// What audit.Identity.Name calls those whose permissions are compared with what they did.
const (
	operatorIdentity            = "the operator"
	karpenterManagementIdentity = "Karpenter in the management cluster"
	karpenterGuestIdentity      = "Karpenter in the guest"
	operatorGuestIdentity       = "the operator in the guest"
)

// exceptions are the permissions that no test uses, each with what needs it. An entry that is no longer true fails as an unused permission does.
var exceptions = []audit.Exception{{
	Identity: operatorIdentity, Resources: []string{"configmaps"}, Names: []string{v1beta1.AbandonedConfigMap}, Verbs: []string{"get", "create", "patch"},
	Reason: "what a deletion had to leave behind is written down; no test waits for a drain's deadline",
}, {
	Identity: operatorIdentity, Group: "apiextensions.k8s.io", Resources: []string{"customresourcedefinitions"}, Names: []string{"hostedclusters.autonode.io"},
	Verbs: []string{"get"}, Sometimes: true, Reason: "a HostedCluster is deleted that has nodes, perhaps with its definition",
}, {
	Identity: operatorIdentity, Resources: []string{"configmaps"}, Names: []string{"karpenter-node-images"}, Verbs: []string{"delete"},
	Reason: "node images go when neither the payload nor the one before it names any; all of the world's payloads do",
}, {
	Identity: operatorIdentity, Group: clusterv1.GroupVersion.Group, Resources: []string{"machines"}, Verbs: []string{"patch", "delete"}, Sometimes: true,
	Reason: "a Machine is removed whose NodeClaim has gone before it, or whose guest can't be reached any more",
}, {
	Identity: operatorIdentity, Group: clusterv1.GroupVersion.Group, Resources: []string{"clusters"}, Verbs: []string{"get"}, Sometimes: true,
	Reason: "a guest that can't be reached is only believed to be gone when the API server has no Cluster",
}, {
	Identity: operatorIdentity, Group: bootstrapv1.GroupVersion.Group, Resources: []string{
		"eksconfigtemplates", "k0sworkerconfigtemplates", "kthreesconfigtemplates", "nodeadmconfigtemplates", "rke2configtemplates", "talosconfigtemplates",
	}, Verbs: []string{"list", "watch"}, Reason: "templates of providers that the world doesn't have; test/hostile reads those of kubeadm's",
}, {
	Identity: operatorIdentity, Group: infrav1.GroupVersion.Group, Resources: []string{
		"awsmachinetemplates", "azuremachinetemplates", "gcpmachinetemplates", "hcloudmachinetemplates", "hetznerbaremetalmachinetemplates", "kubemarkmachinetemplates",
		"kubevirtmachinetemplates", "metal3machinetemplates", "nutanixmachinetemplates", "openstackmachinetemplates", "proxmoxmachinetemplates", "vspheremachinetemplates",
	}, Verbs: []string{"list", "watch"}, Reason: "as above",
}, {
	Identity: operatorIdentity, Group: "vmware.infrastructure.cluster.x-k8s.io", Resources: []string{"vspheremachinetemplates"}, Verbs: []string{"list", "watch"}, Reason: "as above",
}, {
	Identity: operatorIdentity, Group: infrav1.GroupVersion.Group, Resources: []string{
		"awsmachines", "azuremachines", "gcpmachines", "hcloudmachines", "hetznerbaremetalmachines", "kubemarkmachines", "kubevirtmachines",
		"kwokmachines", "metal3machines", "nutanixmachines", "openstackmachines", "proxmoxmachines", "vspheremachines",
	}, Verbs: []string{"get"}, Reason: "the world's control planes have no machines; test/hostile makes one",
}, {
	Identity: operatorIdentity, Group: "vmware.infrastructure.cluster.x-k8s.io", Resources: []string{"vspheremachines"}, Verbs: []string{"get"}, Reason: "as above",
}, {
	Identity: operatorIdentity, Group: infrav1.GroupVersion.Group, Resources: []string{"awsclusters"}, Verbs: []string{"get"},
	Reason: "the region of a cluster on AWS is read from its infrastructure; the world has no AWS",
}, {
	Identity: operatorIdentity, Group: infrav1.GroupVersion.Group, Resources: []string{"vsphereclusters"}, Verbs: []string{"patch"},
	Reason: "the world has no vSphere; operator/controllers/machines tests it",
}, {
	Identity: operatorIdentity, Group: monitoringGroup, Resources: []string{"podmonitors"}, Verbs: []string{"list", "watch"},
	Reason: "the world has no Prometheus operator",
}, {
	Identity: operatorIdentity, Group: monitoringGroup, Resources: []string{"podmonitors"}, Names: []string{v1beta1.KarpenterComponent},
	Verbs: []string{"create", "patch", "delete"}, Reason: "the world has no Prometheus operator",
}, {
	Identity: operatorIdentity, Group: rbacv1.GroupName, Resources: []string{"rolebindings"}, Names: []string{v1beta1.KarpenterComponent}, Verbs: []string{"delete"},
	Reason: "a binding that was replaced by one to another role can't be changed back; operator/apply tests it",
}, {
	Identity: operatorIdentity, Group: rbacv1.GroupName, Resources: []string{"roles"}, Names: []string{v1beta1.KarpenterComponent}, Verbs: []string{"get"}, Sometimes: true,
	Reason: "read before the right to create Machines is taken out of it, where a guest refuses the mark on its node classes, or doesn't answer: TestFaults, in a world of its own",
}, {
	Identity: operatorIdentity, Group: v1beta1.Group, Resources: []string{"hostedclusters"}, Verbs: []string{"get"}, Sometimes: true,
	Reason: "read when an operator starts again, or a HostedCluster has gone from its cache: TestLifecycle, in a world of its own",
}, {
	Identity: operatorIdentity, Group: v1beta1.GroupVersion.Group, Resources: []string{"controlplanecomponents"}, Names: []string{v1beta1.KarpenterComponent},
	Verbs: []string{"patch"}, Sometimes: true,
	Reason: "a component that has lost its labels gets them again; envtests of operator have it",
}, {
	Identity: karpenterManagementIdentity, Group: v1beta1.Group, Resources: []string{references.Resource}, Names: []string{audit.AnyName}, Verbs: []string{references.Verb},
	Sometimes: true, Reason: "asked by the policies about Machines, which leaves no trace; without it no Machine is created",
}, {
	Identity: operatorIdentity, Group: v1beta1.Group, Resources: []string{"capacityaccounts", "capacityaccounts/status"}, Verbs: []string{"patch"},
	Reason: "no test of this world has a CapacityAccount: TestFleetCapacity has a world of its own",
}, {
	Identity: operatorIdentity, Group: v1beta1.Group, Resources: []string{"capacityleases"}, Verbs: []string{"create"}, Reason: "as above",
}, {
	Identity: operatorIdentity, Group: v1beta1.Group, Resources: []string{"capacityleases"}, Names: []string{autonodev1alpha1.LeaseName}, Verbs: []string{"patch"}, Reason: "as above",
}, {
	Identity: karpenterManagementIdentity, Group: v1beta1.Group, Resources: []string{"capacityleases/status"}, Names: []string{autonodev1alpha1.LeaseName}, Verbs: []string{"patch"},
	Reason: "as above",
}, {
	Identity: operatorIdentity, Resources: []string{"secrets"}, Names: []string{"karpenter-pull-secret"}, Verbs: []string{"delete"},
	Reason: "the copy of a pull secret goes when the HostedCluster names none any more; all tests need theirs",
}, {
	Identity: operatorIdentity, Group: v1beta1.GroupVersion.Group, Resources: []string{"controlplanecomponents/finalizers"}, Names: []string{v1beta1.KarpenterComponent},
	Verbs: []string{"update"}, Reason: "requested by admission (OwnerReferencesPermissionEnforcement), which leaves no trace; without it the tests fail",
}, {
	Identity: operatorIdentity, Group: "events.k8s.io", Resources: []string{"events"}, Verbs: []string{"patch"}, Sometimes: true,
	Reason: "an event that happens again within minutes is counted instead of created again",
}, {
	Identity: operatorIdentity, Resources: []string{"events"}, Verbs: []string{"patch"}, Sometimes: true,
	Reason: "as above, about the Lease",
}, {
	Identity: karpenterManagementIdentity, Resources: []string{"events"}, Verbs: []string{"patch"}, Sometimes: true,
	Reason: "as above, about the Lease",
}, {
	Identity: karpenterManagementIdentity, Group: clusterv1.GroupVersion.Group, Resources: []string{"machines"}, Verbs: []string{"get"}, Sometimes: true,
	Reason: "asked only where the cache may lag behind what was just written",
}, {
	Identity: karpenterManagementIdentity, Group: infrav1.GroupVersion.Group, Resources: []string{"kwokmachines"}, Verbs: []string{"get", "delete"}, Sometimes: true,
	Reason: "what a crash between two writes left is used by the next attempt, or swept",
}, {
	Identity: karpenterManagementIdentity, Group: bootstrapv1.GroupVersion.Group, Resources: []string{"kubeadmconfigs"}, Verbs: []string{"get", "delete"}, Sometimes: true,
	Reason: "as above",
}, {
	Identity: karpenterManagementIdentity, Resources: []string{"secrets"}, Names: []string{blue + "-kubeconfig"}, Verbs: []string{"get"}, Denied: true,
	Reason: "a guest's admin needs it for a machine's bootstrap, in the test about tenants",
}, {
	Identity: karpenterManagementIdentity, Group: bootstrapv1.GroupVersion.Group, Resources: []string{"kubeadmconfigs"},
	Verbs: []string{"watch"}, Denied: true, Reason: "a MachineDeployment boots from one instead of a template, in the test about drift",
}, {
	Identity: karpenterGuestIdentity, Group: karpenterGroupVersion.Group, Resources: []string{"nodeclaims"}, Verbs: []string{"get"}, Sometimes: true,
	Reason: "asked past the cache, before what belongs to a NodeClaim that seems to be gone is swept",
}, {
	Identity: karpenterGuestIdentity, Group: karpenterGroupVersion.Group, Resources: []string{"nodepools/finalizers", "nodeclaims/finalizers"}, Verbs: []string{"update"},
	Reason: "requested by admission (OwnerReferencesPermissionEnforcement), which leaves no trace; without it no node registers",
}, {
	Identity: karpenterGuestIdentity, Resources: []string{"namespaces"}, Verbs: []string{"list", "watch"},
	Reason: "read as soon as a pod has an affinity across namespaces; no test's has",
}, {
	Identity: karpenterGuestIdentity, Group: v1alpha1.Group, Resources: []string{"noderecords"}, Verbs: []string{"delete"},
	Reason: "a record is a week old then, or one of more than a thousand",
}, {
	Identity: operatorGuestIdentity, Group: v1alpha1.Group, Resources: []string{"noderecords"}, Verbs: []string{"patch"}, Sometimes: true,
	Reason: "a drain ends without Karpenter while AutoNode is off: TestFaults, in a world of its own",
}, {
	Identity: karpenterGuestIdentity, Resources: []string{"pods"}, Verbs: []string{"delete"}, Sometimes: true,
	Reason: "a pod that outlives its NodeClaim's terminationGracePeriod; no test's does for sure",
},
}

// operatorInGuests is what the operator does in guests, in which it has an administrator's credentials and no role of its own: no API server
// holds it to this list, so this test does.
var operatorInGuests = []rbacv1.PolicyRule{
	guestRule("apiextensions.k8s.io", "get list watch create patch delete", "customresourcedefinitions"),
	guestRule("admissionregistration.k8s.io", "get list watch create patch delete", "validatingadmissionpolicies", "validatingadmissionpolicybindings"),
	guestRule(rbacv1.GroupName, "get list watch create patch delete", "clusterroles", "clusterrolebindings", "roles", "rolebindings"),
	guestRule("", "get list watch create patch delete", "serviceaccounts"),
	guestRule("", "create", "serviceaccounts/token"),
	guestRule("authentication.k8s.io", "create", "selfsubjectreviews", "tokenreviews"),
	guestRule("", "get list watch patch delete", "nodes"),
	guestRule("", "list", "pods"),
	guestRule("policy", "list", "poddisruptionbudgets"),
	guestRule(karpenterGroupVersion.Group, "get list watch patch delete", "nodeclaims"),
	guestRule(karpenterGroupVersion.Group, "list watch", "nodepools"),
	guestRule(v1alpha1.Group, "get list watch create patch delete", "clusterapinodeclasses"),
	guestRule(v1alpha1.Group, "patch", "clusterapinodeclasses/status"),
	guestRule(v1alpha1.Group, "patch", "noderecords"),
	guestRule("certificates.k8s.io", "get list watch", "certificatesigningrequests"),
	guestRule("certificates.k8s.io", "update", "certificatesigningrequests/approval"),
	guestRule("events.k8s.io", "create", "events"),
}

func guestRule(group, verbs string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: strings.Fields(verbs)}
}

const monitoringGroup = "monitoring.coreos.com"

// testerAgent is how tests call themselves where they ask in the name of one of those identities.
const testerAgent = "autonode-e2e"

// checkPermissions compares what AutoNode's identities may do, in all clusters, with what they did in all tests. Every permission has to have been used,
// nothing may have been denied, and there is no wildcard.
func checkPermissions(ctx context.Context, world *localworld.World) ([]string, error) {
	return compare(ctx, world, audit.Compare)
}

// checkRefusals is what some of the tests can show: that nothing was denied, but for what has to be.
func checkRefusals(ctx context.Context, world *localworld.World) ([]string, error) {
	return compare(ctx, world, func(identity audit.Identity, exceptions []audit.Exception) []string {
		if identity.Name == operatorIdentity && len(identity.Events) == 0 {
			return []string{identity.Name + ": it made no request; is there an audit log?"}
		}
		return audit.Refused(identity, exceptions)
	})
}

func compare(ctx context.Context, world *localworld.World, with func(audit.Identity, []audit.Exception) []string) ([]string, error) {
	operator := audit.Identity{Name: operatorIdentity}
	management := audit.Identity{Name: karpenterManagementIdentity}
	guests := audit.Identity{Name: karpenterGuestIdentity}
	if err := add(ctx, &operator, world, world.Management(), localworld.OperatorNamespace, localworld.OperatorServiceAccount); err != nil {
		return nil, err
	}
	inGuests := audit.Identity{Name: operatorGuestIdentity, Declared: true, Grants: []audit.Grant{{Kind: "list", Name: "operatorInGuests", Rules: operatorInGuests}}}
	for _, guest := range slices.Concat(world.Guests(), world.Adopted()) {
		events, err := eventsOf(world, guest, func(e audit.Event) bool {
			return e.User == localworld.OperatorInGuest && strings.HasPrefix(e.UserAgent, v1beta1.ManagedByOperator)
		})
		if err != nil {
			return nil, err
		}
		inGuests.Events = append(inGuests.Events, events...)
		namespace, account := world.KarpenterAccount(guest.Name)
		if err := add(ctx, &management, world, world.Management(), namespace, account); err != nil {
			return nil, err
		}
		if err := add(ctx, &guests, world, guest, localworld.GuestNamespace, localworld.KarpenterServiceAccount); err != nil {
			return nil, err
		}
	}
	// A guest has them only while a test has turned a gate on.
	gates, err := featuregate.Rules(sets.New(localworld.HostedClusterFeatureGates...))
	if err != nil {
		return nil, err
	}
	guests.Grants = append(guests.Grants, audit.Grant{Kind: "ClusterRole", Name: "autonode:karpenter", Rules: gates})
	var findings []string
	for _, identity := range []audit.Identity{operator, management, guests, inGuests} {
		findings = append(findings, with(identity, exceptions)...)
	}
	return findings, nil
}

// add adds to an identity what a ServiceAccount may do in a cluster, and what it did there.
func add(ctx context.Context, identity *audit.Identity, world *localworld.World, cluster *controlplane.Cluster, namespace, name string) error {
	reader, err := newClient(cluster.RESTConfig())
	if err != nil {
		return err
	}
	grants, err := grantsOf(ctx, reader, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name})
	if err != nil {
		return fmt.Errorf("reading the roles of %s/%s in %s: %w", namespace, name, cluster.Name, err)
	}
	identity.Grants = append(identity.Grants, grants...)
	for _, start := range cluster.Starts() {
		identity.Starts = append(identity.Starts, audit.Start(start))
	}
	events, err := eventsOf(world, cluster, func(e audit.Event) bool {
		return e.User == "system:serviceaccount:"+namespace+":"+name && e.UserAgent != testerAgent
	})
	identity.Events = append(identity.Events, events...)
	return err
}

// eventsOf reads the requests of some users to a cluster.
func eventsOf(world *localworld.World, cluster *controlplane.Cluster, of func(audit.Event) bool) ([]audit.Event, error) {
	log, err := os.Open(world.AuditLog(cluster.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // written with the first event; Compare misses them
	}
	if err != nil {
		return nil, err
	}
	defer log.Close()
	events, err := audit.Read(log)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cluster.Name, err)
	}
	return slices.DeleteFunc(events, func(e audit.Event) bool { return !of(e) }), nil
}

// isBound reports whether a binding is to a ServiceAccount, or to a group that it is in. Kubernetes' own bindings to groups, such as that of everybody to
// system:discovery, are Kubernetes' matter.
func isBound(binding metav1.ObjectMeta, subjects []rbacv1.Subject, to rbacv1.Subject) bool {
	groups := []string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:" + to.Namespace}
	return slices.ContainsFunc(subjects, func(subject rbacv1.Subject) bool {
		switch {
		case subject == to:
			return true
		case binding.Labels["kubernetes.io/bootstrapping"] == "rbac-defaults":
			return false
		case subject.Kind == rbacv1.UserKind:
			return subject.Name == "system:serviceaccount:"+to.Namespace+":"+to.Name
		default:
			return subject.Kind == rbacv1.GroupKind && slices.Contains(groups, subject.Name)
		}
	})
}

// grantsOf reads what a ServiceAccount is bound to, by name or by group.
func grantsOf(ctx context.Context, reader client.Reader, subject rbacv1.Subject) ([]audit.Grant, error) {
	var grants []audit.Grant
	everywhere := &rbacv1.ClusterRoleBindingList{}
	if err := reader.List(ctx, everywhere); err != nil {
		return nil, err
	}
	for _, binding := range everywhere.Items {
		if !isBound(binding.ObjectMeta, binding.Subjects, subject) {
			continue
		}
		role := &rbacv1.ClusterRole{}
		if err := reader.Get(ctx, client.ObjectKey{Name: binding.RoleRef.Name}, role); err != nil {
			return nil, err
		}
		grants = append(grants, audit.Grant{Kind: "ClusterRole", Name: role.Name, Rules: role.Rules})
	}
	namespaced := &rbacv1.RoleBindingList{}
	if err := reader.List(ctx, namespaced); err != nil {
		return nil, err
	}
	for _, binding := range namespaced.Items {
		if !isBound(binding.ObjectMeta, binding.Subjects, subject) {
			continue
		}
		if binding.RoleRef.Kind != "Role" {
			shared := &rbacv1.ClusterRole{}
			if binding.RoleRef.Name != v1beta1.SharedNamespaceRole {
				return nil, fmt.Errorf("RoleBinding %s/%s binds %s %s; only Roles are expected", binding.Namespace, binding.Name, binding.RoleRef.Kind, binding.RoleRef.Name)
			}
			if err := reader.Get(ctx, client.ObjectKey{Name: binding.RoleRef.Name}, shared); err != nil {
				return nil, err
			}
			grants = append(grants, audit.Grant{Kind: "ClusterRole", Name: shared.Name, Namespace: binding.Namespace, Rules: shared.Rules})
			continue
		}
		role := &rbacv1.Role{}
		if err := reader.Get(ctx, client.ObjectKey{Namespace: binding.Namespace, Name: binding.RoleRef.Name}, role); err != nil {
			return nil, err
		}
		grants = append(grants, audit.Grant{Kind: "Role", Name: role.Name, Namespace: role.Namespace, Rules: role.Rules})
	}
	return grants, nil
}
