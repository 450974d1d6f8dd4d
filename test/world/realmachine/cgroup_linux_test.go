// SPDX-License-Identifier: Apache-2.0

package realmachine

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/world/realmachine/plan"
)

func TestHierarchies(t *testing.T) {
	const root = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
	for name, test := range map[string]struct {
		mounts, groups string
		want           []plan.Hierarchy
	}{
		"the host has version 1, it should take its groups": {
			root +
				"30 29 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup none rw,cpu,cpuacct\n" +
				"31 29 0:27 / /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup none rw,memory\n" +
				"32 29 0:28 / /sys/fs/cgroup/systemd rw,relatime - cgroup none rw,xattr,name=systemd\n" +
				"33 29 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 none rw\n",
			"9:name=systemd:/\n4:memory:/limited\n1:cpu,cpuacct:/\n0::/\n",
			[]plan.Hierarchy{
				{Mount: "/sys/fs/cgroup/cpu", Options: []string{"cpu", "cpuacct"}, Group: "/sys/fs/cgroup/cpu"},
				{Mount: "/sys/fs/cgroup/memory", Options: []string{"memory"}, Group: "/sys/fs/cgroup/memory/limited"},
				{Mount: "/sys/fs/cgroup/systemd", Options: []string{"name=systemd"}, Group: "/sys/fs/cgroup/systemd"},
			},
		},
		"the host has version 2, it should take its root": {
			root + "30 29 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 none rw,nsdelegate\n", "0::/user.slice/session-1.scope\n",
			[]plan.Hierarchy{{Mount: "/sys/fs/cgroup", Group: "/sys/fs/cgroup"}},
		},
		"the host has none, it should find none": {root + "broken\n", "", nil},
	} {
		t.Run("When "+name, func(t *testing.T) {
			NewWithT(t).Expect(hierarchies(test.mounts, test.groups)).To(Equal(test.want))
		})
	}
}

func TestRemoveGroups(t *testing.T) {
	t.Run("When a machine has groups below its own, it should remove all, and mind none that isn't there", func(t *testing.T) {
		g := NewWithT(t)
		group := filepath.Join(t.TempDir(), "autonode-1")
		g.Expect(os.MkdirAll(filepath.Join(group, "kubepods", "burstable"), 0o755)).To(Succeed())
		all := []plan.Hierarchy{{Group: group}, {Group: group + "-never"}}
		g.Expect(removeGroups(all, time.Now())).To(Succeed())
		g.Expect(group).NotTo(BeADirectory())
	})
	t.Run("When a group can't be removed, it should say which", func(t *testing.T) {
		g := NewWithT(t)
		group := filepath.Join(t.TempDir(), "autonode-1")
		g.Expect(os.MkdirAll(group, 0o755)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(group, "file"), nil, 0o600)).To(Succeed())
		g.Expect(removeGroups([]plan.Hierarchy{{Group: group}}, time.Now())).To(MatchError(ContainSubstring(group)))
	})
}
