// SPDX-License-Identifier: Apache-2.0

package status

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// FuzzVersions passes any version as that of nodes and node classes, which a guest's admin writes.
func FuzzVersions(f *testing.F) {
	for _, v := range []string{"", "v1.36.3", "1.36.3", "1.36.3+build", "1.36.3-rc.1", "v", "1.99999999999999999999.0", "\x00", "others", "unknown", "1.36"} {
		f.Add(v, "1.36.3", "1.36.2", "general")
		f.Add("1.36.3", v, v, v)
	}
	noon := clocktesting.NewFakeClock(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	f.Fuzz(func(t *testing.T, kubelet, pinned, newest, pool string) {
		i := empty().with(pool, "default", kubelet, 2).with("other", "default", "1.36.3", 1).pin("default", pinned).image(pool, "default", kubelet)
		i.newest = newest
		counted := 0
		for _, v := range i.versions() {
			counted += int(v.Count)
			if len(v.Version) > maxVersion || v.Version == "" || !utf8.ValidString(v.Version) || strings.ContainsAny(v.Version, "\n\x1b") {
				t.Errorf("unfit for a status: %q", v.Version)
			}
		}
		if counted != 3 {
			t.Errorf("counted %d of 3 nodes", counted)
		}
		v := decide(i, "1.36.3", "1.36.3", scope.NodeUpgrade{}, noon)
		if text := message.Cut(v.message); len(text) > message.Limit || !utf8.ValidString(text) {
			t.Errorf("unfit for a condition: %q", text)
		}
	})
}
