package chart

import (
	_ "embed"
	"strings"
)

//go:embed echarts/echarts.min.js
var echartsJS string

// ECharts is the source of Apache ECharts 5.6.0, minified, as its authors publish it (Apache License 2.0, see the
// folder echarts). It is a UMD module: a plain script tag leaves window.echarts.
func ECharts() string { return echartsJS }

// Loader is a script element that puts ECharts on the page it is part of, about 1 MB, so that the page's charts turn
// live. It sets window.shardbookECharts, which a chart waits for, and needs no network. One a page is enough, anywhere
// in it.
func Loader() string {
	// ECharts runs with its own exports and with define hidden: on a page with an AMD loader it would otherwise
	// register there and not here. An end tag inside the script would close the element early.
	safe := strings.ReplaceAll(echartsJS, "</script", `<\/script`)
	return `<script>window.shardbookECharts=window.shardbookECharts||(function(){` +
		`var exports={},module={exports:exports},define;` + safe + "\n" +
		`;return exports})();window.dispatchEvent(new Event("shardbook-echarts"))</script>`
}
