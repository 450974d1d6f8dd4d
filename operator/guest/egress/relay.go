// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"io"
	"net"
	"sync"
)

// idle is the size of the buffer of a connection at rest. Each guest has two connections, which are idle most of the
// time, so only a connection with more data than this gets a buffer of the size of a chunk.
const idle = 1 << 10

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// pair is a client's connection to the tunnel, and the tunnel's to the server.
type pair struct {
	downstream, upstream net.Conn
	once                 sync.Once
	ended                chan struct{} // closed with the connections
}

func (p *pair) close() {
	p.once.Do(func() {
		close(p.ended)
		_ = p.upstream.Close()
		_ = p.downstream.Close()
	})
}

// relay copies in both directions until one side closes, which ends both: no HTTP client closes half a connection. It
// returns at once, so that the HTTP server's buffers and goroutine end.
func (t *Tunnel) relay(p *pair, allowance *allowance) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		p.close()
		return
	}
	t.pairs[p] = struct{}{}
	run := func(to io.Writer, from io.Reader) {
		transfer(to, from)
		p.close()
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.pairs, p)
	}
	go run(p.upstream, p.downstream)
	go run(p.downstream, metered{p.ended, p.upstream, allowance})
}

// end closes all connections.
func (t *Tunnel) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	for p := range t.pairs {
		p.close()
	}
}

// transfer is io.Copy with a small buffer, which is exchanged for a large one while there is more to read.
func transfer(to io.Writer, from io.Reader) {
	small := make([]byte, idle)
	for {
		full, err := move(to, from, small)
		if full && err == nil {
			large := chunks.Get().(*[chunk]byte) // the pool has nothing else
			for full && err == nil {
				full, err = move(to, from, large[:])
			}
			chunks.Put(large)
		}
		if err != nil {
			return
		}
	}
}

// move copies what one read returns, and reports whether it filled the buffer.
func move(to io.Writer, from io.Reader, buffer []byte) (full bool, err error) {
	n, err := from.Read(buffer)
	if n > 0 {
		if _, failed := to.Write(buffer[:n]); failed != nil {
			return false, failed
		}
	}
	return n == len(buffer), err
}
