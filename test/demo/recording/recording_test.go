// SPDX-License-Identifier: Apache-2.0

package recording_test

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/test/demo/recording"
)

var update = flag.Bool("update", false, "write the golden file")

// clock stands until it is moved.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

func TestRecorder(t *testing.T) {
	t.Run("When lines are written, in whatever pieces, it should remember each with the time of its end", func(t *testing.T) {
		g := NewWithT(t)
		c := &clock{time.Unix(0, 0)}
		r := recording.New(c.Now)
		for _, piece := range []string{"one\ntw", "o", "\n\nthree"} {
			_, err := io.WriteString(r, piece)
			g.Expect(err).NotTo(HaveOccurred())
			c.now = c.now.Add(time.Second)
		}
		g.Expect(r.Lines()).To(Equal([]recording.Line{{0, "one"}, {2 * time.Second, "two"}, {2 * time.Second, ""}}))
	})
	t.Run("When a line is drawn again, it should remember what a terminal shows in the end", func(t *testing.T) {
		g := NewWithT(t)
		r := recording.New((&clock{}).Now)
		_, err := io.WriteString(r, "waiting  1 s\r\x1b[Kwaiting  2 s\r\x1b[K\x1b[1mready\x1b[0m  \r\n")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(r.Lines()).To(Equal([]recording.Line{{0, "ready"}}))
	})
}

// lines of a short recording: with what a demo prints, and what XML can't take as it is.
var lines = []recording.Line{
	{0, "1  A platform team turns it on"},
	{10 * time.Millisecond, `   $ kubectl patch blue -p '{"spec":{"a":"<b>&c"}}'`},
	{time.Second, "     payload resolved               ✓ 0.3 s"},
	{61 * time.Second, ""},
	{61 * time.Second, "   general-x1  c4-large  ███████░ 92%"},
	{62 * time.Second, "   a line that is longer than the terminal has columns, by far"},
}

func TestSVG(t *testing.T) {
	picture := recording.Picture{Title: "A <demo>", Columns: 51, Rows: 4, LongestWait: 2 * time.Second, Hold: 3 * time.Second}
	drawn := picture.SVG(lines)

	t.Run("When a recording is drawn, the picture should be the one in testdata", func(t *testing.T) {
		g := NewWithT(t)
		const golden = "testdata/short.svg"
		if *update {
			g.Expect(os.WriteFile(golden, drawn, 0o644)).To(Succeed())
		}
		want, err := os.ReadFile(golden)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(cmp.Diff(string(want), string(drawn))).To(BeEmpty())
	})
	t.Run("When it is read, it should be XML that has the text, and nothing that runs or comes from elsewhere", func(t *testing.T) {
		g := NewWithT(t)
		texts := map[string]string{}
		decoder := xml.NewDecoder(strings.NewReader(string(drawn)))
		var open []string
		for {
			token, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			g.Expect(err).NotTo(HaveOccurred())
			switch token := token.(type) {
			case xml.StartElement:
				g.Expect(token.Name.Local).To(BeElementOf("svg", "title", "style", "rect", "g", "text", "tspan"))
				open = append(open, token.Name.Local)
				for _, attribute := range token.Attr {
					g.Expect(attribute.Name.Local).NotTo(Or(HavePrefix("on"), Equal("href")))
				}
			case xml.EndElement:
				open = open[:len(open)-1]
			case xml.CharData:
				if len(open) > 0 {
					texts[open[len(open)-1]] += string(token) + "\n"
				}
			}
		}
		g.Expect(texts["text"]).To(And(ContainSubstring(lines[1].Text), ContainSubstring("longer than the terminal has colu\nmns, by far\n")))
		g.Expect(texts["title"]).To(Equal("A <demo>\n"))
		g.Expect(texts["style"]).NotTo(Or(ContainSubstring("url("), ContainSubstring("@import")))
	})
	t.Run("When something took long, the picture should wait no longer than it may", func(t *testing.T) {
		// 0 s and 0.99 s as they were, a minute as two seconds, a second, and three at the end.
		NewWithT(t).Expect(string(drawn)).To(ContainSubstring("animation: lines 6.99s step-end infinite"))
	})
	t.Run("When nothing was printed, it should draw an empty terminal", func(t *testing.T) {
		NewWithT(t).Expect(xml.Unmarshal(picture.SVG(nil), new(any))).To(Succeed())
	})
}
