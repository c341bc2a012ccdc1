//go:build !resident

package chart

import (
	"github.com/shardbook/shardbook/internal/echarts"
	"github.com/shardbook/shardbook/internal/echarts/draw"
)

var engine draw.Engine

// render draws in this process.
func render(r echarts.Request) (echarts.Picture, error) { return engine.Draw(r) }
