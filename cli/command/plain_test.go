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
