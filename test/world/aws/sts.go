// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	assumeRoleWithWebIdentity = "AssumeRoleWithWebIdentity"

	defaultSession = time.Hour
	minSession     = 15 * time.Minute
	maxSession     = 12 * time.Hour
	// discoveryTimeout bounds the reading of an issuer's keys, as AWS's own does.
	discoveryTimeout = 5 * time.Second
	maxDiscovery     = 1 << 20
)

// OIDCProvider is an identity provider of the account: an issuer whose tokens roles may trust.
type OIDCProvider struct {
	// Issuer is the URL that tokens have as iss, and below which the discovery document is.
	Issuer string
	// Audiences are those that the provider is registered for.
	Audiences []string
	// Client reads the discovery document and the keys, as AWS does over the internet.
	Client *http.Client
}

// session is temporary credentials of a role.
type session struct {
	caller        Caller
	secret, token string
	expiration    time.Time
}

// role is what tokens, or instances, can become.
type role struct {
	trust       policy
	permissions policy
}

// AddOIDCProvider registers an identity provider.
func (a *Account) AddOIDCProvider(provider OIDCProvider) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.providers[provider.Issuer] = &provider
}

// PutRole makes a role, or changes it. Both documents are policies in JSON; of conditions, StringEquals and StringLike are understood.
func (a *Account) PutRole(name, trust, permissions string) error {
	trusts, err := readPolicy(trust)
	if err != nil {
		return fmt.Errorf("reading the trust policy of role %s: %w", name, err)
	}
	allows, err := readPolicy(permissions)
	if err != nil {
		return fmt.Errorf("reading the permissions of role %s: %w", name, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roles[name] = &role{trust: trusts, permissions: allows}
	return nil
}

func (a *Account) roleARN(name string) string {
	return fmt.Sprintf("arn:aws:iam::%s:role/%s", a.cfg.Account, name)
}

// Assumed is how often a role was assumed.
func (a *Account) Assumed() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.assumed
}

func (a *Account) serveSTS(w http.ResponseWriter, r *http.Request, action string, body []byte) {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		failQuery(w, &Error{http.StatusBadRequest, "MalformedQueryString", err.Error()})
		return
	}
	switch action {
	case assumeRoleWithWebIdentity:
		answer, problem := a.assume(r.Context(), form)
		if problem != nil {
			a.refuse("sts:%s: %s: %s", action, problem.Code, problem.Message)
			failQuery(w, problem)
			return
		}
		writeXML(w, http.StatusOK, answer)
	case "GetCallerIdentity":
		writeXML(w, http.StatusOK, struct {
			XMLName xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ GetCallerIdentityResponse"`
			ARN     string   `xml:"GetCallerIdentityResult>Arn"`
			Account string   `xml:"GetCallerIdentityResult>Account"`
			ID      string   `xml:"ResponseMetadata>RequestId"`
		}{ARN: CallerOf(r.Context()).ARN, Account: a.cfg.Account, ID: requestID()})
	default:
		failQuery(w, a.unknownAction("sts", action))
	}
}

type assumedRole struct {
	XMLName xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ AssumeRoleWithWebIdentityResponse"`
	Result  struct {
		Subject  string `xml:"SubjectFromWebIdentityToken"`
		Audience string
		User     struct {
			ARN string `xml:"Arn"`
			ID  string `xml:"AssumedRoleId"`
		} `xml:"AssumedRoleUser"`
		Credentials struct {
			AccessKeyID     string `xml:"AccessKeyId"`
			SecretAccessKey string
			SessionToken    string
			Expiration      string
		}
		Provider string
	} `xml:"AssumeRoleWithWebIdentityResult"`
	ID string `xml:"ResponseMetadata>RequestId"`
}

