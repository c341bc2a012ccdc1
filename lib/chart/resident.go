//go:build resident

package chart

import (
	"errors"

	"github.com/shardbook/shardbook/internal/echarts"
)

// render has the resident process draw: a cell links no interpreter, fonts or rasterizer.
func render(echarts.Request) (echarts.Picture, error) {
	return echarts.Picture{}, errors.New("no resident process")
}
