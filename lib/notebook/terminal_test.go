//go:build !resident

package notebook

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestTerminalDisplay(t *testing.T) {
	for _, total := range []int{0, 3} {
		for steps := range 6 {
			var out bytes.Buffer
			c := &clock{time.Unix(1000, 0)}
			bar := newBar("training", total, c.now, func(s state) display { return newTerminalDisplay(&out, s) })
			for range steps {
				c.t = c.t.Add(time.Second)
				bar.Step("")
			}
			bar.Done()
			text := out.String()
			last := text[strings.LastIndex(text, "\r")+1:]
			want := bar.state.result()
			if !strings.HasSuffix(strings.TrimRight(last, " \n"), want) || strings.Index(text, "\n") != len(text)-1 {
				t.Errorf("%d of %d: the last line is %q, want %q at its end", steps, total, last, want)
			}
			if steps > 0 && !strings.Contains(text, "1/s") {
				t.Errorf("%d of %d: no rate in %q", steps, total, text)
			}
		}
	}
}
