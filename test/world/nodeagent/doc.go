// SPDX-License-Identifier: Apache-2.0

// Package nodeagent is a node of the world's management cluster: it registers a Node and really runs the pods bound to
// it, as ordinary processes of this machine, so that a Deployment rolls out, fails and restarts as it would anywhere.
//
// # What it is
//
// It does the kubelet's part of the pod contract, as far as a controller's Deployment can notice it:
//
//   - a Node with conditions, capacity and a heartbeat Lease;
//   - images pulled by digest (with pull secrets), unpacked once per digest;
//   - init containers in order, sidecars, restart policies, CrashLoopBackOff and ImagePullBackOff;
//   - env of every kind, Secret, ConfigMap, downward API, projected, emptyDir and hostPath volumes; the files follow
//     their objects while the pod runs, service-account tokens are bound to the pod and renewed at 80% of their life;
//   - liveness, readiness and startup probes (http, tcp, exec, grpc), preStop hooks, graceful deletion;
//   - the statuses, reasons and events that the kubelet writes, one log file per container run, kubectl logs.
//
// # What it is not
//
// It isolates nothing: no namespaces, no cgroups, no root directory, so that it works without root and anywhere. Hence:
//
//   - Pods share the machine's network. Every declared containerPort gets a free port of this machine, and env values,
//     commands, args and probes that name it are rewritten (see rewrite). A containerPort with a hostPort is left alone.
//     Services and pod IPs (all 127.0.0.1) lead nowhere.
//   - Pods share the machine's files. A volume is a directory under Config.Dir, and its mount path is rewritten in
//     commands, args and env values, but not inside files: a file that names another should do so relative to itself.
//     A path that is compiled into a program, as client-go's /var/run/secrets/kubernetes.io/serviceaccount, isn't there;
//     a pod with a service-account token gets KUBECONFIG instead, and /tmp volumes are told by TMPDIR.
//   - Images must hold static programs: an interpreter or a shared library would be looked for on this machine.
//   - readOnlyRootFilesystem, read-only mounts, capabilities, seccomp, resource limits and emptyDir limits are not enforced.
//   - kubectl exec, attach, port-forward and ephemeral containers aren't there.
//   - runAsUser and an image's user are honoured when the agent itself is root and that user may reach Config.Dir;
//     otherwise containers run as the agent's user, and an event on the pod says so.
//
// # Death
//
// A container ends with its process group, and with whatever else carries its marker in the environment (Linux). When
// the agent's process dies, however it dies, the kernel kills the containers (Linux: parent death signal); a process
// that a container started survives until the next agent in the same directory sweeps it. On other systems containers
// end with Stop only.
package nodeagent
