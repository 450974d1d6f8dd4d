// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"encoding/base64"
	"encoding/json"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	corev1 "k8s.io/api/core/v1"
)

// dockerConfig is the content of a pull secret.
type dockerConfig struct {
	Auths map[string]dockerAuth `json:"auths"`
}

type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"` // base64 of username:password
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// credentialsFor lists what to try for a repository, in the order of the secrets; without any, nobody. A secret that
// can't be read is passed over, as by the kubelet: another one may do.
func credentialsFor(repository name.Repository, secrets []*corev1.Secret) []authn.Authenticator {
	var found []authn.Authenticator
	for _, secret := range secrets {
		auths := map[string]dockerAuth{}
		switch {
		case len(secret.Data[corev1.DockerConfigJsonKey]) > 0:
			var config dockerConfig
			if json.Unmarshal(secret.Data[corev1.DockerConfigJsonKey], &config) == nil {
				auths = config.Auths
			}
		case len(secret.Data[corev1.DockerConfigKey]) > 0:
			_ = json.Unmarshal(secret.Data[corev1.DockerConfigKey], &auths)
		}
		for registry, auth := range auths {
			if serves(registry, repository) {
				found = append(found, auth.authenticator())
			}
		}
	}
	if len(found) == 0 {
		return []authn.Authenticator{authn.Anonymous}
	}
	return found
}

// serves matches a key of a pull secret, host[:port][/path] with * in the host's labels, against a repository.
func serves(registry string, repository name.Repository) bool {
	registry = strings.TrimPrefix(strings.TrimPrefix(registry, "https://"), "http://")
	host, prefix, _ := strings.Cut(strings.TrimSuffix(registry, "/"), "/")
	if prefix == "v1" || prefix == "v2" { // an API's address, as older tools wrote it
		prefix = ""
	}
	ours := repository.RegistryStr()
	if host == "docker.io" {
		host = name.DefaultRegistry
	}
	if ok, err := path.Match(strings.ReplaceAll(host, ".", "/"), strings.ReplaceAll(ours, ".", "/")); err != nil || !ok {
		return false
	}
	repo := repository.RepositoryStr()
	return prefix == "" || repo == prefix || strings.HasPrefix(repo, prefix+"/")
}

func (a dockerAuth) authenticator() authn.Authenticator {
	config := authn.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken}
	if decoded, err := base64.StdEncoding.DecodeString(a.Auth); err == nil && a.Auth != "" {
		config.Username, config.Password, _ = strings.Cut(string(decoded), ":")
	}
	return authn.FromConfig(config)
}
