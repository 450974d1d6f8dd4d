// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// Ports are taken below the range from which systems number outgoing connections and listeners on port 0, so that
// nobody takes one between our look and the container's bind.
const (
	firstPort = 10000
	lastPort  = 29999
)

// portPool gives out ports of this machine, each to one pod at a time.
type portPool struct {
	mu    sync.Mutex
	taken map[int32]bool
}

// take reserves a port that nothing listens on.
func (p *portPool) take() (int32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken == nil {
		p.taken = map[int32]bool{}
	}
	const size = lastPort - firstPort + 1
	start := rand.IntN(size)
	for i := range size {
		port := int32(firstPort + (start+i)%size)
		if !p.taken[port] && portFree(port) {
			p.taken[port] = true
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}

func (p *portPool) release(port int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, port)
}

// portFree tells whether a TCP and a UDP listener on all addresses would succeed.
func portFree(port int32) bool {
	address := ":" + strconv.Itoa(int(port))
	var listen net.ListenConfig
	tcp, err := listen.Listen(context.Background(), "tcp", address)
	if err != nil {
		return false
	}
	defer func() { _ = tcp.Close() }()
	udp, err := listen.ListenPacket(context.Background(), "udp", address)
	if err != nil {
		return false
	}
	return udp.Close() == nil
}

// podPorts maps the container ports that a pod declares to ports of this machine. Containers of a pod share a network,
// so the map is the pod's.
type podPorts map[int32]int32

// assign gives the container's declared ports a port of this machine. One that is assigned already is kept while it is
// free, so that it survives restarts, and replaced when another program has taken it meanwhile.
func (m podPorts) assign(pool *portPool, container *corev1.Container) error {
	for _, port := range container.Ports {
		if port.HostPort != 0 {
			m[port.ContainerPort] = port.HostPort
			continue
		}
		if have, ok := m[port.ContainerPort]; ok {
			if portFree(have) {
				continue
			}
			pool.release(have)
		}
		free, err := pool.take()
		if err != nil {
			return fmt.Errorf("finding a port for container port %d: %w", port.ContainerPort, err)
		}
		m[port.ContainerPort] = free
	}
	return nil
}

// releaseAll gives the ports back to the pool.
func (m podPorts) releaseAll(pool *portPool) {
	for containerPort, port := range m {
		pool.release(port)
		delete(m, containerPort)
	}
}

// actual is the port of this machine behind a container port; a port that isn't declared is itself.
func (m podPorts) actual(containerPort int32) int32 {
	if port, ok := m[containerPort]; ok {
		return port
	}
	return containerPort
}
