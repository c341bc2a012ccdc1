// Package engine carries out training steps that are written as plans (lib/step): for any model that is a chain of
// blocks, on ranks that drive one device or a mesh of devices each.
//
// What lies between two operations of a group is a segment: one compiled program, with the collectives between a rank's
// own devices in it. A rank alone has the whole step as one program; where ranks have a device each, each pass is a
// program, which all blocks that are alike share. Operations between ranks go through group.Group, on a stream for each
// axis.
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

// Spec is what is trained, and how. All ranks have the same.
type Spec struct {
	Recipe train.Recipe // whose model is a chain.Model
	// Plans are those of the steps, in turn: step n is carried out as plan n modulo their number says. They have the
	// same units and axes, and the same blocks on each rank.
	Plans []*step.Plan
	// Members has, for each unit of the plans, its parameters, as places in the model's list.
	Members [][]int
	// Mesh are the axes of each rank's devices; none is one device. Axes of a plan without groups are these, several
	// with a plus between.
	Mesh   []xla.MeshAxis
	Shares params.Shares // what the devices of a rank share
	// Ring is the plans' axis whose ranks share sequences (context parallelism): they have the same rows and different
	// tokens, and the model shifts keys and values along an axis of this name (collective.Between). They are neighbouring
	// copies. "" is none.
	Ring string
	Options
}

// Options say how a plan is carried out; the results are the same but for rounding.
type Options struct {
	// Hook makes what a rank calls in place of the all-reduce of a unit's gradients between ranks.
	Hook func() Hook
	// Serve makes what a rank asks for new parameters, in place of a hook: see [Server]. Set Sum with it: what a mean
	// is of is the server's to know.
	Serve func() Server
	// Sum adds losses and gradients up over rows, where the model's loss is a sum and no mean.
	Sum bool
	// Apart has a backward pass of a device be two programs, for its two parts, so that schedules that split it and
	// those that do not have the same bits.
	Apart bool
	// Blockwise has each pass be a program of its own, also where a rank alone could have one for the whole step.
	Blockwise bool
	// Staged copies what goes between ranks through the host's own memory, as where it cannot reach the devices'.
	Staged bool
	// Link, where it is not the zero value, has what goes between ranks take at least as long as over it: a simulated
	// link.
	Link group.Link
	// Timeout is how long one pass may take, and an update twice as long; 0 is group.DefaultTimeout. A rank that takes
	// longer fails the group, and the others learn by which operation.
	Timeout time.Duration
	// HostLink, where it is not 0, has each transfer to or from the host's memory take at least its bytes divided by
	// it, in bytes per second: a simulated link.
	HostLink float64
	// Pace, where it is not nil, has each pass take at least so long: a simulated device, whose passes overlap those of
	// others on any number of cores.
	Pace func(op step.Op) time.Duration
	// Trace, where it is not nil, gets a span for each operation, on the stream of its kind, and counters of bytes
	// held, and of "bytes communicated", to other ranks in all steps.
	Trace *trace.Recorder
}

// Serial is the plan of one device: all passes of a micro-batch after another, and then the update. It has a unit for
// each block, and one for each parameter that several blocks have in common; members are as [Spec] has them.
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

// Alone is a recipe on one device, whose plan techniques rewrite: see [Serial]. The recipe's model becomes a chain of
// blocks, whose parameters may be in another order. A recipe that is not valid is an error.
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

// Checked is the spec with plans, or why they cannot be carried out.
func (s Spec) Checked(plans ...*step.Plan) (Spec, error) {
	for _, p := range plans {
		if err := p.Check(); err != nil {
			return s, err
		}
	}
	s.Plans = plans
	return s, Check(s)
}

// Check returns an error if a spec cannot be carried out, before any device is touched.
func Check(s Spec) error {
	_, err := newCommon(s)
	return err
}
