// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/test/world/infrastructure/bootstrap"
	"github.com/autonode-io/autonode/test/world/infrastructure/node"
)

const (
	// visit is the interval at which a machine does what is next on its way into its guest.
	visit = 100 * time.Millisecond
	// lastVisit is the timeout of what a machine leaves behind when it ends.
	lastVisit = 15 * time.Second
	// maxUserData is the size of user data when it is unpacked.
	maxUserData = 1 << 20
)

// Hypervisor boots machines of clouds that have an API of their own. A machine is known by its user data alone, as on a real cloud: what
// they say decides which guest it joins, and as which node.
type Hypervisor struct {
	guests *guests
	hosts  map[types.NamespacedName]*rest.Config
	logger logr.Logger

	mutex   sync.Mutex
	quit    chan struct{} // closed when there are to be no machines any more
	running sync.WaitGroup
}

// HypervisorConfig of NewHypervisor.
type HypervisorConfig struct {
	// Guests are those that machines may join, by name, with the rights of an administrator. The kubelets use those rights where a
	// test would have to wait for timeouts otherwise; machines join with what their user data have.
	Guests map[string]*rest.Config
	// Logger gets a line for each machine that joins, that can't, and that ends.
	Logger logr.Logger
}

// NewHypervisor returns a Hypervisor without machines. It connects to no guest yet.
func NewHypervisor(config HypervisorConfig) *Hypervisor {
	h := &Hypervisor{hosts: map[types.NamespacedName]*rest.Config{}, logger: config.Logger, quit: make(chan struct{})}
	for name, guest := range config.Guests {
		h.hosts[types.NamespacedName{Name: name}] = guest
	}
	h.guests = &guests{
		logger: config.Logger, identities: newIdentities(), cluster: map[types.NamespacedName]*guest{},
		access: func(_ context.Context, cluster types.NamespacedName) (*rest.Config, error) {
			return h.hosts[cluster], nil
		},
	}
	return h
}

// Stop ends all machines, which leave their nodes as they are, and the connections to the guests.
func (h *Hypervisor) Stop() {
	h.mutex.Lock()
	close(h.quit)
	h.mutex.Unlock()
	h.running.Wait()
	h.guests.stop()
}

// enter reports whether a machine may run.
func (h *Hypervisor) enter() bool {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	select {
	case <-h.quit:
		return false
	default:
		h.running.Add(1)
		return true
	}
}

// Machine is what a Hypervisor boots.
type Machine struct {
	// Instance is the hardware, and what its cloud has recorded of it. A machine without a KubeletVersion has its guest's version.
	node.Instance
	// Metadata is what user data may refer to.
	Metadata bootstrap.Instance
	// UserData is a cloud-config with kubeadm's JoinConfiguration, gzipped or not.
	UserData []byte
}

// Run boots a machine and returns when ctx has ended and what the machine leaves behind is done: its node is silent.
func (h *Hypervisor) Run(ctx context.Context, machine Machine) {
	if !h.enter() {
		return
	}
	defer h.running.Done()
	logger := h.logger.WithValues("machine", machine.ID)
	b := &boot{Hypervisor: h, machine: machine}
	ticker := time.NewTicker(visit)
	defer ticker.Stop()
	for said := ""; ; {
		problem := ""
		if err := b.advance(ctx, time.Now()); err != nil && ctx.Err() == nil {
			problem = err.Error()
		}
		if problem != said && problem != "" {
			logger.Info("A machine hasn't joined", "reason", problem)
		}
		said = problem
		select {
		case <-h.quit:
			return
		case <-ctx.Done():
			if b.joined {
				logger.Info("A machine ends", "Node", b.kubelet.NodeName, "reason", context.Cause(ctx).Error())
				b.end()
			}
			return
		case <-ticker.C:
		}
	}
}

// boot is the way of a machine into its guest.
type boot struct {
	*Hypervisor
	machine Machine
	kubelet *bootstrap.Kubelet
	cluster types.NamespacedName
	guest   *guest
	own     *identity
	joined  bool
}

