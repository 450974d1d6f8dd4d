// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// followPeriod is how often a followed log is looked at.
const followPeriod = 200 * time.Millisecond

// serveLogs answers what the API server asks a kubelet for kubectl logs, on a free port of loopback.
func (a *Agent) serveLogs(clientCA []byte) error {
	if len(clientCA) == 0 {
		return nil
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(clientCA) {
		return errors.New("reading LogClientCA: it holds no certificate")
	}
	certificate, err := selfSigned(a.nodeName)
	if err != nil {
		return fmt.Errorf("making the log server's certificate: %w", err)
	}
	listener, err := tls.Listen("tcp", net.JoinHostPort(loopback, "0"), &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate},
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
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	a.closers = append(a.closers, func() {
		cancel() // ends those that follow
		_ = server.Close()
		<-served
	})
	return nil
}

func (a *Agent) containerLogs(out http.ResponseWriter, request *http.Request) {
	pod := types.NamespacedName{Namespace: request.PathValue("namespace"), Name: request.PathValue("pod")}
	for _, part := range []string{pod.Namespace, pod.Name, request.PathValue("container")} {
		if strings.ContainsAny(part, `/\*?[_`) || strings.HasPrefix(part, ".") {
			http.Error(out, "not a name", http.StatusBadRequest)
			return
		}
	}
	query := request.URL.Query()
	runs := a.runsOf(pod, request.PathValue("container"))
	if query.Get("previous") == "true" && len(runs) > 0 {
		runs = runs[1:]
	}
	if len(runs) == 0 {
		http.Error(out, fmt.Sprintf("container %q of pod %s has no such log", request.PathValue("container"), pod), http.StatusNotFound)
		return
	}
	file, err := os.Open(runs[0])
	if err != nil {
		http.Error(out, err.Error(), http.StatusInternalServerError)
		return
	}
	defer file.Close()
	if lines, err := strconv.Atoi(query.Get("tailLines")); err == nil {
		if err := seekLines(file, lines); err != nil {
			http.Error(out, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	var writer io.Writer = out
	if limit, err := strconv.ParseInt(query.Get("limitBytes"), 10, 64); err == nil {
		writer = &limited{out: out, left: limit}
	}
	out.Header().Set("Content-Type", "text/plain")
	_, err = io.Copy(writer, file)
	if query.Get("follow") == "true" && err == nil {
		a.follow(request.Context(), out, writer, file, pod, request.PathValue("container"), runs[0])
	}
}

// follow sends what is added to a log until its run is over, as the kubelet does.
func (a *Agent) follow(ctx context.Context, out http.ResponseWriter, writer io.Writer, file io.Reader, pod types.NamespacedName, container, path string) {
	ticker := time.NewTicker(followPeriod)
	defer ticker.Stop()
	for {
		over := true
		for _, process := range a.Processes() {
			if process.Pod == pod && process.Container == container && process.Log == path {
				over = false
			}
		}
		if _, err := io.Copy(writer, file); err != nil {
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

// seekLines moves to where the last so many lines begin.
func seekLines(file io.ReadSeeker, lines int) error {
	starts := []int64{0} // of the last lines, one more than are wanted for the end of the file
	position := int64(0)
	reader := bufio.NewReader(file)
	for {
		line, err := reader.ReadSlice('\n')
		position += int64(len(line))
		if err == nil {
			starts = append(starts, position)
			if len(starts) > lines+1 {
				starts = starts[1:]
			}
		}
		if errors.Is(err, io.EOF) {
			if len(line) > 0 && len(starts) > lines { // the last line has no end yet
				starts = append(starts[1:], position)
			}
			break
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("reading the log: %w", err)
		}
	}
	_, err := file.Seek(starts[0], io.SeekStart)
	return err
}

// limited refuses what exceeds a number of bytes.
type limited struct {
	out  io.Writer
	left int64
}

func (l *limited) Write(content []byte) (int, error) {
	kept := content[:min(int64(len(content)), l.left)]
	n, err := l.out.Write(kept)
	l.left -= int64(n)
	if err == nil && len(kept) < len(content) {
		err = io.ErrShortWrite
	}
	return n, err
}

// selfSigned makes a certificate for loopback; the API server doesn't verify a kubelet's unless it is told to.
func selfSigned(name string) (tls.Certificate, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.ParseIP(loopback)}, DNSNames: []string{name},
	}
	content, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{content}, PrivateKey: private}, nil
}
