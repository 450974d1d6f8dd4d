// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestDialer has two servers, of which one belongs to the client's kubeconfig.
func TestDialer(t *testing.T) {
	listen := func(g Gomega) (address string, accepted chan net.Conn) {
		server, err := net.Listen("tcp", "127.0.0.1:0")
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { _ = server.Close() })
		accepted = make(chan net.Conn, 10)
		go func() {
			for {
				connection, err := server.Accept()
				if err != nil {
					return
				}
				accepted <- connection
			}
		}()
		return server.Addr().String(), accepted
	}
	setUp := func(g Gomega, networks string) *Dialer {
		policy, err := NewPolicy(networks)
		g.Expect(err).NotTo(HaveOccurred())
		return NewDialer(policy, Budget{})
	}

	t.Run("When a client connects to another server than its own, it should be refused undialed", func(t *testing.T) {
		g := NewWithT(t)
		d := setUp(g, "127.0.0.0/8")
		own, _ := listen(g)
		other, accepted := listen(g)
		_, err := d.To("blue", own)(t.Context(), "tcp", other)
		g.Expect(err).To(MatchError(errOtherServer))
		g.Expect(accepted).To(BeEmpty())
	})

	t.Run("When a client's server changes or the client is forgotten, the earlier configuration should connect no more", func(t *testing.T) {
		g := NewWithT(t)
		d := setUp(g, "127.0.0.0/8")
		first, _ := listen(g)
		second, _ := listen(g)
		before := d.To("blue", first)
		_, err := before(t.Context(), "tcp", first)
		g.Expect(err).NotTo(HaveOccurred())
		after := d.To("blue", second)
		_, err = before(t.Context(), "tcp", first)
		g.Expect(err).To(MatchError(errOtherServer))
		_, err = after(t.Context(), "tcp", second)
		g.Expect(err).NotTo(HaveOccurred())
		d.Forget("blue")
		_, err = after(t.Context(), "tcp", second)
		g.Expect(err).To(MatchError(errOtherServer))
		d.To("blue", second)
		_, err = after(t.Context(), "tcp", second)
		g.Expect(err).To(MatchError(errOtherServer), "it was forgotten for good")
	})

	t.Run("When an address isn't allowed, it should say so until the server is another, and name no address", func(t *testing.T) {
		g := NewWithT(t)
		d := setUp(g, "")
		server, accepted := listen(g)
		_, err := d.To("blue", server)(t.Context(), "tcp", server)
		g.Expect(err).To(Equal(ErrForbidden))
		g.Expect(accepted).To(BeEmpty())
		g.Expect(d.Forbidden("blue")).To(BeTrue())
		d.To("blue", server)
		g.Expect(d.Forbidden("blue")).To(BeTrue())
		d.To("blue", "198.51.100.1:443")
		g.Expect(d.Forbidden("blue")).To(BeFalse())
	})

	t.Run("When a name is resolved, each connection should be checked by the address that it leads to", func(t *testing.T) {
		g := NewWithT(t)
		d := setUp(g, "")
		server, accepted := listen(g)
		_, port, err := net.SplitHostPort(server)
		g.Expect(err).NotTo(HaveOccurred())
		named := net.JoinHostPort("localhost", port)
		dial := d.To("blue", named)
		for range 2 {
			_, err = dial(t.Context(), "tcp", named)
			g.Expect(err).To(Equal(ErrForbidden))
		}
		g.Expect(accepted).To(BeEmpty())
	})

	t.Run("When a server doesn't accept connections, the error should not say why", func(t *testing.T) {
		g := NewWithT(t)
		d := setUp(g, "127.0.0.0/8")
		closed, err := net.Listen("tcp", "127.0.0.1:0")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(closed.Close()).To(Succeed())
		_, err = d.To("blue", closed.Addr().String())(context.Background(), "tcp", closed.Addr().String())
		g.Expect(err).To(Equal(errUnreachable))
		g.Expect(d.Forbidden("blue")).To(BeFalse())
	})

	t.Run("When a connection is closed while a read is delayed, the read should end", func(t *testing.T) {
		g := NewWithT(t)
		clk := clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0))
		policy, err := NewPolicy("127.0.0.0/8")
		g.Expect(err).NotTo(HaveOccurred())
		d := newDialer(policy, Budget{Bytes: chunk, PerSecond: 1, Grace: time.Hour}, clk)
		server, accepted := listen(g)
		connection, err := d.To("blue", server)(t.Context(), "tcp", server)
		g.Expect(err).NotTo(HaveOccurred())
		peer := <-accepted
		_, err = peer.Write(make([]byte, 2*chunk))
		g.Expect(err).NotTo(HaveOccurred())
		ended := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, connection)
			ended <- err
		}()
		g.Eventually(clk.HasWaiters).Should(BeTrue())
		g.Expect(connection.Close()).To(Succeed())
		g.Eventually(ended).Should(Receive(Satisfy(func(err error) bool { return errors.Is(err, net.ErrClosed) })))
		_, err = peer.Read(make([]byte, 1))
		g.Expect(err).To(HaveOccurred())
	})
}
