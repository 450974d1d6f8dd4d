// SPDX-License-Identifier: Apache-2.0

package hosting

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/test/world/controlplane"
)

// clusterConfiguration and kubeletConfiguration are what `kubeadm init` uploads for machines that join. The kubelet's has what machines need that
// are namespaces of this host (package realmachine): cgroups of version 1 too, no driver of cgroups of its own, no rules in the host's packet
// filter, and no accounting of a disk that is memory.
const (
	clusterConfiguration = `apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: %s
controlPlaneEndpoint: 127.0.0.1:%d
kubernetesVersion: %s
networking: {dnsDomain: cluster.local, podSubnet: ` + podRange + `, serviceSubnet: ` + serviceRange + `}
`
	kubeletConfiguration = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
enforceNodeAllocatable: []
failCgroupV1: false
healthzBindAddress: 127.0.0.1
healthzPort: 10248
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
rotateCertificates: true
staticPodPath: /etc/kubernetes/manifests
`
)

// AdmitKubeadm puts into a guest what `kubeadm join` reads there, as `kubeadm init` does: cluster-info for everybody, and the configurations for
// machines with a bootstrap token.
func AdmitKubeadm(ctx context.Context, guest *controlplane.Cluster) error {
	c, err := client.New(guest.RESTConfig(), client.Options{})
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", guest.Name, err)
	}
	info, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"": {Server: guest.URL, CertificateAuthorityData: guest.CA.Certificate}},
	})
	if err != nil {
		return fmt.Errorf("writing the cluster-info of %s: %w", guest.Name, err)
	}
	everybody := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:anonymous"}}
	machines := []rbacv1.Subject{
		{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:bootstrappers:kubeadm:default-node-token"},
		{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:nodes"},
	}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespacePublic}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:get-nodes"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
		}},
		binding("kubeadm:get-nodes", "kubeadm:get-nodes", machines[0].Name),
	}
	for _, file := range []struct {
		namespace, name, key, content string
		readers                       []rbacv1.Subject
	}{
		{metav1.NamespacePublic, bootstrapapi.ConfigMapClusterInfo, bootstrapapi.KubeConfigKey, string(info), everybody},
		{metav1.NamespaceSystem, "kubeadm-config", "ClusterConfiguration", fmt.Sprintf(clusterConfiguration, guest.Name, guest.Port, guest.Version()), machines},
		{metav1.NamespaceSystem, "kubelet-config", "kubelet", kubeletConfiguration, machines},
	} {
		meta := metav1.ObjectMeta{Namespace: file.namespace, Name: file.name}
		reading := metav1.ObjectMeta{Namespace: file.namespace, Name: "kubeadm:" + file.name}
		objects = append(objects,
			&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{file.key: file.content}},
			&rbacv1.Role{ObjectMeta: reading, Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{file.name}, Verbs: []string{"get"}},
			}},
			&rbacv1.RoleBinding{
				ObjectMeta: reading, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: reading.Name}, Subjects: file.readers,
			})
	}
	for _, object := range objects {
		if err := c.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating %T %s in %s: %w", object, client.ObjectKeyFromObject(object), guest.Name, err)
		}
	}
	return nil
}
