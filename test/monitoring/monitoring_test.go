// SPDX-License-Identifier: Apache-2.0

package monitoring_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors/version"
	promversion "github.com/prometheus/common/version"
	"github.com/prometheus/prometheus/model/labels"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsnode "sigs.k8s.io/karpenter/pkg/controllers/metrics/node"
	coreoperator "sigs.k8s.io/karpenter/pkg/operator"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/v1beta1"
	fleetmetrics "github.com/autonode-io/autonode/fleet/operator/metrics"
	"github.com/autonode-io/autonode/internal/lenient"
	_ "github.com/autonode-io/autonode/karpenter" // registers what its controllers count
	karpentermetrics "github.com/autonode-io/autonode/karpenter/controllers/metrics"
	"github.com/autonode-io/autonode/karpenter/core/leadership"
	karpenteroperator "github.com/autonode-io/autonode/karpenter/operator"
	_ "github.com/autonode-io/autonode/operator" // registers what the operator's steps count
	operatorundecodable "github.com/autonode-io/autonode/operator/controllers/undecodable"
	"github.com/autonode-io/autonode/operator/metrics"
	"github.com/autonode-io/autonode/test/monitoring/recording"
)

const (
	manifests = "../../manifests/monitoring/"
	runbooks  = "../../docs/runbooks/"
	// runbookURL is where runbooks are once they are published.
	runbookURL = "https://github.com/autonode-io/autonode/blob/main/docs/runbooks/"
)

// target are the labels that Prometheus gives to everything that it scrapes by a PodMonitor.
var target = []string{"namespace", "pod", "job", "instance", "container", "endpoint", "le"}

// programs is what both programs serve.
type programs struct {
	registry prometheus.Registerer
	// labels of the metrics that are ours, by name.
	labels map[string][]string
	// values that expressions may name.
	values values
}

var descPattern = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// metricName is the label that holds a metric's own name: github.com/prometheus/common/model.MetricNameLabel.
const metricName = "__name__"

// registerNodeMetrics registers the metrics of nodes, which Karpenter core registers as their controller is made. A second time panics.
var registerNodeMetrics = sync.OnceFunc(func() { metricsnode.NewController(nil) })

// served links what the programs register only as they run to what they register as they are loaded.
func served(t *testing.T) programs {
	t.Helper()
	g := NewWithT(t)
	registerNodeMetrics()
	p := programs{registry: crmetrics.Registry, labels: map[string][]string{}, values: known(t)}
	for _, collector := range []prometheus.Collector{
		metrics.New(metrics.Config{}), fleetmetrics.New(fleetmetrics.Config{}), karpentermetrics.New(karpentermetrics.Config{}), leadership.New(leadership.Config{}).Metric(),
		version.NewCollector(metrics.Namespace), lenient.New(nil, operatorundecodable.Metric, nil), lenient.New(nil, karpenteroperator.UndecodableMetric, nil),
	} {
		// Described before anything else has it, and left out of what a registry would collect: there is nothing to read.
		descs := make(chan *prometheus.Desc, 100)
		collector.Describe(descs)
		close(descs)
		for desc := range descs {
			match := descPattern.FindStringSubmatch(desc.String())
			g.Expect(match).NotTo(BeNil(), desc.String())
			p.labels[match[1]] = strings.FieldsFunc(match[2], func(r rune) bool { return r == ',' || r == ' ' })
		}
	}
	g.Expect(p.labels).NotTo(BeEmpty())
	return p
}

// has reports whether a program serves a metric of that name, or of which that is a part.
func (p programs) has(name string) bool {
	base, ours := p.base(name)
	return ours || p.registered(base)
}

// base is the metric that a name is a part of, and whether it is ours.
func (p programs) base(name string) (base string, ours bool) {
	for _, suffix := range []string{"", "_bucket", "_count", "_sum"} {
		cut, found := strings.CutSuffix(name, suffix)
		if _, ours := p.labels[cut]; found && ours {
			return cut, true
		}
		if found && p.registered(cut) {
			base = cut
		}
	}
	return base, false
}

// registered queries the registry in the only way there is: it refuses what contradicts a metric of the same name.
func (p programs) registered(name string) bool {
	if name == "" {
		return false
	}
	probe := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "There is no metric with this help text."})
	if err := p.registry.Register(probe); err != nil {
		return true
	}
	p.registry.Unregister(probe)
	return false
}

