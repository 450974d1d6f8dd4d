// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig renders a kubeconfig for the cluster that config names, with the credentials in a file named token beside it. The
// operator's own credentials, which config holds too, stay out of it.
func Kubeconfig(config *rest.Config) ([]byte, error) {
	ca := config.CAData
	if len(ca) == 0 && config.CAFile != "" {
		var err error
		if ca, err = os.ReadFile(config.CAFile); err != nil {
			return nil, fmt.Errorf("reading the guest's CA: %w", err)
		}
	}
	data, err := clientcmd.Write(api.Config{
		Clusters: map[string]*api.Cluster{"guest": {
			Server:                   config.Host,
			TLSServerName:            config.ServerName,
			InsecureSkipTLSVerify:    config.Insecure,
			CertificateAuthorityData: ca,
		}},
		AuthInfos:      map[string]*api.AuthInfo{"karpenter": {TokenFile: TokenKey}},
		Contexts:       map[string]*api.Context{"guest": {Cluster: "guest", AuthInfo: "karpenter"}},
		CurrentContext: "guest",
	})
	if err != nil {
		return nil, fmt.Errorf("writing Karpenter's kubeconfig: %w", err)
	}
	return data, nil
}
