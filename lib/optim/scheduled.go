package optim

import (
	"errors"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Scheduled returns a rule whose learning rate is multiplied by the schedule's rate at each step. What decays weights
// in proportion to the learning rate is multiplied with it.
func Scheduled(rule Optimizer, schedule Schedule) Optimizer { return scheduled{rule, schedule} }

type scheduled struct {
	rule     Optimizer
	schedule Schedule
}

func (r scheduled) Validate() error {
	if r.rule == nil || r.schedule == nil {
		return errors.New("optim: Scheduled lacks its rule or its schedule: give both")
	}
	return errors.Join(r.rule.Validate(), r.schedule.Validate())
}

func (r scheduled) States(param params.Spec, part Part) []State {
	if r.rule == nil {
		return nil
	}
	return r.rule.States(param, part)
}

func (r scheduled) block(param params.Spec) int { return blockOf(r.rule, param) }

func (r scheduled) Update(u Update) (*graph.Node, []*graph.Node) {
	if err := r.Validate(); err != nil {
		panic(err)
	}
	rate := r.schedule.Rate(u.Step)
	if u.Rate != nil {
		rate = graph.Mul(rate, graph.ConvertDType(u.Rate, rate.DType()))
	}
	u.Rate = rate
	return r.rule.Update(u)
}
