package chart

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"maps"
	"slices"
)

// pngImage is an SVG document as a PNG image, with two pixels for each of its own: screens have as many today. Of large
// ones it has one, or they would take long.
//
// Some places that show notebooks, GitHub among them, keep PNG images and take SVG out for fear of scripts. It is an
// error if the document has what raster does not draw, which only a chart of go-echarts' may have.
func pngImage(p picture) ([]byte, error) {
	const many = 2_000_000 // pixels
	scale := 2.0
	if p.width*p.height > many {
		scale = 1
	}
	drawn, err := raster(p.svg, scale)
	if err != nil {
		return nil, err
	}
	var buffer bytes.Buffer
	err = png.Encode(&buffer, fewColours(drawn))
	return buffer.Bytes(), err
}

// fewColours is a picture with the 256 colours that it has most of. Charts have few, and their smoothed edges have many
// that are nearly the same; so the file is a third as large, and looks alike.
func fewColours(full *image.RGBA) *image.Paletted {
	count := map[color.RGBA]int{}
	runs(full, func(from, to int, c color.RGBA) { count[c] += to - from })
	common := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(count[b]-count[a], cmp.Compare(packed(a), packed(b)))
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

func packed(c color.RGBA) uint32 {
	return uint32(c.R)<<24 | uint32(c.G)<<16 | uint32(c.B)<<8 | uint32(c.A)
}

// runs calls f for all stretches of pixels of one colour, in order.
func runs(m *image.RGBA, f func(from, to int, c color.RGBA)) {
	from := 0
	for to := 4; to <= len(m.Pix); to += 4 {
		if to == len(m.Pix) || [4]uint8(m.Pix[to:]) != [4]uint8(m.Pix[from:]) {
			f(from/4, to/4, color.RGBA{m.Pix[from], m.Pix[from+1], m.Pix[from+2], m.Pix[from+3]})
			from = to
		}
	}
}
