// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// numbers are those in the documentation that the code has a constant of: the group of a regular expression that is searched for in a page, and
// the folder and name of the constant.
var numbers = []struct{ page, text, folder, name string }{
	{"internals/architecture.md", `It waits (two seconds) for`, "karpenter/providers/machine", "hiccupLimit"},
	{"platform/bootstrap.md", `a margin of (five minutes)`, "karpenter/providers/machine", "joinMargin"},
	{"platform/bootstrap.md", `(50 minutes), the longest`, "karpenter/providers/bootstraptoken", "MaxLifetime"},
	{"cluster-admins/disruption.md", `isn't initialized (15 minutes) after it registered`, "karpenter/controllers/unneeded", "initialization"},
	{"reference/compatibility.md", `guest's control plane \| Kubernetes 1\.(\d+)`, "operator/steps/release", "oldestMinor"},
	{"reference/compatibility.md", `at most (three) minor versions older`, "operator/guest", "MaxBehind"},
	{"platform/failures.md", `didn't answer within (15 s)`, "karpenter/providers/machine", "CreateTimeout"},
	{"platform/exhausted-capacity.md", `first failure \| (3 minutes)`, "karpenter/providers/offering", "BaseTTL"},
	{"platform/fleet-capacity.md", `serves up to (200) clusters`, "fleet/operator/capacityaccount", "maxClusters"},
	{"start/README.md", `drains nodes for at most (30 minutes)`, "operator/steps/teardown", "DefaultDrainTimeout"},
	{"cluster-admins/life-of-a-node.md", `deadline (5 minutes) later`, "operator/steps/teardown", "maxGracePeriod"},
	{"platform/lifecycle.md", `the operator's --drain-timeout, (30m)`, "operator/steps/teardown", "DefaultDrainTimeout"},
	{"platform/lifecycle.md", "as long as `timeout`, at most (5 minutes)", "operator/steps/teardown", "maxGracePeriod"},
	{"platform/lifecycle.md", `for at most (thirty seconds)`, "operator/steps/teardown", "cleanUpTime"},
	{"reference/node-identity.md", `at most (15 minutes), which is`, "operator/controllers/csr", "liveFor"},
	{"platform/scale.md", `whose calls took (10 s)`, "operator/guest/outage", "slowAfter"},
	{"platform/scale.md", `in the last (5 minutes)`, "operator/guest/outage", "slowFor"},
	{"platform/scale.md", `call that timed out \| (5 s), doubling`, "operator/guest/outage", "MinBackoff"},
	{"platform/scale.md", `call that timed out \| 5 s, doubling to (5 minutes)`, "operator/guest/outage", "MaxBackoff"},
	{"platform/scale.md", `certificate requests \| (100),`, "operator/controllers/csr", "workers"},
	{"platform/scale.md", `certificate requests \| 100, at most (5) per guest`, "operator/controllers/csr", "perGuest"},
	{"platform/scale.md", `kept of a guest \| ([\d,]+) objects`, "operator/guest/store", "defaultObjects"},
	{"platform/scale.md", `objects and (128 MiB)`, "operator/guest/store", "defaultBytes"},
	{"platform/scale.md", `operator disconnects for (5 minutes)`, "operator/guest/egress", "DefaultBackoff"},
	{"reference/permissions.md", `a token that lives (eight hours)`, "operator/steps/access", "DefaultTokenLifetime"},
	{"platform/support.md", `retries after (5 seconds)`, "operator/steps/release", "minBackoff"},
	{"platform/support.md", `doubling to (5 minutes)`, "operator/steps/release", "maxBackoff"},
	{"platform/templates.md", `last (20) nodes`, "karpenter/providers/inventory", "Window"},
	{"platform/templates.md", `and the bootstrap template's \| (110) \|`, "karpenter/providers/kubelet", "DefaultMaxPods"},
	{"internals/threat-model.md", `token is valid for (eight hours)`, "operator/steps/access", "DefaultTokenLifetime"},
	{"platform/upgrades.md", `in the last (five minutes) of a window`, "karpenter/providers/version", "notice"},
	{"platform/upgrades.md", `(15 minutes) in which nothing was launched`, "karpenter/providers/vacancy", "HoldTimeout"},
	{"platform/upgrades.md", `after (two hours) in any case`, "karpenter/providers/vacancy", "MaxAge"},
	{"platform/versions.md", `from 1\.(\d+) to 1\.\d+, with the build`, "operator/steps/release", "oldestMinor"},
	{"platform/versions.md", `from 1\.\d+ to 1\.(\d+), with the build`, "operator/steps/release", "newestMinor"},
	{"platform/versions.md", `notices it within (two minutes)`, "operator/steps/release", "followAfter"},
	{"platform/versions.md", `has reported it for (ten minutes)`, "operator/steps/release", "olderFor"},
	{"platform/versions.md", `more than (three) minor versions older`, "operator/guest", "MaxBehind"},
	{"platform/versions.md", `at most (one) minor version newer`, "operator/steps/release", "maxAhead"},
}

