// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"unicode"
)

// Removed takes the place of what may be secret.
const Removed = "REMOVED"

var (
	// secretKeys are names of fields, flags, variables and JSON pointers whose values may be secret, in any text.
	secretKeys = regexp.MustCompile(`(?i)(token|passw|passphrase|passcode|pwd|secret|docker-?config|docker-?cfg|user-?data|credential|` +
		`bearer|authorization|cookie|signature$|connection-?string|` +
		`(private|access|api|client|ssh|encryption|account|shared|storage|master|signing|service|license|host|tls|deploy|webhook|session|` +
		`hmac|gpg)[-_. ]?key|` +
		`(^|[-_. /])(auth|pass|pat|psk|sig|sas|dsn|pin|otp|jwt|pgpass|cred|creds|htpasswd)$)|` +
		`(?-i:[a-z0-9](Pass|Pwd|Auth|Pin|Sas|Jwt|Psk|Pat)$)`)
	// secretFields are further names that are words in a text, and may be secret as fields of an object.
	secretFields = regexp.MustCompile(`(?i)(kubeconfig|cloud-?init|cloud-?config|ignition|client-?key|^contents?$|^value-?from$|^data$|` +
		`^string-?data$|^binary-?data$)`)
	// harmlessKeys end the names of fields that refer to a secret, or say how one is used.
	harmlessKeys = regexp.MustCompile(`(?i)(name|names|ref|refs|namespace|type|policy|count|seconds|ttl|format|mode|audience|audiences|path|` +
		`file|mounttoken|mountserviceaccounttoken|imagepullsecrets|created|generated|ready|token-?id|expires-?at|hash|version|reason|` +
		`annotation|lifetime)$`)
	// words follow a key in a sentence, and are no secrets.
	words = regexp.MustCompile(`^(?i:a|an|and|are|aren't|as|authentication|by|can't|cannot|expired|failed|false|file|for|forbidden|from|get|` +
		`has|in|incorrect|invalid|is|isn't|key|list|login|missing|must|nil|no|none|not|null|of|on|open|or|policy|read|required|reset|` +
		`secret|secrets|the|to|token|true|unauthorized|unknown|was|with|wrong|write)[.:]?$`)

	// shapes of secrets in any text. The groups of an expression stay.
	shapes = []*regexp.Regexp{
		regexp.MustCompile(`()-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----|\z)`),
		regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`),
		regexp.MustCompile(`()\b[a-z0-9]{6}\.[a-z0-9]{16}\b`),
		regexp.MustCompile(`()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`),
		// Tokens of GitHub, GitLab, Slack, Stripe, Google, Vault, npm, Docker, SendGrid and DigitalOcean, and keys of age.
		regexp.MustCompile(`()\b(?:gh[opsur]_|github_pat_|glpat-|xox[a-z]-|[sr]k_(?:live|test)_|sk-|AIza|ya29\.|hv[sbr]\.|npm_|` +
			`dckr_pat_|SG\.|do[opr]_v1_)[A-Za-z0-9_.-]{10,}`),
		regexp.MustCompile(`()\bAGE-SECRET-KEY-[A-Z0-9]+`),
		regexp.MustCompile(`(?i)(\b(?:bearer|basic|negotiate)\s+)[^\s"',;]{4,}`),
		regexp.MustCompile(`(?i)(\b(?:set-)?cookie2?["']?\s*[:=]\s*["']?)[^"'\n]+`),
		// Programs that are told a secret.
		regexp.MustCompile(`((?:^|\s)(?:-u|-U|--user|--proxy-user)(?:\s*=?\s*|\s+))["']?[^\s"':]+:[^\s"']+`),
		regexp.MustCompile(`(\bsshpass\s+-p\s*)(?:"[^"\n]*"?|'[^'\n]*'?|[^\s"']+)`),
		regexp.MustCompile(`(\b(?:mysql|mysqldump|mysqladmin|mariadb)\b[^\n|;]*?\s-p)[^\s]+`),
		regexp.MustCompile(`(\blogin\b[^\n|;]*?\s-p[ =]?\s*)[^\s]+`),
		regexp.MustCompile(`(\b(?:echo|printf)\s+)[^|\n]*(\|[^\n]*\b(?:passwd|chpasswd|--password-stdin|--stdin|--passphrase-fd)\b)`),
	}

	// pair is where a key ends and its value begins, also in JSON that is quoted once more; a flag's value may follow a blank.
	pair = regexp.MustCompile(`(?:^|[\s"'(\[,=])(--?[A-Za-z][A-Za-z0-9_-]*)([ \t]+)|` +
		`(?:([A-Za-z]+)[ ])?([A-Za-z0-9_./-]*[A-Za-z0-9_])((?:\\*["'])?\]?\s*(?::=|=>|[:=])[ \t]*)`)
	// inSentence is a password in a sentence.
	inSentence = regexp.MustCompile(`(?i)\b((?:password|passphrase|passwd)\s+(?:is\s+|was\s+|of\s+)?)(["']?[^\s"=]+["']?)`)
	// value begins where pair ends.
	value = regexp.MustCompile(`^(?:\\+"(?s:.*?)(?:\\+"|\z)|"(?:\\.|[^"\\])*"?|'(?:''|[^'])*'?|\{[^}\n]*\}?|\[[^\]\n]*\]?|` +
		`[|>][-+0-9]*[ \t]*(?:\n[ \t]+[^\n]*|\n[ \t]*)+|[^\s"',;&)\]}]+)`)
	// phrase is a password that isn't quoted, and may have blanks.
	phrase = regexp.MustCompile(`^[^\n"',;&{}\[\]|>][^\n"',;&{}\]]*`)
	// scheme is how an Authorization header begins whose secret is one word.
	scheme    = regexp.MustCompile(`(?i)^(?:\\*["'\[])*(?:bearer|basic|negotiate|token)[ ]+`)
	passwords = regexp.MustCompile(`(?i)(passw|passphrase|pwd|pass$)`)

	links    = regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^\s"'<>` + "`" + `]+`)
	userinfo = regexp.MustCompile(`([A-Za-z0-9_.-]+):([^\s"'@/:]+)@([A-Za-z0-9_.(\[-]+)`)

	uuid   = regexp.MustCompile(`[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)
	blob   = regexp.MustCompile(`(?:[a-z0-9+.-]+:(?://)?)?[A-Za-z0-9+/_=-]{20,}`)
	digest = regexp.MustCompile(`^(?:sha(?:256|384|512):|[a-z0-9+.-]+://)`)
	hex    = regexp.MustCompile(`^[0-9a-f]{32,}$`)
)

// isSecret reports whether a field's name is that of a value that may be secret.
func isSecret(key string) bool {
	return (secretKeys.MatchString(key) || secretFields.MatchString(key)) && !harmlessKeys.MatchString(key)
}

// isSecretWord is isSecret for a word of a text.
func isSecretWord(key string) bool {
	return secretKeys.MatchString(key) && !harmlessKeys.MatchString(key)
}

// Text removes what has the shape of a secret, or stands where secrets stand. Lines in JSON stay JSON.
func Text(text string) string {
	if !strings.Contains(text, "{") {
		return plain(text)
	}
	// A run of lines that aren't JSON is one text: a private key has many.
	var cleaned, run strings.Builder
	flush := func() {
		cleaned.WriteString(plain(run.String()))
		run.Reset()
	}
	for line := range strings.Lines(text) {
		before, object, ok := structured(line)
		if !ok {
			run.WriteString(line)
			continue
		}
		run.WriteString(before)
		flush()
		cleaned.WriteString(object)
	}
	flush()
	return cleaned.String()
}

// structured returns a line that ends in a JSON object without what may be secret.
func structured(line string) (before, object string, ok bool) {
	begin := strings.Index(line, "{")
	end := strings.TrimRightFunc(line, unicode.IsSpace)
	if begin < 0 || !strings.HasSuffix(end, "}") {
		return "", "", false
	}
	decoder := json.NewDecoder(strings.NewReader(end[begin:]))
	decoder.UseNumber()
	var fields map[string]any
	if decoder.Decode(&fields) != nil || decoder.More() {
		return "", "", false
	}
	scrub("", fields)
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(fields) != nil {
		return "", "", false
	}
	return line[:begin], strings.TrimSuffix(encoded.String(), "\n") + line[len(end):], true
}

func plain(text string) string {
	if len(text) < 13 && !strings.ContainsAny(text, " \t\n:=@.|\"'") {
		return text // most values of fields are one short word, and no token is
	}
	for _, shape := range shapes {
		text = shape.ReplaceAllString(text, "${1}"+Removed+"${2}")
	}
	text = links.ReplaceAllStringFunc(text, link)
	text = userinfo.ReplaceAllStringFunc(text, func(found string) string {
		parts := userinfo.FindStringSubmatch(found)
		if strings.HasPrefix(parts[3], "sha") {
			return found // an image by tag and digest
		}
		return Removed + "@" + parts[3]
	})
	text = inSentence.ReplaceAllStringFunc(pairs(text), func(found string) string {
		parts := inSentence.FindStringSubmatch(found)
		if words.MatchString(parts[2]) {
			return found
		}
		return parts[1] + Removed
	})
	return blob.ReplaceAllStringFunc(text, random)
}

// link removes who signs in at a URL.
func link(found string) string {
	scheme, rest, _ := strings.Cut(found, "://")
	for end := len(rest); ; {
		at := strings.LastIndex(rest[:end], "@")
		switch {
		case at < 0:
			return found
		case strings.HasPrefix(rest[at:], "@sha"):
			end = at // a digest
			continue
		}
		return scheme + "://" + Removed + rest[at:]
	}
}

// pairs removes the values of keys and flags whose names say that they are secret.
func pairs(text string) string {
	var b strings.Builder
	for {
		at := pair.FindStringSubmatchIndex(text)
		if at == nil {
			b.WriteString(text)
			return b.String()
		}
		key := ""
		flag := at[2] >= 0
		if flag {
			key = text[at[2]:at[3]]
		} else if key = text[at[8]:at[9]]; at[6] >= 0 && !isSecretWord(key) {
			key = text[at[6]:at[7]] + " " + key // "access key: …"
		}
		// What follows may be a key itself.
		b.WriteString(text[:at[1]])
		text = text[at[1]:]
		if !isSecretWord(key) {
			continue
		}
		if strings.HasSuffix(strings.ToLower(key), "authorization") {
			begin := scheme.FindString(text)
			b.WriteString(begin)
			text = text[len(begin):]
		}
		found := value.FindString(text)
		if words.MatchString(found) {
			continue
		}
		if !flag && passwords.MatchString(key) {
			if longer := phrase.FindString(text); len(longer) > len(found) {
				found = strings.TrimRight(longer, " \t")
			}
		}
		if found == "" {
			continue
		}
		text = text[len(found):]
		b.WriteString(quoted(found))
	}
}

// quoted is Removed between the quotes of a value.
func quoted(value string) string {
	for _, quote := range []string{`\\\"`, `\"`, `"`, `'`} {
		if strings.HasPrefix(value, quote) {
			return quote + Removed + quote
		}
	}
	if strings.HasSuffix(value, "\n") {
		return Removed + "\n"
	}
	return Removed
}

// random removes a word that was drawn by lot: one of upper case, lower case and digits that changes between them all the time, or many
// hexadecimal digits that are neither a digest nor a UUID.
func random(word string) string {
	if digest.MatchString(word) {
		return word
	}
	before := ""
	if at := strings.LastIndex(word, ":"); at >= 0 {
		before, word = word[:at+1], word[at+1:]
	}
	rest := uuid.ReplaceAllString(word, "")
	switch {
	case hex.MatchString(rest) && strings.ContainsAny(rest, "abcdef") && strings.ContainsAny(rest, "0123456789"):
		return before + Removed
	case len(rest) == 40 && changes(rest)*4 >= len(rest): // a secret key of AWS's may have slashes
		return before + Removed
	}
	parts := strings.Split(rest, "/")
	for _, part := range parts {
		if len(part) >= 20 && changes(part)*5 >= len(part)*2 {
			return before + Removed
		}
	}
	return before + word
}

// changes counts how often a word goes from upper case, lower case or digits to another of these; none if it lacks one of them.
func changes(word string) int {
	count, last := 0, 0
	seen := map[int]bool{}
	for _, r := range word {
		class := 0
		switch {
		case r >= 'a' && r <= 'z':
			class = 1
		case r >= 'A' && r <= 'Z':
			class = 2
		case r >= '0' && r <= '9':
			class = 3
		default:
			continue
		}
		if seen[class] = true; last != 0 && last != class {
			count++
		}
		last = class
	}
	if len(seen) < 3 {
		return 0
	}
	return count
}
