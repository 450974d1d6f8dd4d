// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path"
	"sort"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
)

// KeychainFromDockerConfig reads the content of a pull secret's .dockerconfigjson key: {"auths": {"<where>": {"auth": "…"}}}.
//
// The rules are the kubelet's: <where> is a host ("registry.example"), a host with a port, or either with the beginning of a
// path at a slash ("registry.example/team"); an https:// in front and a /v1/ or /v2/ behind are ignored; a * in the host
// stands for anything within one of its labels ("*.registry.example"). Of the entries that match an image, the one with the longest path
// decides, then the one without a wildcard. All names of Docker Hub mean the same.
//
// An entry that can't be read is an error only for the images that need it, and no error shows its content.
func KeychainFromDockerConfig(config []byte) (authn.Keychain, error) {
	var file struct {
		Auths map[string]json.RawMessage `json:"auths"`
	}
	if err := json.Unmarshal(config, &file); err != nil {
		return nil, fmt.Errorf("reading the docker config: %w", withoutContent(err))
	}
	if file.Auths == nil {
		return nil, errors.New(`reading the docker config: it has no "auths"`)
	}
	k := make(dockerConfig, 0, len(file.Auths))
	for where, raw := range file.Auths {
		e := entry{where: where}
		e.host, e.path = splitWhere(where)
		var auth authn.AuthConfig
		if err := json.Unmarshal(raw, &auth); err != nil {
			e.err = fmt.Errorf("reading the docker config's entry %q: %w", where, withoutContent(err))
		}
		e.auth = auth
		k = append(k, e)
	}
	// The most specific entry comes first; the last comparison only makes the order total.
	sort.Slice(k, func(i, j int) bool {
		a, b := k[i], k[j]
		if len(a.path) != len(b.path) {
			return len(a.path) > len(b.path)
		}
		if aw, bw := strings.Count(a.host, "*"), strings.Count(b.host, "*"); aw != bw {
			return aw < bw
		}
		if len(a.host) != len(b.host) {
			return len(a.host) > len(b.host)
		}
		return a.where < b.where
	})
	return k, nil
}

type dockerConfig []entry

type entry struct {
	where      string // as written
	host, path string
	auth       authn.AuthConfig
	err        error
}

// Resolve implements authn.Keychain.
func (k dockerConfig) Resolve(target authn.Resource) (authn.Authenticator, error) {
	host, repository := splitWhere(target.String())
	for _, e := range k {
		if !matchHost(e.host, host) || !hasPathPrefix(repository, e.path) {
			continue
		}
		if e.err != nil {
			return nil, e.err
		}
		if e.auth == (authn.AuthConfig{}) {
			return authn.Anonymous, nil
		}
		return authn.FromConfig(e.auth), nil
	}
	return authn.Anonymous, nil
}

// splitWhere takes a docker config's key, or a repository's whole name, apart into a host and a path without slashes around it.
func splitWhere(where string) (host, repository string) {
	where = strings.TrimPrefix(strings.TrimPrefix(where, "https://"), "http://")
	host, repository, _ = strings.Cut(where, "/")
	repository = strings.Trim(repository, "/")
	if repository == "v1" || repository == "v2" { // the API's root, not a repository: keys of old have it
		repository = ""
	}
	return canonicalHost(host), repository
}

func canonicalHost(host string) string {
	host = strings.ToLower(host)
	switch host {
	case "docker.io", "registry-1.docker.io", "registry.hub.docker.com":
		return "index.docker.io"
	}
	return host
}

// matchHost compares label by label, so that a wildcard never crosses a dot; ports must be the same.
func matchHost(pattern, host string) bool {
	pattern, patternPort := splitPort(pattern)
	host, hostPort := splitPort(host)
	patterns, labels := strings.Split(pattern, "."), strings.Split(host, ".")
	if patternPort != hostPort || len(patterns) != len(labels) {
		return false
	}
	for i := range patterns {
		if ok, err := path.Match(patterns[i], labels[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func splitPort(hostport string) (host, port string) {
	if h, p, err := net.SplitHostPort(hostport); err == nil {
		return h, p
	}
	return hostport, ""
}

// hasPathPrefix reports whether prefix is whole, or the beginning of it at a slash.
func hasPathPrefix(whole, prefix string) bool {
	rest, ok := strings.CutPrefix(whole, prefix)
	return ok && (prefix == "" || rest == "" || rest[0] == '/')
}

// withoutContent keeps a JSON error's position and drops its words where they quote the secret.
func withoutContent(err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("invalid JSON at byte %d", syntax.Offset)
	}
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Errorf("field %q must not be a JSON %s", kind.Field, strings.Fields(kind.Value + " ?")[0])
	}
	return errors.New(`"auth" must be base64 of user:password`)
}
