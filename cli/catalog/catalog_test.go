// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/printer/printertest"
)

// samples are the inputs of package importer.
const samples = "importer/testdata/"

const awsTemplates = `
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: AWSMachineTemplate
metadata: {name: general}
spec: {template: {spec: {instanceType: any, sshKeyName: ops}}}
`

// catalogCommand runs `autonode catalog`.
func catalogCommand(t *testing.T, args ...string) (out, problems string, err error) {
	t.Helper()
	cmd := NewCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var stdout, stderr bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

func written(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func importSample(t *testing.T) string {
	t.Helper()
	out, _, err := catalogCommand(t, "import", "aws", "-f", samples+"aws.json", "--prices", samples+"aws-prices.json", "--spot-prices", samples+"aws-spot-prices.json",
		"--zones", "us-east-1a,us-east-1b", "--template", "general", "-n", "clusters-blue", "--labels", "tier=general")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestCatalogImport(t *testing.T) {
	t.Run("When a file is imported, it should print a catalog that check can render, and name what it left out", func(t *testing.T) {
		out, problems, err := catalogCommand(t, "import", "aws", "-f", samples+"aws.json", "--prices", samples+"aws-prices.json", "--template", "general", "-n", "clusters-blue")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"aws.json: InstanceTypes[3] mac2.metal: no architecture", "InstanceTypes[4] broken.large:",
			"3 machine types imported in 1 catalog, 4 problems", "1 machine type without a price"} {
			if !strings.Contains(problems, want) {
				t.Errorf("standard error lacks %q:\n%s", want, problems)
			}
		}
		imported := &v1alpha1.InstanceTypeCatalog{}
		if err := yaml.UnmarshalStrict([]byte(out), imported); err != nil {
			t.Fatal(err)
		}
		if imported.Namespace != "clusters-blue" || imported.Spec.TemplateRef.Kind != "AWSMachineTemplate" ||
			imported.Spec.TemplateRef.Name != "general" || len(imported.Spec.InstanceTypes) != 3 {
			t.Errorf("got %+v", imported)
		}
		out, _, err = catalogCommand(t, "check", "-f", written(t, "catalog.yaml", out), "-f", written(t, "templates.yaml", awsTemplates))
		if err != nil || out != "1 catalog: 3 usable instance types, 2 offerings, 2 machines rendered\n" {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("When a table is imported, it should print a catalog that check can render, without the offerings that it can't", func(t *testing.T) {
		table := "name,cpu,memory,capacityType,zones,price\nsmall,2,4Gi,on-demand,a,0.02\nsmall,2,4Gi,on-demand,a,0.03\nsmall,2,4Gi,sometimes,a,0.03\nlarge,8,32Gi,,b,0.2\n"
		patches := written(t, "patches.yaml", "- {op: add, path: /spec/instanceType, valueFrom: {variable: instanceType}}\n")
		out, problems, err := catalogCommand(t, "import", "csv", "-f", written(t, "types.csv", table), "--template", "AWSMachineTemplate/general", "--patches", patches)
		if err != nil || !strings.Contains(problems, "sometimes") {
			t.Fatalf("%v\n%s", err, problems)
		}
		out, _, err = catalogCommand(t, "check", "-f", written(t, "catalog.yaml", out), "-f", written(t, "templates.yaml", awsTemplates))
		if err != nil || out != "1 catalog: 2 usable instance types, 2 offerings, 2 machines rendered\n" {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("When names are given, it should import those", func(t *testing.T) {
		out, _, err := catalogCommand(t, "import", "openstack", "-f", samples+"openstack.json", "--estimate-prices", "--include", "m1.*,*.medium", "--template", "workers")
		if err != nil || strings.Count(out, "  - architecture:") != 3 || !strings.Contains(out, `price: "0.1720"`) {
			t.Errorf("%v\n%s", err, out)
		}
	})
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"the template's kind isn't known": {[]string{"csv", "-f", samples + "csv.csv", "--template", "x"}, "--template KIND/NAME"},
		"the file isn't named":            {[]string{"aws", "--template", "x"}, "-f FILE"},
		"there are no patches":            {[]string{"csv", "-f", samples + "csv.csv", "--template", "KwokMachineTemplate/x"}, "--patches FILE"},
		"nothing matches":                 {[]string{"aws", "-f", samples + "aws.json", "--template", "x", "--include", "z*"}, "no machine type can be imported"},
	} {
		t.Run("When "+name+", it should say what to do", func(t *testing.T) {
			if _, _, err := catalogCommand(t, append([]string{"import"}, tc.args...)...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestCatalogCheck(t *testing.T) {
	imported := importSample(t)
	templates := written(t, "templates.yaml", awsTemplates)
	t.Run("When one type is asked for, it should print its machine in each capacity type", func(t *testing.T) {
		out, _, err := catalogCommand(t, "check", "-f", written(t, "c.yaml", imported), "-f", templates, "--print", "m5.large")
		if err != nil || strings.Count(out, "apiVersion: infrastructure.cluster.x-k8s.io/v1beta2\nkind: AWSMachine\n") != 2 ||
			strings.Count(out, "instanceType: m5.large") != 2 || strings.Count(out, "spotMarketOptions: {}") != 1 ||
			!strings.Contains(out, "sshKeyName: ops") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	for name, tc := range map[string]struct{ old, now, want string }{
		"a patch doesn't apply":      {"path: /spec/instanceType", "path: /spec/sshKeyName/a", "patches of the catalog and of the instance type: patch 0 (add /spec/sshKeyName/a)"},
		"spot isn't made spot":       {"path: /spec/spotMarketOptions", "path: /spec/other", "its spot offerings are closed"},
		"the template isn't there":   {"name: general\n  instance", "name: special\n  instance", ""},
		"a field is unknown":         {"architecture: amd64", "arch: amd64", `unknown field "arch"`},
		"an instance type is broken": {`cpu: "2"`, "cpu: two", `m5.large: capacity.cpu: "two" is not a quantity`},
	} {
		if tc.want == "" {
			tc.old, tc.now, tc.want = "    name: general\n", "    name: special\n", "AWSMachineTemplate special, which it refers to, doesn't exist"
		}
		t.Run("When "+name+", it should fail and name it", func(t *testing.T) {
			changed := strings.Replace(imported, tc.old, tc.now, 1)
			if changed == imported {
				t.Fatal("nothing was changed")
			}
			if _, _, err := catalogCommand(t, "check", "-f", written(t, "c.yaml", changed), "-f", templates); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestCatalogDiff(t *testing.T) {
	imported := importSample(t)
	before := written(t, "old.yaml", imported)
	for name, tc := range map[string]struct {
		old, now string
		want     string
		drifts   bool
	}{
		"nothing changes":  {"", "", "0 added, 0 removed, 0 changed; no node is replaced\n", false},
		"a price changes":  {`price: "0.096"`, `price: "0.090"`, "~ m5.large: offerings: 2 cheaper\n0 added, 0 removed, 1 changed; no node is replaced\n", false},
		"a price goes":     {`price: "0.096"`, `price: ""`, "~ m5.large: offerings: 2 closed\n", false},
		"capacity changes": {"memory: 8Gi", "memory: 7Gi", "~ m5.large: capacity\n", false},
		"a type is renamed": {"name: m5.large", "name: m5.huge",
			"+ m5.huge\n- m5.large: its offerings close, and its nodes stay\n1 added, 1 removed, 0 changed; no node is replaced\n", false},
		"a type becomes invalid": {`cpu: "2"`, "cpu: two", "~ m5.large: becomes unusable: nothing more launches\n", false},
		"an overhead comes": {"    name: m5.large", "    name: m5.large\n    overhead: {kubeReserved: {cpu: 70m}}",
			"~ m5.large: patches or overhead; its nodes are replaced\n", true},
		"the patches change":   {"path: /spec/spotMarketOptions", "path: /spec/spotMarketOptions/maxPrice", "the nodes of 3 instance types are replaced\n", true},
		"the template changes": {"    name: general\n", "    name: special\n", "template general → special; its nodes are replaced\n", true},
	} {
		t.Run("When "+name+", it should say so, and whether nodes are replaced", func(t *testing.T) {
			changed := strings.Replace(imported, tc.old, tc.now, 1)
			if changed == imported && tc.old != "" {
				t.Fatal("nothing was changed")
			}
			out, _, err := catalogCommand(t, "diff", before, written(t, "new.yaml", changed), "--fail-on-drift")
			if !strings.Contains(out, tc.want) || (err != nil) != tc.drifts {
				t.Errorf("%v\n%s\nwant %q", err, out, tc.want)
			}
		})
	}
	t.Run("When a file has no catalog, it should say so", func(t *testing.T) {
		if _, _, err := catalogCommand(t, "diff", before, written(t, "t.yaml", awsTemplates)); err == nil || !strings.Contains(err.Error(), "no InstanceTypeCatalog") {
			t.Errorf("got %v", err)
		}
	})
}

func TestIncluded(t *testing.T) {
	for _, tc := range []struct {
		pattern, name string
		want          int
	}{
		{"m5.large", "m5.large", 1}, {"m5.large", "m5.large2", 0}, {"m5.*", "m5.xlarge", 1}, {"m5.*", "m6.xlarge", 0}, {"*.large", "m5.large", 1},
		{"m*.*large", "m5.xlarge", 1}, {"m*.*large", "c5.xlarge", 0}, {"*", "", 1}, {"a*a", "a", 0},
	} {
		t.Run("When "+tc.name+" is compared with "+tc.pattern+", it should match as shells do", func(t *testing.T) {
			if got := included([]v1alpha1.CatalogInstanceType{{Name: tc.name}}, []string{tc.pattern}); len(got) != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestHostileOutput(t *testing.T) {
	const hostile = printertest.Hostile
	o := &ImportOptions{source: source{Name: hostile}, Labels: map[string]string{hostile: hostile}}
	printertest.Harmless(t, "catalog import", func(out io.Writer) error { return o.print(out, make([]v1alpha1.InstanceTypeCatalogSpec, 2)) })
}
