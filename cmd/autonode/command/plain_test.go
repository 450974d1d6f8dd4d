// SPDX-License-Identifier: Apache-2.0

package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/v1beta1"
)

type document struct {
	Spec v1beta1.HostedClusterSpec `json:"spec"`
}

func TestPlain(t *testing.T) {
	into := document{}
	read := func(content string) error {
		return fmt.Errorf("a.yaml: %w", yaml.UnmarshalStrict([]byte(content), &into))
	}
	var items []document
	truth := func(_ bool, err error) error { return err }
	number := func(_ int64, err error) error { return err }
	duration := func(_ time.Duration, err error) error { return err }
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"When YAML has a wrong type, it should name the field":             {read("spec: {infraID: [a]}"), "a.yaml: field spec.infraID has the wrong type, array"},
		"When YAML isn't an object, it should say so":                      {read("[1]"), "a.yaml: it has the wrong type, array"},
		"When YAML has an unknown field, it should name it":                {read("spec: {infra: a}"), `a.yaml: unknown field "infra"`},
		"When YAML can't be parsed, it should name the line":               {read("a: b\nb: c: d"), "a.yaml: line 2: mapping values are not allowed in this context"},
		"When JSON has a wrong type, it should name it":                    {json.Unmarshal([]byte(`"a"`), &into), "it has the wrong type, string"},
		"When a switch has another value, it should show it":               {truth(strconv.ParseBool("maybe")), `"maybe" is neither true nor false`},
		"When a list has a wrong item, it should name it":                  {json.Unmarshal([]byte(`["a"]`), &items), "field 0 has the wrong type, string"},
		"When a number isn't one, it should show it":                       {number(strconv.ParseInt("x", 10, 64)), `"x" isn't a number that fits`},
		"When a duration has no unit, it should show it":                   {duration(time.ParseDuration("5")), `missing unit in duration "5"`},
		"When an error names a type of Go, it should name the kind":        {errors.New("no kind *v1beta1.HostedCluster"), "no kind HostedCluster"},
		"When an error has nothing of Go's, it should stay as it is":       {io.ErrUnexpectedEOF, "unexpected EOF"},
		"When an API version is named, it should stay as it is":            {errors.New("no matches for kind in autonode.io/v1beta1"), "no matches for kind in autonode.io/v1beta1"},
		"When an address looks like a type of Go, it should stay as it is": {errors.New("dial tcp: lookup api.example.com"), "dial tcp: lookup api.example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			g, got := NewWithT(t), plain(test.err)
			g.Expect(got.Error()).To(Equal(test.want))
			g.Expect(errors.Is(got, test.err)).To(BeTrue(), "it is still the same error")
		})
	}
	t.Run("When there is no error, it should be none", func(t *testing.T) { NewWithT(t).Expect(plain(nil)).To(Succeed()) })
}

// newCommand has a flag of each type that commands use.
func newCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "look", SilenceErrors: true, SilenceUsage: true, Args: NoArgs, RunE: func(*cobra.Command, []string) error { return nil }}
	cmd.Flags().Int64("lines", 0, "how many lines")
	cmd.Flags().Duration("timeout", 0, "how long")
	cmd.Flags().Bool("watch", false, "watch it")
	cmd.Flags().StringToString("labels", nil, "labels")
	cmd.Flags().String("cluster", "", "the Cluster, as NAMESPACE/NAME (required)")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return FlagError(cmd.CommandPath(), err) })
	RequireFlags(cmd, "cluster")
	return cmd
}

func TestUsage(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"When a number isn't one, it should say what is wanted":   {[]string{"--lines", "many"}, "--lines \"many\": want a whole number; see `look --help`"},
		"When a duration isn't one, it should show one":           {[]string{"--timeout", "5"}, "--timeout \"5\": want a duration, such as 90s or 5m; see `look --help`"},
		"When a switch has another value, it should name both":    {[]string{"--watch=perhaps"}, "--watch \"perhaps\": want true or false; see `look --help`"},
		"When labels have no value, it should show their form":    {[]string{"--labels", "a"}, "--labels \"a\": want KEY=VALUE; see `look --help`"},
		"When a flag has no value, it should name the help":       {[]string{"--lines"}, "flag needs an argument: --lines; see `look --help`"},
		"When a required flag is missing, it should say what for": {nil, "--cluster is missing: the Cluster, as NAMESPACE/NAME; see `look --help`"},
		"When an argument is too much, it should name it":         {[]string{"--cluster", "a/b", "blue"}, "\"blue\" is too much: `look` takes flags only; see `look --help`"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := newCommand()
			cmd.SetArgs(test.args)
			NewWithT(t).Expect(cmd.ExecuteContext(t.Context())).To(MatchError(test.want))
		})
	}
	t.Run("When all is there, it should run", func(t *testing.T) {
		cmd := newCommand()
		cmd.SetArgs([]string{"--cluster", "a/b"})
		NewWithT(t).Expect(cmd.ExecuteContext(t.Context())).To(Succeed())
	})
}
