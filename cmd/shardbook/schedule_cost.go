package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shardbook/shardbook/lib/step"
)

// parseCosts reads costs as in F=1:2:1:1,B=2,link=0.1. Missing costs are those of step.Equal.
func parseCosts(text string) (step.Costs, error) {
	c := step.Equal()
	if text == "" {
		return c, nil
	}
	var link []float64
	lists := map[string]*[]float64{"F": &c.Forward, "I": &c.InputGrad, "W": &c.WeightGrad, "B": &c.Backward,
		"U": &c.Update,
		"A": &c.Activation, "K": &c.Kept, "link": &link}
	seen := map[string]bool{}
	for _, setting := range strings.Split(text, ",") {
		name, values, ok := strings.Cut(setting, "=")
		list := lists[name]
		switch {
		case !ok || list == nil:
			return c, fmt.Errorf("--cost=%.60s: %.20q is an unknown cost: want F, I, W, B, U, A, K or link, as in "+
				"F=1,B=2", text, setting)
		case seen[name]:
			return c, fmt.Errorf("--cost=%.60s: %s is given twice", text, name)
		}
		seen[name] = true
		*list = nil
		for _, value := range strings.Split(values, ":") {
			x, err := strconv.ParseFloat(value, 64)
			if err != nil || !(x >= 0 && x <= 1e15) {
				return c, fmt.Errorf("--cost=%.60s: %s=%.20s: want numbers from 0 to 1e15, "+
					"one or, with : between them, one for each device", text, name, value)
			}
			*list = append(*list, x)
		}
	}
	if len(link) > 1 {
		return c, fmt.Errorf("--cost=%.60s: link has %d values: give one, since all links have the same cost", text,
			len(link))
	}
	if len(link) == 1 && link[0] > 0 {
		c.Link = func(int, int) float64 { return link[0] }
	}
	return c, nil
}

// checkCosts returns an error for a list whose length is not the number of parts of the pipeline.
func checkCosts(text string, c step.Costs, parts int) error {
	for _, list := range [][]float64{c.Forward, c.InputGrad, c.WeightGrad, c.Backward, c.Update, c.Activation, c.Kept} {
		if n := len(list); n > 1 && n != parts {
			return fmt.Errorf("--cost=%.60s: a list has %d values for %d stages: give one for each, or one for all",
				text, n, parts)
		}
	}
	return nil
}
