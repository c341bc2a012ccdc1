package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// axisNames are the mesh axes that an axis of a plan stands for.
func axisNames(axis string) []string { return strings.Split(axis, "+") }

// common is what all ranks of a process have of a spec.
type common struct {
	Spec
	policy precision.Policy
	model  chain.Model
	cuts   map[string]*params.Cut // of the parameters that the devices of a rank share, by name
	firsts map[string]int         // by name of a parameter: the first rank that has it
	shards int                    // in how many parts units are sharded
	axis   string                 // along which; "" is none
	within []string               // its mesh axes, if it is of a rank's own devices
	mine   int                    // how many of the shards a rank has: all, or one
	ring   int                    // ranks that have the same rows, and other tokens
	hosts  bool                   // the host updates
	flat   bool                   // units lie as matrices: they are sharded, or the host has them as well
}

func newCommon(s Spec) (*common, error) {
	model, ok := s.Recipe.Model.(chain.Model)
	if !ok || len(s.Plans) == 0 {
		return nil, errors.New("engine: a spec without plans, or of a model that is no chain.Model")
	}
	c := &common{Spec: s, policy: s.Recipe.Policy(), model: model, shards: 1, mine: 1, ring: 1,
		cuts: map[string]*params.Cut{}, firsts: map[string]int{}}
	if len(c.Mesh) == 0 {
		c.Mesh = []xla.MeshAxis{xla.Axis(train.Axis, 1)}
	}
	if s.Shares.Axis != "" {
		for i, spec := range model.Params() {
			if cut := s.Shares.Cuts[i]; ranks(cut) > 1 {
				c.cuts[spec.Name] = cut
			}
		}
	}
	p := s.Plans[0]
	if a, ok := p.Axis(s.Ring); ok {
		c.ring = a.Size
	}
	for rank := range slices.Backward(p.Ranks) {
		for _, s := range only(model, p.On(rank)).Params() {
			c.firsts[s.Name] = rank
		}
	}
	_, c.hosts = find(p, func(op step.Op) bool { return op.Kind == step.HostUpdate })
	return c, cmp.Or(c.shardAxis(p), c.checkUpdates(p), errors.Join(c.checkAverages(), c.fits()))
}

// find is an operation of a plan for which something is true, if there is one.
func find(p *step.Plan, is func(op step.Op) bool) (step.Op, bool) {
	for _, list := range p.Ranks {
		if i := slices.IndexFunc(list, is); i >= 0 {
			return list[i], true
		}
	}
	return step.Op{}, false
}

// shardAxis finds the axis of the shards. It returns an error if there are several, or reductions come in another order
// than they can.
func (c *common) shardAxis(p *step.Plan) error {
	for _, u := range p.Units {
		between := ""
		for _, name := range u.Reduce {
			if a, _ := p.Axis(name); len(a.Groups) > 0 {
				between = name
			} else if between != "" {
				return fmt.Errorf("engine: unit %s is reduced along %q, between ranks, before %q, within them: "+
					"put the axes of a rank's own devices first", u.Name, between, name)
			}
		}
		if u.Shard == "" {
			continue
		}
		a, ok := p.Axis(u.Shard)
		if !ok || c.axis != "" && c.axis != u.Shard {
			return fmt.Errorf("engine: unit %s is sharded along %q: shard all units along one axis of the plan",
				u.Name, u.Shard)
		}
		if c.axis, c.shards = u.Shard, a.Size; len(a.Groups) == 0 {
			c.within, c.mine = axisNames(u.Shard), a.Size
		}
	}
	c.flat = c.shards > 1 || c.hosts
	return nil
}

