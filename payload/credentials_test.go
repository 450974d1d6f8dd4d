// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"fmt"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	. "github.com/onsi/gomega"
)

func TestCredentials(t *testing.T) {
	auth := &authn.Basic{Username: "alice", Password: "hunter2"}
	config := func(g Gomega, host, password string) authn.Keychain {
		k, err := KeychainFromDockerConfig(fmt.Appendf(nil, `{"auths":{%q:{"username":"alice","password":%q}}}`, host, password))
		g.Expect(err).NotTo(HaveOccurred())
		return k
	}

	t.Run("When the registry requires credentials and none are given, it should say that there are none", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, auth)
		e := expectErrors(t, s.host+"/release:1", Options{}, ReasonImagePullUnauthorized, "401", "no credentials were given for "+s.host, "who are you?")
		g.Expect(e.Anonymous).To(BeTrue())
		g.Expect(e.Registry).To(Equal(s.host))
		e = expectErrors(t, s.host+"/release:1", Options{Keychain: config(g, "elsewhere.example", "hunter2")}, ReasonImagePullUnauthorized, "no credentials were given")
		g.Expect(e.Anonymous).To(BeTrue())
	})

	t.Run("When the credentials are wrong, it should say that they are, and not show them", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, auth)
		e := expectErrors(t, s.host+"/release:1", Options{Keychain: config(g, s.host, "sesame")}, ReasonImagePullUnauthorized, "401", "the credentials given for "+s.host)
		g.Expect(e.Anonymous).To(BeFalse())
		g.Expect(e.Error()).NotTo(ContainSubstring("sesame"))
	})

	t.Run("When the credentials are right, it should read, push and resolve", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, auth)
		opts := Options{Keychain: config(g, s.host, "hunter2")}
		ref, err := Push(t.Context(), s.host+"/release:1", build(t, goodSpec()), opts)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(Resolve(t.Context(), s.host+"/release:1", opts)).To(Equal(ref))
		r, err := ReadDigest(t.Context(), ref, opts)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.Version).To(Equal("1.36.3"))
	})

	t.Run("When the pull secret's entry can't be read, it should say that, and nothing of its content", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer(t, auth)
		k, err := KeychainFromDockerConfig(fmt.Appendf(nil, `{"auths":{%q:{"auth":"~~hunter2~~"}}}`, s.host))
		g.Expect(err).NotTo(HaveOccurred())
		e := expectErrors(t, s.host+"/release:1", Options{Keychain: k}, ReasonImagePullUnauthorized, `entry "`+s.host+`"`)
		g.Expect(e.Error()).NotTo(ContainSubstring("hunter2"))
	})
}
