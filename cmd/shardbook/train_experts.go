package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/compute/dtypes/float16"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/params"
)

// loadNames lists the parameters that are loads of experts; nil if there are none.
func loadNames(tree params.Tree) (names []string) {
	for _, s := range tree {
		if strings.HasSuffix(s.Name, expert.LoadName) || strings.HasSuffix(s.Name, expert.KeptName) {
			names = append(names, s.Name)
		}
	}
	return names
}

// expertMetrics are those of the experts of some blocks in a step.
type expertMetrics struct {
	Balance float64 // the largest load of an expert, of which the mean is 1
	Dropped float64 // the sum over the blocks of the share of tokens that no expert took
	Blocks  float64 // their number
}

// with joins the metrics of blocks. Ranks may have the same ones, all equally often.
func (m expertMetrics) with(n expertMetrics) expertMetrics {
	return expertMetrics{max(m.Balance, n.Balance), m.Dropped + n.Dropped, m.Blocks + n.Blocks}
}

// measured returns the metrics of loads by name.
func measured(all params.Named[*tensors.Tensor]) (m expertMetrics, err error) {
	for name := range all {
		load, err := numbersOf(all, name)
		if err != nil {
			return m, err
		}
		if strings.HasSuffix(name, expert.LoadName) {
			m = m.with(expertMetrics{Balance: slices.Max(load), Blocks: 1})
		} else {
			m.Dropped += 1 - sum(load)/float64(len(load))
		}
	}
	return m, nil
}

func sum(list []float64) (s float64) {
	for _, x := range list {
		s += x
	}
	return s
}

// numbersOf returns the elements of a parameter, none if it is not there.
func numbersOf(all params.Named[*tensors.Tensor], name string) (list []float64, err error) {
	if all[name] == nil {
		return nil, nil
	}
	err = all[name].ConstFlatData(func(flat any) {
		switch values := flat.(type) {
		case []float32:
			for _, v := range values {
				list = append(list, float64(v))
			}
		case []bfloat16.BFloat16:
			for _, v := range values {
				list = append(list, float64(v.Float32()))
			}
		case []float16.Float16:
			for _, v := range values {
				list = append(list, float64(v.Float32()))
			}
		}
	})
	return list, err
}

// expertLoad is what the experts of a block did in the last step.
type expertLoad struct {
	Block   string  `json:"block"`
	Tokens  []int64 `json:"tokens"`            // that chose each expert
	Dropped float64 `json:"dropped,omitempty"` // the share of them that was dropped
}

// expertLoads returns the loads of the last step, of each block with experts. With MPI it is a collective call.
func (t *training) expertLoads() (list []expertLoad, err error) {
	if t.run.loads == nil || t.run.Steps() == 0 {
		return nil, nil
	}
	all, err := t.run.Params(t.run.loads...)
	if err != nil {
		return nil, err
	}
	c := t.job.Model
	mean := float64(t.job.Batch*c.Seq*c.Experts.PerToken) / float64(c.Experts.Experts)
	for _, name := range t.run.loads {
		block, ok := strings.CutSuffix(name, expert.LoadName)
		if !ok {
			continue
		}
		load, err := numbersOf(all, name)
		if err != nil {
			return nil, err
		}
		kept, err := numbersOf(all, block+expert.KeptName)
		if err != nil {
			return nil, err
		}
		one := expertLoad{Block: block}
		for _, x := range load {
			one.Tokens = append(one.Tokens, int64(math.Round(mean*x)))
		}
		if kept != nil {
			one.Dropped = 1 - sum(kept)/sum(load)
		}
		list = append(list, one)
	}
	return list, nil
}

// mostInRow is the most experts whose tokens are printed one by one.
const mostInRow = 12

// loadText is the tokens of a block's experts in a line.
func loadText(l expertLoad) string {
	var parts []string
	if of := slices.Sorted(slices.Values(l.Tokens)); len(of) > mostInRow {
		parts = append(parts, fmt.Sprintf("%d to %d, median %d", of[0], of[len(of)-1], of[len(of)/2]))
	} else {
		for _, n := range l.Tokens {
			parts = append(parts, fmt.Sprintf("%7d", n))
		}
	}
	if l.Dropped > 0 {
		parts = append(parts, fmt.Sprintf("  %.1f%% dropped", 100*l.Dropped))
	}
	return strings.Join(parts, " ")
}

// expertCharts are the balance of experts by step, and the last step's tokens for each; none without experts.
func (t *training) expertCharts() (charts []*chart.Chart) {
	if t.loads == nil {
		return nil
	}
	var balance chart.Series
	for _, r := range t.records {
		balance.X, balance.Y = append(balance.X, float64(r.Step)), append(balance.Y, r.Balance)
	}
	var columns, rows []string
	var tokens [][]float64
	for e := range t.loads[0].Tokens {
		columns = append(columns, fmt.Sprint(e))
	}
	for _, l := range t.loads {
		var row []float64
		for _, n := range l.Tokens {
			row = append(row, float64(n))
		}
		rows, tokens = append(rows, l.Block), append(tokens, row)
	}
	return []*chart.Chart{chart.Line("balance of the experts", "step", "largest load / mean", balance),
		chart.HeatMap("tokens in the last step", columns, rows, tokens).Axes("expert", "block")}
}
