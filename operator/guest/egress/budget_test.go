// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"math"
	"net"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestAllowance(t *testing.T) {
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	begin := func() (*allowance, *clocktesting.FakeClock) {
		clk := clocktesting.NewFakeClock(start)
		return newAllowance(Budget{Bytes: 1 << 20, PerSecond: 1 << 10, Grace: time.Minute, Backoff: time.Hour}.orDefault(), clk), clk
	}
	// exhaust takes the burst and one second's worth more.
	exhaust := func(g Gomega, a *allowance) time.Duration {
		for range 1 << 20 / chunk {
			wait, err := a.take(chunk)
			g.Expect(wait, err).To(BeZero())
		}
		wait, err := a.take(1 << 10)
		g.Expect(err).NotTo(HaveOccurred())
		return wait
	}

	t.Run("When a server stays within its budget, it should not wait", func(t *testing.T) {
		g := NewWithT(t)
		a, clk := begin()
		for range 1000 {
			clk.SetTime(clk.Now().Add(time.Second))
			wait, err := a.take(1 << 10)
			g.Expect(wait, err).To(BeZero())
		}
		g.Expect(a.state()).To(Equal(Within))
	})

	t.Run("When it is beyond, it should be slowed to the rate, and be within again after a pause", func(t *testing.T) {
		g := NewWithT(t)
		a, clk := begin()
		g.Expect(exhaust(g, a)).To(Equal(time.Second))
		g.Expect(a.state()).To(Equal(Slowed))
		clk.SetTime(clk.Now().Add(2 * pause))
		g.Expect(a.state()).To(Equal(Within))
	})

	t.Run("When it exceeds the budget for longer than Grace, it should back off, and be read again afterwards", func(t *testing.T) {
		g := NewWithT(t)
		a, clk := begin()
		exhaust(g, a)
		var err error
		for taken := 0; err == nil && taken < 100; taken++ {
			clk.SetTime(clk.Now().Add(time.Second))
			_, err = a.take(1 << 10)
		}
		g.Expect(err).To(MatchError(errBackoff))
		g.Expect(clk.Since(start)).To(BeNumerically("~", time.Minute, 2*time.Second))
		g.Expect(a.state()).To(Equal(BackOff))
		_, err = a.take(1)
		g.Expect(err).To(MatchError(errBackoff))
		clk.SetTime(clk.Now().Add(time.Hour))
		g.Expect(a.state()).To(Equal(Within))
		_, err = a.take(1)
		g.Expect(err).NotTo(HaveOccurred())
	})
}

// TestCosts is a server that makes its client work with few bytes. It counts what the budget admits without a delay.
func TestCosts(t *testing.T) {
	const budget = 4 << 20
	for name, test := range map[string]struct {
		do   func(*Dialer, net.Conn) error
		want int
	}{
		"When a server sends byte by byte, each read should count": {
			func(_ *Dialer, c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err }, (budget - connectionCost) / readCost,
		},
		"When a server causes writes, as PING frames of HTTP/2 do, each should count": {
			func(_ *Dialer, c net.Conn) error { _, err := c.Write([]byte("a")); return err }, (budget - connectionCost) / writeCost,
		},
		"When a server ends each connection, each handshake should count": {func(d *Dialer, c net.Conn) error {
			again, err := d.To("red", c.RemoteAddr().String())(t.Context(), "tcp", c.RemoteAddr().String())
			if err == nil {
				t.Cleanup(func() { _ = again.Close() })
			}
			return err
		}, budget/connectionCost - 1},
		"When a server causes other work, it should count as much as is charged": {
			func(d *Dialer, _ net.Conn) error { d.Charge("red", 1<<10); return nil }, (budget - connectionCost) >> 10,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			policy, err := NewPolicy("127.0.0.0/8")
			g.Expect(err).NotTo(HaveOccurred())
			server, err := net.Listen("tcp", "127.0.0.1:0")
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(func() { _ = server.Close() })
			go func() {
				for {
					connection, err := server.Accept()
					if err != nil {
						return
					}
					t.Cleanup(func() { _ = connection.Close() })
					go func() { _, _ = connection.Write(make([]byte, budget)) }()
				}
			}()
			clk := clocktesting.NewFakeClock(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC))
			d := newDialer(policy, Budget{Bytes: budget, PerSecond: 1}, clk)
			connection, err := d.To("red", server.Addr().String())(t.Context(), "tcp", server.Addr().String())
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(func() { _ = connection.Close() })
			for range test.want {
				g.Expect(test.do(d, connection)).To(Succeed())
			}
			g.Expect(d.State("red")).To(Equal(Within))
			d.Charge("red", 2*budget)
			g.Expect(d.State("red")).To(Equal(Slowed))
			clk.Step(budget*time.Second + 2*pause)
			g.Expect(d.State("red")).To(Equal(Within), "work that exceeds a burst counts as one burst")
		})
	}
}

