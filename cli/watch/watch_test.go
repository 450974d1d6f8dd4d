// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
)

func TestServer(t *testing.T) {
	g := NewWithT(t)
	status := http.StatusOK
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte("{}"))
	}))
	s, err := newServer(&rest.Config{Host: api.URL})
	g.Expect(err).NotTo(HaveOccurred())
	noon := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

	t.Run("When the API server answers, it should name it and the time", func(t *testing.T) {
		g := NewWithT(t)
		for _, status = range []int{http.StatusOK, http.StatusForbidden} {
			s.asked = time.Time{}
			s.probe(t.Context(), noon)
			g.Expect(s.away()).To(BeFalse())
			g.Expect(s.line(noon)).To(Equal(api.URL + "  12:00:00"))
		}
	})
	t.Run("When the API server has gone, it should say since when the table is old, and ask no more often than it has to", func(t *testing.T) {
		g := NewWithT(t)
		api.Close()
		s.probe(t.Context(), noon.Add(probeInterval-time.Second))
		g.Expect(s.away()).To(BeFalse())
		s.probe(t.Context(), noon.Add(time.Minute))
		g.Expect(s.away()).To(BeTrue())
		g.Expect(s.line(noon.Add(time.Minute))).To(HavePrefix(api.URL + "  12:01:00  THE API SERVER DOESN'T ANSWER; the table is as of 12:00:00: "))
	})
}

func TestScreen(t *testing.T) {
	const about, table = "https://blue.example  12:00:00", "NODE  STATE\nweb-1 draining (Drifted)\n1 node\n"
	for name, test := range map[string]struct {
		screen  screen
		warning bool
		want    string
	}{
		"When the terminal is wide, it should clear it and cut nothing": {screen{terminal: true, width: 80}, false, clearScreen + about + "\n" + table},
		"When its width isn't known, it should cut nothing":             {screen{terminal: true}, false, clearScreen + about + "\n" + table},
		"When lines are longer than the terminal is wide, it should cut them": {
			screen{terminal: true, width: 12}, false, clearScreen + "https://blu…\nNODE  STATE\nweb-1 drain…\n1 node\n",
		},
		"When it has colours, it should print the first lines in bold": {
			screen{terminal: true, colour: true, width: 80}, false, clearScreen + bold + about + plain + "\n" + bold + "NODE  STATE" + plain + "\nweb-1 draining (Drifted)\n1 node\n",
		},
		"When there is a warning, it should be red": {
			screen{terminal: true, colour: true, width: 12}, true, clearScreen + red + "https://blu…" + plain + "\n" + bold + "NODE  STATE" + plain + "\nweb-1 drain…\n1 node\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(test.screen.draw(about, test.warning, table)).To(Equal(test.want))
		})
	}
	t.Run("When output goes to a pipe, it should write the lines that have changed", func(t *testing.T) {
		g, before := NewWithT(t), sets.Set[string](nil)
		for _, step := range []struct{ table, want string }{
			{"NODE  AGE  STATE\na     5s   empty\nb     2m3s\n2 nodes\n", "NODE  AGE  STATE\na     5s   empty\nb     2m3s\n2 nodes\n"},
			{"NODE  AGE   STATE\na     15s   empty\nb     2m13s\n2 nodes\n", ""},
			{"NODE  AGE   STATE\na     25s   draining\nb     2m23s\nc2    0s\n3 nodes\n", "a     25s   draining\nc2    0s\n3 nodes\n"},
			{"API SERVER away since 12:00:00\nNODE  AGE   STATE\na     25s   draining\n", "API SERVER away since 12:00:00\n"},
			{"API SERVER away since 12:00:10\nNODE  AGE   STATE\na     25s   draining\n", ""},
		} {
			var got string
			got, before = changes(before, step.table)
			g.Expect(got).To(Equal(step.want))
		}
	})
	t.Run("When output goes to no file, it should be no terminal", func(t *testing.T) {
		NewWithT(t).Expect(screenOf(httptest.NewRecorder())).To(Equal(screen{}))
	})
}