// check returns what is wrong with an expression.
func (p programs) check(t *testing.T, where, expression string) {
	t.Helper()
	q, err := parse(expression)
	if err != nil {
		t.Errorf("%s: %q: %v", where, expression, err)
		return
	}
	found := q.selectors()
	if len(found) == 0 {
		t.Errorf("%s: no metric in %q", where, expression)
	}
	known := slices.Clone(target)
	checkable := true
	for _, s := range found {
		if !p.has(s.Name) {
			t.Errorf("%s: no program serves %s", where, s.Name)
		}
		base, ours := p.base(s.Name)
		served := p.labels[base]
		checkable = checkable && ours
		known = append(known, served...)
		for _, matcher := range s.LabelMatchers {
			switch values := p.values.of(base, s.LabelMatchers)[matcher.Name]; {
			case matcher.Name == metricName, strings.Contains(matcher.Value, "$"): // a variable of the dashboard
			case ours && !slices.Contains(append(served, target...), matcher.Name):
				t.Errorf("%s: %s has no label %s", where, s.Name, matcher.Name)
			case values != nil:
				if err := unknown(matcher, values); err != nil {
					t.Errorf("%s: %s: %v", where, s.Name, err)
				}
			default:
				t.Errorf("%s: no values for label %s of %s: values_test.go", where, matcher.Name, base)
			}
		}
	}
	for _, label := range q.groupings() {
		if checkable && !slices.Contains(known, label) {
			t.Errorf("%s: no metric of it has the label %s", where, label)
		}
	}
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

type prometheusRule struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []rule `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

func alerts(t *testing.T) []rule {
	t.Helper()
	g := NewWithT(t)
	data, err := os.ReadFile(manifests + "prometheusrule.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	rules := prometheusRule{}
	g.Expect(yaml.UnmarshalStrict(data, &rules)).To(Succeed())
	var all []rule
	for _, group := range rules.Spec.Groups {
		all = append(all, group.Rules...)
	}
	g.Expect(all).NotTo(BeEmpty())
	return all
}

var usedLabels = regexp.MustCompile(`\$labels\.(\w+)`)

func TestAlerts(t *testing.T) {
	p := served(t)
	t.Run("When an alert looks at a metric or a label, a program should serve it", func(t *testing.T) {
		for _, alert := range alerts(t) {
			p.check(t, alert.Alert, alert.Expr)
		}
	})

	t.Run("When an alert fires, it should say what is, how bad it is, and what to do", func(t *testing.T) {
		seen := map[string]bool{}
		for _, alert := range alerts(t) {
			if seen[alert.Alert] {
				t.Errorf("%s is there twice", alert.Alert)
			}
			seen[alert.Alert] = true
			if !slices.Contains([]string{"critical", "warning", "info"}, alert.Labels["severity"]) {
				t.Errorf("%s: severity %q", alert.Alert, alert.Labels["severity"])
			}
			if alert.For == "" || alert.Annotations["summary"] == "" || alert.Annotations["description"] == "" {
				t.Errorf("%s lacks for, summary or description", alert.Alert)
			}
			if want := runbookURL + alert.Alert + ".md"; alert.Annotations["runbook_url"] != want {
				t.Errorf("%s: runbook_url is %q, and not %q", alert.Alert, alert.Annotations["runbook_url"], want)
			}
			for _, text := range alert.Annotations {
				q, err := parse(alert.Expr)
				NewWithT(t).Expect(err).NotTo(HaveOccurred(), alert.Alert)
				for _, match := range usedLabels.FindAllStringSubmatch(text, -1) {
					if !slices.Contains(q.kept(), match[1]) {
						t.Errorf("%s speaks of the label %s, which its expression doesn't keep", alert.Alert, match[1])
					}
				}
			}
		}
	})

	t.Run("When there is an alert, it should have a runbook, and a line below its severity in the index of runbooks", func(t *testing.T) {
		g := NewWithT(t)
		index, err := os.ReadFile(runbooks + "README.md")
		g.Expect(err).NotTo(HaveOccurred())
		_, critical, _ := strings.Cut(string(index), "\n## Critical\n")
		critical, warning, _ := strings.Cut(critical, "\n## Warning\n")
		bySeverity := map[string]string{"critical": critical, "warning": warning}
		var names []string
		for _, alert := range alerts(t) {
			names = append(names, alert.Alert)
			g.Expect(bySeverity[alert.Labels["severity"]]).To(ContainSubstring("\n- [%s](%s.md): ", alert.Alert, alert.Alert))
		}
		var pages []string
		files, err := os.ReadDir(runbooks)
		g.Expect(err).NotTo(HaveOccurred())
		for _, file := range files {
			name, isPage := strings.CutSuffix(file.Name(), ".md")
			g.Expect(isPage).To(BeTrue(), file.Name())
			if name == "README" {
				continue
			}
			pages = append(pages, name)
			page, err := os.ReadFile(filepath.Join(runbooks, file.Name()))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(page)).To(HavePrefix("# " + name + "\n"))
			for _, heading := range []string{"## What it means", "## How to look", "## What to do"} {
				g.Expect(strings.Count(string(page), "\n"+heading+"\n")).To(Equal(1), "%s: %s", name, heading)
			}
		}
		slices.Sort(names)
		slices.Sort(pages)
		if diff := cmp.Diff(names, pages); diff != "" {
			t.Errorf("alerts and runbooks differ (-alerts +runbooks):\n%s", diff)
		}
	})
}

// dashboard is one of manifests/monitoring.
type dashboard struct {
	recording.Dashboard
	// content is the file.
	content string
}

// dashboards returns those in manifests/monitoring, by the names of their files.
func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	g := NewWithT(t)
	files, err := filepath.Glob(manifests + "dashboard-*.json")
	g.Expect(err).NotTo(HaveOccurred())
	all := map[string]dashboard{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		board, err := recording.ReadDashboard(data)
		g.Expect(err).NotTo(HaveOccurred(), file)
		all[filepath.Base(file)] = dashboard{board, string(data)}
	}
	g.Expect(all).To(And(HaveKey(fleetBoard), HaveKey(clusterBoard)))
	return all
}

const fleetBoard, clusterBoard = "dashboard-fleet.json", "dashboard-cluster.json"

var (
	usedVariable  = regexp.MustCompile(`\$\{?(\w+)`)
	dashboardLink = regexp.MustCompile(`^/d/([\w-]+)\?`)
)

func TestDashboards(t *testing.T) {
	p := served(t)
	t.Run("When a panel looks at a metric or a label, a program should serve it", func(t *testing.T) {
		for file, board := range dashboards(t) {
			ids := map[int]bool{}
			for _, panel := range board.Panels {
				where := file + ": " + panel.Title
				if ids[panel.ID] {
					t.Errorf("%s: another panel has the ID %d too", where, panel.ID)
				}
				ids[panel.ID] = true
				if panel.Type != "row" && len(panel.Targets) == 0 {
					t.Errorf("%s shows nothing", where)
				}
				for _, target := range panel.Targets {
					p.check(t, where, recording.Queryable(target.Expr))
				}
			}
		}
	})

	t.Run("When a variable is filled from a label, a program should serve it", func(t *testing.T) {
		for file, board := range dashboards(t) {
			variables := map[string]bool{}
			for _, variable := range board.Templating.List {
				variables[variable.Name] = true
				if variable.Type != "query" {
					continue
				}
				metric, label, ok := variable.LabelValues()
				if !ok {
					t.Errorf("%s: %s: %v isn't label_values(metric, label)", file, variable.Name, variable.Query)
					continue
				}
				p.check(t, file+": "+variable.Name, "max by ("+label+") ("+metric+")")
			}
			for _, name := range usedVariable.FindAllStringSubmatch(board.content, -1) {
				if !strings.HasPrefix(name[1], "__") && !variables[name[1]] {
					t.Errorf("%s: there is no variable %s", file, name[1])
				}
			}
		}
	})

	t.Run("When a dashboard is for one cluster, each of its panels should select that cluster's series alone", func(t *testing.T) {
		for _, panel := range dashboards(t)[clusterBoard].Panels {
			for _, target := range panel.Targets {
				q, err := parse(recording.Queryable(target.Expr))
				NewWithT(t).Expect(err).NotTo(HaveOccurred(), panel.Title)
				for _, s := range q.selectors() {
					if !slices.ContainsFunc(s.LabelMatchers, func(m *labels.Matcher) bool { return m.String() == `namespace="$namespace"` }) {
						t.Errorf("%s: %s doesn't select by namespace", panel.Title, s)
					}
				}
			}
		}
	})

	t.Run("When a dashboard is imported, its UID should be its own, its links lead to another, and no panel cover another", func(t *testing.T) {
		g := NewWithT(t)
		uids := map[string]string{}
		for file, board := range dashboards(t) {
			g.Expect(board.UID).NotTo(BeEmpty())
			g.Expect(uids).NotTo(HaveKey(board.UID), file)
			uids[board.UID] = file
		}
		for file, board := range dashboards(t) {
			for _, link := range board.Links {
				match := dashboardLink.FindStringSubmatch(link.URL)
				g.Expect(match).NotTo(BeNil(), link.URL)
				g.Expect(uids).To(HaveKey(match[1]), file)
			}
			covered := map[[2]int]string{}
			for _, panel := range board.Panels {
				at := panel.GridPos
				g.Expect(at.X+at.W).To(BeNumerically("<=", 24), panel.Title)
				for x := at.X; x < at.X+at.W; x++ {
					for y := at.Y; y < at.Y+at.H; y++ {
						g.Expect(covered).NotTo(HaveKey([2]int{x, y}), "%s: %s", file, panel.Title)
						covered[[2]int{x, y}] = panel.Title
					}
				}
			}
		}
	})

	t.Run("When there is a dashboard, docs/reference/metrics.md should name it", func(t *testing.T) {
		g := NewWithT(t)
		docs, err := os.ReadFile("../../docs/reference/metrics.md")
		g.Expect(err).NotTo(HaveOccurred())
		for file, board := range dashboards(t) {
			g.Expect(string(docs)).To(And(ContainSubstring("(../../manifests/monitoring/"+file+")"), ContainSubstring(board.Title)))
		}
	})
}

func TestManifests(t *testing.T) {
	t.Run("When a file lies in manifests/monitoring, its kustomization should name it", func(t *testing.T) {
		g := NewWithT(t)
		kustomization, err := os.ReadFile(manifests + "kustomization.yaml")
		g.Expect(err).NotTo(HaveOccurred())
		files, err := os.ReadDir(manifests)
		g.Expect(err).NotTo(HaveOccurred())
		for _, file := range files {
			if file.Name() != "kustomization.yaml" {
				g.Expect(string(kustomization)).To(ContainSubstring(file.Name()))
			}
		}
	})
}

func TestDocs(t *testing.T) {
	t.Run("When a metric is served that is ours, docs/reference/metrics.md should describe it, and none that isn't served", func(t *testing.T) {
		g := NewWithT(t)
		p := served(t)
		docs, err := os.ReadFile("../../docs/reference/metrics.md")
		g.Expect(err).NotTo(HaveOccurred())
		for name := range p.labels {
			g.Expect(string(docs)).To(ContainSubstring("`" + name + "`"))
		}
		counters, err := crmetrics.Registry.Gather() // of those with labels, only what was counted already
		g.Expect(err).NotTo(HaveOccurred())
		for _, family := range counters {
			if strings.HasPrefix(family.GetName(), metrics.Namespace+"_") {
				g.Expect(string(docs)).To(ContainSubstring("`" + family.GetName() + "`"))
			}
		}
		for _, match := range regexp.MustCompile("`((?:karpenter|autonode|leader_election)_[a-z_]+)`").FindAllStringSubmatch(string(docs), -1) {
			if !p.has(match[1]) {
				t.Errorf("docs/reference/metrics.md describes %s, which no program serves", match[1])
			}
		}
	})

	t.Run("When a program is built, the Makefile and a release should stamp its version into the libraries' metrics of builds", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect([]string{promversion.Version, coreoperator.Version}).To(Equal([]string{"", "unspecified"}), "the variables that a test's program doesn't stamp")
		for _, file := range []string{"../../Makefile", "../release/build.go"} {
			content, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(content)).To(And(ContainSubstring("github.com/prometheus/common/version.Version"), ContainSubstring("sigs.k8s.io/karpenter/pkg/operator.Version")))
		}
	})

	t.Run("When an expression can't be parsed, or names a label or a value that isn't there, it should be noticed", func(t *testing.T) {
		g := NewWithT(t)
		_, err := parse(`sum by (namespace (autonode_enabled)`)
		g.Expect(err).To(HaveOccurred())
		q, err := parse(`sum by (namespace) (rate(autonode_condition{type="AutoNodeEnabled", reason!~"AutoNodeDegraded|AutoNodeWaitin"}[5m])) / on (name) group_left (pool) autonode_enabled`)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(q.groupings()).To(ConsistOf("namespace", "name", "pool"))
		matchers := q.selectors()[0].LabelMatchers
		reasons := served(t).values.of("autonode_condition", matchers)["reason"]
		g.Expect(unknown(matchers[1], reasons)).To(MatchError(ContainSubstring(`reason is never "AutoNodeWaitin"`)))
		g.Expect(reasons).NotTo(ContainElement(v1beta1.NodeUpgradeHeldReason), "that is one of another condition")
	})

	t.Run("When no program serves a metric, it should be reported", func(t *testing.T) {
		g := NewWithT(t)
		p := served(t)
		for name, want := range map[string]bool{
			"autonode_enabled": true, "autonode_payload_lookups_total": true, "autonode_payload_pull_duration_seconds_bucket": true,
			"karpenter_clusterapi_suspended": true, "karpenter_clusterapi_garbage_collected_objects_total": true, "karpenter_nodeclaims_created_total": true,
			"autonode_enable": false, "karpenter_nodeclaims_created": false, "leader_election_status": false,
		} {
			g.Expect(p.has(name)).To(Equal(want), name)
		}
	})
}
