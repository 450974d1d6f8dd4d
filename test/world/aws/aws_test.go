// SPDX-License-Identifier: Apache-2.0

package aws_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	. "github.com/onsi/gomega"

	worldaws "github.com/autonode-io/autonode/test/world/aws"
)

const subject = "system:serviceaccount:kube-system:karpenter"

// issuer signs tokens, and serves its keys as a guest's API server does.
type issuer struct {
	server *httptest.Server
	key    *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key}
	i.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": i.server.URL, "jwks_uri": i.server.URL + "/openid/v1/jwks"})
		case "/openid/v1/jwks":
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "1", Algorithm: "ES256", Use: "sig"}}})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(i.server.Close)
	return i
}

func (i *issuer) token(t *testing.T, key *ecdsa.PrivateKey, claims jwt.Claims) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// claims are those of a token that AWS accepts.
func (i *issuer) claims() jwt.Claims {
	return jwt.Claims{Issuer: i.server.URL, Subject: subject, Audience: jwt.Audience{"sts.amazonaws.com"}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}
}

// world is an account with one role, and a client whose credentials come from a token of the issuer.
type world struct {
	account *worldaws.Account
	issuer  *issuer
	config  aws.Config
	role    string
	token   string // the file
}

func newWorld(t *testing.T, cfg worldaws.Config, permissions string) *world {
	t.Helper()
	g := NewWithT(t)
	w := &world{account: worldaws.New(cfg), issuer: newIssuer(t), role: "arn:aws:iam::123456789012:role/karpenter"}
	w.account.AddOIDCProvider(worldaws.OIDCProvider{Issuer: w.issuer.server.URL, Audiences: []string{"sts.amazonaws.com"}, Client: w.issuer.server.Client()})
	host := w.issuer.server.Listener.Addr().String()
	g.Expect(w.account.PutRole("karpenter", `{"Version": "2012-10-17", "Statement": [{
		"Effect": "Allow", "Principal": {"Federated": "arn:aws:iam::123456789012:oidc-provider/`+host+`"}, "Action": "sts:AssumeRoleWithWebIdentity",
		"Condition": {"StringEquals": {"`+host+`:aud": "sts.amazonaws.com", "`+host+`:sub": "`+subject+`"}}}]}`, permissions)).To(Succeed())
	endpoint, err := w.account.Start(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := endpoint.Close(); err != nil {
			t.Error(err)
		}
	})
	w.token = filepath.Join(t.TempDir(), "token")
	g.Expect(os.WriteFile(w.token, []byte(w.issuer.token(t, w.issuer.key, w.issuer.claims())), 0o600)).To(Succeed())
	w.config, err = config.LoadDefaultConfig(t.Context(), config.WithRegion("eu-central-1"), config.WithBaseEndpoint(endpoint.URL),
		config.WithRetryMaxAttempts(1), config.WithSharedConfigFiles(nil), config.WithSharedCredentialsFiles(nil), config.WithCredentialsProvider(aws.AnonymousCredentials{}))
	g.Expect(err).NotTo(HaveOccurred())
	w.config.Credentials = aws.NewCredentialsCache(stscreds.NewWebIdentityRoleProvider(sts.NewFromConfig(w.config), w.role, stscreds.IdentityTokenFile(w.token)))
	return w
}

const everything = `{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}`

// code is that of a service's error; empty for none.
func code(t *testing.T, err error) string {
	t.Helper()
	var failed smithy.APIError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &failed):
		return failed.ErrorCode()
	}
	t.Fatalf("no service has answered: %v", err)
	return ""
}

