// SPDX-License-Identifier: Apache-2.0

// Package kubeconfig copies the parts of a tenant's kubeconfig that the operator accepts: one https server,
// certificates and credentials inline. A kubeconfig may also name local files, programs to execute and proxies; these
// are rejected.
package kubeconfig

import (
	"bytes"
	"cmp"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// MaxSize of a kubeconfig, in bytes. One of Cluster API's has less than ten thousand.
	MaxSize = 128 << 10
	// maxEntries of clusters, of users and of contexts.
	maxEntries = 16
	// maxServer and maxToken are in bytes.
	maxServer = 1 << 10
	maxToken  = 32 << 10
	// maxKey is in bytes. maxRSABits limits keys of the client and of authorities: the work of parsing a key and of each handshake grows with
	// the cube of its size, and a key of 100,000 bits fits into a kubeconfig.
	maxKey     = 8 << 10
	maxRSABits = 4096
)

// Access is all that the operator takes from a kubeconfig.
type Access struct {
	// Server is an https URL.
	Server string
	// ServerName is the name in the server's certificate, where that isn't the URL's host.
	ServerName string
	// CA are the PEM certificates that the server is known by; nil for the system's.
	CA []byte
	// Certificate and Key are the client's, in PEM form; nil where there is a Token.
	Certificate, Key []byte
	// Token is a bearer token; empty where there is a Certificate.
	Token string
}

// Parse parses the current context of a kubeconfig. It rejects fields that it doesn't copy. An error names the rejected
// field, and no values of the kubeconfig.
func Parse(content []byte) (*Access, error) {
	if len(content) > MaxSize {
		return nil, fmt.Errorf("it is larger than %d KiB", MaxSize>>10)
	}
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, errors.New("it is no kubeconfig") // the decoder's error quotes its input
	}
	if len(config.Clusters) > maxEntries || len(config.AuthInfos) > maxEntries || len(config.Contexts) > maxEntries {
		return nil, fmt.Errorf("it has more than %d clusters, users or contexts", maxEntries)
	}
	context := config.Contexts[config.CurrentContext]
	if context == nil {
		return nil, errors.New("current-context names none of its contexts")
	}
	cluster, user := config.Clusters[context.Cluster], config.AuthInfos[context.AuthInfo]
	if cluster == nil || user == nil {
		return nil, errors.New("the current context names a cluster or a user that isn't there")
	}
	if err := errors.Join(refuseCluster(cluster), refuseUser(user)); err != nil {
		return nil, err
	}
	access := &Access{
		Server: cluster.Server, ServerName: cluster.TLSServerName, CA: bytes.Clone(cluster.CertificateAuthorityData),
		Certificate: bytes.Clone(user.ClientCertificateData), Key: bytes.Clone(user.ClientKeyData), Token: user.Token,
	}
	return access, access.validate()
}

func refuseCluster(cluster *clientcmdapi.Cluster) error {
	switch {
	case cluster.CertificateAuthority != "":
		return errors.New("certificate-authority names a file; write the certificates into certificate-authority-data")
	case cluster.InsecureSkipTLSVerify:
		return errors.New("insecure-skip-tls-verify would give the credentials to anyone; write the server's authority into " +
			"certificate-authority-data")
	case cluster.ProxyURL != "":
		return errors.New("proxy-url isn't allowed")
	}
	return nil
}

func refuseUser(user *clientcmdapi.AuthInfo) error {
	switch {
	case user.Exec != nil:
		return errors.New("exec runs a program; write a token, or client-certificate-data and client-key-data")
	case user.AuthProvider != nil:
		return errors.New("auth-provider runs a plugin; write a token, or client-certificate-data and client-key-data")
	case user.TokenFile != "":
		return errors.New("tokenFile names a file; write its content as token")
	case user.ClientCertificate != "" || user.ClientKey != "":
		return errors.New("client-certificate and client-key name files; write their content as client-certificate-data and client-key-data")
	case user.Username != "" || user.Password != "":
		return errors.New("username and password aren't supported; write a token, or client-certificate-data and client-key-data")
	case user.Impersonate != "" || user.ImpersonateUID != "" || len(user.ImpersonateGroups) > 0 || len(user.ImpersonateUserExtra) > 0:
		return errors.New("as, as-uid, as-groups and as-user-extra aren't supported; write the credentials of the user itself")
	}
	return nil
}

func (a *Access) validate() error {
	if _, err := a.address(); err != nil {
		return err
	}
	if name := a.ServerName; name != "" && net.ParseIP(name) == nil && len(validation.IsDNS1123Subdomain(strings.ToLower(name))) > 0 {
		return errors.New("tls-server-name is no DNS name")
	}
	if len(a.CA) > 0 && !x509.NewCertPool().AppendCertsFromPEM(a.CA) {
		return errors.New("certificate-authority-data has no certificate in PEM form")
	}
	for block, rest := pem.Decode(a.CA); block != nil; block, rest = pem.Decode(rest) {
		if authority, err := x509.ParseCertificate(block.Bytes); err == nil && tooLarge(authority) {
			return fmt.Errorf("certificate-authority-data has an RSA key of more than %d bits", maxRSABits)
		}
	}
	certificate := len(a.Certificate) > 0 || len(a.Key) > 0
	switch {
	case certificate:
		if err := a.validateKey(); err != nil {
			return err
		}
	case a.Token == "":
		return errors.New("it has neither a token nor client-certificate-data")
	}
	if len(a.Token) > maxToken || strings.ContainsFunc(a.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("token has other characters than a header can have, or more than %d KiB", maxToken>>10)
	}
	return nil
}

func (a *Access) validateKey() error {
	if len(a.Key) > maxKey {
		return fmt.Errorf("client-key-data is larger than %d KiB", maxKey>>10)
	}
	pair, err := tls.X509KeyPair(a.Certificate, a.Key)
	if err != nil {
		return errors.New("client-certificate-data and client-key-data are no certificate and its key in PEM form")
	}
	if tooLarge(pair.Leaf) {
		return fmt.Errorf("client-key-data is an RSA key of more than %d bits", maxRSABits)
	}
	return nil
}

func tooLarge(certificate *x509.Certificate) bool {
	key, ok := certificate.PublicKey.(*rsa.PublicKey)
	return ok && key.N.BitLen() > maxRSABits
}

// Address returns the server's host:port; empty if the URL is malformed.
func (a *Access) Address() string {
	address, _ := a.address()
	return address
}

func (a *Access) address() (string, error) {
	invalid := errors.New("server has to be a URL such as https://api.example.com:6443")
	if len(a.Server) > maxServer {
		return "", invalid
	}
	server, err := url.Parse(a.Server)
	if err != nil || server.Scheme != "https" || server.User != nil || server.RawQuery != "" || server.Fragment != "" || server.Opaque != "" {
		return "", invalid
	}
	host := server.Hostname()
	if net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(strings.TrimSuffix(strings.ToLower(host), "."))) > 0 {
		return "", invalid
	}
	return net.JoinHostPort(host, cmp.Or(server.Port(), "443")), nil
}

// Config returns the client configuration with that access.
func (a *Access) Config() *rest.Config {
	return &rest.Config{
		Host: a.Server, BearerToken: a.Token,
		TLSClientConfig:    rest.TLSClientConfig{ServerName: a.ServerName, CAData: a.CA, CertData: a.Certificate, KeyData: a.Key},
		DisableCompression: true, // so that the budget of a guest counts unpacked bytes
	}
}
