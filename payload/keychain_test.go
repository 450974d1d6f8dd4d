// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"fmt"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	. "github.com/onsi/gomega"
)

func TestKeychain(t *testing.T) {
	const config = `{"auths": {
		"https://index.docker.io/v1/":    {"username": "hub", "password": "p"},
		"registry.example":               {"auth": "aG9zdDpwOnE="},
		"registry.example/team":          {"username": "team", "password": "p"},
		"registry.example/team/project":  {"username": "project", "password": "p"},
		"registry.example:5000":          {"username": "port", "password": "p"},
		"*.example.com":                  {"username": "wild", "password": "p"},
		"exact.example.com":              {"username": "exact", "password": "p"},
		"*.example.com/deep":             {"username": "deep", "password": "p"},
		"tokens.example":                 {"identitytoken": "t"},
		"broken.example":                 {"auth": "%%%secret%%%"},
		"shape.example":                  {"auth": {"secret": 1}},
		"empty.example":                  {}
	}, "credsStore": "ignored"}`
	k, err := KeychainFromDockerConfig([]byte(config))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	resolve := func(g Gomega, image string) (authn.Authenticator, *authn.AuthConfig) {
		repository, err := repositoryOf(image)
		g.Expect(err).NotTo(HaveOccurred())
		auth, err := k.Resolve(repository)
		g.Expect(err).NotTo(HaveOccurred())
		got, err := auth.Authorization()
		g.Expect(err).NotTo(HaveOccurred())
		return auth, got
	}
	for image, want := range map[string]string{
		"nginx":                                 "hub",
		"docker.io/team/app":                    "hub",
		"registry.example/app":                  "host",
		"registry.example/team/app":             "team",
		"registry.example/team":                 "team",
		"registry.example/teamwork/app":         "host",
		"registry.example/team/project":         "project",
		"registry.example/team/project/x":       "project",
		"registry.example:5000/team":            "port",
		"registry.example:5001/team":            "",
		"sub.registry.example/app":              "",
		"a.example.com/app":                     "wild",
		"a.b.example.com/app":                   "",
		"exact.example.com/app":                 "exact",
		"exact.example.com/deep/app":            "deep",
		"empty.example/app":                     "",
		"elsewhere.example/registry.example/ab": "",
	} {
		t.Run("When "+image+" is pulled, it should use "+fmt.Sprintf("%q", want), func(t *testing.T) {
			g := NewWithT(t)
			auth, got := resolve(g, image)
			g.Expect(got.Username).To(Equal(want))
			g.Expect(auth == authn.Anonymous).To(Equal(want == ""))
			if want == "host" {
				g.Expect(got.Password).To(Equal("p:q"))
			}
		})
	}

	t.Run("When an entry is a token, it should be given", func(t *testing.T) {
		g := NewWithT(t)
		_, got := resolve(g, "tokens.example/app")
		g.Expect(got.IdentityToken).To(Equal("t"))
	})

	for _, host := range []string{"broken.example", "shape.example"} {
		t.Run("When the entry of "+host+" is broken, only that should fail, without showing it", func(t *testing.T) {
			g := NewWithT(t)
			repository, err := repositoryOf(host + "/app")
			g.Expect(err).NotTo(HaveOccurred())
			_, err = k.Resolve(repository)
			g.Expect(err).To(MatchError(ContainSubstring(fmt.Sprintf("entry %q", host))))
			g.Expect(err.Error()).NotTo(ContainSubstring("secret"))
		})
	}

	for name, c := range map[string]struct{ config, want string }{
		"When it is no JSON, it should say where":        {`{"auths": hunter2}`, "invalid JSON at byte"},
		"When it is empty, it should say so":             {``, "invalid JSON at byte 0"},
		"When it has no auths, it should say so":         {`{}`, `it has no "auths"`},
		"When its auths are no object, it should say so": {`{"auths": "hunter2"}`, `field "auths" must not be a JSON string`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := KeychainFromDockerConfig([]byte(c.config))
			g.Expect(err).To(MatchError(ContainSubstring(c.want)))
			g.Expect(err.Error()).NotTo(ContainSubstring("hunter2"))
		})
	}
}