// advance does what is next, and returns why the machine hasn't joined.
func (b *boot) advance(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, guestTimeout)
	defer cancel()
	if b.kubelet == nil {
		if err := b.read(ctx); err != nil {
			return err
		}
	}
	e := errand{now, b.guest, func(string) {}}
	if b.joined {
		if !b.own.served {
			if why, _ := b.own.serve(ctx, e, b.machine.Address); why != "" {
				b.logger.Info("A kubelet requests its serving certificate again", "machine", b.machine.ID, "reason", why)
			}
		}
		return nil
	}
	self, problem := b.own.connect(ctx, e, b.kubelet.Discovery.Token)
	if problem != nil {
		return problem.cause()
	}
	defer self.close()
	if b.machine.KubeletVersion == "" {
		info, err := b.guest.client.Discovery().ServerVersion()
		if err != nil {
			return fmt.Errorf("asking for the guest's version: %w", err)
		}
		b.machine.KubeletVersion = info.GitVersion
	}
	if problem := create(ctx, b.guest, self, node.New(b.machine.Instance, b.kubelet)); problem != nil {
		return problem.cause()
	}
	b.joined = true
	b.guest.fleet.Run(b.kubelet.NodeName)
	b.logger.Info("A machine has joined", "machine", b.machine.ID, "Node", b.kubelet.NodeName, "guest", b.cluster.Name)
	return nil
}

// cause returns the obstacle as an error.
func (o *obstacle) cause() error {
	if o.unreachable != nil {
		return o.unreachable
	}
	return errors.New(o.message)
}

// read reads the user data, once they can be, and finds the guest that they name.
func (b *boot) read(ctx context.Context) error {
	userData, err := unpack(b.machine.UserData)
	if err != nil {
		return err
	}
	kubelet, err := bootstrap.Read(map[string][]byte{"value": userData}, b.machine.Metadata)
	if err != nil {
		return err
	}
	if kubelet.Discovery == nil {
		return errors.New("the user data have no bootstrap token, by which the machine could reach its guest")
	}
	for cluster, config := range b.hosts {
		if !sameHost(config.Host, kubelet.Discovery.Server) {
			continue
		}
		if b.guest, err = b.guests.get(ctx, cluster); err != nil {
			return err
		}
		var problem *obstacle
		if b.own, problem = newIdentity(b.guest, kubelet); problem != nil {
			return problem.cause()
		}
		b.cluster, b.kubelet = cluster, kubelet
		return nil
	}
	return fmt.Errorf("no guest is at %s", kubelet.Discovery.Server)
}

func sameHost(a, b string) bool {
	one, err := url.Parse(a)
	if err != nil {
		return false
	}
	other, err := url.Parse(b)
	return err == nil && one.Host == other.Host
}

// unpack returns user data without gzip.
func unpack(userData []byte) ([]byte, error) {
	if !bytes.HasPrefix(userData, []byte{0x1f, 0x8b}) {
		return userData, nil
	}
	reader, err := gzip.NewReader(bytes.NewReader(userData))
	if err != nil {
		return nil, fmt.Errorf("unpacking the user data: %w", err)
	}
	unpacked, err := io.ReadAll(io.LimitReader(reader, maxUserData))
	if err != nil {
		return nil, fmt.Errorf("unpacking the user data: %w", err)
	}
	return unpacked, nil
}

// end stops the kubelet: the pods that are being deleted end with it, and then the node is silent. It writes what the guest's
// controller-manager would write after its grace period, until kwok has ended what it was about to do.
func (b *boot) end() {
	ctx, cancel := context.WithTimeout(context.Background(), lastVisit)
	defer cancel()
	name := b.kubelet.NodeName
	if err := b.guest.fleet.EndTerminatingPods(ctx, name); err != nil {
		b.logger.Info("Pods were left on the machine", "machine", b.machine.ID, "reason", err.Error())
	}
	b.guest.fleet.Halt(name)
	ticker := time.NewTicker(deathCheck)
	defer ticker.Stop()
	for silent := 0; silent < 2; {
		switch current := b.guest.fleet.Node(name); {
		case current == nil:
			return
		case readiness(current) == corev1.ConditionUnknown:
			silent++
		default:
			silent = 0
			if err := markUnknown(ctx, time.Now(), b.guest, name); err != nil {
				b.logger.Info("A node isn't marked as silent", "Node", name, "reason", err.Error())
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-b.quit:
			return
		case <-ticker.C:
		}
	}
}

// Version returns the Kubernetes version in the name of an image, such as 1.36.3 in capa-ami-ubuntu-24.04-v1.36.3-1; "" where there is none.
func Version(image string) string {
	for part := range strings.SplitSeq(image, "-") {
		if strings.HasPrefix(part, "v") && strings.Count(part, ".") == 2 {
			return part
		}
	}
	return ""
}
