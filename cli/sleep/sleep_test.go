// SPDX-License-Identifier: Apache-2.0

package sleep_test

import (
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/clitest"
	"github.com/autonode-io/autonode/cli/sleep"
)

var server clitest.Server

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// command returns the one of that name.
func command(t *testing.T, name string) *cobra.Command {
	t.Helper()
	for _, cmd := range sleep.NewCommands() {
		if cmd.Name() == name {
			return cmd
		}
	}
	t.Fatalf("there is no command %s", name)
	return nil
}

// hosted makes a HostedCluster.
func hosted(t *testing.T, namespace string, annotations map[string]string) *v1beta1.HostedCluster {
	t.Helper()
	hostedCluster := &v1beta1.HostedCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "blue", Annotations: annotations},
		Spec:       v1beta1.HostedClusterSpec{Release: v1beta1.Release{Image: clitest.PayloadImage}},
	}
	server.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, hostedCluster)
	return hostedCluster
}

func TestSleepAndWake(t *testing.T) {
	hostedCluster := hosted(t, "team-sleep", map[string]string{"example.com/note": "mine"})
	const asleep, awake = v1beta1.SleepUntilAnnotation, v1beta1.WakeUntilAnnotation
	for _, test := range []struct {
		name, command string
		args          []string
		lasts         time.Duration
		set           string
		state         string
	}{
		{name: "When it is put to sleep, it should be for twelve hours", command: "sleep", args: []string{"team-sleep/blue"}, lasts: 12 * time.Hour, set: asleep, state: "asleep"},
		{name: "When it is put to sleep again, it should be for the new time", command: "sleep", args: []string{"blue", "-n", "team-sleep", "--for", "2h30m"}, lasts: 150 * time.Minute, set: asleep, state: "asleep"},
		{name: "When it is woken, it should sleep no more", command: "wake", args: []string{"team-sleep/blue"}, lasts: 12 * time.Hour, set: awake, state: "awake"},
		{name: "When it is put to sleep after that, it should not be awake any more", command: "sleep", args: []string{"team-sleep/blue", "--for", "1m"}, lasts: time.Minute, set: asleep, state: "asleep"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := NewWithT(t)
			before := time.Now().Truncate(time.Second)
			out, err := clitest.Run(t, command(t, test.command), append(test.args, "--kubeconfig", server.Kubeconfig)...)
			after := time.Now()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(server.Admin.Get(t.Context(), client.ObjectKeyFromObject(hostedCluster), hostedCluster)).To(Succeed())
			g.Expect(hostedCluster.Annotations).To(And(HaveLen(2), HaveKeyWithValue("example.com/note", "mine"), HaveKey(test.set)))
			until, err := time.Parse(time.RFC3339, hostedCluster.Annotations[test.set])
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(until.Add(-test.lasts)).To(And(BeTemporally(">=", before), BeTemporally("<=", after)))
			g.Expect(out).To(Equal("hostedcluster.autonode.io/blue is to be " + test.state + " until " + hostedCluster.Annotations[test.set] + "\n"))
		})
	}
}

func TestErrors(t *testing.T) {
	hostedCluster := hosted(t, "team-errors", nil)
	reader := server.AddUser(t, "sleep-reader", rbacv1.PolicyRule{APIGroups: []string{"autonode.io"}, Resources: []string{"hostedclusters"}, Verbs: []string{"get", "list"}})
	for _, name := range []string{"sleep", "wake"} {
		for what, test := range map[string]struct {
			args []string
			want string
		}{
			"no cluster is named":                   {want: "a HostedCluster is missing: the HostedCluster; see `autonode " + name + " --help`"},
			"two are named":                         {args: []string{"a", "b"}, want: `unexpected argument "b"`},
			"the time is none":                      {args: []string{"team-errors/blue", "--for", "tonight"}, want: `--for "tonight": must be a duration, such as 90s or 5m`},
			"the name is none":                      {args: []string{"a/b/c"}, want: `"a/b/c" isn't the name of a HostedCluster, like clusters/blue`},
			"there is none of that name":            {args: []string{"team-errors/green"}, want: `hostedclusters.autonode.io "green" not found`},
			"it is in another namespace":            {args: []string{"default/blue"}, want: `"blue" is in namespace team-errors, not in default: name it team-errors/blue`},
			"the user may not change HostedCluster": {args: []string{"team-errors/blue", "--kubeconfig", reader}, want: "annotating HostedCluster team-errors/blue: "},
		} {
			t.Run("When "+what+", autonode "+name+" should say so and write nothing", func(t *testing.T) {
				g := NewWithT(t)
				_, err := clitest.Run(t, command(t, name), append([]string{"--kubeconfig", server.Kubeconfig}, test.args...)...)
				g.Expect(err).To(MatchError(ContainSubstring(test.want)))
				g.Expect(server.Admin.Get(t.Context(), client.ObjectKeyFromObject(hostedCluster), hostedCluster)).To(Succeed())
				g.Expect(hostedCluster.Annotations).To(BeEmpty())
			})
		}
	}
}
