// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"strings"
	"sync"

	"github.com/blang/semver/v4"
)

// maxVersion is the length of a version, in bytes.
const maxVersion = 64

// kubelets tracks which version the existing nodes of each revision run. It is safe for concurrent use.
type kubelets struct {
	// changed is called when the result for a revision changes.
	changed func()

	mu         sync.Mutex
	byNode     map[string]kubelet
	byRevision map[Revision]map[string]int
}

type kubelet struct {
	revision Revision
	version  string
}

func newKubelets(changed func()) *kubelets {
	return &kubelets{changed: changed, byNode: map[string]kubelet{}, byRevision: map[Revision]map[string]int{}}
}

// Observe records a node's version. A malformed version counts as none: whoever may write a Node decides its report.
func (k *kubelets) Observe(node string, r Revision, version string) {
	version = strings.TrimPrefix(version, "v")
	if _, err := semver.Parse(version); err != nil || len(version) > maxVersion {
		k.Forget(node)
		return
	}
	k.set(node, kubelet{r, version})
}

// Forget records that a node is gone.
func (k *kubelets) Forget(node string) { k.set(node, kubelet{}) }

func (k *kubelets) set(node string, now kubelet) {
	k.mu.Lock()
	before := k.byNode[node]
	if before == now {
		k.mu.Unlock()
		return
	}
	results := func() [2]string { return [2]string{k.commonVersion(before.revision), k.commonVersion(now.revision)} }
	former := results()
	k.count(before, -1)
	k.count(now, 1)
	if k.byNode[node] = now; now.version == "" {
		delete(k.byNode, node)
	}
	differ := results() != former
	k.mu.Unlock()
	if differ {
		k.changed()
	}
}

// Version is the one that most nodes of a revision run, the newest of several; false without a node.
func (k *kubelets) Version(r Revision) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	version := k.commonVersion(r)
	return version, version != ""
}

// count is called with k.mu held.
func (k *kubelets) count(seen kubelet, n int) {
	if seen.version == "" {
		return
	}
	counts := k.byRevision[seen.revision]
	if counts == nil {
		counts = map[string]int{}
		k.byRevision[seen.revision] = counts
	}
	if counts[seen.version] += n; counts[seen.version] == 0 {
		delete(counts, seen.version)
	}
	if len(counts) == 0 {
		delete(k.byRevision, seen.revision)
	}
}

// commonVersion is called with k.mu held.
func (k *kubelets) commonVersion(r Revision) (common string) {
	counts := k.byRevision[r]
	for version, n := range counts {
		if order := cmp.Compare(n, counts[common]); order > 0 || order == 0 && newer(version, common) {
			common = version
		}
	}
	return common
}

// newer orders versions, and builds of one version by their text.
func newer(a, b string) bool {
	x, errX := semver.Parse(a)
	y, errY := semver.Parse(b)
	if errX != nil || errY != nil {
		return errX == nil
	}
	return cmp.Or(x.Compare(y), cmp.Compare(a, b)) > 0
}
