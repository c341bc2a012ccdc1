// Package engine runs training steps that are written as plans (lib/step), for any model that is a chain of blocks, on
// ranks with one device or a mesh of devices each.
//
// A rank's list is cut at operations between ranks. What lies between is a segment: one compiled program, including
// collectives between the rank's own devices. A single rank has one program for the full step. If ranks have one device
// each, each pass is a program, which blocks of one kind share. Each axis between ranks has a stream.
package engine

import (
	"errors"
	"slices"
	"time"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Spec is what is trained, and how. It is the same on all ranks.
type Spec struct {
	Recipe train.Recipe // its model must be a chain.Model
	// Plans are those of the steps, in turn: step n runs plan n modulo their number. They have the same units and axes,
	// and the same blocks on each rank.
	Plans []*step.Plan
	// Members are the parameters of each unit of the plans, as indices in the model's list.
	Members [][]int
	// Mesh are the axes of each rank's devices; none means one device. They are the axes of a plan that have no groups,
	// several joined by a plus.
	Mesh   []xla.MeshAxis
	Shards params.Shards // how the devices of a rank share tensor-parallel parameters
	// Ring is the plans' axis of context parallelism: its ranks have the same examples and different tokens, and the
	// model shifts keys and values along an axis of this name (collective.Between). They are neighbours. "" is none.
	Ring string
	// Between are other axes of the plans, between ranks, along which the model exchanges tensors inside of passes,
	// such as that of experts. Their ranks have one device each, and different examples. Each rank is in a group.
	Between []string
	Options
}

// Options say how a plan is run; the results are the same up to rounding.
type Options struct {
	// Hook creates each rank's replacement for the all-reduce of units between ranks.
	Hook func() Hook
	// Serve creates each rank's server, in place of a Hook: see [Server]. It requires Sum: the server computes means.
	Serve func() Server
	// Sum says that the model's loss is a sum over examples, not a mean: losses and gradients are then summed.
	Sum bool
	// Apart compiles two programs for the two parts of a backward pass, so that all schedules compute the same bits.
	Apart bool
	// Blockwise compiles a program for each pass, even for a single rank.
	Blockwise bool
	// Staged copies what is sent between ranks through host memory, as if the host could not access the devices.
	Staged bool
	// Link, if not zero, simulates a link between ranks: operations take at least the time of that link.
	Link group.Link
	// Timeout is the maximal time of a pass; an update, and a part of a pass with exchanges, may take twice as long. 0
	// means group.DefaultTimeout. If a rank takes longer, the group fails on all ranks with an error that names the
	// operation.
	Timeout time.Duration
	// HostLink, if not 0, simulates a link to the host of that many bytes per second.
	HostLink float64
	// Pace, if not nil, returns the minimal duration of a pass: it simulates devices on any number of cores.
	Pace func(op step.Op) time.Duration
	// Trace, if not nil, records a span for each operation, counters of memory by kind, and "bytes communicated", the
	// total sent to other ranks.
	Trace *trace.Recorder
}

// Serial returns the plan of one device: the passes of each micro-batch, one after another, then the update. Each block
// has a unit, and so has each parameter that several blocks share; members are as in [Spec].
func Serial(model chain.Model, microbatches int) (p *step.Plan, members [][]int) {
	p = &step.Plan{Name: "serial", Micro: microbatches, Every: microbatches, Weights: step.Flush}
	all, home := model.Owners()
	users := map[int]int{}
	for _, places := range all {
		for _, at := range places {
			users[at]++
		}
	}
	unitOf := map[int]int{}
	add := func(name string, places ...int) {
		for _, at := range places {
			unitOf[at] = len(p.Units)
		}
		p.Units, members = append(p.Units, step.Unit{Name: name}), append(members, places)
	}
	tree := model.Params()
	for i, b := range model.Blocks {
		var own, units []int
		for _, at := range home[i] {
			if users[at] > 1 {
				add(tree[at].Name, at)
			} else {
				own = append(own, at)
			}
		}
		if len(own) > 0 {
			add(b.Name, own...)
		}
		for _, at := range all[i] {
			if !slices.Contains(units, unitOf[at]) {
				units = append(units, unitOf[at])
			}
		}
		p.Blocks = append(p.Blocks, step.Block{Name: b.Name, Units: units})
	}
	var list []step.Op
	for m := range microbatches {
		for b := range p.Blocks {
			list = append(list, step.Op{Kind: step.Forward, Block: b, Micro: m})
		}
		for b := range p.Blocks {
			list = append(list, step.Op{Kind: step.Backward, Block: len(p.Blocks) - 1 - b, Micro: m})
		}
	}
	p.Ranks = [][]step.Op{append(list, step.Op{Kind: step.Update, Unit: -1, Micro: microbatches - 1})}
	return p, members
}

// Alone returns the spec of a recipe on one device, whose plan ([Serial]) techniques rewrite. The recipe's model
// becomes a chain of blocks, with the parameters possibly in another order. It returns an error for an invalid recipe.
func Alone(r train.Recipe, microbatches int) (s Spec, err error) {
	if err := r.Validate(); err != nil {
		return s, err
	}
	if r.Replicas != nil {
		return s, errors.New("Recipe.Replicas is set, which is for one program on several devices: leave it nil")
	}
	model, err := chain.Of(r.Model)
	if err != nil {
		return s, err
	}
	r.Model = model
	p, members := Serial(model, microbatches)
	return Spec{Recipe: r, Plans: []*step.Plan{p}, Members: members}, nil
}

// Checked returns the spec with these plans, or an error if they cannot run.
func (s Spec) Checked(plans ...*step.Plan) (Spec, error) {
	for _, p := range plans {
		if err := p.Check(); err != nil {
			return s, err
		}
	}
	s.Plans = plans
	return s, Check(s)
}

// Check returns an error if a spec cannot run. It needs no devices.
func Check(s Spec) error {
	_, err := newCommon(s)
	return err
}
