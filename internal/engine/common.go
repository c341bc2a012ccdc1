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

// axisNames returns the mesh axes that an axis of a plan stands for.
func axisNames(axis string) []string { return strings.Split(axis, "+") }

// common is what all ranks of a process derive from a spec.
type common struct {
	Spec
	policy  precision.Policy
	model   chain.Model
	cuts    map[string]*params.Cut // of parameters, by name, between a rank's devices
	experts map[string]*params.Cut // of parameters between ranks
	firsts  map[string]int         // by name of a parameter: the first rank that has it
	shards  []shards               // by unit
	sharded bool                   // whether there are units with several shards
	ring    int                    // ranks that have the same examples and different tokens
	inside  []step.Axis            // between ranks, along which passes exchange tensors
	hosts   bool                   // the host updates
	flat    bool                   // units are matrices, because they are sharded or updated on the host
}

func newCommon(s Spec) (*common, error) {
	model, ok := s.Recipe.Model.(chain.Model)
	if !ok || len(s.Plans) == 0 {
		return nil, errors.New("engine: the spec has no plans, or its model is not a chain.Model")
	}
	s.Shards = s.Shards.Placed()
	c := &common{Spec: s, policy: s.Recipe.Policy(), model: model, ring: 1,
		cuts: map[string]*params.Cut{}, experts: map[string]*params.Cut{}, firsts: map[string]int{}}
	if len(c.Mesh) == 0 {
		c.Mesh = []xla.MeshAxis{xla.Axis(train.Axis, 1)}
	}
	p := s.Plans[0]
	if s.Shards.Cuts != nil {
		for i, spec := range model.Params() {
			cut := s.Shards.Cuts[i]
			if ranks(cut) == 1 {
				continue
			}
			if a, _ := p.Axis(cut.Along[0]); len(a.Groups) > 0 {
				if c.experts[spec.Name] = cut; cut.Axis != 0 || len(cut.Along) > 1 || cut.Ranks() != a.Size ||
					!slices.IsSorted(slices.Concat(cut.Index...)) {
					return nil, fmt.Errorf("engine: %s is cut along %v between ranks: only equal ranges of its first "+
						"axis can be, in order, along one axis", spec, cut.Along)
				}
			} else {
				c.cuts[spec.Name] = cut
			}
		}
	}
	for _, name := range append([]string{s.Ring}, s.Between...) {
		if a, ok := p.Axis(name); ok && a.Size > 1 {
			c.inside = append(c.inside, a)
		}
		if n := c.devices(); name != s.Ring && n > 1 {
			return nil, fmt.Errorf("engine: passes exchange tensors along %q, between ranks of one device each, and "+
				"these have %d", name, n)
		}
	}
	if a, ok := p.Axis(s.Ring); ok {
		c.ring = a.Size
	}
	for rank := range slices.Backward(p.Ranks) {
		for _, s := range only(model, p.On(rank)).Params() {
			c.firsts[s.Name] = rank
		}
	}
	_, c.hosts = find(p, func(op step.Op) bool { return op.Kind == step.HostUpdate })
	return c, cmp.Or(c.listShards(p), c.checkUpdates(p), errors.Join(c.checkAverages(), c.fits()))
}

// find returns an operation of a plan that meets a condition, if there is one.
func find(p *step.Plan, is func(op step.Op) bool) (step.Op, bool) {
	for _, list := range p.Ranks {
		if i := slices.IndexFunc(list, is); i >= 0 {
			return list[i], true
		}
	}
	return step.Op{}, false
}

// shards says how a unit's state is sharded.
type shards struct {
	n       int      // shards of the unit
	perRank int      // shards that a rank has: all, or one
	axis    string   // of the plan; "" is none
	within  []string // its mesh axes, if it is of each rank's own devices
}

