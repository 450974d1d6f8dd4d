// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/autonode-io/autonode/test/world/pki"
)

// slowness is how long a slow guest takes for each answer.
const slowness = 2 * time.Second

// sick are kubeconfigs of guests that hang or answer slowly.
type sick struct{ silent, slow []byte }

func (b *bench) guestKubeconfig(i int) ([]byte, error) {
	return b.guests[i%len(b.guests)].Kubeconfig(operatorUser, "system:masters")
}

func (b *bench) silentKubeconfig(int) ([]byte, error) { return b.sick.silent, nil }
func (b *bench) slowKubeconfig(int) ([]byte, error)   { return b.sick.slow, nil }

func (b *bench) newSick() (*sick, error) {
	silent, err := b.listen()
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			connection, err := silent.Accept()
			if err != nil {
				return
			}
			b.onStop(func() { _ = connection.Close() })
		}
	}()

	slow, err := b.listen()
	if err != nil {
		return nil, err
	}
	authority, err := pki.NewAuthority("slow")
	if err != nil {
		return nil, err
	}
	pair, err := authority.Server("slow", loopback)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		return nil, fmt.Errorf("reading a certificate: %w", err)
	}
	guest := b.guests[0]
	target, err := url.Parse(guest.URL)
	if err != nil {
		return nil, fmt.Errorf("reading a guest's address: %w", err)
	}
	transport, err := rest.TransportFor(guest.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("connecting to a guest: %w", err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) { request.SetURL(target) }, Transport: transport, FlushInterval: -1,
		ErrorLog: log.New(discard{}, "", 0),
	}
	server := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}, ErrorLog: proxy.ErrorLog, ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			if pause(request.Context(), slowness) == nil {
				proxy.ServeHTTP(w, request)
			}
		}),
	}
	go func() { _ = server.ServeTLS(slow, "", "") }()
	b.onStop(func() { _ = server.Close() })

	s := &sick{}
	if s.silent, err = kubeconfigFor(silent.Addr(), nil); err != nil {
		return nil, err
	}
	if s.slow, err = kubeconfigFor(slow.Addr(), authority.Certificate); err != nil {
		return nil, err
	}
	return s, nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func (b *bench) listen() (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", loopback+":0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	b.onStop(func() { _ = listener.Close() })
	return listener, nil
}

func kubeconfigFor(address net.Addr, ca []byte) ([]byte, error) {
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"guest": {Server: "https://" + address.String(), CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"guest": {Token: "of-no-use"}},
		Contexts:       map[string]*clientcmdapi.Context{"guest": {Cluster: "guest", AuthInfo: "guest"}},
		CurrentContext: "guest",
	})
	if err != nil {
		return nil, fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return data, nil
}