// assume exchanges a token for credentials of a role.
// https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html
func (a *Account) assume(ctx context.Context, form url.Values) (*assumedRole, *Error) {
	lifetime, problem := a.lifetime(form.Get("DurationSeconds"))
	if problem != nil {
		return nil, problem
	}
	provider, claims, problem := a.verify(ctx, form.Get("WebIdentityToken"))
	if problem != nil {
		return nil, problem
	}
	name, isRole := strings.CutPrefix(form.Get("RoleArn"), a.roleARN(""))
	host := strings.TrimPrefix(provider.Issuer, "https://")
	trusted := func(principal map[string]texts) bool {
		return slices.Contains(principal["Federated"], fmt.Sprintf("arn:aws:iam::%s:oidc-provider/%s", a.cfg.Account, host))
	}
	audience := claims.Audience[slices.IndexFunc(claims.Audience, func(of string) bool { return slices.Contains(provider.Audiences, of) })]
	keys := map[string]string{host + ":aud": audience, host + ":sub": claims.Subject}
	a.mu.Lock()
	of := a.roles[name]
	a.mu.Unlock()
	if !isRole || of == nil || !of.trust.allows(trusted, "sts:"+assumeRoleWithWebIdentity, "", keys) {
		return nil, &Error{http.StatusForbidden, "AccessDenied", "Not authorized to perform sts:" + assumeRoleWithWebIdentity}
	}
	s := &session{
		caller: Caller{
			ARN:  fmt.Sprintf("arn:aws:sts::%s:assumed-role/%s/%s", a.cfg.Account, name, form.Get("RoleSessionName")),
			Role: name, Subject: claims.Subject,
		},
		secret: rand.Text() + rand.Text()[:14], token: rand.Text() + rand.Text() + rand.Text(), expiration: a.cfg.Now().Add(lifetime),
	}
	key := "ASIA" + rand.Text()[:16]
	a.mu.Lock()
	a.sessions[key] = s
	a.assumed++
	a.mu.Unlock()
	if a.cfg.Assumed != nil {
		a.cfg.Assumed(key)
	}
	answer := &assumedRole{ID: requestID()}
	answer.Result.Subject, answer.Result.Audience, answer.Result.Provider = claims.Subject, audience, provider.Issuer
	answer.Result.User.ARN, answer.Result.User.ID = s.caller.ARN, "AROA"+rand.Text()[:16]+":"+form.Get("RoleSessionName")
	credentials := &answer.Result.Credentials
	credentials.AccessKeyID, credentials.SecretAccessKey, credentials.SessionToken = key, s.secret, s.token
	credentials.Expiration = s.expiration.UTC().Format(time.RFC3339)
	return answer, nil
}

func (a *Account) lifetime(seconds string) (time.Duration, *Error) {
	lifetime := defaultSession
	if seconds != "" {
		count, err := strconv.Atoi(seconds)
		if lifetime = time.Duration(count) * time.Second; err != nil || lifetime < minSession || lifetime > maxSession {
			return 0, &Error{http.StatusBadRequest, "ValidationError", fmt.Sprintf("DurationSeconds %q isn't from %d to %d", seconds, int(minSession.Seconds()), int(maxSession.Seconds()))}
		}
	}
	if a.cfg.SessionDuration > 0 {
		lifetime = min(lifetime, a.cfg.SessionDuration)
	}
	return lifetime, nil
}

// verify reads a token, whose issuer has to be a provider of the account.
func (a *Account) verify(ctx context.Context, token string) (*OIDCProvider, *jwt.Claims, *Error) {
	invalid := func(format string, args ...any) (*OIDCProvider, *jwt.Claims, *Error) {
		return nil, nil, &Error{http.StatusBadRequest, "InvalidIdentityToken", fmt.Sprintf(format, args...)}
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256, jose.ES256})
	if err != nil {
		return invalid("The ID Token provided is not a valid JWT: %v", err)
	}
	claims := &jwt.Claims{}
	if err := parsed.UnsafeClaimsWithoutVerification(claims); err != nil {
		return invalid("The ID Token's claims can't be read: %v", err)
	}
	a.mu.Lock()
	provider := a.providers[claims.Issuer]
	a.mu.Unlock()
	if provider == nil {
		return invalid("No OpenIDConnect provider found in your account for %s", claims.Issuer)
	}
	keys, err := provider.keys(ctx)
	if err != nil {
		return invalid("Couldn't retrieve verification key from your identity provider: %v", err)
	}
	if err := parsed.Claims(keys, claims); err != nil {
		return invalid("The token's signature can't be verified: %v", err)
	}
	now := a.cfg.Now()
	switch {
	case claims.Expiry == nil || !now.Before(claims.Expiry.Time()):
		return nil, nil, &Error{http.StatusBadRequest, "ExpiredTokenException", "Token expired"}
	case claims.NotBefore != nil && now.Add(maxSkew).Before(claims.NotBefore.Time()):
		return invalid("The token isn't valid yet")
	case !slices.ContainsFunc(claims.Audience, func(audience string) bool { return slices.Contains(provider.Audiences, audience) }):
		return invalid("Incorrect token audience")
	case claims.Subject == "":
		return invalid("The token has no subject")
	}
	return provider, claims, nil
}

// keys reads the issuer's public keys, where its discovery document reports that they are.
// https://openid.net/specs/openid-connect-discovery-1_0.html
func (p *OIDCProvider) keys(ctx context.Context) (*jose.JSONWebKeySet, error) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	var document struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := p.get(ctx, p.Issuer+"/.well-known/openid-configuration", &document); err != nil {
		return nil, err
	}
	if document.Issuer != p.Issuer {
		return nil, fmt.Errorf("the discovery document is of %q", document.Issuer)
	}
	if !strings.HasPrefix(document.Keys, "https://") {
		return nil, fmt.Errorf("jwks_uri %q isn't an HTTPS address", document.Keys)
	}
	keys := &jose.JSONWebKeySet{}
	return keys, p.get(ctx, document.Keys, keys)
}

func (p *OIDCProvider) get(ctx context.Context, address string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	response, err := p.Client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxDiscovery))
	if response.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("GET %s: %s", address, response.Status))
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(content, into)
}
