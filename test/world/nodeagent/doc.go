// SPDX-License-Identifier: Apache-2.0

// Package nodeagent is the node of the world's management cluster: it registers a Node and runs the pods bound to it as
// ordinary processes of this machine, so that a Deployment rolls out, fails and restarts as it would anywhere.
//
// # What it does
//
// It does the kubelet's part of the pod contract as far as our own Deployments use it:
//
//   - a Node with heartbeats, images pulled with pull secrets and unpacked once per digest;
//   - variables from fields of the pod; Secret, ConfigMap, projected and emptyDir volumes whose files follow their
//     objects, and service-account tokens that are bound to the pod and renewed at 80% of their life;
//   - liveness and readiness probes by HTTP, restarts with back-off, graceful deletion, termination messages;
//   - the statuses, reasons and events that the kubelet writes, one log file per run, kubectl logs.
//
// A pod that requests anything else, such as an init container or a hook, stays Pending: its container waits with
// CreateContainerConfigError, its conditions and an event have the reason Unsupported, and the message reports what is
// missing (see unsupported).
//
// # What it doesn't enforce
//
// It isolates nothing: no users, no namespaces, no cgroups, no root directory, so that it works without root and
// anywhere. Hence:
//
//   - Pods share the machine's network. Every declared containerPort gets a free port of this machine, and env values,
//     args and probes that name it are rewritten (see rewriter). Services and pod IPs (all 127.0.0.1) lead nowhere.
//   - Pods share the machine's files. A volume is a directory under Config.Dir, and its mount path is rewritten in
//     args and env values, but not inside files: a file that names another should do so relative to itself. A path that
//     is compiled into a program, as client-go's /var/run/secrets/kubernetes.io/serviceaccount, isn't there; a pod with
//     a service-account token gets KUBECONFIG instead, and TMPDIR names its /tmp volume.
//   - Images must hold static programs: an interpreter or a shared library would be looked for on this machine.
//   - Containers run as the agent's user. runAsNonRoot is checked, runAsUser isn't honoured.
//   - readOnlyRootFilesystem, read-only mounts, capabilities, seccomp, resource limits and emptyDir limits are not
//     enforced.
//   - kubectl exec, attach, port-forward and ephemeral containers aren't there.
//
// A container ends with its process group. On Linux the kernel kills the containers when the agent's process dies.
package nodeagent
