// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig renders a kubeconfig for the cluster that config names, and the certificates of the CA that it trusts. The
// credentials are in a file named token beside it, and the certificates in one named ca.crt: client-go reads both again
// when they change, so that neither a new token nor a new CA needs a restart. The operator's own credentials, which config
// holds too, stay out of it.
func Kubeconfig(config *rest.Config) (kubeconfig, ca []byte, err error) {
	ca = config.CAData
	cluster := &clientcmdapi.Cluster{Server: config.Host, TLSServerName: config.ServerName}
	if len(ca) > 0 {
		cluster.CertificateAuthority = CAKey
	}
	kubeconfig, err = clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"guest": cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"karpenter": {TokenFile: TokenKey}},
		Contexts:       map[string]*clientcmdapi.Context{"guest": {Cluster: "guest", AuthInfo: "karpenter"}},
		CurrentContext: "guest",
	})
	if err != nil {
		return nil, nil, fmt.Errorf("writing Karpenter's kubeconfig: %w", err)
	}
	return kubeconfig, ca, nil
}
