// SPDX-License-Identifier: Apache-2.0

package leak

import (
	"encoding/base64"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func block(kind, content string) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(strings.Repeat(content, 30))})
}

func TestFind(t *testing.T) {
	key, userKey, certificate := block("EC PRIVATE KEY", "key"), block("EC PRIVATE KEY", "user"), block("CERTIFICATE", "public")
	kubeconfig := `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"a","cluster":{"server":"https://guest.example"}}],` +
		`"users":[{"name":"a","user":{"token":"kubeconfig-token","client-key-data":"` + base64.StdEncoding.EncodeToString(userKey) + `"}}]}`
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "all"},
		Data: map[string][]byte{
			"token": []byte("plain-token"), "short": []byte("yes"), "format": []byte("cloud-config"), "tls.key": key, "ca.crt": certificate, "value": []byte(kubeconfig),
			"script":                   []byte("#!/bin/sh\necho this is a file"),
			corev1.DockerConfigJsonKey: []byte(`{"auths":{"registry.example":{"auth":"` + base64.StdEncoding.EncodeToString([]byte("user:from-auth")) + `","password":"from-password"}}}`),
		},
	}
	finder := &Finder{}
	finder.Learn("management", secret)
	finder.Learn("guest", &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"},
		Data:       map[string][]byte{"token-id": []byte("abcdef"), "token-secret": []byte("a1b2c3d4e5f6a7b8"), "usage-bootstrap-signing": []byte("true")},
	})
	finder.Learn("management", &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "general-x1"},
		Data:       map[string][]byte{"value": []byte("discovery:\n  bootstrapToken:\n    token: fedcba.fedcba9876543210\n")},
	})
	from := func(key string) []string { return []string{"management: Secret blue/all, key " + key} }
	jwt := "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJodHRwczovL2EifQ.MEUCIQDx0123456789abcdef"
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{name: "When there is nothing secret, it should find nothing", text: "Issued a guest token for Karpenter at https://guest.example, yes, as cloud-config\n" + string(certificate)},
		{name: "When a token is in a log line, it should say where it is from", text: `{"msg":"using plain-token"}`, want: from("token")},
		{name: "When it is encoded, it should find it too", text: base64.StdEncoding.EncodeToString([]byte("plain-token")), want: from("token")},
		{name: "When a kubeconfig's token is in an argument, it should find it", text: "--token=kubeconfig-token", want: from("value")},
		{name: "When a password of a pull secret is in a message, it should find it", text: "401 for from-password", want: from(corev1.DockerConfigJsonKey)},
		{name: "When a password was joined to a user in a pull secret, it should find it", text: "401 for from-auth", want: from(corev1.DockerConfigJsonKey)},
		{name: "When a text is a file of a Secret that holds no credential, it should not mind", text: "#!/bin/sh\necho this is a file"},
		{name: "When a private key is quoted, it should find it", text: strings.ReplaceAll(string(key), "\n", `\n`), want: []string{"a private key", "management: Secret blue/all, key tls.key"}},
		{name: "When a user's private key of a kubeconfig is in a text, it should find it", text: string(userKey), want: []string{"a private key", "management: Secret blue/all, key value"}},
		{name: "When the secret half of a bootstrap token is in a text, it should find it", text: "joining with abcdef.a1b2c3d4e5f6a7b8",
			want: []string{"guest: Secret kube-system/bootstrap-token-abcdef, key token-secret"}},
		{name: "When a token of a machine's bootstrap data is in a text, it should find it", text: "--token fedcba.fedcba9876543210",
			want: []string{"management: Secret blue/general-x1, key value"}},
		{name: "When any token is in a text, it should see it by its form", text: "Bearer " + jwt, want: []string{"a signed token (JWT)"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, finder.Find(test.text)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	t.Run("When nothing was learned, it should still know forms", func(t *testing.T) {
		if got := (&Finder{}).Find(jwt); len(got) != 1 {
			t.Errorf("got %v", got)
		}
	})
}
