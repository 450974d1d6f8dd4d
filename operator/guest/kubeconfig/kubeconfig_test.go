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
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/autonode-io/autonode/operator/guest/kubeconfig"
)

// What is refused, and that it reaches nothing, is in test/hostile.
func TestConfig(t *testing.T) {
	access := &kubeconfig.Access{Server: "https://api.example.com", ServerName: "other.example.com", Token: "t"}

	t.Run("When a token is in a file and there is a proxy, the copy should name both and hold no token", func(t *testing.T) {
		g := NewWithT(t)
		content, err := access.Config("/tmp/token", "http://127.0.0.1:1")
		g.Expect(err).NotTo(HaveOccurred())
		config, err := clientcmd.Load(content)
		g.Expect(err).NotTo(HaveOccurred())
		user, cluster := config.AuthInfos["operator"], config.Clusters["guest"]
		g.Expect(user.TokenFile).To(Equal("/tmp/token"))
		g.Expect(user.Token).To(BeEmpty())
		g.Expect(cluster.Server).To(Equal("https://api.example.com"))
		g.Expect(cluster.TLSServerName).To(Equal("other.example.com"))
		g.Expect(cluster.ProxyURL).To(Equal("http://127.0.0.1:1"))
	})

	t.Run("When a copy is parsed, it should say the same, with the port that https has", func(t *testing.T) {
		g := NewWithT(t)
		content, err := access.Config("", "")
		g.Expect(err).NotTo(HaveOccurred())
		again, err := kubeconfig.Parse(content)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again.Address()).To(Equal("api.example.com:443"))
		again.CA, again.Certificate, again.Key = nil, nil, nil
		g.Expect(again).To(Equal(access))
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
	parse := func(g Gomega, certificate, key []byte) error {
		content, err := (&kubeconfig.Access{Server: "https://api.example.com", Certificate: certificate, Key: key}).Config("", "")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = kubeconfig.Parse(content)
		return err
	}

	t.Run("When a client's key is of the largest size in use, it should be accepted", func(t *testing.T) {
		g := NewWithT(t)
		key, err := rsa.GenerateKey(rand.Reader, 4096)
		g.Expect(err).NotTo(HaveOccurred())
		certificate, private := certificateOf(g, key, x509.MarshalPKCS1PrivateKey(key))
		g.Expect(parse(g, certificate, private)).To(Succeed())
	})

	t.Run("When a client's key is larger than TLS allows servers, it should be rejected", func(t *testing.T) {
		g := NewWithT(t)
		key, der := largeKey(g, 9216)
		certificate, private := certificateOf(g, key, der)
		g.Expect(parse(g, certificate, private)).To(MatchError("client-key-data is an RSA key of 9216 bits, more than 8192"))
	})

	t.Run("When a client's key is larger still, it should be rejected unparsed", func(t *testing.T) {
		g := NewWithT(t)
		key, der := largeKey(g, 32768)
		certificate, private := certificateOf(g, key, der)
		g.Expect(parse(g, certificate, private)).To(MatchError("client-key-data is larger than 8 KiB"))
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
		copied, err := access.Config("", "")
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(copied)
		if err != nil {
			t.Fatalf("the copy can't be used: %v", err)
		}
		if !strings.HasPrefix(config.Host, "https://") && !strings.HasPrefix(config.Host, "HTTPS://") || config.Insecure || config.CAFile != "" || config.CertFile != "" || config.KeyFile != "" ||
			config.BearerTokenFile != "" || config.ExecProvider != nil || config.AuthProvider != nil || config.Proxy != nil || config.Username != "" || config.Impersonate.UserName != "" {
			t.Errorf("%s passed: %#v", content, config)
		}
	})
}
