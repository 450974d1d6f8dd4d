// SPDX-License-Identifier: Apache-2.0

package version

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestParseUpgrades(t *testing.T) {
	const window = `{"schedule":"0 2 * * 6","duration":"1h0m0s","timeZone":"Europe/Zurich"}`
	for _, test := range []struct {
		name, value, now string
		want             bool
	}{
		{name: "When nothing is said, it should allow them at any time", now: "2026-11-25T12:00:00Z", want: true},
		{name: "When it is never, it should allow them at no time", value: Never, now: "2026-11-28T01:30:00Z"},
		{name: "When the window is closed, it should not allow them", value: window, now: "2026-11-28T00:59:59Z"},
		{name: "When the window opens, it should allow them", value: window, now: "2026-11-28T01:00:00Z", want: true},
		{name: "When the window is about to close, it should not allow what would be noticed too late", value: window, now: "2026-11-28T01:55:00Z"},
		{name: "When the window has closed, it should not allow them", value: window, now: "2026-11-28T02:00:00Z"},
	} {
		t.Run(test.name, func(t *testing.T) {
			upgrades, err := ParseUpgrades(test.value)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			now, err := time.Parse(time.RFC3339, test.now)
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(upgrades == nil || upgrades(now)).To(Equal(test.want))
		})
	}

	t.Run("When it can't be read, it should say so", func(t *testing.T) {
		for _, value := range []string{"always", `{"schedule":"0 25 * * *","duration":"1h0m0s"}`, `{"hours":[1,2]}`} {
			if _, err := ParseUpgrades(value); err == nil {
				t.Errorf("%s: no error", value)
			}
		}
	})
}
