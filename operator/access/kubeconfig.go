// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig renders a kubeconfig for the cluster that config names, and the certificates of the CA that it trusts. The
// credentials are in a file named token beside it, and the certificates in one named ca.crt: client-go reads both again
// when they change, so that neither a new token nor a new CA needs a restart. The operator's own credentials, which config
// holds too, stay out of it.
func Kubeconfig(config *rest.Config) (kubeconfig, ca []byte, err error) {
	if ca, err = CA(config); err != nil {
		return nil, nil, err
	}
	cluster := &api.Cluster{
		Server:                config.Host,
		TLSServerName:         config.ServerName,
		InsecureSkipTLSVerify: config.Insecure,
	}
	if len(ca) > 0 {
		cluster.CertificateAuthority = CAKey
	}
	kubeconfig, err = clientcmd.Write(api.Config{
		Clusters:       map[string]*api.Cluster{"guest": cluster},
		AuthInfos:      map[string]*api.AuthInfo{"karpenter": {TokenFile: TokenKey}},
		Contexts:       map[string]*api.Context{"guest": {Cluster: "guest", AuthInfo: "karpenter"}},
		CurrentContext: "guest",
	})
	if err != nil {
		return nil, nil, fmt.Errorf("writing Karpenter's kubeconfig: %w", err)
	}
	return kubeconfig, ca, nil
}

// CA returns the certificates that a connection trusts; nil are the system's.
func CA(config *rest.Config) ([]byte, error) {
	if len(config.CAData) > 0 || config.CAFile == "" {
		return config.CAData, nil
	}
	ca, err := os.ReadFile(config.CAFile)
	if err != nil {
		return nil, fmt.Errorf("reading the guest's CA: %w", err)
	}
	return ca, nil
}
