// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	certutil "k8s.io/client-go/util/cert"

	"github.com/autonode-io/autonode/test/world/process"
)

// followPeriod is the interval of reads of a followed log.
const followPeriod = 200 * time.Millisecond

// serveLogs answers the API server's requests to a kubelet for kubectl logs, on a free port of loopback.
func (a *Agent) serveLogs() error {
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(a.LogClientCA) {
		return errors.New("reading LogClientCA: it holds no certificate")
	}
	// The API server doesn't verify a kubelet's certificate unless it is configured to.
	certificate, key, err := certutil.GenerateSelfSignedCertKey(loopback, nil, nil)
	if err != nil {
		return fmt.Errorf("making the log server's certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return fmt.Errorf("reading the log server's certificate: %w", err)
	}
	listener, err := tls.Listen("tcp", net.JoinHostPort(loopback, "0"), &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
	})
	if err != nil {
		return fmt.Errorf("listening for log requests: %w", err)
	}
	a.logPort = int32(listener.Addr().(*net.TCPAddr).Port)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", a.containerLogs)
	ctx, cancel := context.WithCancel(context.Background())
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	a.background.Go(func() { _ = server.Serve(listener) })
	a.closers = append(a.closers, cancel, func() { _ = server.Close() })
	return nil
}

func (a *Agent) containerLogs(out http.ResponseWriter, request *http.Request) {
	pod := types.NamespacedName{Namespace: request.PathValue("namespace"), Name: request.PathValue("pod")}
	container := request.PathValue("container")
	if strings.ContainsAny(pod.Namespace+pod.Name+container, `/\*?[_`) || !filepath.IsLocal(container) {
		http.Error(out, "not a name", http.StatusBadRequest)
		return
	}
	query := request.URL.Query()
	runs := a.runsOf(pod, container)
	if query.Get("previous") == "true" && len(runs) > 0 {
		runs = runs[1:]
	}
	if len(runs) == 0 {
		http.Error(out, fmt.Sprintf("container %q of pod %s has no such log", container, pod), http.StatusNotFound)
		return
	}
	file, err := os.Open(runs[0])
	if err != nil {
		http.Error(out, err.Error(), http.StatusInternalServerError)
		return
	}
	defer file.Close()
	content, err := io.ReadAll(file)
	if err != nil {
		http.Error(out, err.Error(), http.StatusInternalServerError)
		return
	}
	if lines, err := strconv.Atoi(query.Get("tailLines")); err == nil {
		content = content[process.LastLines(content, lines):]
	}
	if limit, err := strconv.Atoi(query.Get("limitBytes")); err == nil {
		content = content[:min(limit, len(content))]
	}
	out.Header().Set("Content-Type", "text/plain")
	if _, err := out.Write(content); err == nil && query.Get("follow") == "true" {
		a.follow(request.Context(), out, file)
	}
}

// follow sends what is added to a log until its run is over, as the kubelet does.
func (a *Agent) follow(ctx context.Context, out http.ResponseWriter, file *os.File) {
	ticker := time.NewTicker(followPeriod)
	defer ticker.Stop()
	for {
		over := true
		for _, running := range a.Processes() {
			over = over && running.Log != file.Name()
		}
		if _, err := io.Copy(out, file); err != nil {
			return
		}
		_ = http.NewResponseController(out).Flush()
		if over {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
