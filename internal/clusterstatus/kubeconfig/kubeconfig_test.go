// SPDX-License-Identifier: Apache-2.0

package kubeconfig_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/autonode-io/autonode/internal/clusterstatus/kubeconfig"
)

// render writes a kubeconfig with that access.
func render(g Gomega, access *kubeconfig.Access) []byte {
	content, err := clientcmd.Write(clientcmdapi.Config{
		CurrentContext: "guest",
		Contexts:       map[string]*clientcmdapi.Context{"guest": {Cluster: "guest", AuthInfo: "operator"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"guest": {Server: access.Server, TLSServerName: access.ServerName, CertificateAuthorityData: access.CA}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"operator": {ClientCertificateData: access.Certificate, ClientKeyData: access.Key, Token: access.Token}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	return content
}

// What is refused, and that it reaches nothing, is in test/hostile.
func TestConfig(t *testing.T) {
	access := &kubeconfig.Access{Server: "https://api.example.com", ServerName: "other.example.com", Token: "t"}

	t.Run("When a kubeconfig is parsed, it should have the port that https has", func(t *testing.T) {
		g := NewWithT(t)
		parsed, err := kubeconfig.Parse(render(g, access))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(parsed.Address()).To(Equal("api.example.com:443"))
		parsed.CA, parsed.Certificate, parsed.Key = nil, nil, nil
		g.Expect(parsed).To(Equal(access))
	})

	t.Run("When a client configuration is made of it, it should be client-go's, without compression", func(t *testing.T) {
		g := NewWithT(t)
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		g.Expect(err).NotTo(HaveOccurred())
		certificate, private := certificateOf(g, key, x509.MarshalPKCS1PrivateKey(key))
		whole := *access
		whole.CA, whole.Certificate, whole.Key = certificate, certificate, private
		want, err := clientcmd.RESTConfigFromKubeConfig(render(g, &whole))
		g.Expect(err).NotTo(HaveOccurred())
		want.DisableCompression = true
		g.Expect(whole.Config()).To(Equal(want))
	})
}

// certificateOf returns a client's certificate for a public key, and the private key in PEM form.
func certificateOf(g Gomega, key crypto.Signer, private []byte) (certificate, pemKey []byte) {
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), authority)
	g.Expect(err).NotTo(HaveOccurred())
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: private})
}

// largeKey returns an RSA key whose factors aren't prime, which no parser checks: prime ones would take minutes.
func largeKey(g Gomega, bits int) (*rsa.PrivateKey, []byte) {
	one, e := big.NewInt(1), big.NewInt(65537)
	for {
		var factors [2]*big.Int
		for i := range factors {
			content := make([]byte, bits/16)
			_, err := rand.Read(content)
			g.Expect(err).NotTo(HaveOccurred())
			content[0], content[len(content)-1] = content[0]|0xc0, content[len(content)-1]|1
			factors[i] = new(big.Int).SetBytes(content)
		}
		p1, q1 := new(big.Int).Sub(factors[0], one), new(big.Int).Sub(factors[1], one)
		lcm := new(big.Int).Div(new(big.Int).Mul(p1, q1), new(big.Int).GCD(nil, nil, p1, q1))
		d, inverse := new(big.Int).ModInverse(e, lcm), new(big.Int).ModInverse(factors[1], factors[0])
		if d == nil || inverse == nil {
			continue
		}
		key := &rsa.PrivateKey{PublicKey: rsa.PublicKey{N: new(big.Int).Mul(factors[0], factors[1]), E: 65537}, D: d, Primes: factors[:]}
		der, err := asn1.Marshal(struct {
			Version                         int
			N, E, D, P, Q, Dp, Dq, Quotient *big.Int
		}{0, key.N, e, d, factors[0], factors[1], new(big.Int).Mod(d, p1), new(big.Int).Mod(d, q1), inverse})
		g.Expect(err).NotTo(HaveOccurred())
		return key, der
	}
}

// The work of a handshake grows with the cube of a key's size, and no timeout ends it.
func TestKeys(t *testing.T) {
	usual := func(g Gomega, bits int) (*rsa.PrivateKey, []byte) {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		g.Expect(err).NotTo(HaveOccurred())
		return key, x509.MarshalPKCS1PrivateKey(key)
	}
	for name, test := range map[string]struct {
		generate func(Gomega, int) (*rsa.PrivateKey, []byte)
		bits     int
		message  string
	}{
		"When a client's key is of the largest size in use, it should be accepted": {usual, 4096, ""},
		"When a client's key is larger, it should be rejected":                     {largeKey, 8192, "client-key-data is an RSA key of more than 4096 bits"},
		"When a client's key is larger still, it should be rejected unparsed":      {largeKey, 32768, "client-key-data is larger than 8 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			key, der := test.generate(g, test.bits)
			certificate, private := certificateOf(g, key, der)
			_, err := kubeconfig.Parse(render(g, &kubeconfig.Access{Server: "https://api.example.com", Certificate: certificate, Key: private}))
			if test.message == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(test.message))
		})
	}
	t.Run("When an authority's key is larger, it should be rejected, whatever is before it", func(t *testing.T) {
		g := NewWithT(t)
		signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		g.Expect(err).NotTo(HaveOccurred())
		small, _ := certificateOf(g, signer, nil)
		key, _ := largeKey(g, 8192)
		large, _ := certificateOf(g, key, nil)
		_, err = kubeconfig.Parse(render(g, &kubeconfig.Access{Server: "https://api.example.com", Token: "t", CA: slices.Concat(small, large)}))
		g.Expect(err).To(MatchError("certificate-authority-data has an RSA key of more than 4096 bits"))
	})
}

// FuzzParse looks for a kubeconfig from which something passes that names a file, a program or a proxy.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "a: &a [*a]", "apiVersion: v1\nkind: Config\n",
		`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
			`"clusters":[{"name":"c","cluster":{"server":"https://a:1","proxy-url":"http://b"}}],"users":[{"name":"u","user":{"token":"t","tokenFile":"/dev/zero"}}]}`,
		`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
			`"clusters":[{"name":"c","cluster":{"server":"https://[::1]:443/x"}}],"users":[{"name":"u","user":{"token":"t"}}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		access, err := kubeconfig.Parse(content)
		if err != nil {
			if len(err.Error()) > 200 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		config := access.Config()
		if _, err := rest.TransportFor(config); err != nil {
			t.Fatalf("it can't be used: %v", err)
		}
		if !strings.HasPrefix(config.Host, "https://") && !strings.HasPrefix(config.Host, "HTTPS://") || config.Insecure ||
			config.CAFile != "" || config.CertFile != "" || config.KeyFile != "" ||
			config.BearerTokenFile != "" || config.ExecProvider != nil || config.AuthProvider != nil || config.Proxy != nil || config.Username != "" || config.Impersonate.UserName != "" {
			t.Errorf("%s passed: %#v", content, config)
		}
	})
}