// checkUpdates returns an error if updates are made where or when they cannot be.
func (c *common) checkUpdates(p *step.Plan) error {
	if op, some := find(p, func(op step.Op) bool { return op.Kind == step.Update }); c.hosts && some {
		return fmt.Errorf("engine: the host makes some updates, and devices %s: let the host make all", p.Text(op))
	}
	if c.hosts && c.devices() > 1 {
		return fmt.Errorf("engine: the host updates for a rank of %d devices: give each rank one", c.devices())
	}
	if !c.Recipe.NeedsAllGradients() {
		return nil
	}
	if p.Weights != step.Flush {
		return fmt.Errorf("the schedule %s updates while other ranks are at other micro-batches, "+
			"and Recipe.Clip or loss scaling wait for all of them: "+
			"leave them out, or choose a schedule that flushes", p.Name)
	}
	one, some := find(p, func(op step.Op) bool { return updates(op.Kind) && op.Unit >= 0 })
	if some && len(p.Units) > 1 {
		return fmt.Errorf("engine: %s updates before the gradients of all units are there, "+
			"and clipping or loss scaling ask something of all: leave them out, or update all at once", p.Text(one))
	}
	return nil
}

// averages says whether an operation averages states.
func averages(op step.Op) bool { return op.Kind == step.Reduce && op.What == step.State }

// checkAverages returns an error if a plan averages states that cannot be: local SGD.
func (c *common) checkAverages() error {
	p := c.Plans[len(c.Plans)-1]
	if _, some := find(p, averages); !some {
		return nil
	}
	copies, _ := copiesOf(p, 0)
	switch {
	case len(c.policy.Scaling.States()) > 0:
		return errors.New("engine: in local SGD Recipe.Precision would scale losses " +
			"by as much as each rank finds right: use float32 or bfloat16")
	case c.Recipe.Clip > 0 && copies < len(p.Ranks):
		return errors.New("engine: in local SGD each replica clips its own gradients (Recipe.Clip), " +
			"and ranks of a pipeline know no norm of a replica alone: leave one of the three out")
	case c.shards > 1:
		return errors.New("engine: in local SGD each replica has a state of its own, of which ZeRO leaves shards: " +
			"leave one of them out")
	}
	before, _, _ := train.Tail(c.Recipe, c.Recipe.State())
	for _, s := range before {
		if !s.Shape.DType.IsFloat() {
			return fmt.Errorf("engine: in local SGD %s has no average: "+
				"choose an optimizer with floating-point states", s)
		}
	}
	return nil
}

// fits returns an error if the rule cannot work on what devices have.
func (c *common) fits() error {
	rule := c.Recipe.GroupedOptimizer()
	for _, s := range c.model.Params() {
		cut := c.cuts[s.Name]
		if cut == nil {
			continue
		}
		if !optim.Joins(rule, s, optim.CutOf(cut)) {
			return fmt.Errorf("engine: the optimizer keeps numbers of blocks of %s, "+
				"which is cut, and the blocks with it: choose another optimizer, or tensor=1", s)
		}
		if c.shards == 1 {
			continue
		}
		for _, state := range optim.States(rule, params.Tree{s}) {
			if !slices.Equal(state.Shape.Dimensions, s.Shape.Dimensions) {
				return fmt.Errorf("engine: the optimizer's %s is not of the shape of %s, "+
					"of which tensor parallelism and ZeRO leave no run: "+
					"choose one of the two, or an optimizer whose states are, such as adamw", state, s)
			}
		}
		if c.policy.StochasticUpdate {
			return fmt.Errorf("engine: stochastic rounding numbers the elements of %s, "+
				"of which tensor parallelism and ZeRO leave no run: leave one of them out", s)
		}
	}
	return nil
}

// size is how many of a rank's devices there are along mesh axes.
func (c *common) size(axes ...string) int {
	n := 1
	for _, a := range c.Mesh {
		if slices.Contains(axes, a.Name) {
			n *= a.Size
		}
	}
	return n
}

// devices is how many a rank has.
func (c *common) devices() int {
	n := 1
	for _, a := range c.Mesh {
		n *= a.Size
	}
	return n
}
