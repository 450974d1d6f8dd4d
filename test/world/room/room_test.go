// SPDX-License-Identifier: Apache-2.0

package room

import (
	goruntime "runtime"
	"testing"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
)

func TestCheck(t *testing.T) {
	const gigabyte = 1 << 30
	for name, tc := range map[string]struct {
		free   Free
		expect gomegatypes.GomegaMatcher
	}{
		"When there is room, it should start": {Free{Inotify: 14, InotifyLimit: 128, Memory: 4 * gigabyte, Files: 20000}, Succeed()},
		"When inotify instances are used up, it should say how many are needed and left, and what raises the limit": {
			Free{Inotify: 13, InotifyLimit: 128, Memory: 4 * gigabyte, Files: 20000},
			MatchError(And(ContainSubstring("14 inotify instances are needed, and 13 of 128 are left"), ContainSubstring("sysctl -w fs.inotify.max_user_instances=512")))},
		"When there is too little memory, it should say how much is needed": {
			Free{Inotify: 14, InotifyLimit: 128, Memory: gigabyte, Files: 20000}, MatchError(ContainSubstring("2100 MiB of memory are needed, and 1024 MiB are available"))},
		"When processes may open few files, it should say how to raise that": {
			Free{Inotify: 14, InotifyLimit: 128, Memory: 4 * gigabyte, Files: 256}, MatchError(ContainSubstring("`ulimit -n 4096`"))},
		"When several things are missing, it should name all": {Free{InotifyLimit: 128}, MatchError(And(
			ContainSubstring("inotify"), ContainSubstring("memory"), ContainSubstring("files")))},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.free.check(2)
			NewWithT(t).Expect(err).To(tc.expect)
		})
	}
}

func TestRead(t *testing.T) {
	t.Run("When it is on Linux, it should read what is left", func(t *testing.T) {
		g := NewWithT(t)
		free, ok := read()
		g.Expect(ok).To(Equal(goruntime.GOOS == "linux"))
		if ok {
			g.Expect(free.InotifyLimit).To(BeNumerically(">", 0))
			g.Expect(free.Inotify).To(BeNumerically("<=", free.InotifyLimit))
			g.Expect(free.Memory).To(BeNumerically(">", 0))
			g.Expect(free.Files).To(BeNumerically(">", 0))
		}
	})
}
