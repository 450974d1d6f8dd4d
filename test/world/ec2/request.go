// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// namespace is that of the API's version, which every answer has.
const namespace = "http://ec2.amazonaws.com/doc/2016-11-15/"

// maxRequest is the size of a request that is read; user data has at most 16 KiB.
const maxRequest = 1 << 20

// Params are the parameters of a request in EC2's query protocol, or those below one of them: lists are numbered from 1, and the
// fields of structures follow a dot, as in Filter.1.Value.2.
type Params struct {
	values url.Values
	prefix string
}

// Get returns a parameter's value, "" where there is none.
func (p Params) Get(name string) string { return p.values.Get(p.prefix + name) }

// Bool returns whether a parameter is true.
func (p Params) Bool(name string) bool { return strings.EqualFold(p.Get(name), "true") }

// Int returns a parameter as a number, or the fallback where there is none.
func (p Params) Int(name string, fallback int) (int, error) {
	text := p.Get(name)
	if text == "" {
		return fallback, nil
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		return 0, &Error{Code: "InvalidParameterValue", Message: fmt.Sprintf("Value (%s) for parameter %s is invalid.", text, name)}
	}
	return number, nil
}

// List returns the values of a list.
func (p Params) List(name string) []string {
	var list []string
	for i := 1; p.values.Has(p.prefix + name + "." + strconv.Itoa(i)); i++ {
		list = append(list, p.Get(name+"."+strconv.Itoa(i)))
	}
	return list
}

// Struct returns the parameters below one.
func (p Params) Struct(name string) Params { return Params{p.values, p.prefix + name + "."} }

// Structs returns the items of a list of structures.
func (p Params) Structs(name string) []Params {
	var list []Params
	for i := 1; ; i++ {
		item := p.Struct(name + "." + strconv.Itoa(i))
		if item.Empty() {
			return list
		}
		list = append(list, item)
	}
}

// Empty reports whether there are no parameters.
func (p Params) Empty() bool {
	for name := range p.values {
		if strings.HasPrefix(name, p.prefix) {
			return false
		}
	}
	return true
}

// Names returns the names of all parameters, sorted.
func (p Params) Names() []string {
	var names []string
	for name := range p.values {
		if rest, ok := strings.CutPrefix(name, p.prefix); ok {
			names = append(names, rest)
		}
	}
	slices.Sort(names)
	return names
}

// tags reads those of TagSpecification for a type of resource.
func (p Params) tags(resource string) Tags {
	tags := Tags{}
	for _, specification := range p.Structs("TagSpecification") {
		if specification.Get("ResourceType") == resource {
			for _, tag := range specification.Structs("Tag") {
				tags[tag.Get("Key")] = tag.Get("Value")
			}
		}
	}
	return tags
}

// Error is an error of the API.
type Error struct {
	// Code is such as InvalidInstanceID.NotFound.
	Code    string
	Message string
	// Status is that of HTTP. Default: 400.
	Status int
	// unimplemented: the stand-in doesn't know what EC2 would answer.
	unimplemented bool
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// unimplemented is the error for what the stand-in doesn't know.
func unimplemented(code, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), unimplemented: true}
}

var credential = regexp.MustCompile(`Credential=([^/,]+)/\d+/([^/]+)/([^/]+)/aws4_request`)

// authenticate reads who signed a request. The signature itself isn't checked: there is no secret to keep.
func (s *Server) authenticate(r *http.Request) error {
	match := credential.FindStringSubmatch(r.Header.Get("Authorization"))
	switch {
	case match == nil:
		return &Error{Code: "MissingAuthenticationToken", Message: "Request is missing Authentication Token", Status: http.StatusForbidden}
	case !s.accessKeys[match[1]]:
		return &Error{Code: "AuthFailure", Message: "AWS was not able to validate the provided access credentials", Status: http.StatusUnauthorized}
	case match[3] != "ec2":
		return unimplemented("InvalidAction", "The service %s isn't served here.", match[3])
	case match[2] != s.config.Region:
		return unimplemented("AuthFailure", "Credential should be scoped to a valid region, not %s.", match[2])
	}
	return nil
}

func (s *Server) serveEC2(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
	if err := r.ParseForm(); err != nil {
		writeError(w, &Error{Code: "MalformedQueryString", Message: err.Error()})
		return
	}
	name, answer, err := s.answer(r)
	if err != nil {
		writeError(w, err)
		return
	}
	writeAnswer(w, name, answer)
}

// answer runs the action that a request requests.
func (s *Server) answer(r *http.Request) (name string, answer any, err error) {
	params := Params{values: r.Form}
	name = params.Get("Action")
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		call := Call{Time: time.Now(), Action: name, Params: params}
		var failed *Error
		if errors.As(err, &failed) {
			call.Code = failed.Code
			if entry := name + ": " + failed.Message; failed.unimplemented && !slices.Contains(s.unanswered, entry) {
				s.unanswered = append(s.unanswered, entry)
			}
		}
		s.calls = append(s.calls, call)
	}()
	if err := s.authenticate(r); err != nil {
		return name, nil, err
	}
	run, ok := actions[name]
	if !ok {
		return name, nil, unimplemented("InvalidAction", "The action %s is not valid for this web service.", name)
	}
	if err := s.fail(name, scope{}); err != nil {
		return name, nil, err
	}
	if params.Bool("DryRun") {
		return name, nil, &Error{Code: "DryRunOperation", Message: "Request would have succeeded, but DryRun flag is set.", Status: http.StatusPreconditionFailed}
	}
	answer, err = run(s, params)
	return name, answer, err
}

func writeAnswer(w http.ResponseWriter, action string, answer any) {
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	_, _ = fmt.Fprint(w, xml.Header)
	encoder := xml.NewEncoder(w)
	start := xml.StartElement{Name: xml.Name{Local: action + "Response"}, Attr: []xml.Attr{{Name: xml.Name{Local: "xmlns"}, Value: namespace}}}
	// The client sees a truncated answer where this fails, as it would with EC2.
	_ = errors.Join(encoder.EncodeElement(answer, start), encoder.Close())
}

func writeError(w http.ResponseWriter, err error) {
	failed := &Error{Code: "InternalError", Message: err.Error(), Status: http.StatusInternalServerError}
	_ = errors.As(err, &failed)
	type one struct {
		Code, Message string
	}
	body := struct {
		XMLName   xml.Name `xml:"Response"`
		Errors    []one    `xml:"Errors>Error"`
		RequestID string
	}{Errors: []one{{failed.Code, failed.Message}}, RequestID: newID("req")}
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.WriteHeader(max(failed.Status, http.StatusBadRequest))
	_, _ = fmt.Fprint(w, xml.Header)
	_ = xml.NewEncoder(w).Encode(body)
}