func TestAssumeRole(t *testing.T) {
	t.Run("When the token is the issuer's, for the audience and the role's subject, its credentials should be the role's", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, worldaws.Config{}, everything)
		identity, err := sts.NewFromConfig(w.config).GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(*identity.Arn).To(HavePrefix("arn:aws:sts::123456789012:assumed-role/karpenter/"))
		g.Expect(w.account.Assumed()).To(Equal(1))
		g.Expect(w.account.Refused()).To(BeEmpty())
	})

	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		change func(*world, *jwt.Claims)
		sign   *ecdsa.PrivateKey
		role   string
		want   string
	}{
		{name: "When the token has expired, it should be refused", want: "ExpiredTokenException", change: func(_ *world, c *jwt.Claims) {
			c.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Second))
		}},
		{name: "When the token never expires, it should be refused", want: "ExpiredTokenException", change: func(_ *world, c *jwt.Claims) { c.Expiry = nil }},
		{name: "When the token is for another audience, it should be refused", want: "InvalidIdentityToken", change: func(w *world, c *jwt.Claims) {
			c.Audience = jwt.Audience{w.issuer.server.URL}
		}},
		{name: "When the token is of an issuer that the account doesn't know, it should be refused", want: "InvalidIdentityToken", change: func(_ *world, c *jwt.Claims) {
			c.Issuer = "https://oidc.example/green"
		}},
		{name: "When the token is signed by a stranger, it should be refused", want: "InvalidIdentityToken", sign: stranger},
		{name: "When the token is of another ServiceAccount, the role should be denied", want: "AccessDenied", change: func(_ *world, c *jwt.Claims) {
			c.Subject = "system:serviceaccount:default:default"
		}},
		{name: "When the role doesn't exist, it should be denied", want: "AccessDenied", role: "arn:aws:iam::123456789012:role/other"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t, worldaws.Config{}, everything)
			claims, key := w.issuer.claims(), w.issuer.key
			if test.change != nil {
				test.change(w, &claims)
			}
			if test.sign != nil {
				key = test.sign
			}
			if test.role != "" {
				w.role = test.role
			}
			_, err := sts.NewFromConfig(w.config).AssumeRoleWithWebIdentity(t.Context(), &sts.AssumeRoleWithWebIdentityInput{
				RoleArn: &w.role, RoleSessionName: new("test"), WebIdentityToken: new(w.issuer.token(t, key, claims)),
			})
			g.Expect(code(t, err)).To(Equal(test.want))
			g.Expect(w.account.Refused()).To(HaveLen(1))
		})
	}

	t.Run("When the discovery document can't be read, the token should be refused", func(t *testing.T) {
		w := newWorld(t, worldaws.Config{}, everything)
		w.issuer.server.Close()
		_, err := w.config.Credentials.Retrieve(t.Context())
		NewWithT(t).Expect(code(t, err)).To(Equal("InvalidIdentityToken"))
	})
}

func TestSignatures(t *testing.T) {
	list := func(t *testing.T, cfg aws.Config) string {
		t.Helper()
		_, err := iam.NewFromConfig(cfg).ListInstanceProfiles(t.Context(), &iam.ListInstanceProfilesInput{})
		return code(t, err)
	}
	// with are credentials that differ from those that were given out.
	with := func(t *testing.T, w *world, change func(*aws.Credentials)) aws.Config {
		t.Helper()
		given, err := w.config.Credentials.Retrieve(t.Context())
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		change(&given)
		cfg := w.config.Copy()
		cfg.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return given, nil })
		return cfg
	}
	for _, test := range []struct {
		name   string
		change func(*aws.Credentials)
		want   string
	}{
		{"When a request is signed with what was given out, it should be answered", func(*aws.Credentials) {}, ""},
		{"When the access key isn't known, it should be refused", func(c *aws.Credentials) { c.AccessKeyID = "ASIAUNKNOWN" }, "InvalidClientTokenId"},
		{"When the session token is another, it should be refused", func(c *aws.Credentials) { c.SessionToken += "x" }, "InvalidClientTokenId"},
		{"When the session token is missing, it should be refused", func(c *aws.Credentials) { c.SessionToken = "" }, "InvalidClientTokenId"},
		{"When the secret is another, it should be refused", func(c *aws.Credentials) { c.SecretAccessKey = "secret" }, "SignatureDoesNotMatch"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, worldaws.Config{}, everything)
			NewWithT(t).Expect(list(t, with(t, w, test.change))).To(Equal(test.want))
		})
	}

	t.Run("When a request isn't signed, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, worldaws.Config{}, everything)
		response, err := http.PostForm(*w.config.BaseEndpoint, url.Values{"Action": {"DescribeInstances"}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(response.Body.Close()).To(Succeed())
		g.Expect(response.StatusCode).To(Equal(http.StatusBadRequest))
		g.Expect(w.account.Refused()).To(HaveLen(1))
	})

	t.Run("When credentials have expired, a request should be refused, and new ones should be had for the token", func(t *testing.T) {
		g := NewWithT(t)
		now := time.Now()
		w := newWorld(t, worldaws.Config{SessionDuration: time.Minute, Now: func() time.Time { return now }}, everything)
		kept := with(t, w, func(c *aws.Credentials) { c.CanExpire = false })
		now = now.Add(2 * time.Minute)
		g.Expect(list(t, kept)).To(Equal("ExpiredToken"))
		w.config.Credentials.(*aws.CredentialsCache).Invalidate() // by the SDK's own clock nothing has expired
		g.Expect(list(t, w.config)).To(BeEmpty())
		g.Expect(w.account.Assumed()).To(Equal(2))
	})
}

