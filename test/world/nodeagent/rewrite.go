// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// mount maps a path inside a container to a directory or file of this machine.
type mount struct {
	containerPath string
	hostPath      string
}

// rewriter turns what a pod reports about its own network and files into what is true on this machine.
type rewriter struct {
	ports  podPorts
	mounts []mount
}

// newRewriter sorts the mounts so that of two that nest the inner one wins.
func newRewriter(ports podPorts, mounts []mount) rewriter {
	mounts = slices.Clone(mounts)
	slices.SortStableFunc(mounts, func(a, b mount) int { return cmp.Compare(len(b.containerPath), len(a.containerPath)) })
	return rewriter{ports: ports, mounts: mounts}
}

// env rewrites an environment variable's value: a port on its own, addresses of this pod, and mount paths.
func (r rewriter) env(value string) string {
	if port, ok := r.port(value); ok {
		return port
	}
	return r.paths(r.addresses(value))
}

// args rewrites a command line: `--port=8080`, `--port 8080`, addresses of this pod, and mount paths.
func (r rewriter) args(args []string) []string {
	out := make([]string, len(args))
	for i, arg := range args {
		if port, ok := r.port(arg); ok && i > 0 && strings.HasPrefix(args[i-1], "-") && !strings.Contains(args[i-1], "=") {
			out[i] = port
			continue
		}
		if name, value, ok := strings.Cut(arg, "="); ok {
			if port, ok := r.port(value); ok {
				out[i] = name + "=" + port
				continue
			}
		}
		out[i] = r.paths(r.addresses(arg))
	}
	return out
}

func (r rewriter) port(value string) (string, bool) {
	port, err := strconv.ParseInt(value, 10, 32)
	if err != nil || strconv.FormatInt(port, 10) != value {
		return "", false
	}
	actual, ok := r.ports[int32(port)]
	return strconv.Itoa(int(actual)), ok
}

// ownAddress is a host and port that can only mean this pod. A name or another IP is someone else's port.
var ownAddress = regexp.MustCompile(`(?:^|[=,/@\s])(?:0\.0\.0\.0|127\.0\.0\.1|localhost|\[::\]|\[::1\])?:([0-9]{1,5})`)

func (r rewriter) addresses(value string) string {
	if len(r.ports) == 0 {
		return value
	}
	var out strings.Builder
	for {
		at := ownAddress.FindStringSubmatchIndex(value)
		if at == nil {
			out.WriteString(value)
			return out.String()
		}
		start, end := at[2], at[3]
		port, ok := r.port(value[start:end])
		if !ok || (end < len(value) && !strings.ContainsRune("/,? \t\n", rune(value[end]))) {
			port = value[start:end]
		}
		out.WriteString(value[:start] + port)
		value = value[end:]
	}
}

// paths replaces mount paths wherever a path can begin, and only as whole path elements.
func (r rewriter) paths(value string) string {
	if len(r.mounts) == 0 || !strings.Contains(value, "/") {
		return value
	}
	var out strings.Builder
	for i := 0; i < len(value); {
		if value[i] == '/' && pathBegins(value[:i]) {
			if m, ok := r.mountAt(value[i:]); ok {
				out.WriteString(m.hostPath)
				i += len(m.containerPath)
				continue
			}
		}
		out.WriteByte(value[i])
		i++
	}
	return out.String()
}

func (r rewriter) mountAt(rest string) (mount, bool) {
	for _, m := range r.mounts {
		if len(m.containerPath) > 1 && strings.HasPrefix(rest, m.containerPath) && pathElementEnds(rest[len(m.containerPath):]) {
			return m, true
		}
	}
	return mount{}, false
}

// path is the place of one absolute path of the container: below a mount, or else below the image's root directory.
func (r rewriter) path(containerPath, rootfs string) string {
	if m, ok := r.mountAt(containerPath); ok {
		return m.hostPath + containerPath[len(m.containerPath):]
	}
	return rootfs + containerPath
}

func pathBegins(before string) bool {
	if before == "" || strings.HasSuffix(before, "://") {
		return true
	}
	return strings.ContainsRune("=:,; \t\n\"'@([{", rune(before[len(before)-1]))
}

func pathElementEnds(after string) bool {
	return after == "" || strings.ContainsRune("/:,; \t\n\"')]}", rune(after[0]))
}
