// SPDX-License-Identifier: Apache-2.0

package payload

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/autonode-io/autonode/internal/message"
)

// place is one repository that may serve an image.
type place struct {
	repository name.Repository
	name       string // as it was written, where repository is none
	err        error
}

// places returns the mirrors of a repository in their order, and then the repository itself.
func (o Options) places(source name.Repository) []place {
	host, repository := splitWhere(source.Name())
	longest := -1
	var mirrors []string
	for _, s := range o.ImageContentSources {
		h, r := splitWhere(s.Source)
		if h == "" || h != host || !hasPathPrefix(repository, r) || len(r) < longest {
			continue
		}
		if len(r) > longest {
			longest, mirrors = len(r), nil
		}
		rest := strings.TrimPrefix(repository, r)
		for _, m := range s.Mirrors {
			mirrors = append(mirrors, strings.TrimSuffix(m, "/")+"/"+strings.TrimPrefix(rest, "/"))
		}
	}
	var places []place
	for _, m := range mirrors {
		m = strings.TrimSuffix(m, "/")
		r, err := name.NewRepository(m)
		places = append(places, place{repository: r, name: m, err: err})
	}
	places = append(places, place{repository: source, name: source.Name()})
	seen := map[string]bool{}
	return slices.DeleteFunc(places, func(p place) bool {
		defer func() { seen[p.name] = true }()
		return seen[p.name]
	})
}

// Registries returns the hosts that an image may be pulled from, in the order in which they are tried: those of its mirrors, then its own.
// There are none if ref isn't a reference.
func Registries(ref string, opts Options) []string {
	reference, err := parseReference(opResolving, ref)
	if err != nil {
		return nil
	}
	var hosts []string
	for _, place := range opts.places(reference.Context()) {
		if place.err != nil {
			continue // it isn't tried
		}
		if host := place.repository.RegistryStr(); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// session is the conversation with one repository about one reference.
type session struct {
	puller     *remote.Puller
	repository name.Repository
	reference  name.Reference // in repository
	anonymous  bool
	discreet   bool
	platform   *v1.Platform
	maxBytes   int64
	selects    func(component string) bool
}

func (o Options) open(ctx context.Context, p place, source name.Reference) (*session, error) {
	if p.err != nil {
		return nil, &Error{Reason: ReasonInvalidReference, Detail: shorten(p.err.Error()), Err: p.err}
	}
	s := &session{repository: p.repository, platform: o.Platform, maxBytes: o.MaxBytes, discreet: o.Discreet, selects: wanted(o.Components)}
	if s.maxBytes <= 0 {
		s.maxBytes = DefaultMaxBytes
	}
	switch r := source.(type) {
	case name.Digest:
		s.reference = p.repository.Digest(r.DigestStr())
	case name.Tag:
		s.reference = p.repository.Tag(r.TagStr())
	}
	options, anonymous, err := o.remote(ctx, p.repository)
	if err != nil {
		return nil, err
	}
	s.anonymous = anonymous
	if s.puller, err = remote.NewPuller(options...); err != nil {
		return nil, s.explain(ctx, err)
	}
	return s, nil
}

// remote returns how to talk to a repository, and whether that is without credentials.
func (o Options) remote(ctx context.Context, repository name.Repository) (options []remote.Option, anonymous bool, err error) {
	auth := authn.Anonymous
	if o.Keychain != nil {
		if auth, err = authn.Resolve(ctx, o.Keychain, repository); err != nil {
			return nil, false, &Error{
				Reason: ReasonImagePullUnauthorized, Registry: repository.RegistryStr(), Detail: shorten(err.Error()), Err: err,
			}
		}
	}
	rt := o.Transport
	if rt == nil {
		rt = standard
	}
	return []remote.Option{
		remote.WithContext(ctx),
		remote.WithAuth(auth),
		remote.WithTransport(boundedTransport{rt}),
		remote.WithUserAgent(cmp.Or(o.UserAgent, "autonode")),
		// Callers retry; this is for brief failures.
		remote.WithRetryBackoff(remote.Backoff{Duration: 100 * time.Millisecond, Factor: 3, Jitter: 0.1, Steps: 3}),
	}, auth == authn.Anonymous, nil
}

// wanted returns whether a component was asked for; with no names at all, each is.
func wanted(names []string) func(string) bool {
	return func(component string) bool { return names == nil || slices.Contains(names, component) }
}

// explain turns a registry's error into one with a reason.
func (s *session) explain(ctx context.Context, err error) error {
	if s.discreet {
		return explainDiscreetly(ctx, s.repository.RegistryStr(), s.anonymous, err)
	}
	return explain(ctx, s.repository.RegistryStr(), s.anonymous, err)
}

// explainDiscreetly is explain without the response: it explains as much as it takes to correct a reference or its credentials.
func explainDiscreetly(ctx context.Context, registry string, anonymous bool, err error) error {
	var e *Error
	explained := explain(ctx, registry, anonymous, err)
	if !errors.As(explained, &e) {
		return explained
	}
	var status *transport.Error
	var request *url.Error
	var unknown x509.UnknownAuthorityError
	timedOut := ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded)
	switch {
	case errors.Is(err, errTooLarge):
	case errors.Is(err, errTalkative):
		e.Detail = registry + " doesn't answer as a registry does"
	case errors.As(err, &status):
		switch code := status.StatusCode; {
		case e.Reason == ReasonImagePullUnauthorized && anonymous:
			e.Detail = fmt.Sprintf("%d %s; no credentials were given for %s", code, http.StatusText(code), registry)
		case e.Reason == ReasonImagePullUnauthorized:
			e.Detail = fmt.Sprintf("%d %s; the credentials given for %s don't allow it", code, http.StatusText(code), registry)
		case code == http.StatusNotFound:
			e.Detail = notFound(status)
		case code == http.StatusTooManyRequests:
			e.Detail = fmt.Sprintf("%d %s", code, http.StatusText(code))
		default:
			e.Detail = registry + " doesn't answer as a registry does"
		}
	case errors.As(err, &unknown):
		e.Detail = "the certificate of " + registry + " is of no authority that is trusted"
	case !timedOut && errors.As(err, &request):
		e.Detail = registry + " can't be reached, or the platform doesn't allow it: private addresses need the operator's --registry-networks"
	case !timedOut && e.Reason == ReasonRegistryUnreachable:
		e.Detail = registry + " doesn't answer as a registry does"
	}
	return e
}

func explain(ctx context.Context, registry string, anonymous bool, err error) error {
	e := &Error{Reason: ReasonRegistryUnreachable, Registry: registry, Err: err}
	var status *transport.Error
	var request *url.Error
	switch {
	case errors.Is(err, errTooLarge):
		e.Reason, e.Detail = ReasonPayloadTooLarge, err.Error()
	case errors.As(err, &status):
		e.Detail = fmt.Sprintf("%d %s", status.StatusCode, http.StatusText(status.StatusCode))
		switch status.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			e.Reason, e.Anonymous = ReasonImagePullUnauthorized, anonymous
			if anonymous {
				e.Detail += "; no credentials were given for " + registry
			} else {
				e.Detail += "; the credentials given for " + registry + " don't allow it"
			}
		case http.StatusNotFound:
			e.Reason, e.Detail = ReasonImageNotFound, notFound(status)
		}
		for _, d := range status.Errors {
			if d.Message != "" {
				e.Detail += "; the registry answered: " + d.Message
				break
			}
		}
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.Detail = "no answer from " + registry + " in time"
	case errors.As(err, &request):
		e.Detail = request.Err.Error() // without the URL, which may hold a token
	default:
		e.Detail = err.Error()
	}
	e.Detail = shorten(e.Detail)
	return e
}

