// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/autonode-io/autonode/test/world/port"
)

const (
	// serviceAccountMount is the path at which the API server's admission mounts a pod's service-account token.
	serviceAccountMount = "/var/run/secrets/kubernetes.io/serviceaccount"
	defaultPath         = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// podPorts maps the container ports that a pod declares to ports of this machine.
type podPorts map[int32]int32

// assign claims a port of this machine for each port that the container declares; it is kept over restarts.
func (m podPorts) assign(claims *port.Claims, container *corev1.Container) error {
	for _, declared := range container.Ports {
		if _, ok := m[declared.ContainerPort]; ok {
			continue
		}
		free, err := claims.Next()
		if err != nil {
			return fmt.Errorf("finding a port for container port %d: %w", declared.ContainerPort, err)
		}
		m[declared.ContainerPort] = int32(free)
	}
	return nil
}

func (m podPorts) release(claims *port.Claims) {
	for _, port := range m {
		claims.Release(int(port))
	}
	clear(m)
}

// actual is the port of this machine behind a container port; a port that isn't declared is itself.
func (m podPorts) actual(containerPort int32) int32 {
	if port, ok := m[containerPort]; ok {
		return port
	}
	return containerPort
}

// command works out what to start: the pod's words with ports and paths rewritten. Nothing of the agent's own
// environment gets into it.
func (c *container) command(pod *corev1.Pod, img *image) (*exec.Cmd, error) {
	w, of := c.worker, img.config.Config
	rewrite := newRewriter(w.ports, w.volumes.mountsOf(c.spec))
	env := map[string]string{}
	for _, line := range of.Env {
		if name, value, ok := strings.Cut(line, "="); ok {
			env[name] = rewrite.env(value)
		}
	}
	if err := w.hostEnv(pod, rewrite, env); err != nil {
		return nil, err
	}
	for _, variable := range c.spec.Env {
		value := unescape(variable.Value)
		if variable.ValueFrom != nil {
			value, _ = podField(pod, variable.ValueFrom.FieldRef.FieldPath)
		}
		env[variable.Name] = rewrite.env(value)
	}
	command, args := unescapeAll(c.spec.Command), unescapeAll(c.spec.Args)
	argv := append(command, args...)
	if len(command) == 0 {
		if len(args) == 0 {
			args = of.Cmd
		}
		argv = append(append([]string{}, of.Entrypoint...), args...)
	}
	if len(argv) == 0 {
		return nil, fmt.Errorf("no command specified")
	}
	dir := c.spec.WorkingDir
	if dir == "" {
		dir = of.WorkingDir
	}
	dir = rewrite.path("/"+strings.Trim(dir, "/"), img.rootfs)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the working directory: %w", err)
	}
	path, err := program(argv[0], dir, env["PATH"], rewrite, img.rootfs)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.Background(), path, rewrite.args(argv[1:])...) // it lives until it is stopped
	cmd.Dir, cmd.Env = dir, []string{}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd, nil
}

// unescape reads $$ as one $. References are refused: see unsupported.
func unescape(value string) string { return strings.ReplaceAll(value, "$$", "$") }

func unescapeAll(values []string) []string {
	out := make([]string, len(values))
	for i, value := range values {
		out[i] = unescape(value)
	}
	return out
}

// program finds a program in the image, or on a volume.
func program(name, dir, path string, rewrite rewriter, rootfs string) (string, error) {
	if filepath.IsAbs(name) {
		return rewrite.path(filepath.Clean(name), rootfs), nil
	}
	if strings.Contains(name, "/") {
		return filepath.Join(dir, name), nil
	}
	if path == "" {
		path = defaultPath
	}
	for place := range strings.SplitSeq(path, ":") {
		candidate := rewrite.path(filepath.Join("/", place, name), rootfs)
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", name)
}

// scratch is the pod's HOME and, without a volume at /tmp, its TMPDIR.
func (w *worker) scratch() string { return filepath.Join(w.dir, "scratch") }

// hostEnv adds what stands in for the files that a container would have.
func (w *worker) hostEnv(pod *corev1.Pod, rewrite rewriter, env map[string]string) error {
	for name, value := range w.agent.clusterEnv {
		env[name] = value
	}
	env["HOSTNAME"], env["HOME"], env["TMPDIR"] = pod.Name, w.scratch(), w.scratch()
	if m, ok := rewrite.mountAt("/tmp"); ok {
		env["TMPDIR"] = m.hostPath
	}
	m, ok := rewrite.mountAt(serviceAccountMount)
	if !ok {
		return nil
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["management"] = &clientcmdapi.Cluster{Server: w.agent.server.String(), CertificateAuthority: filepath.Join(m.hostPath, "ca.crt")}
	config.AuthInfos["pod"] = &clientcmdapi.AuthInfo{TokenFile: filepath.Join(m.hostPath, "token")}
	config.Contexts["pod"] = &clientcmdapi.Context{Cluster: "management", AuthInfo: "pod", Namespace: pod.Namespace}
	config.CurrentContext = "pod"
	env["KUBECONFIG"] = filepath.Join(w.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, env["KUBECONFIG"]); err != nil {
		return fmt.Errorf("writing the pod's kubeconfig: %w", err)
	}
	return nil
}