// listShards finds how units are sharded. It returns an error if reductions are in an order that is not supported.
func (c *common) listShards(p *step.Plan) error {
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
		s := shards{n: 1, perRank: 1, axis: u.Shard}
		if a, ok := p.Axis(u.Shard); ok {
			if s.n = a.Size; len(a.Groups) == 0 {
				s.within, s.perRank = axisNames(u.Shard), a.Size
			}
		} else if u.Shard != "" {
			return fmt.Errorf("engine: unit %s is sharded along %q: choose an axis of the plan", u.Name, u.Shard)
		}
		c.shards, c.sharded = append(c.shards, s), c.sharded || s.n > 1
	}
	c.flat = c.sharded || c.hosts
	return nil
}

// checkUpdates returns an error for updates that are not possible on their device or at their time.
func (c *common) checkUpdates(p *step.Plan) error {
	if op, some := find(p, func(op step.Op) bool { return op.Kind == step.Update }); c.hosts && some {
		return fmt.Errorf("engine: some updates are on the host, but %s is on the device: run all on the host",
			p.Text(op))
	}
	if c.hosts && c.devices() > 1 {
		return fmt.Errorf("engine: updates on the host need one device per rank, not %d", c.devices())
	}
	if !c.Recipe.NeedsAllGradients() {
		return nil
	}
	if p.Weights != step.Flush {
		return fmt.Errorf("the schedule %s updates between micro-batches, but Recipe.Clip and loss scaling need all "+
			"gradients: leave them out, or choose a synchronous schedule", p.Name)
	}
	one, some := find(p, func(op step.Op) bool { return updates(op.Kind) && op.Unit >= 0 })
	if some && len(p.Units) > 1 {
		return fmt.Errorf("engine: %s updates before the gradients of all units are complete, "+
			"but clipping and loss scaling need them: leave them out, or update all units at the end", p.Text(one))
	}
	return nil
}

// averages reports whether an operation averages states: local SGD.
func averages(op step.Op) bool { return op.Kind == step.Reduce && op.What == step.State }

// checkAverages returns an error if a plan averages states that cannot be averaged.
func (c *common) checkAverages() error {
	p := c.Plans[len(c.Plans)-1]
	if _, some := find(p, averages); !some {
		return nil
	}
	copies, _ := replicaOf(p, 0)
	switch {
	case len(c.policy.Scaling.States()) > 0:
		return errors.New("engine: in local SGD Recipe.Precision would scale losses differently on each rank: " +
			"use float32 or bfloat16")
	case c.Recipe.Clip > 0 && copies < len(p.Ranks):
		return errors.New("engine: local SGD cannot clip gradients (Recipe.Clip) in pipelines, " +
			"whose ranks do not know the norm of their replica's gradients: leave one of the three out")
	case c.sharded || len(c.experts) > 0:
		return errors.New("engine: in local SGD each replica has its own state, which ZeRO and experts " +
			"would shard between replicas: leave one of them out")
	}
	before, _, _ := train.Tail(c.Recipe, c.Recipe.State())
	for _, s := range before {
		if !s.Shape.DType.IsFloat() {
			return fmt.Errorf("engine: local SGD cannot average %s: choose an optimizer with floating-point states", s)
		}
	}
	return nil
}

