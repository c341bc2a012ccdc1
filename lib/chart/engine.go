package chart

import (
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dop251/goja"
)

//go:embed revive.js
var reviveJS string

//go:embed render.js
var renderJS string

// engine is ECharts in a JavaScript interpreter, for one drawing at a time.
type engine struct {
	mu   sync.Mutex
	vm   *goja.Runtime
	draw goja.Callable
	// limit ends a drawing that does not end by itself: a function that a user wrote may loop for ever.
	limit time.Duration
}

// process is the engine of this process, since loading ECharts costs far more than drawing a chart.
var process = engine{limit: time.Minute}

// render draws on the canvas, with scale canvas pixels per chart pixel; without a canvas it returns an SVG document.
func (e *engine) render(p picture, on *canvas, scale int) (svg string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("ECharts: %v", r)
		}
		if err != nil {
			// What a failed drawing left behind must not reach the next one.
			e.vm = nil
		}
	}()
	if e.vm == nil {
		if err := e.load(); err != nil {
			return "", fmt.Errorf("loading ECharts: %w", err)
		}
	}
	// Some layouts start from random positions: a fixed seed gives the same picture each time.
	e.vm.SetRandSource(rand.New(rand.NewPCG(1, 2)).Float64)
	e.vm.ClearInterrupt()
	vm := e.vm
	late := time.AfterFunc(e.limit, func() { vm.Interrupt("drawing took longer than " + e.limit.String()) })
	defer late.Stop()
	v, err := e.draw(goja.Undefined(), vm.ToValue(p.options), vm.ToValue(p.width), vm.ToValue(p.height),
		vm.ToValue("z"+p.mark), vm.ToValue(on), vm.ToValue(scale))
	if err != nil {
		return "", fmt.Errorf("ECharts: %w", err)
	}
	return v.String(), nil
}

func (e *engine) load() error {
	vm := goja.New()
	vm.SetFieldNameMapper(goja.UncapFieldNameMapper())
	// Runaway recursion becomes an error while it is still far from the limits of Go's stack.
	vm.SetMaxCallStackSize(5000)
	vm.Set("textWidth", textWidth)
	vm.Set("boldWidth", boldWidth)
	for _, script := range []struct{ name, text string }{
		// The picture is complete after the first drawing, so timers are not needed.
		{"timers.js", `var setTimeout = function () { return 0; }, clearTimeout = function () {};`},
		{"echarts.min.js", echartsJS},
		{"measure.js", `echarts.setPlatformAPI({measureText: function (text, font) {
			var size = parseFloat((/([\d.]+)px/.exec(font) || [0, 12])[1]);
			return {width: textWidth(String(text), size) * (/bold/.test(font) ? boldWidth : 1)};
		}});`},
		{"revive.js", reviveJS},
		{"canvas.js", canvasJS},
		{"render.js", renderJS},
	} {
		if _, err := vm.RunScript(script.name, script.text); err != nil {
			return err
		}
	}
	draw, ok := goja.AssertFunction(vm.Get("render"))
	if !ok {
		return errors.New("render.js defines no render")
	}
	e.vm, e.draw = vm, draw
	return nil
}