// notFound returns the text of status 404, with the kind of the missing object if the registry's response has it: the answer to a HEAD
// request has no code.
func notFound(status *transport.Error) string {
	text := fmt.Sprintf("%d %s", http.StatusNotFound, http.StatusText(http.StatusNotFound))
	if status.Request == nil {
		return text
	}
	_, named, isManifest := strings.Cut(status.Request.URL.Path, "/manifests/")
	for _, d := range status.Errors {
		if d.Code == transport.NameUnknownErrorCode {
			return text + ": no such repository"
		}
	}
	known := slices.ContainsFunc(status.Errors, func(d transport.Diagnostic) bool { return d.Code == transport.ManifestUnknownErrorCode })
	switch {
	case !isManifest:
		return text
	case strings.Contains(named, ":"):
		return text + ": no such digest"
	case known:
		return text + ": no such tag"
	default:
		return text + ": no such tag or repository"
	}
}

// merge makes one error of the places' errors; its Reason is the one that a person can do most about.
func merge(failed []*Error, places []place) *Error {
	if len(failed) == 1 && len(places) == 1 {
		return failed[0]
	}
	rank := []Reason{
		ReasonImagePullUnauthorized, ReasonImageNotFound, ReasonRegistryUnreachable, ReasonPayloadUnsigned, ReasonInvalidReference,
	}
	best := slices.MinFunc(failed, func(a, b *Error) int { return slices.Index(rank, a.Reason) - slices.Index(rank, b.Reason) })
	merged := *best
	details, causes := make([]string, 0, len(failed)), make([]error, 0, len(failed))
	for i, e := range failed {
		details = append(details, places[i].name+": "+e.Detail)
		causes = append(causes, e.Err)
	}
	merged.Detail, merged.Err = strings.Join(details, "; "), errors.Join(causes...)
	return &merged
}

// shorten makes text from elsewhere fit for one line of a message.
func shorten(text string) string {
	const limit = 500
	return message.Cut(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text), limit)
}
