// SPDX-License-Identifier: Apache-2.0

package filewatch

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
)

// instances counts the inotify instances of this process.
func instances(t *testing.T) (count int) {
	t.Helper()
	open, err := filepath.Glob("/proc/self/fd/*")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, path := range open {
		if target, err := os.Readlink(path); err == nil && target == "anon_inode:inotify" {
			count++
		}
	}
	return count
}

func TestFollow(t *testing.T) {
	t.Run("When many files are followed, it should read each of them when it changes, with one inotify instance", func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		before := instances(t)
		var followers sync.WaitGroup
		var mu sync.Mutex
		read := map[string]string{}
		folders := []string{t.TempDir(), t.TempDir()}
		var files []string
		for i := range 6 {
			path := filepath.Join(folders[i%len(folders)], strconv.Itoa(i))
			files = append(files, path)
			followers.Go(func() {
				_ = Follow(ctx, path, func(context.Context) {
					content, err := Read(path, 10)
					if err != nil {
						content = []byte(err.Error())
					}
					mu.Lock()
					defer mu.Unlock()
					read[path] = string(content)
				})
			})
		}
		now := func() map[string]string {
			mu.Lock()
			defer mu.Unlock()
			copied := map[string]string{}
			for path, content := range read {
				copied[path] = content
			}
			return copied
		}
		g.Eventually(now).Should(HaveLen(len(files)))
		for _, content := range []string{"old", "new", "far too large"} {
			expected := content
			if content == "far too large" {
				expected = "it is larger than 10 bytes"
			}
			for _, path := range files {
				g.Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
				g.Eventually(now).Should(HaveKeyWithValue(path, expected))
			}
		}
		if _, err := os.Stat("/proc/self/fd"); err == nil {
			g.Expect(instances(t) - before).To(Equal(1))
		}
		cancel()
		followers.Wait()
		g.Expect(instances(t)).To(Equal(before))
	})

	t.Run("When a folder can't be watched, it should read the file all the same", func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		loads := make(chan struct{}, 1)
		done := make(chan error)
		go func() {
			done <- Follow(ctx, filepath.Join(t.TempDir(), "missing", "file"), func(context.Context) { loads <- struct{}{} })
		}()
		g.Eventually(loads).Should(Receive())
		cancel()
		g.Eventually(done).Should(Receive(Succeed()))
	})
}
