// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/guest/kubeconfig"
)

// kubeconfigs reads kubeconfigs, and returns a copy with the fields that the operator understands. It writes a token
// into a file, so that a renewed token reaches the open connection: client-go reads the file every minute, and after a
// 401.
type kubeconfigs struct {
	tunnel *egress.Tunnel
	// tokens is a directory of this process. Without one each new token replaces the connection.
	tokens string
	// environment returns the platform's proxy for a server, nil for none.
	environment func(*http.Request) (*url.URL, error)

	mu sync.Mutex
}

func newKubeconfigs(tunnel *egress.Tunnel) *kubeconfigs {
	tokens, err := os.MkdirTemp("", "autonode-guests-")
	if err != nil {
		tokens = "" // a read-only root without a volume for it
	}
	return &kubeconfigs{tunnel: tunnel, tokens: tokens, environment: http.ProxyFromEnvironment}
}

// Start removes the tokens when ctx ends.
func (k *kubeconfigs) Start(ctx context.Context) error {
	<-ctx.Done()
	if k.tokens == "" {
		return nil
	}
	return os.RemoveAll(k.tokens)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (k *kubeconfigs) NeedLeaderElection() bool { return false }

// sanitize returns a kubeconfig with the fields that kubeconfig.Parse accepts.
func (k *kubeconfigs) sanitize(s *corev1.Secret) ([]byte, error) {
	content, ok := s.Data[secret.KubeconfigDataName]
	if !ok {
		return nil, fmt.Errorf("key %q is missing", secret.KubeconfigDataName)
	}
	access, err := kubeconfig.Parse(content)
	if err != nil {
		return nil, err
	}
	cluster := client.ObjectKey{Namespace: s.Namespace, Name: s.Labels[clusterv1.ClusterNameLabel]}
	tokenFile, err := k.writeToken(cluster, access.Token)
	if err != nil {
		return nil, err
	}
	proxy := ""
	if !k.demandsProxy(access.Server) {
		proxy = k.tunnel.To(cluster.String(), access.Address())
	}
	return access.Config(tokenFile, proxy)
}

// config returns the client configuration of a Secret's connection.
func (k *kubeconfigs) config(s *corev1.Secret) (*rest.Config, error) {
	content, err := k.sanitize(s)
	if err != nil {
		return nil, err
	}
	return clientcmd.RESTConfigFromKubeConfig(content)
}

// demandsProxy reports whether the operator's environment names a proxy for a server. That proxy then resolves the
// server's name and decides which addresses are reachable.
func (k *kubeconfigs) demandsProxy(server string) bool {
	parsed, err := url.Parse(server)
	if err != nil {
		return false
	}
	proxy, err := k.environment(&http.Request{URL: parsed})
	return err == nil && proxy != nil
}

// writeToken writes a guest's token into a file and returns the file's name, or "" if there is no token or no
// directory.
func (k *kubeconfigs) writeToken(cluster client.ObjectKey, token string) (string, error) {
	if k.tokens == "" || token == "" {
		return "", nil
	}
	path := k.tokenPath(cluster)
	k.mu.Lock()
	defer k.mu.Unlock()
	if before, err := os.ReadFile(path); err == nil && string(before) == token {
		return path, nil
	}
	// Renamed, so that no reader meets half of it.
	if err := os.WriteFile(path+"~", []byte(token), 0o600); err != nil {
		return "", fmt.Errorf("keeping the token: %w", err)
	}
	if err := os.Rename(path+"~", path); err != nil {
		return "", fmt.Errorf("keeping the token: %w", err)
	}
	return path, nil
}

// tokenPath names a file after the Cluster: its namespace and name contain no "_" or "/".
func (k *kubeconfigs) tokenPath(cluster client.ObjectKey) string {
	return filepath.Join(k.tokens, cluster.Namespace+"_"+cluster.Name)
}

// forget removes the file and the proxy of a Cluster that is no longer connected.
func (k *kubeconfigs) forget(cluster client.ObjectKey) {
	k.tunnel.Forget(cluster.String())
	if k.tokens == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = os.Remove(k.tokenPath(cluster))
}
