//go:build resident

package chart

import (
	"github.com/shardbook/shardbook/internal/echarts"
	"github.com/shardbook/shardbook/lib/resident"
)

// render has the notebook's process draw: a cell links no interpreter, fonts or rasterizer.
func render(r echarts.Request) (echarts.Picture, error) {
	c, err := resident.Notebook()
	if err != nil {
		return echarts.Picture{}, err
	}
	return resident.Call[echarts.Picture](c, r)
}
