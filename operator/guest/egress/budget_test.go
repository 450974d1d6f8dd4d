// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
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

// TestMetered has a client that reads a server without end through a tunnel. It counts bytes, and the clock moves when the test says so.
func TestMetered(t *testing.T) {
	const burst, perSecond = 1 << 20, 1 << 17
	g := NewWithT(t)
	clk := clocktesting.NewFakeClock(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC))
	policy, err := NewPolicy("127.0.0.0/8")
	g.Expect(err).NotTo(HaveOccurred())
	tunnel, err := newTunnel(policy, Budget{Bytes: burst, PerSecond: perSecond, Grace: 10 * time.Second, Backoff: time.Minute}, clk)
	g.Expect(err).NotTo(HaveOccurred())
	go func() { _ = tunnel.Start(t.Context()) }()

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
	// connect returns the status of a client's connection to a server, and reads on it.
	connect := func(client, server string) (status int, received *atomic.Int64, ended chan struct{}) {
		proxy, err := url.Parse(tunnel.To(client, server))
		g.Expect(err).NotTo(HaveOccurred())
		connection, err := net.Dial("tcp", proxy.Host)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { _ = connection.Close() })
		_, err = fmt.Fprintf(connection, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\nProxy-Authorization: Basic %[2]s\r\n\r\n",
			server, base64.StdEncoding.EncodeToString([]byte(proxy.User.String())))
		g.Expect(err).NotTo(HaveOccurred())
		reader := bufio.NewReader(connection)
		response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // The goroutine below closes it.
		g.Expect(err).NotTo(HaveOccurred())
		received, ended = &atomic.Int64{}, make(chan struct{})
		go func() {
			defer close(ended)
			defer func() { _ = response.Body.Close() }()
			for p := make([]byte, chunk); ; {
				n, err := reader.Read(p)
				received.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
		return response.StatusCode, received, ended
	}

	status, received, ended := connect("hostile", endless)
	g.Expect(status).To(Equal(http.StatusOK))
	g.Eventually(clk.HasWaiters).Should(BeTrue(), "the tunnel waits")
	g.Eventually(received.Load).Should(BeNumerically(">=", burst-chunk))
	g.Expect(received.Load()).To(BeNumerically("<=", burst))
	g.Expect(tunnel.State("hostile")).To(Equal(Slowed))

	_, neighbour, done := connect("neighbour", short)
	g.Eventually(done).Should(BeClosed())
	g.Expect(neighbour.Load()).To(BeNumerically("==", burst/2), "a neighbour has a budget of its own")

	taken := 0
	for ; taken < 60 && tunnel.State("hostile") != BackOff; taken++ {
		g.Eventually(func() bool { return clk.HasWaiters() || tunnel.State("hostile") == BackOff }).Should(BeTrue())
		clk.Step(time.Second)
		g.Expect(received.Load()).To(BeNumerically("<=", burst+(taken+1)*perSecond+chunk))
	}
	g.Eventually(ended).Should(BeClosed(), "after Grace the tunnel ends the connection")
	g.Expect(taken).To(BeNumerically(">=", 10))

	status, _, _ = connect("hostile", endless)
	g.Expect(status).To(Equal(http.StatusServiceUnavailable))
	clk.Step(time.Minute + time.Second)
	status, _, _ = connect("hostile", endless)
	g.Expect(status).To(Equal(http.StatusOK))
}
