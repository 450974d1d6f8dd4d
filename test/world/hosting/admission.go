// SPDX-License-Identifier: Apache-2.0

package hosting

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/test/world/controlplane"
)

// AdmitNodes lets machines join a guest, as `kubeadm init` does: those with a bootstrap token may ask for a certificate. Where
// selfApproving, the guest's controller manager approves whatever they ask for, and whatever nodes ask for to renew it; otherwise
// AutoNode's operator looks at each request.
func AdmitNodes(ctx context.Context, guest *controlplane.Cluster, selfApproving bool) error {
	c, err := client.New(guest.RESTConfig(), client.Options{})
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", guest.Name, err)
	}
	const bootstrappers, nodes = "system:bootstrappers:kubeadm:default-node-token", "system:nodes"
	const approval = "system:certificates.k8s.io:certificatesigningrequests:"
	bindings := []*rbacv1.ClusterRoleBinding{binding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", bootstrappers)}
	if selfApproving {
		bindings = append(bindings,
			binding("kubeadm:node-autoapprove-bootstrap", approval+"nodeclient", bootstrappers),
			binding("kubeadm:node-autoapprove-certificate-rotation", approval+"selfnodeclient", nodes))
	}
	for _, b := range bindings {
		if err := c.Create(ctx, b); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating ClusterRoleBinding %s in %s: %w", b.Name, guest.Name, err)
		}
	}
	return nil
}

func binding(name, role, group string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	}
}
