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
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/internal/clusterstatus/kubeconfig"
	"github.com/autonode-io/autonode/operator/guest/egress"
)

// kubeconfigs makes client configurations of kubeconfigs, with the fields that the operator understands. It writes a
// token into a file, so that a renewed token reaches the open connection: client-go reads the file every minute, and
// after a 401.
type kubeconfigs struct {
	dialer *egress.Dialer
	// tokens is a directory of this process. Without one each new token replaces the connection.
	tokens string
	// environment returns the platform's proxy for a server, nil for none.
	environment func(*http.Request) (*url.URL, error)

	mu sync.Mutex
}

func newKubeconfigs(dialer *egress.Dialer) *kubeconfigs {
	tokens, err := os.MkdirTemp("", "autonode-guests-")
	if err != nil {
		tokens = "" // a read-only root without a volume for it
	}
	return &kubeconfigs{dialer: dialer, tokens: tokens, environment: http.ProxyFromEnvironment}
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

// config returns the client configuration of a Secret's connection.
func (k *kubeconfigs) config(s *corev1.Secret) (*rest.Config, error) {
	content, ok := s.Data[secret.KubeconfigDataName]
	if !ok {
		return nil, fmt.Errorf("key %q is missing", secret.KubeconfigDataName)
	}
	access, err := kubeconfig.Parse(content)
	if err != nil {
		return nil, err
	}
	cluster := client.ObjectKey{Namespace: s.Namespace, Name: s.Labels[clusterv1.ClusterNameLabel]}
	config := access.Config()
	if config.BearerTokenFile, err = k.writeToken(cluster, access.Token); err != nil {
		return nil, err
	}
	if !k.demandsProxy(access.Server) {
		config.Dial = k.dialer.To(cluster.String(), access.Address())
		// No proxy, whereas nil would be the environment's, to which a redirect could lead past the dialer. Client-go
		// doesn't cache a transport with this field set, so a guest's transport ends with its last connection.
		config.Proxy = http.ProxyURL(nil)
	}
	return config, nil
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

// forget removes the token of a Cluster that is no longer connected, and its right to connect.
func (k *kubeconfigs) forget(cluster client.ObjectKey) {
	k.dialer.Forget(cluster.String())
	if k.tokens == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = os.Remove(k.tokenPath(cluster))
}
