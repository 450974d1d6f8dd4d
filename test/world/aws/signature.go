// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	algorithm  = "AWS4-HMAC-SHA256"
	timeFormat = "20060102T150405Z"
	// maxSkew is how far a request's time may be from the account's.
	maxSkew = 5 * time.Minute
	// onItsWay is how long a request may take that was signed right before its credentials' end.
	onItsWay = 5 * time.Second
)

// Caller is who has signed a request.
type Caller struct {
	// ARN is that of the assumed role's session.
	ARN string
	// Role is the name of the role.
	Role string
	// Subject is that of the token which the role was assumed with.
	Subject string
}

type callerKey struct{}

// CallerOf returns who has signed a request; nil where it came by another way than an Account.
func CallerOf(ctx context.Context) *Caller {
	caller, _ := ctx.Value(callerKey{}).(*Caller)
	return caller
}

// signature is the header Authorization of a request that is signed by AWS's version 4.
type signature struct {
	accessKey, date, region, service string
	headers                          []string
	value                            string
}

// readSignature fails for requests that have none.
func readSignature(r *http.Request) (signature, *Error) {
	malformed := &Error{http.StatusForbidden, "MissingAuthenticationToken", "the request isn't signed by " + algorithm}
	rest, ok := strings.CutPrefix(r.Header.Get("Authorization"), algorithm+" ")
	if !ok {
		return signature{}, malformed
	}
	parts := map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		parts[key] = value
	}
	scope := strings.Split(parts["Credential"], "/")
	if len(scope) != 5 || scope[4] != "aws4_request" || parts["SignedHeaders"] == "" {
		return signature{}, malformed
	}
	return signature{
		accessKey: scope[0], date: scope[1], region: scope[2], service: scope[3],
		headers: strings.Split(parts["SignedHeaders"], ";"), value: parts["Signature"],
	}, nil
}

// authenticate returns whose credentials a request is signed with.
func (a *Account) authenticate(r *http.Request, s signature, body []byte) (*Caller, *Error) {
	a.mu.Lock()
	known := a.sessions[s.accessKey]
	a.mu.Unlock()
	if known == nil {
		return nil, &Error{http.StatusUnauthorized, authFailure(s.service), "AWS was not able to validate the provided access credentials"}
	}
	if token := r.Header.Get("X-Amz-Security-Token"); subtle.ConstantTimeCompare([]byte(token), []byte(known.token)) != 1 {
		return nil, &Error{http.StatusForbidden, authFailure(s.service), "The security token included in the request is invalid"}
	}
	now := a.cfg.Now()
	if !now.Before(known.expiration.Add(onItsWay)) {
		return nil, &Error{http.StatusForbidden, expired(s.service), "The security token included in the request is expired"}
	}
	signed, err := time.Parse(timeFormat, r.Header.Get("X-Amz-Date"))
	if err != nil || now.Sub(signed).Abs() > maxSkew || signed.Format("20060102") != s.date {
		return nil, &Error{http.StatusForbidden, "RequestExpired", "the time of the request is too far from the account's"}
	}
	if !slices.Contains(s.headers, "host") || subtle.ConstantTimeCompare([]byte(s.value), []byte(s.sign(r, known.secret, body))) != 1 {
		return nil, &Error{http.StatusForbidden, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided"}
	}
	return &known.caller, nil
}

// authFailure and expired are the codes of services: EC2 has its own.
func authFailure(service string) string {
	if service == "ec2" {
		return "AuthFailure"
	}
	return "InvalidClientTokenId"
}

func expired(service string) string {
	switch service {
	case "ec2":
		return "RequestExpired"
	case "iam", "sts":
		return "ExpiredToken"
	}
	return "ExpiredTokenException"
}

// sign returns the signature that a request has to have.
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
func (s signature) sign(r *http.Request, secret string, body []byte) string {
	headers := make([]string, 0, len(s.headers))
	for _, name := range s.headers {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.FormatInt(r.ContentLength, 10)
		}
		headers = append(headers, name+":"+strings.Join(strings.Fields(value), " ")+"\n")
	}
	path := r.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	sum := sha256.Sum256(body)
	canonical := strings.Join([]string{
		r.Method, path, canonicalQuery(r.URL.Query()), strings.Join(headers, ""), strings.Join(s.headers, ";"), hex.EncodeToString(sum[:]),
	}, "\n")
	scope := strings.Join([]string{s.date, s.region, s.service, "aws4_request"}, "/")
	sum = sha256.Sum256([]byte(canonical))
	toSign := strings.Join([]string{algorithm, r.Header.Get("X-Amz-Date"), scope, hex.EncodeToString(sum[:])}, "\n")
	key := []byte("AWS4" + secret)
	for _, part := range []string{s.date, s.region, s.service, "aws4_request", toSign} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	return hex.EncodeToString(key)
}

func canonicalQuery(query url.Values) string {
	// Encode sorts; AWS writes a blank as %20.
	return strings.ReplaceAll(query.Encode(), "+", "%20")
}
