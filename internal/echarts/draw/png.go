package draw

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"maps"
	"slices"

	"git.sr.ht/~sbinet/gg"
	"github.com/shardbook/shardbook/internal/echarts"
)

// png returns the picture as a PNG image with two image pixels per chart pixel, for high-resolution screens; a large
// one has one, since drawing takes long.
//
// Some viewers, such as GitHub, show PNG images but remove SVG, which could hold scripts.
func (e *Engine) png(r echarts.Request) ([]byte, error) {
	const many = 2_000_000 // pixels
	scale := 2
	if r.Width*r.Height > many {
		scale = 1
	}
	on := &canvas{Context: gg.NewContext(scale*r.Width, scale*r.Height)}
	_, err := e.render(r, on, scale)
	if err = cmp.Or(err, on.err); err != nil {
		return nil, err
	}
	var buffer bytes.Buffer
	err = png.Encode(&buffer, fewColours(on.Image().(*image.RGBA)))
	return buffer.Bytes(), err
}

// fewColours reduces a picture to its 256 most frequent colours; the smoothed edges have many nearly equal ones. The
// file is a third as large and looks the same.
func fewColours(full *image.RGBA) *image.Paletted {
	count := map[color.RGBA]int{}
	runs(full, func(from, to int, c color.RGBA) { count[c] += to - from })
	common := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(count[b]-count[a], bytes.Compare([]byte{a.R, a.G, a.B, a.A}, []byte{b.R, b.G, b.B, b.A}))
	})
	few := image.NewPaletted(full.Rect, nil)
	index := map[color.RGBA]uint8{}
	for i, c := range common {
		if i < 256 {
			few.Palette, index[c] = append(few.Palette, c), uint8(i)
		} else {
			index[c] = uint8(few.Palette.Index(c))
		}
	}
	runs(full, func(from, to int, c color.RGBA) {
		at := index[c]
		for i := range few.Pix[from:to] {
			few.Pix[from+i] = at
		}
	})
	return few
}

// runs calls f for each run of pixels of one colour, in order.
func runs(m *image.RGBA, f func(from, to int, c color.RGBA)) {
	from := 0
	for to := 4; to <= len(m.Pix); to += 4 {
		if to == len(m.Pix) || [4]uint8(m.Pix[to:]) != [4]uint8(m.Pix[from:]) {
			f(from/4, to/4, color.RGBA{m.Pix[from], m.Pix[from+1], m.Pix[from+2], m.Pix[from+3]})
			from = to
		}
	}
}
