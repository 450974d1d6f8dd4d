// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

// logDir is the folder of a container's logs, one file per run:
// Dir/logs/<namespace>_<pod>_<uid>/<container>/<restart>.log.
func (a *Agent) logDir(pod types.NamespacedName, uid types.UID, container string) string {
	return filepath.Join(a.Dir, "logs", fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, uid), container)
}

func (w *worker) logFile(container string, restarts int32) string {
	return filepath.Join(w.agent.logDir(w.key, w.uid, container), strconv.Itoa(int(restarts))+".log")
}

// openLog opens the log of a run.
func (w *worker) openLog(container string, restarts int32) (*os.File, error) {
	path := w.logFile(container, restarts)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("making the log directory: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	return file, nil
}

// runsOf lists the logs of a pod's container, the newest run first. Of several pods of that name it takes the newest.
func (a *Agent) runsOf(pod types.NamespacedName, container string) []string {
	runs, _ := filepath.Glob(filepath.Join(a.logDir(pod, "*", container), "*.log"))
	slices.SortFunc(runs, func(left, right string) int { return cmp.Compare(modified(right), modified(left)) })
	return slices.DeleteFunc(runs, func(run string) bool { return filepath.Dir(run) != filepath.Dir(runs[0]) })
}

func modified(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.ModTime().UnixNano()
}
