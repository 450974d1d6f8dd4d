// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/test/world/pki"
	"github.com/autonode-io/autonode/test/world/process"
)

// Etcd is the one etcd that all clusters of a world share, each below a prefix of its own. Its clients need a
// certificate: pods of the world share its host and must not read what they may not ask an API server for.
type Etcd struct {
	url      string
	caFile   string
	certFile string
	keyFile  string
}

// StartEtcd starts etcd and returns when it is healthy.
func StartEtcd(ctx context.Context, host Host) (*Etcd, error) {
	dir := filepath.Join(host.Dir, "etcd")
	authority, err := pki.NewAuthority("etcd")
	if err != nil {
		return nil, err
	}
	serving, err := authority.Server("etcd", loopback, "localhost")
	if err != nil {
		return nil, err
	}
	client, err := authority.Client("kube-apiserver")
	if err != nil {
		return nil, err
	}
	if err := WriteKeys(dir, map[string][]byte{
		"ca.crt": authority.Certificate, "server.crt": serving.Certificate, "server.key": serving.Key,
		"client.crt": client.Certificate, "client.key": client.Key,
	}); err != nil {
		return nil, err
	}
	port, err := host.Ports.Next()
	if err != nil {
		return nil, err
	}
	httpPort, err := host.Ports.Next()
	if err != nil {
		return nil, err
	}
	peerPort, err := host.Ports.Next()
	if err != nil {
		return nil, err
	}
	e := &Etcd{
		url:      fmt.Sprintf("https://%s:%d", loopback, port),
		caFile:   filepath.Join(dir, "ca.crt"),
		certFile: filepath.Join(dir, "client.crt"),
		keyFile:  filepath.Join(dir, "client.key"),
	}
	health := fmt.Sprintf("https://%s:%d", loopback, httpPort)
	peer := fmt.Sprintf("http://%s:%d", loopback, peerPort)
	p, err := host.Processes.Start(process.Spec{
		Name:    "etcd",
		Path:    host.Programs.Etcd(),
		Address: e.url,
		Grace:   stopGrace,
		Args: []string{
			"--data-dir=" + filepath.Join(dir, "data"),
			"--listen-client-urls=" + e.url,
			// With TLS, etcd serves gRPC by Go's HTTP server as long as it serves anything else there, and that lets the answers to reads
			// starve watches for minutes: https://github.com/etcd-io/etcd/issues/15402.
			"--listen-client-http-urls=" + health,
			"--advertise-client-urls=" + e.url,
			"--listen-peer-urls=" + peer,
			"--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=default=" + peer,
			"--cert-file=" + filepath.Join(dir, "server.crt"),
			"--key-file=" + filepath.Join(dir, "server.key"),
			"--trusted-ca-file=" + e.caFile,
			"--client-cert-auth=true",
			// Nothing here is to survive a power cut.
			"--unsafe-no-fsync=true",
			"--log-level=warn",
		},
	})
	if err != nil {
		return nil, err
	}
	probe, err := probeClient(authority, client)
	if err != nil {
		return nil, err
	}
	defer probe.CloseIdleConnections()
	if err := p.Wait(ctx, process.Answers(probe, health+"/health")); err != nil {
		return nil, err
	}
	return e, nil
}

// probeClient authenticates with a certificate that the authority issued.
func probeClient(authority *pki.Authority, pair pki.Pair) (*http.Client, error) {
	return rest.HTTPClientFor(&rest.Config{
		TLSClientConfig: rest.TLSClientConfig{CAData: authority.Certificate, CertData: pair.Certificate, KeyData: pair.Key},
		Timeout:         5 * time.Second,
	})
}
