// SPDX-License-Identifier: Apache-2.0

// Package ec2 stands in for the API of Amazon EC2 in one region, on loopback: the wire protocol, instances with a life of their own,
// and what can go wrong with them. The providers that talk to it are unmodified.
//
// It answers only what is asked: an action, a filter or a parameter's value that isn't implemented is an error of the shape that AWS
// gives it, and is recorded, so that a test can fail on it; see Server.Unanswered. What an instance boots is up to Config.Boot.
//
// Actions are in the list of actions.go, a file for each subject. Other services of AWS have handlers of their own: see
// Server.Handle.
package ec2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// Defaults of Config.
const (
	DefaultRegion       = "us-east-1"
	DefaultPendingDelay = 200 * time.Millisecond
	DefaultStopDelay    = 200 * time.Millisecond
)

// Config of Start.
type Config struct {
	// Region is the region's name. Default: DefaultRegion.
	Region string
	// Account is the account's number, of 12 digits. Default: 123456789012.
	Account string
	// AccessKeys are the IDs of the access keys whose requests are answered. Server.AllowAccessKey adds one.
	AccessKeys []string

	Zones          []Zone
	Types          []InstanceType
	Images         []Image
	VPCs           []VPC
	Subnets        []Subnet
	SecurityGroups []SecurityGroup
	Reservations   []CapacityReservation

	// PendingDelay is the time that an instance is pending, StopDelay the time that it is shutting down. Zero means the default, a
	// negative value none.
	PendingDelay, StopDelay time.Duration

	// Boot runs the software of an instance, from when it is running until ctx ends with it; the cause of that reports why. Nil runs
	// nothing.
	Boot func(ctx context.Context, instance Instance)
}

// RegionName is the region's name, where Region doesn't say it either.
func (c Config) RegionName() string { return cmp.Or(c.Region, DefaultRegion) }

// Server is a running stand-in.
type Server struct {
	config Config
	host   string
	mux    *http.ServeMux
	server *http.Server
	// ctx ends with the server, and so do all instances.
	ctx    context.Context //nolint:containedctx // the life of what runs in the server, not of a call
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // valid when ended is closed
	// machines are those that Config.Boot runs.
	machines sync.WaitGroup

	// mu is held while an action is answered: actions never run at the same time.
	mu sync.Mutex
	state
	faults     []*Fault
	calls      []Call
	unanswered []string
	accessKeys map[string]bool
	// profileExists is nil where all instance profiles do.
	profileExists func(name string) bool
}

// Call is a request that was answered, with an error or without.
type Call struct {
	Time   time.Time
	Action string
	Params Params
	// Code is the error's, empty where there was none.
	Code string
}

// Start starts a stand-in on a free port of 127.0.0.1. It runs until Close is called; ctx only bounds the start.
func Start(ctx context.Context, config Config) (*Server, error) {
	config.Region = config.RegionName()
	config.Account = cmp.Or(config.Account, "123456789012")
	config.PendingDelay = max(0, cmp.Or(config.PendingDelay, DefaultPendingDelay))
	config.StopDelay = max(0, cmp.Or(config.StopDelay, DefaultStopDelay))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for the EC2 API: %w", err)
	}
	s := &Server{config: config, host: listener.Addr().String(), mux: http.NewServeMux(), ended: make(chan struct{}), accessKeys: map[string]bool{}}
	for _, key := range config.AccessKeys {
		s.accessKeys[key] = true
	}
	if s.state, err = newState(config); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.mux.HandleFunc("/", s.serveEC2)
	s.server = &http.Server{Handler: s.mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	go func() {
		defer close(s.ended)
		if err := s.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.err = fmt.Errorf("serving the EC2 API: %w", err)
		}
	}()
	return s, nil
}

// Close ends the instances and the server, and waits for both. Closing again does nothing.
func (s *Server) Close() error {
	s.cancel()
	s.machines.Wait()
	err := s.server.Close()
	<-s.ended
	return errors.Join(err, s.err)
}

// URL is the endpoint of EC2.
func (s *Server) URL() string { return "http://" + s.host }

// Region is the region's name.
func (s *Server) Region() string { return s.config.Region }

// Account is the account's number.
func (s *Server) Account() string { return s.config.Account }

// Handle serves another service of AWS below a path, such as /sts/; its endpoint is URL with that path.
func (s *Server) Handle(path string, handler http.Handler) { s.mux.Handle(path, handler) }

// AllowAccessKey answers the requests of another access key.
func (s *Server) AllowAccessKey(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accessKeys[id] = true
}

// Calls are the requests for an action so far, the oldest first; all with "".
func (s *Server) Calls(action string) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var calls []Call
	for _, call := range s.calls {
		if action == "" || call.Action == action {
			calls = append(calls, call)
		}
	}
	return calls
}

// Unanswered returns what was asked for that isn't implemented, each once.
func (s *Server) Unanswered() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.unanswered...)
}