// TestMetered has a client that reads a server without end through a Dialer. It counts bytes, and the clock moves when the test moves it.
func TestMetered(t *testing.T) {
	const burst, perSecond = 1 << 20, 1 << 17
	g := NewWithT(t)
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC))
	policy, err := NewPolicy("127.0.0.0/8")
	g.Expect(err).NotTo(HaveOccurred())
	dialer := newDialer(policy, Budget{Bytes: burst + connectionCost, PerSecond: perSecond, Grace: 10 * time.Second, Backoff: time.Minute}, clk)

	// serve sends so many bytes to whoever connects.
	serve := func(bytes int) (address string) {
		server, err := net.Listen("tcp", "127.0.0.1:0")
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { _ = server.Close() })
		go func() {
			for {
				connection, err := server.Accept()
				if err != nil {
					return
				}
				go func() {
					defer func() { _ = connection.Close() }()
					for left := bytes; left > 0; left -= chunk {
						if _, err := connection.Write(make([]byte, chunk)); err != nil {
							return
						}
					}
				}()
			}
		}()
		return server.Addr().String()
	}
	endless, short := serve(math.MaxInt), serve(burst/2)
	// connect connects a client to a server, and reads on the connection.
	connect := func(client, server string) (received *atomic.Int64, ended chan struct{}, err error) {
		connection, err := dialer.To(client, server)(t.Context(), "tcp", server)
		if err != nil {
			return nil, nil, err
		}
		t.Cleanup(func() { _ = connection.Close() })
		received, ended = &atomic.Int64{}, make(chan struct{})
		go func() {
			defer close(ended)
			for p := make([]byte, chunk); ; {
				n, err := connection.Read(p)
				received.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
		return received, ended, nil
	}

	received, ended, err := connect("hostile", endless)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(clk.HasWaiters).Should(BeTrue(), "a read waits")
	g.Eventually(received.Load).Should(BeNumerically(">=", burst-chunk))
	g.Expect(received.Load()).To(BeNumerically("<=", burst))
	g.Expect(dialer.State("hostile")).To(Equal(Slowed))

	neighbour, done, err := connect("neighbour", short)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(done).Should(BeClosed())
	g.Expect(neighbour.Load()).To(BeNumerically("==", burst/2), "a neighbour has a budget of its own")

	taken := 0
	for ; taken < 60 && dialer.State("hostile") != BackOff; taken++ {
		g.Eventually(func() bool { return clk.HasWaiters() || dialer.State("hostile") == BackOff }).Should(BeTrue())
		clk.Step(time.Second)
		g.Expect(received.Load()).To(BeNumerically("<=", burst+(taken+1)*perSecond+chunk))
	}
	g.Eventually(ended).Should(BeClosed(), "after Grace the connection ends")
	g.Expect(taken).To(BeNumerically(">=", 10))

	_, _, err = connect("hostile", endless)
	g.Expect(err).To(MatchError(errBackoff))
	clk.Step(time.Minute + time.Second)
	_, _, err = connect("hostile", endless)
	g.Expect(err).NotTo(HaveOccurred())
}
