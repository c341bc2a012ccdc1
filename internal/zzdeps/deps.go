package zzdeps

import (
	_ "github.com/chromedp/chromedp"
	_ "github.com/dop251/goja"
	_ "github.com/go-echarts/go-echarts/v2/charts"
	_ "github.com/gofrs/flock"
	_ "github.com/gomlx/compute"
	_ "github.com/gomlx/go-xla/compute/xla"
	_ "github.com/gomlx/gomlx/core/graph"
	_ "github.com/gomlx/gomlx/core/tensors/dtensor"
	_ "github.com/gomlx/gomlx/ml/model"
	_ "github.com/janpfeifer/gonb/gonbui"
	_ "github.com/schollz/progressbar/v3"
	_ "github.com/spf13/cobra"
	_ "gonum.org/v1/gonum/floats/scalar"
)