func TestNumbers(t *testing.T) {
	t.Run("When a page has a number that is in the code, it should be the code's", func(t *testing.T) {
		constants := map[string]map[string]int64{}
		for _, number := range numbers {
			if constants[number.folder] == nil {
				constants[number.folder] = constantsOf(t, number.folder)
			}
			g := NewWithT(t)
			g.Expect(constants[number.folder]).To(HaveKey(number.name), number.folder)
			shown := search(t, number.page, number.text)
			value, err := numberOf(shown)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(value).To(Equal(constants[number.folder][number.name]), "docs/%s has %q, and %s.%s has another value",
				number.page, shown, number.folder, number.name)
		}
	})
	t.Run("When a page counts kinds of infrastructure, there should be as many profiles, each with a row", func(t *testing.T) {
		g := NewWithT(t)
		profiles, err := filepath.Glob(filepath.Join(root, "assets/infrastructure/*infrastructure.cluster.x-k8s.io_*.yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(search(t, "reference/compatibility.md", `has profiles of (\d+) kinds`)).To(Equal(strconv.Itoa(len(profiles))))
		_, section, _ := strings.Cut(pageOf(t, "reference/infrastructure.md"), "\n## Kinds\n")
		section, _, _ = strings.Cut(section, "\n## ")
		g.Expect(regexp.MustCompile("(?m)^\\| `\\w+`").FindAllString(section, -1)).To(HaveLen(len(profiles)))
	})
}

func pageOf(t *testing.T, page string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "docs", page))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(content)
}

// search returns what the group of a regular expression matches in a page, whose lines are joined.
func search(t *testing.T, page, text string) string {
	t.Helper()
	found := regexp.MustCompile(text).FindStringSubmatch(strings.Join(strings.Fields(pageOf(t, page)), " "))
	NewWithT(t).Expect(found).To(HaveLen(2), "docs/%s has no %q: correct numbers in numbers_test.go", page, text)
	return found[1]
}

var (
	words = []string{"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}
	units = map[string]int64{
		"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "s": int64(time.Second), "m": int64(time.Minute), "h": int64(time.Hour),
		"second": int64(time.Second), "minute": int64(time.Minute), "hour": int64(time.Hour),
	}
	amount = regexp.MustCompile(`^([\d,]+|[a-z]+?)(?: ?([smh]|[KM]iB)| (second|minute|hour)s?)?$`)
)

// numberOf reads a count, a size in bytes, or a duration in nanoseconds.
func numberOf(text string) (int64, error) {
	found := amount.FindStringSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("%q is no number", text)
	}
	unit := units[found[2]+found[3]]
	if found[1] == "thirty" {
		return 30 * unit, nil
	}
	if word := slices.Index(words, found[1]); word >= 0 {
		return int64(word) * unit, nil
	}
	count, err := strconv.ParseInt(strings.ReplaceAll(found[1], ",", ""), 10, 64)
	return count * unit, err
}

// constantsOf are the whole numbers among a package's constants.
func constantsOf(t *testing.T, folder string) map[string]int64 {
	t.Helper()
	g := NewWithT(t)
	paths, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	g.Expect(err).NotTo(HaveOccurred())
	found := map[string]int64{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		g.Expect(err).NotTo(HaveOccurred())
		for _, declaration := range file.Decls {
			general, ok := declaration.(*ast.GenDecl)
			if !ok || general.Tok != token.CONST {
				continue
			}
			for _, spec := range general.Specs {
				values := spec.(*ast.ValueSpec)
				for i, name := range values.Names {
					if i >= len(values.Values) {
						continue
					}
					if value := evaluate(values.Values[i]); value.Kind() == constant.Int {
						found[name.Name], _ = constant.Int64Val(value)
					}
				}
			}
		}
	}
	return found
}

// evaluate computes an expression of literals and of time's units.
func evaluate(expression ast.Expr) constant.Value {
	switch e := expression.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.SelectorExpr:
		if unit, ok := map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}[e.Sel.Name]; ok {
			return constant.MakeInt64(int64(unit))
		}
	case *ast.BinaryExpr:
		x, y := evaluate(e.X), evaluate(e.Y)
		if x.Kind() != constant.Int || y.Kind() != constant.Int {
			break
		}
		if e.Op == token.SHL {
			by, _ := constant.Uint64Val(y)
			return constant.Shift(x, e.Op, uint(by))
		}
		if e.Op == token.MUL || e.Op == token.ADD {
			return constant.BinaryOp(x, e.Op, y)
		}
	}
	return constant.MakeUnknown()
}
