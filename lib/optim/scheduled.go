package optim

import (
	"errors"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/lib/params"
)

// Scheduled returns an optimizer whose learning rate is multiplied by the schedule at each step. Weight decay that is
// proportional to the learning rate is multiplied with it.
func Scheduled(o Optimizer, schedule Schedule) Optimizer { return scheduled{o, schedule} }

type scheduled struct {
	optimizer Optimizer
	schedule  Schedule
}

func (r scheduled) Validate() error {
	if r.optimizer == nil || r.schedule == nil {
		return errors.New("optim: Scheduled lacks its optimizer or its schedule: give both")
	}
	return errors.Join(r.optimizer.Validate(), r.schedule.Validate())
}

func (r scheduled) States(param params.Spec, part Part) []State {
	if r.optimizer == nil {
		return nil
	}
	return r.optimizer.States(param, part)
}

func (r scheduled) block(param params.Spec) int { return blockOf(r.optimizer, param) }

func (r scheduled) Update(u Update) (*graph.Node, []*graph.Node) {
	if err := r.Validate(); err != nil {
		panic(err)
	}
	rate := r.schedule.Rate(u.Step)
	if u.Rate != nil {
		rate = graph.Mul(rate, graph.ConvertDType(u.Rate, rate.DType()))
	}
	u.Rate = rate
	return r.optimizer.Update(u)
}
