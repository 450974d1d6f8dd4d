// SPDX-License-Identifier: Apache-2.0

//go:build linux

package real

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	bootstrapv1 "sigs.k8s.io/cluster-api/api/bootstrap/kubeadm/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	localworld "github.com/autonode-io/autonode/test/world"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
	"github.com/autonode-io/autonode/test/world/programs"
	"github.com/autonode-io/autonode/test/world/progress"
	"github.com/autonode-io/autonode/test/world/realmachine"
)

// blue is the only guest.
const blue = localworld.DefaultGuest

// place is a world of real machines.
type place struct {
	world      *localworld.World
	hypervisor *realmachine.Hypervisor
	management client.WithWatch
	guest      client.WithWatch
	// kubelets reads logs.
	kubelets kubernetes.Interface
	// dir has the logs.
	dir string
}

// start starts a world of real machines. It ends with the test, and what it has logged stays where a test has failed.
func start(t *testing.T) *place {
	t.Helper()
	if err := realmachine.Missing(); err != nil {
		t.Fatal(err)
	}
	g := NewWithT(t)
	ctx, stop := signal.NotifyContext(context.WithoutCancel(t.Context()), os.Interrupt, syscall.SIGTERM)
	dir, err := os.MkdirTemp("", "autonode-real-")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.Chmod(dir, 0o755)).To(Succeed(), "pods of management are other users")
	p := &place{dir: dir}
	// An interrupted test runs no cleanups: its machines would end with it, and leave cables and cgroups.
	finished := context.AfterFunc(ctx, func() {
		p.close(t)
		os.Exit(1)
	})
	t.Cleanup(func() {
		if finished() {
			p.close(t)
		}
		stop()
	})

	log, err := os.Create(filepath.Join(dir, "libraries.log"))
	g.Expect(err).NotTo(HaveOccurred())
	localworld.RedirectLogs(log)
	printer := progress.New(os.Stdout)
	node, err := programs.EnsureNode(ctx, programs.Options{Progress: printer})
	g.Expect(err).NotTo(HaveOccurred())
	source, err := programs.Go(ctx, ".", "list", "-m", "-f", "{{.Dir}}")
	g.Expect(err).NotTo(HaveOccurred())
	p.hypervisor, err = realmachine.New(ctx, realmachine.Config{
		Dir: filepath.Join(dir, "machines"), Logs: filepath.Join(dir, "machine-logs"), Source: source, Node: node,
	})
	g.Expect(err).NotTo(HaveOccurred())
	p.world, err = localworld.Start(ctx, localworld.Config{Dir: filepath.Join(dir, "world"), Progress: printer, Hypervisor: p.hypervisor})
	g.Expect(err).NotTo(HaveOccurred())
	p.hypervisor.Reach(fmt.Sprintf("127.0.0.1:%d", p.world.Guest(blue).Port), p.world.Registry().Host())
	p.management, err = newClient(p.world.Management().RESTConfig())
	g.Expect(err).NotTo(HaveOccurred())
	p.guest, err = newClient(p.world.Guest(blue).RESTConfig())
	g.Expect(err).NotTo(HaveOccurred())
	p.kubelets, err = kubernetes.NewForConfig(p.world.Guest(blue).RESTConfig())
	g.Expect(err).NotTo(HaveOccurred())
	return p
}

// close ends the world, and the machines whatever has become of it.
func (p *place) close(t *testing.T) {
	g := NewWithT(t)
	if p.world != nil {
		g.Expect(p.world.Stop()).To(Succeed(), "stopping the world")
	}
	if p.hypervisor != nil {
		g.Expect(p.hypervisor.Close()).To(Succeed(), "ending the machines")
		g.Expect(p.hypervisor.Leftovers()).To(BeEmpty(), "what is left of machines on this host")
	}
	if t.Failed() {
		fmt.Fprintln(os.Stderr, "the logs of the world and of its machines are in", p.dir)
	} else {
		g.Expect(os.RemoveAll(p.dir)).To(Succeed())
	}
}

func newClient(config *rest.Config) (client.WithWatch, error) {
	return localworld.NewClient(config, bootstrapv1.AddToScheme, infrav1.AddToScheme)
}
