// SPDX-License-Identifier: Apache-2.0

// Package aws is a stand-in of AWS's APIs on loopback, for clients that AWS itself has written: one endpoint for all services, one account in one
// region. Identities are real: a token for a role is verified by the keys of its issuer, every other request by its signature, and what a role may do
// is what its policy declares. EC2 has a package of its own; here are the services around it, each as much as Karpenter's AWS provider requires of it.
package aws

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/rand"
)

// maxBody bounds a request, in bytes.
const maxBody = 4 << 20

// Config of New.
type Config struct {
	// Account is the account's number, of twelve digits. Default: 123456789012.
	Account string
	// Region is the only region. Default: eu-central-1.
	Region string
	// EC2 answers the requests to EC2 that are signed and allowed. The request's body is still to be read.
	EC2 http.Handler
	// Demands returns what a request to EC2 needs permission for. Nil is the action itself, on everything.
	Demands func(action string, form url.Values) []Demand
	// Assumed is called with each access key ID that is given out. Nil is not called.
	Assumed func(accessKeyID string)
	// Prices returns what is offered on demand, in US dollars per hour by instance type.
	Prices func() map[string]float64
	// SessionDuration caps the lifetime of the credentials of a role. Default: what was asked for, an hour if nothing was.
	SessionDuration time.Duration
	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// Account is an account of AWS's. Its methods may be called at any time.
type Account struct {
	cfg      Config
	services map[string]service

	mu         sync.Mutex
	providers  map[string]*OIDCProvider // by issuer
	roles      map[string]*role         // by name
	sessions   map[string]*session      // by access key ID
	profiles   map[string]*instanceProfile
	parameters map[string]string
	queues     map[string]*queue
	calls      map[string]int
	allowed    map[string]bool // by action
	refused    []string
	assumed    int
}

// Demand is an action that a policy has to allow, such as ec2:RunInstances, on a resource with those condition keys.
type Demand struct {
	Action, Resource string
	Keys             map[string]string
}

// service answers the requests of one service of AWS's, by the name in their signatures.
type service struct {
	// action is what a policy calls the request, without the service's prefix.
	action func(r *http.Request, body []byte) string
	// serve answers a request that is allowed.
	serve func(w http.ResponseWriter, r *http.Request, action string, body []byte)
	// fail writes an error as the service's protocol has it.
	fail func(w http.ResponseWriter, err *Error)
}

// New returns an account with nothing in it.
func New(cfg Config) *Account {
	cfg.Account = cmp.Or(cfg.Account, "123456789012")
	cfg.Region = cmp.Or(cfg.Region, "eu-central-1")
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	a := &Account{
		cfg: cfg, providers: map[string]*OIDCProvider{}, roles: map[string]*role{}, sessions: map[string]*session{},
		profiles: map[string]*instanceProfile{}, parameters: map[string]string{}, queues: map[string]*queue{}, calls: map[string]int{},
		allowed: map[string]bool{},
	}
	ec2 := func(w http.ResponseWriter, r *http.Request, _ string, _ []byte) { cfg.EC2.ServeHTTP(w, r) }
	a.services = map[string]service{
		"sts":     {formAction, a.serveSTS, failQuery},
		"iam":     {formAction, a.serveIAM, failQuery},
		"ssm":     {targetAction, a.serveSSM, failJSON},
		"pricing": {targetAction, a.servePricing, failJSON},
		"sqs":     {targetAction, a.serveSQS, failJSON},
	}
	if cfg.EC2 != nil {
		a.services["ec2"] = service{formAction, ec2, failEC2}
	}
	return a
}

// Region is the account's only region.
func (a *Account) Region() string { return a.cfg.Region }

// Number is the account's number.
func (a *Account) Number() string { return a.cfg.Account }

// Calls counts the requests so far by service and action, such as ec2:CreateFleet. Those that were refused count too.
func (a *Account) Calls() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	calls := make(map[string]int, len(a.calls))
	for name, count := range a.calls {
		calls[name] = count
	}
	return calls
}

// Allowed are the actions that a policy has allowed so far, sorted: those of Calls, and what they need besides, such as iam:PassRole.
func (a *Account) Allowed() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.allowed))
}

// Refused describes the requests that were unknown, wrongly signed or not allowed by any policy, each once.
func (a *Account) Refused() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.refused)
}

// Endpoint is a running Account.
type Endpoint struct {
	// URL is what a client's AWS_ENDPOINT_URL has to be.
	URL    string
	server *http.Server
	ended  chan error
}