func TestPermissions(t *testing.T) {
	const readOnly = `{"Version": "2012-10-17", "Statement": [
		{"Effect": "Allow", "Action": ["iam:Get*", "iam:CreateInstanceProfile", "iam:AddRoleToInstanceProfile"], "Resource": "*"},
		{"Effect": "Deny", "Action": "iam:GetInstanceProfile", "Resource": "*"},
		{"Effect": "Allow", "Action": "iam:PassRole", "Resource": "arn:aws:iam::123456789012:role/nodes", "Condition": {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}}
	]}`
	w := newWorld(t, worldaws.Config{}, readOnly)
	for _, name := range []string{"nodes", "admin"} {
		NewWithT(t).Expect(w.account.PutRole(name, everything, everything)).To(Succeed())
	}
	client := iam.NewFromConfig(w.config)
	add := func(t *testing.T, role string) string {
		_, err := client.AddRoleToInstanceProfile(t.Context(), &iam.AddRoleToInstanceProfileInput{InstanceProfileName: new("blue"), RoleName: &role})
		return code(t, err)
	}
	t.Run("When the policy allows an action, it should be done", func(t *testing.T) {
		_, err := client.CreateInstanceProfile(t.Context(), &iam.CreateInstanceProfileInput{InstanceProfileName: new("blue")})
		NewWithT(t).Expect(code(t, err)).To(BeEmpty())
	})
	t.Run("When the policy doesn't name an action, it should be denied", func(t *testing.T) {
		_, err := client.ListInstanceProfiles(t.Context(), &iam.ListInstanceProfilesInput{})
		NewWithT(t).Expect(code(t, err)).To(Equal("AccessDenied"))
	})
	t.Run("When the policy allows and denies an action, it should be denied", func(t *testing.T) {
		_, err := client.GetInstanceProfile(t.Context(), &iam.GetInstanceProfileInput{InstanceProfileName: new("blue")})
		NewWithT(t).Expect(code(t, err)).To(Equal("AccessDenied"))
	})
	t.Run("When a role may not be passed, it should not be given to instances", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(add(t, "admin")).To(Equal("AccessDenied"))
		g.Expect(add(t, "nodes")).To(BeEmpty())
		g.Expect(w.account.InstanceProfiles()).To(Equal(map[string]string{"blue": "nodes"}))
	})
	t.Run("When all is done, what was allowed should be known, and nothing that was denied", func(t *testing.T) {
		NewWithT(t).Expect(w.account.Allowed()).To(Equal([]string{"iam:AddRoleToInstanceProfile", "iam:CreateInstanceProfile", "iam:PassRole"}))
	})
	t.Run("When a policy has a condition that isn't understood, it should be refused", func(t *testing.T) {
		err := w.account.PutRole("odd", everything, `{"Statement": [{"Effect": "Allow", "Action": "*", "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}]}`)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("doesn't know IpAddress")))
	})
}
