// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/autonode-io/autonode/test/world/pki"
)

// RESTConfig is an administrator's access, without client-side throttling.
func (c *Cluster) RESTConfig() *rest.Config {
	return c.restConfig(c.admin)
}

// RESTConfigFor is a user's access, without client-side throttling.
func (c *Cluster) RESTConfigFor(user string, groups ...string) (*rest.Config, error) {
	pair, err := c.CA.Client(user, groups...)
	if err != nil {
		return nil, err
	}
	return c.restConfig(pair), nil
}

func (c *Cluster) restConfig(pair pki.Pair) *rest.Config {
	return &rest.Config{
		Host:            c.URL,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.CA.Certificate, CertData: pair.Certificate, KeyData: pair.Key},
		QPS:             -1,
	}
}

// AdminKubeconfig is an administrator's kubeconfig. Its context, cluster and user are named after the cluster, so that
// the kubeconfigs of several clusters can be merged.
func (c *Cluster) AdminKubeconfig() ([]byte, error) { return c.kubeconfig(c.admin, c.URL) }

// Kubeconfig is a user's kubeconfig.
func (c *Cluster) Kubeconfig(user string, groups ...string) ([]byte, error) {
	return c.KubeconfigAt("", user, groups...)
}

// KubeconfigAt is a user's kubeconfig that finds the API server at another address, such as a proxy's; empty is its own.
func (c *Cluster) KubeconfigAt(url, user string, groups ...string) ([]byte, error) {
	pair, err := c.CA.Client(user, groups...)
	if err != nil {
		return nil, err
	}
	return c.kubeconfig(pair, cmp.Or(url, c.URL))
}

func (c *Cluster) kubeconfig(pair pki.Pair, url string) ([]byte, error) {
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{c.Name: {Server: url, CertificateAuthorityData: c.CA.Certificate}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{c.Name: {ClientCertificateData: pair.Certificate, ClientKeyData: pair.Key}},
		Contexts:       map[string]*clientcmdapi.Context{c.Name: {Cluster: c.Name, AuthInfo: c.Name}},
		CurrentContext: c.Name,
	})
	if err != nil {
		return nil, fmt.Errorf("writing a kubeconfig for %s: %w", c.Name, err)
	}
	return data, nil
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// WriteKeys writes files that only their owner may read.
func WriteKeys(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("writing keys: %w", err)
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return fmt.Errorf("writing keys: %w", err)
		}
	}
	return nil
}
