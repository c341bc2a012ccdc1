package draw

import (
	"fmt"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/echarts"
	"github.com/shardbook/shardbook/internal/must"
)

func TestRenderStopsAndRecovers(t *testing.T) {
	e := &Engine{limit: 50 * time.Millisecond}
	must.Do(t, e.load())
	for name, function := range map[string]string{
		"endless loop":      "while (true) {}",
		"endless recursion": "(function f() { return f() + 1; })()",
		"exception":         "throw new Error('no')",
	} {
		option := fmt.Sprintf(`{"yAxis":{},"xAxis":{"axisLabel":{"formatter":"__f__function () { %s }__f__"}},`+
			`"series":[{"type":"line","data":[[1,2]]}]}`, function)
		if svg, err := e.render(echarts.Request{Options: option, Width: 300, Height: 300}, nil, 0); err == nil {
			t.Errorf("%s: no error, but %d bytes", name, len(svg))
		}
	}
	e.limit = time.Minute
	sound := echarts.Request{Options: `{"series":[{"type":"pie","data":[1,2]}]}`, Width: 300, Height: 300}
	if _, err := e.render(sound, nil, 0); err != nil {
		t.Errorf("after failures: %v", err)
	}
}
