package chart

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/shardbook/shardbook/internal/echarts"
)

// goEChart is the interface of all charts of go-echarts.
type goEChart interface {
	Validate()
	JSON() map[string]any
}

type wrapped struct {
	given object
	err   error
}

// Of converts a chart of go-echarts (charts.NewPie, charts.NewSankey and so on) to a Chart. It copies the chart, so
// later changes have no effect. Set the size by [Chart.Size]; the size in the initialization options is ignored.
//
// JavaScript functions (opts.FuncOpts) run both here and in the page, so they must not need a browser. They are allowed
// where ECharts options name a function (formatter, symbolSize, renderItem and the like), and are errors elsewhere.
// Settings of go-echarts outside the ECharts options have no effect: themes, added scripts, event listeners. It is an
// error if the chart needs an extension of ECharts (3D, word clouds, liquid, maps) or the network, or if a function
// takes longer than a minute.
func Of(c goEChart) *Chart {
	k := &wrapped{}
	k.given, k.err = optionsOf(c)
	chart := &Chart{kind: k}
	if title, ok := k.given["title"].(object); ok {
		chart.title, _ = title["text"].(string)
	}
	return chart
}

// optionsOf copies the options through JSON, which also turns go-echarts' types into plain ones.
func optionsOf(c goEChart) (o object, err error) {
	defer func() {
		if r := recover(); r != nil {
			o, err = nil, fmt.Errorf("go-echarts: %v", r)
		}
	}()
	if c == nil {
		return nil, errors.New("no chart")
	}
	c.Validate()
	data, err := json.Marshal(c.JSON())
	if err != nil {
		return nil, fmt.Errorf("go-echarts: %w", err)
	}
	if err := json.Unmarshal(data, &o); err != nil {
		return nil, fmt.Errorf("go-echarts: %w", err)
	}
	list, _ := o["series"].([]any)
	if len(list) == 0 {
		return nil, errors.New("go-echarts: the chart has no series: add one")
	}
	if mapped := slices.ContainsFunc(list, func(s any) bool {
		series, ok := s.(object)
		return ok && series["type"] == "map"
	}); mapped || o["geo"] != nil {
		return nil, errors.New("maps need outlines that ECharts itself does not have")
	}
	return o, checkFunctions("options", "", o)
}

// takesFunction is the list of keys in revive.js.
var takesFunction = strings.Split(
	regexp.MustCompile(`takesFunction = /\^\((.*)\)\$/`).FindStringSubmatch(echarts.Revive)[1], "|")

// checkFunctions returns an error for a function in an option where ECharts expects none and would show it as text. key
// is that of the node, and "" in a list.
func checkFunctions(path, key string, node any) error {
	switch v := node.(type) {
	case []any:
		for i, e := range v {
			if err := checkFunctions(fmt.Sprintf("%s[%d]", path, i), "", e); err != nil {
				return err
			}
		}
	case object:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if err := checkFunctions(path+"."+key, key, v[key]); err != nil {
				return err
			}
		}
	case string:
		if key != "" && strings.Contains(v, "%MY_ECHARTS%") {
			return fmt.Errorf("%s: the function refers to the live chart, which an image does not have", path)
		}
		if strings.Contains(v, "__f__") && !slices.Contains(takesFunction, key) {
			return fmt.Errorf("%s: a JavaScript function has no effect here", path)
		}
	}
	return nil
}

func (k *wrapped) check(*Chart) error { return k.err }

func (k *wrapped) options(*Chart) object {
	o := base()
	delete(o, "tooltip")
	maps.Copy(o, k.given)
	return o
}

func (k *wrapped) text(*Chart) string {
	var rows [][]string
	for _, s := range k.given["series"].([]any) {
		series, _ := s.(object)
		name, _ := series["name"].(string)
		kind, _ := series["type"].(string)
		data, _ := series["data"].([]any)
		rows = append(rows, []string{name, kind, number(float64(len(data)))})
	}
	return textTable([]string{"series", "kind", "items"}, rows)
}
