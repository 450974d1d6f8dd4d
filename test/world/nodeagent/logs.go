// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// keptLogs is how many runs of a container keep their log.
const keptLogs = 10

// logDir is where a container's logs lie, one file per run: Dir/logs/<namespace>_<pod>_<uid>/<container>/<restart>.log.
func (a *Agent) logDir(pod types.NamespacedName, uid types.UID, container string) string {
	return filepath.Join(a.dir, "logs", fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, uid), container)
}

func (w *worker) logFile(container string, restarts int32) string {
	return filepath.Join(w.agent.logDir(w.key, w.uid, container), strconv.Itoa(int(restarts))+".log")
}

// openLog opens the log of a run, and removes that of a run long ago.
func (w *worker) openLog(container string, restarts int32) (*os.File, error) {
	path := w.logFile(container, restarts)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("making the log directory: %w", err)
	}
	_ = os.Remove(w.logFile(container, restarts-keptLogs))
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	return file, nil
}

// runsOf lists the logs of a pod's container, the newest run first. Without a UID it takes the newest pod of that name.
func (a *Agent) runsOf(pod types.NamespacedName, container string) []string {
	dirs, _ := filepath.Glob(a.logDir(pod, "*", container))
	if len(dirs) == 0 {
		return nil
	}
	newest := slices.MaxFunc(dirs, func(left, right string) int {
		return cmp.Compare(modified(left), modified(right))
	})
	runs, _ := filepath.Glob(filepath.Join(newest, "*.log"))
	number := func(path string) int {
		n, _ := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".log"))
		return n
	}
	slices.SortFunc(runs, func(left, right string) int { return cmp.Compare(number(right), number(left)) })
	return runs
}

func modified(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.ModTime().UnixNano()
}

// tail returns the end of a file: so many lines, and no more than so many bytes.
func tail(path string, lines int, bytes int64) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > bytes {
		_, _ = file.Seek(-bytes, io.SeekEnd)
	}
	content, _ := io.ReadAll(io.LimitReader(file, bytes))
	all := strings.SplitAfter(string(content), "\n")
	if all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return strings.Join(all[max(len(all)-lines, 0):], "")
}
