package chart

import (
	"strings"

	"github.com/shardbook/shardbook/internal/echarts"
)

// ECharts is the source of Apache ECharts 5.6.0, minified, as its authors publish it (Apache License 2.0, see the
// folder internal/echarts). It is a UMD module: a plain script tag leaves window.echarts.
func ECharts() string { return echarts.Source }

// Loader returns a script element that makes the charts of its page interactive, with no network. It contains ECharts,
// about 1 MB, and sets window.shardbookECharts, which charts wait for. A page needs one, anywhere.
func Loader() string {
	// ECharts runs with its own exports and with define hidden: on a page with an AMD loader it would otherwise
	// register there and not here. An end tag inside the script would close the element early.
	safe := strings.ReplaceAll(echarts.Source, "</script", `<\/script`)
	return `<script>window.shardbookECharts=window.shardbookECharts||(function(){` +
		`var exports={},module={exports:exports},define;` + safe + "\n" +
		`;return exports})();window.dispatchEvent(new Event("shardbook-echarts"))</script>`
}
