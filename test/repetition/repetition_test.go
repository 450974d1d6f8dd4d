// SPDX-License-Identifier: Apache-2.0

package repetition_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/repetition"
)

// times makes a log of lines that come at an interval; each has its number in it.
func times(count int, every time.Duration, line string) string {
	var log strings.Builder
	at := time.Date(2026, 11, 25, 20, 0, 0, 0, time.UTC)
	for i := range count {
		fmt.Fprintf(&log, `{"time":%q,`+line+"}\n", at.Add(time.Duration(i)*every).Format("2006-01-02T15:04:05.000Z0700"), i)
	}
	return log.String()
}

func TestFind(t *testing.T) {
	for name, tc := range map[string]struct {
		log   string
		found int
	}{
		"When an error is logged twice a second about one object after the other, it should find it": {
			times(60, time.Second/2, `"level":"ERROR","message":"Reconciler error","controller":"disruption","name":"general-%d"`), 1},
		"When an error is logged every two seconds, it should find nothing": {
			times(60, 2*time.Second, `"level":"ERROR","message":"Reconciler error","controller":"disruption","name":"general-%d"`), 0},
		"When a line of two controllers is logged by each every 1.5 seconds, it should find nothing": {
			times(30, 1500*time.Millisecond, `"level":"ERROR","message":"Reconciler error","controller":"a","name":"%d"`) +
				times(30, 1500*time.Millisecond, `"level":"ERROR","message":"Reconciler error","controller":"b","name":"%d"`), 0},
		"When a line reports many objects, it should find nothing": {
			times(200, time.Millisecond, `"level":"INFO","message":"launched NodeClaim","NodeClaim":{"name":"general-%d"}`), 0},
		"When a line reports the same object again and again, it should find it": {
			times(60, time.Second/2, `"level":"INFO","message":"launched NodeClaim","NodeClaim":{"name":"general"},"reconcileID":"%d"`), 1},
		"When a line isn't JSON, or has no time, it should pass over it": {
			strings.Repeat("panic: no\n{\"level\":\"ERROR\",\"message\":\"again\"}\n", 100), 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			found, err := repetition.Find(strings.NewReader(tc.log))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(HaveLen(tc.found))
		})
	}
}