// Start serves the account on a free port of the loopback address, until Close.
func (a *Account) Start(ctx context.Context) (*Endpoint, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for AWS: %w", err)
	}
	e := &Endpoint{
		URL:    "http://" + listener.Addr().String(),
		server: &http.Server{Handler: a, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)},
		ended:  make(chan error, 1),
	}
	go func() { e.ended <- e.server.Serve(listener) }()
	return e, nil
}

// Close ends all connections and returns when the port is free.
func (e *Endpoint) Close() error {
	if err := e.server.Close(); err != nil {
		return fmt.Errorf("closing AWS: %w", err)
	}
	if err := <-e.ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving AWS: %w", err)
	}
	return nil
}

// ServeHTTP answers one request to any service.
func (a *Account) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		failQuery(w, &Error{http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", err.Error()})
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	signature, problem := readSignature(r)
	name := signature.service
	if name == "" && formAction(r, body) == assumeRoleWithWebIdentity {
		name = "sts" // what a token proves needs no signature
	}
	known, ok := a.services[name]
	if !ok {
		a.refuse("service %q: %s %s", name, r.Method, r.URL.Path)
		failQuery(w, &Error{http.StatusBadRequest, "UnknownService", fmt.Sprintf("the stand-in has no service %q", name)})
		return
	}
	action := known.action(r, body)
	full := name + ":" + action
	a.count(full)
	if full == "sts:"+assumeRoleWithWebIdentity {
		known.serve(w, r, action, body)
		return
	}
	var caller *Caller
	if problem == nil {
		caller, problem = a.authenticate(r, signature, body)
	}
	if problem == nil {
		problem = a.authorize(caller, name, action, body)
	}
	if problem != nil {
		a.refuse("%s: %s: %s", full, problem.Code, problem.Message)
		known.fail(w, problem)
		return
	}
	known.serve(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)), action, body)
}

func (a *Account) count(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[name]++
}

func (a *Account) refuse(format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.refused, message) {
		a.refused = append(a.refused, message)
	}
}

// Error is what a service answers instead.
type Error struct {
	Status  int
	Code    string
	Message string
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// unknownAction is for requests that the stand-in has no answer to.
func (a *Account) unknownAction(service, action string) *Error {
	a.refuse("%s:%s: unknown to the stand-in", service, action)
	return &Error{http.StatusBadRequest, "InvalidAction", fmt.Sprintf("the stand-in doesn't know %s:%s", service, action)}
}

func formAction(r *http.Request, body []byte) string {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return ""
	}
	return cmp.Or(form.Get("Action"), r.URL.Query().Get("Action"))
}

// targetAction is for AWS's JSON protocols: X-Amz-Target is <version>.<action>.
func targetAction(r *http.Request, _ []byte) string {
	target := r.Header.Get("X-Amz-Target")
	return target[strings.LastIndex(target, ".")+1:]
}

func requestID() string { return rand.String(8) + "-" + rand.String(4) + "-" + rand.String(12) }

func failQuery(w http.ResponseWriter, problem *Error) {
	type failure struct {
		XMLName xml.Name `xml:"ErrorResponse"`
		Type    string   `xml:"Error>Type"`
		Code    string   `xml:"Error>Code"`
		Message string   `xml:"Error>Message"`
		ID      string   `xml:"RequestId"`
	}
	writeXML(w, problem.Status, failure{Type: "Sender", Code: problem.Code, Message: problem.Message, ID: requestID()})
}

func failEC2(w http.ResponseWriter, problem *Error) {
	type failure struct {
		XMLName xml.Name `xml:"Response"`
		Code    string   `xml:"Errors>Error>Code"`
		Message string   `xml:"Errors>Error>Message"`
		ID      string   `xml:"RequestID"`
	}
	writeXML(w, problem.Status, failure{Code: problem.Code, Message: problem.Message, ID: requestID()})
}

func failJSON(w http.ResponseWriter, problem *Error) {
	writeJSON(w, problem.Status, map[string]string{"__type": problem.Code, "message": problem.Message})
}

func writeXML(w http.ResponseWriter, status int, content any) {
	data, err := xml.Marshal(content)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.Header().Set("X-Amzn-Requestid", requestID())
	w.WriteHeader(status)
	_, _ = w.Write(append([]byte(xml.Header), data...))
}

func writeJSON(w http.ResponseWriter, status int, content any) {
	data, err := json.Marshal(content)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	w.Header().Set("X-Amzn-Requestid", requestID())
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

// readJSON reads a request in one of AWS's JSON protocols.
func readJSON(body []byte, into any) *Error {
	if err := json.Unmarshal(body, into); err != nil {
		return &Error{http.StatusBadRequest, "SerializationException", err.Error()}
	}
	return nil
}
