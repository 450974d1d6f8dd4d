// SPDX-License-Identifier: Apache-2.0

package division

import "testing"

func TestMatches(t *testing.T) {
	for name, tc := range map[string]struct {
		pattern string
		is, not []string
	}{
		"When a pattern has no *, it should match that name alone":                         {"m5.large", []string{"m5.large"}, []string{"m5.larg", "m5.larger", "", "M5.large"}},
		"When a pattern ends with *, it should match what begins so":                       {"m5.*", []string{"m5.", "m5.large"}, []string{"m5", "m5a.large", "am5.large"}},
		"When a pattern begins with *, it should match what ends so":                       {"*.large", []string{".large", "m5.large"}, []string{"m5.large2", "large", "m5.xlarge2"}},
		"When a * is in the middle, it should match any characters there":                  {"Standard_D*s_v5", []string{"Standard_D4s_v5", "Standard_D16ds_v5", "Standard_Ds_v5"}, []string{"Standard_D4_v5", "Standard_E4s_v5", "Standard_D4s_v52"}},
		"When a pattern has several *, each should match on its own":                       {"*-*-gpu*", []string{"a-b-gpu", "--gpu", "a-b-c-gpu-2"}, []string{"a-gpu", "a-b-cpu"}},
		"When parts would overlap in a name, it should not match":                          {"ab*ba", []string{"abba", "ab-ba"}, []string{"aba", "ab", "ba"}},
		"When the last part is in the name twice, it should match at the end":              {"a*b*c", []string{"abcbc", "abc"}, []string{"abcb", "acb"}},
		"When a pattern is * alone, it should match everything":                            {"*", []string{"", "m5.large"}, nil},
		"When a pattern has ** or signs of other notations, they should mean nothing more": {"m**5[a]?", []string{"m5[a]?", "mm5[a]?"}, []string{"m5a?", "m5[a]b"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, is := range tc.is {
				if !Matches(tc.pattern, is) {
					t.Errorf("%q doesn't match %q", tc.pattern, is)
				}
			}
			for _, not := range tc.not {
				if Matches(tc.pattern, not) {
					t.Errorf("%q matches %q", tc.pattern, not)
				}
			}
		})
	}
}
