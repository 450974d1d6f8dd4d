// SPDX-License-Identifier: Apache-2.0

// Package leak finds credentials where none may be: those of Secrets that it was shown, and whatever has the form of one.
package leak

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// shortest is what a value has to have to be looked for: a shorter one is found in anything.
const shortest = 8

// Finder finds credentials. The zero value has none, and finds what has the form of one. It may be taught by several at a time.
type Finder struct {
	mu    sync.Mutex
	known map[string]string // where it is from, by what to look for
}

// forms of credentials, whoever issued them.
var forms = map[string]*regexp.Regexp{
	"a signed token (JWT)": regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}`),
	"a private key":        regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`),
}

// credentialKey are the keys of Secrets whose values are credentials by themselves.
var credentialKey = regexp.MustCompile(`(?i)token|password|secret`)

// bootstrapToken has the form of kubeadm's, whose second half is secret. Machines' bootstrap data holds one.
var bootstrapToken = regexp.MustCompile(`\b[a-z0-9]{6}\.([a-z0-9]{16})\b`)

// Learn remembers what is secret in a Secret: tokens, passwords and private keys. Certificates, names and addresses aren't.
func (f *Finder) Learn(cluster string, secret *corev1.Secret) {
	for key, value := range secret.Data {
		from := fmt.Sprintf("%s: Secret %s/%s, key %s", cluster, secret.Namespace, secret.Name, key)
		for _, match := range bootstrapToken.FindAllSubmatch(value, -1) {
			f.Mark(from, string(match[1]))
		}
		switch config, err := clientcmd.Load(value); {
		case key == corev1.DockerConfigJsonKey:
			f.learnPullSecret(from, value)
		case bytes.Contains(value, []byte("-----BEGIN ")):
			f.learnKeys(from, value)
		case err == nil && len(config.AuthInfos) > 0:
			for _, user := range config.AuthInfos {
				f.Mark(from, user.Token)
				f.Mark(from, user.Password)
				f.learnKeys(from, user.ClientKeyData)
			}
		case credentialKey.MatchString(key):
			f.Mark(from, string(value))
		}
	}
}

func (f *Finder) learnPullSecret(from string, value []byte) {
	config := struct {
		Auths map[string]struct{ Password, Auth string } `json:"auths"`
	}{}
	if err := json.Unmarshal(value, &config); err != nil {
		return
	}
	for _, entry := range config.Auths {
		f.Mark(from, entry.Password)
		f.Mark(from, entry.Auth)
		if decoded, err := base64.StdEncoding.DecodeString(entry.Auth); err == nil {
			_, password, _ := strings.Cut(string(decoded), ":")
			f.Mark(from, password)
		}
	}
}

// learnKeys remembers of each private key one line, which has no line break that could be written otherwise.
func (f *Finder) learnKeys(from string, data []byte) {
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return
		}
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			lines := strings.Split(string(pem.EncodeToMemory(block)), "\n")
			f.Mark(from, lines[1])
			// As kubeconfigs and Secrets hold it.
			f.Mark(from, base64.StdEncoding.EncodeToString(data))
		}
	}
}

// Mark remembers a value that may not be found, and where it is from.
func (f *Finder) Mark(from, value string) {
	if len(value) < shortest {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil {
		f.known = map[string]string{}
	}
	for _, form := range []string{value, base64.StdEncoding.EncodeToString([]byte(value))} {
		if _, ok := f.known[form]; !ok {
			f.known[form] = from
		}
	}
}

// Known is how many values are looked for.
func (f *Finder) Known() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.known)
}

// Find returns which credentials a text contains, sorted, without repeating them.
func (f *Finder) Find(text string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := map[string]bool{}
	for value, from := range f.known {
		if strings.Contains(text, value) {
			found[from] = true
		}
	}
	for name, form := range forms {
		if form.MatchString(text) {
			found[name] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
