// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/cli/clitest"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/printer/printertest"
)

var server clitest.Server

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// noon is when the tests' history begins, and ever a --since that reaches back to it on any machine.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

const ever = "2000000h"

// recordOf returns the record of a node that was launched some minutes after noon, and lived some if there is a reason why it went.
func recordOf(node, pool string, launched, lived int, cost v1alpha1.RecordText, reason, details string) *v1alpha1.NodeRecord {
	from, life := noon.Add(time.Duration(launched)*time.Minute), time.Duration(lived)*time.Minute
	record := &v1alpha1.NodeRecord{ObjectMeta: metav1.ObjectMeta{Name: node + "-1a2b3c4d"}, Launch: v1alpha1.NodeLaunch{
		Time: new(scalar.NewTime(from)), Node: v1alpha1.RecordText(node), NodePool: v1alpha1.RecordText(pool), InstanceType: "c2-small", PricePerHour: "$0.083", For: "2 pods, shop/cart",
	}}
	if reason != "" {
		text := v1alpha1.RecordText(duration.HumanDuration(life))
		record.End = &v1alpha1.NodeEnd{Time: new(scalar.NewTime(from.Add(life))), Lived: text, Cost: cost, Reason: reason, Because: reason + ": " + details}
	}
	return record
}

func TestTimeline(t *testing.T) {
	records := []v1alpha1.NodeRecord{
		*recordOf("web-3", "web", 70, 0, "", "", ""), *recordOf("web-1", "web", 0, 60, "$0.08", "Empty", "1 node became 0"), *recordOf("gpu-2", "gpu", 0, 90, "$1.80", "Expired", "old"),
	}
	unpriced, malformed := recordOf("a", "own", 0, 5, "", "Deleted", "by a request"), recordOf("b", "own", 0, 6, "much", "Unknown", "edited")
	unpriced.Launch.PricePerHour, unpriced.End.Lived = "", ""
	const came = " launched for 2 pods, shop/cart"
	web1, web3, gpu2 := "13:00 web-1 gone after 60m, $0.08: Empty: 1 node became 0", "13:10 web-3"+came+", $0.083/h", "13:30 gpu-2 gone after 90m, $1.80: Expired: old"
	for name, test := range map[string]struct {
		nodePool, sums string
		after          time.Time
		records        []v1alpha1.NodeRecord
		want           []string
	}{
		"When nodes came and went, it should have both in the order of time": {
			records: records, sums: "3 launched, 2 gone, 1.88: web-3-1a2b3c4d web-1-1a2b3c4d gpu-2-1a2b3c4d",
			want: []string{"12:00 web-1" + came + ", $0.083/h", "12:00 gpu-2" + came + ", $0.083/h", web1, web3, gpu2},
		},
		"When a launch is older than --since, it should have the end alone": {records: records, after: noon.Add(65 * time.Minute), sums: "1 launched, 1 gone, 1.80: web-3-1a2b3c4d gpu-2-1a2b3c4d", want: []string{web3, gpu2}},
		"When a NodePool is named, it should have its nodes alone":          {records: records, nodePool: "gpu", sums: "1 launched, 1 gone, 1.80: gpu-2-1a2b3c4d", want: []string{"12:00 gpu-2" + came + ", $0.083/h", gpu2}},
		"When a node has no price or a malformed cost, it should leave it out of the sum": {
			records: []v1alpha1.NodeRecord{*unpriced, *malformed}, sums: "2 launched, 2 gone, 0.00: a-1a2b3c4d b-1a2b3c4d",
			want: []string{"12:00 a" + came, "12:00 b" + came + ", $0.083/h", "12:05 a gone after an unknown time, no price: Deleted: by a request", "12:06 b gone after 6m, much: Unknown: edited"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, got := NewWithT(t), []string(nil)
			events, names, gone, cost := (&Options{NodePool: test.nodePool}).timeline(test.records, test.after)
			for _, e := range events {
				got = append(got, e.Time.Format("15:04 ")+string(e.Node)+" "+e.Text)
			}
			g.Expect(cmp.Diff(test.want, got)).To(BeEmpty(), "(-want +got)")
			g.Expect(fmt.Sprintf("%d launched, %d gone, %.2f: %s", len(events)-gone, gone, cost, strings.Join(names, " "))).To(Equal(test.sums))
		})
	}
}

func TestHistoryCommand(t *testing.T) {
	run := func(t *testing.T, args ...string) (string, error) {
		t.Helper()
		return clitest.Run(t, NewCommand(), append([]string{"--kubeconfig", server.Kubeconfig}, args...)...)
	}
	for format, want := range map[string]string{
		"wide": "no node came or went in the last 24h; --since looks back further\n", "yaml": "events: []\n", "json": "{\n  \"events\": []\n}\n", "name": "",
	} {
		t.Run("When nothing happened, it should say so with -o "+format, func(t *testing.T) {
			NewWithT(t).Expect(run(t, "-o", format)).To(Equal(want))
		})
	}
	server.Create(t, recordOf("blue-web-x3", "web", 70, 0, "", "", ""),
		recordOf("blue-web-x1", "web", 0, 60, "$0.08", "Underutilized", "2 nodes became 1, saves $0.083/h; 2 pods moved in 14s"))
	t.Run("When the documentation shows history, it should show what the command prints", func(t *testing.T) {
		out, err := run(t, "--since", ever)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		clitest.Shown(t, "docs/reference/cli/nodes.md", "autonode history", out)
	})
	t.Run("When a script needs it, it should get each event's fields, and each record's name once", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(run(t, "--since", ever, "-o", "yaml")).To(ContainSubstring("- instanceType: c2-small\n  node: blue-web-x1\n  nodePool: web\n  reason: Underutilized\n  text: 'gone after"))
		g.Expect(run(t, "--since", ever, "-o", "json")).To(ContainSubstring(`"time": "2026-11-30T13:00:00Z"`))
		g.Expect(run(t, "--since", ever, "-o", "name")).To(Equal("blue-web-x1-1a2b3c4d\nblue-web-x3-1a2b3c4d\n"))
	})
	t.Run("When the cluster has no NodeRecords, it should say that AutoNode isn't on", func(t *testing.T) {
		groups := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}`)
		}
		mux := http.NewServeMux()
		mux.HandleFunc("/api", groups)
		mux.HandleFunc("/apis", groups)
		empty := httptest.NewServer(mux)
		t.Cleanup(empty.Close)
		without := server.AlteredKubeconfig(t, func(config *clientcmdapi.Config) {
			for _, cluster := range config.Clusters {
				cluster.Server = empty.URL
			}
		})
		_, err := run(t, "--kubeconfig", without)
		NewWithT(t).Expect(err).To(MatchError(HavePrefix("this cluster has no NodeRecords, so AutoNode isn't on for it; choose another with --context")))
	})
}

func TestHostileOutput(t *testing.T) {
	const hostile = printertest.Hostile
	record := recordOf("owned", hostile, 0, 1, hostile, "Empty", hostile)
	record.Launch.Node, record.Launch.InstanceType, record.Launch.PricePerHour, record.Launch.For, record.End.Lived = hostile, hostile, hostile, hostile, hostile
	server.Create(t, record)
	for _, format := range printer.Formats {
		printertest.Harmless(t, "history -o "+format, func(to io.Writer) error {
			root := clitest.Command(NewCommand(), "--since", ever, "-o", format, "--kubeconfig", server.Kubeconfig)
			root.SetOut(to)
			return root.ExecuteContext(t.Context())
		})
	}
}
