// Package draw draws charts with ECharts in an interpreter of JavaScript: as SVG, or on a canvas as PNG.
package draw

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dop251/goja"
	"github.com/shardbook/shardbook/internal/echarts"
)

//go:embed render.js
var renderJS string

// Engine is ECharts, loaded at the first drawing. A process needs one, since loading costs far more than drawing a
// chart. It does one drawing at a time, and may be called from several goroutines.
type Engine struct {
	mu    sync.Mutex
	vm    *goja.Runtime
	draw  goja.Callable
	limit time.Duration // of one drawing; zero means a minute
}

// Draw draws a picture. It returns an SVG document, although a PNG image is asked for, if canvas.js cannot draw the
// chart or the fonts lack a letter.
func (e *Engine) Draw(r echarts.Request) (echarts.Picture, error) {
	if r.PNG {
		if data, err := e.png(r); err == nil {
			return echarts.Picture{Data: data, PNG: true}, nil
		}
	}
	svg, err := e.render(r, nil, 0)
	return echarts.Picture{Data: []byte(svg)}, err
}

// render draws on the canvas, with scale canvas pixels per chart pixel; without a canvas it returns an SVG document.
func (e *Engine) render(r echarts.Request, on *canvas, scale int) (svg string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() {
		if broken := recover(); broken != nil {
			err = fmt.Errorf("ECharts: %v", broken)
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
	// A function that a user wrote may loop for ever.
	limit := cmp.Or(e.limit, time.Minute)
	late := time.AfterFunc(limit, func() { vm.Interrupt("drawing took longer than " + limit.String()) })
	defer late.Stop()
	v, err := e.draw(goja.Undefined(), vm.ToValue(r.Options), vm.ToValue(r.Width), vm.ToValue(r.Height),
		vm.ToValue("z"+r.Mark), vm.ToValue(on), vm.ToValue(scale))
	if err != nil {
		return "", fmt.Errorf("ECharts: %w", err)
	}
	return v.String(), nil
}

func (e *Engine) load() error {
	vm := goja.New()
	vm.SetFieldNameMapper(goja.UncapFieldNameMapper())
	// Runaway recursion becomes an error while it is still far from the limits of Go's stack.
	vm.SetMaxCallStackSize(5000)
	vm.Set("textWidth", echarts.TextWidth)
	vm.Set("boldWidth", echarts.BoldWidth)
	for _, script := range []struct{ name, text string }{
		// The picture is complete after the first drawing, so timers are not needed.
		{"timers.js", `var setTimeout = function () { return 0; }, clearTimeout = function () {};`},
		{"echarts.min.js", echarts.Source},
		{"measure.js", `echarts.setPlatformAPI({measureText: function (text, font) {
			var size = parseFloat((/([\d.]+)px/.exec(font) || [0, 12])[1]);
			return {width: textWidth(String(text), size) * (/bold/.test(font) ? boldWidth : 1)};
		}});`},
		{"revive.js", echarts.Revive},
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
