// SPDX-License-Identifier: Apache-2.0

// Package repetition finds what a program logs again and again. Such lines hide the others.
package repetition

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// Most is how often a program may log the same within Window: once a second.
const (
	Window = 30 * time.Second
	Most   = 30
)

// volatile are the keys in which two lines may differ that say the same.
var volatile = []string{"time", "ts", "reconcileID", "stacktrace"}

// identifying are the keys that say what an error is about: a controller, or the kind of a watch. Errors about different
// objects are the same.
var identifying = []string{"level", "logger", "controller", "type", "message", "msg"}

// Find reads a log of JSON lines and reports which are logged more than Most times within Window: errors about whatever
// objects, other lines with all that they say. It passes over lines that aren't JSON.
func Find(log io.Reader) ([]string, error) {
	recent, worst := map[string][]time.Time{}, map[string]int{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var line map[string]any
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}
		at, ok := timeOf(line)
		if !ok {
			continue
		}
		key := keyOf(line)
		times := append(recent[key], at)
		for at.Sub(times[0]) > Window {
			times = times[1:]
		}
		recent[key] = times
		worst[key] = max(worst[key], len(times))
	}
	var found []string
	for _, key := range slices.Sorted(maps.Keys(worst)) {
		if worst[key] > Most {
			found = append(found, fmt.Sprintf("logged %d times within %s: %s", worst[key], Window, key))
		}
	}
	return found, lines.Err()
}

func timeOf(line map[string]any) (time.Time, bool) {
	for _, key := range []string{"time", "ts"} {
		if text, ok := line[key].(string); ok {
			if at, err := time.Parse("2006-01-02T15:04:05.999999999Z0700", text); err == nil {
				return at, true
			}
		}
	}
	return time.Time{}, false
}

// keyOf is what two lines share that say the same.
func keyOf(line map[string]any) string {
	same := maps.Clone(line)
	maps.DeleteFunc(same, func(key string, _ any) bool {
		if level, ok := line["level"].(string); ok && (level == "ERROR" || level == "error") {
			return !slices.Contains(identifying, key)
		}
		return slices.Contains(volatile, key)
	})
	key, err := json.Marshal(same)
	if err != nil {
		return fmt.Sprint(same)
	}
	return string(key)
}