// fits returns an error if the optimizer cannot work on the parts of parameters that devices have.
func (c *common) fits() error {
	rule := c.Recipe.GroupedOptimizer()
	for i, s := range c.model.Params() {
		cut := c.cuts[s.Name]
		if apart := c.experts[s.Name]; apart != nil {
			if optim.Sums(rule, s) || !optim.Joins(rule, s, optim.CutOf(apart)) {
				return fmt.Errorf("engine: the optimizer sums over the elements of %s, or has states for blocks of "+
					"them, and its experts are on several ranks: choose another optimizer, such as adamw", s)
			}
		}
		if cut == nil {
			continue
		}
		if !optim.Joins(rule, s, optim.CutOf(cut)) {
			return fmt.Errorf("engine: the optimizer has states for blocks of %s, "+
				"which tensor parallelism would cut: choose another optimizer, or tensor=1", s)
		}
		unit := slices.IndexFunc(c.Members, func(of []int) bool { return slices.Contains(of, i) })
		if c.shards[unit].n == 1 {
			continue
		}
		for _, state := range optim.States(rule, params.Tree{s}) {
			if !slices.Equal(state.Shape.Dimensions, s.Shape.Dimensions) {
				return fmt.Errorf("engine: the optimizer's %s does not have the shape of %s, "+
					"which both tensor parallelism and ZeRO shard: "+
					"choose one of the two, or an optimizer whose states have that shape, such as adamw", state, s)
			}
		}
		if optim.Sums(rule, s) { // those of other packages are rejected in the first step
			return errSums(s)
		}
		if c.policy.StochasticUpdate {
			return fmt.Errorf("engine: stochastic rounding needs contiguous elements of %s, "+
				"which both tensor parallelism and ZeRO shard: leave one of the three out", s)
		}
	}
	return nil
}

// size returns the number of a rank's devices along mesh axes.
func (c *common) size(axes ...string) int {
	n := 1
	for _, a := range c.Mesh {
		if slices.Contains(axes, a.Name) {
			n *= a.Size
		}
	}
	return n
}

// devices returns the number of a rank's devices.
func (c *common) devices() int {
	return c.size(c.axes()...)
}

// axes returns the names of the mesh axes.
func (c *common) axes() (names []string) {
	for _, a := range c.Mesh {
		names = append(names, a.Name)
	}
	return names
}

// replicas returns the number of shards of a batch, and which of them this rank has: one for each rank with the first
// block, and the other ranks of its pipeline.
func (o *own) replicas() (n, at int) { return replicaOf(o.Plans[0], o.rank) }

func replicaOf(p *step.Plan, of int) (n, at int) {
	for rank, list := range p.Ranks {
		first := func(op step.Op) bool { return op.Kind == step.Forward && op.Block == 0 && op.Micro == 0 }
		if !slices.ContainsFunc(list, first) {
			continue
		}
		if rank <= of {
			at = n
		}
		n++
	}
	return n, at
}

// summands returns the number of gradients that are summed for the mean over a batch: of micro-batches, ranks and
// devices with different examples or tokens. It is 1 if losses are sums.
func (o *own) summands() int {
	if o.Sum {
		return 1
	}
	n := o.Plans[0].Every * o.size(o.averaged()...)
	if o.reducesReplicas() {
		copies, _ := o.replicas()
		n *= copies
	}
	return n
}

// examples returns the mesh axes along which devices have different examples.
func (c *common) examples() (axes []string) {
	for i, a := range c.Mesh {
		if i == 0 || a.Name == c.Shards.Experts {
			axes = append(axes, a.Name)
		}
	}
	return axes
}

// averaged returns the mesh axes along which devices have different examples or tokens.
func (c *common) averaged() []string { return append(c.examples(), c.Shards.Tokens...) }

// sumsDiffer reports whether a rank's devices accumulate different gradients, of different examples or tokens.
func (c *common) sumsDiffer() bool { return c.size(c.averaged()...) > 1 }

// reducesReplicas reports whether gradients are reduced over replicas; in local SGD they are not.
func (o *own) reducesReplicas() bool {
	p := o.Plans[0]
	_, at := o.replicas()
	for _, u := range o.units {
		for _, name := range u.Reduce {
			a, _ := p.Axis(name)
			for _, other := range a.Group(o.rank) {
				if _, of := replicaOf(p, other); of != at {
					return true
				}
			}
		}
	}
	return false
}

// local reports whether replicas update with their own gradients: local SGD.
func (o *own) local() bool {
	copies, _ := o.replicas()
	return copies > 1 && !o.reducesReplicas()
}

// early reports whether gradients are divided by summands before they are summed: sums in half types might overflow.
func (o *own) scalesEarly() bool { return o.policy.Reduce.Size() < 4 }
