package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/xla"
)

// Programs are the compiled programs of a spec, shared by the ranks of a process. If ranks have one device each, a
// program runs on any of them.
type Programs struct {
	*common
	backend  *xla.Backend
	original []*step.Plan // before backward passes are split
	ranks    []*own       // by rank of the plans

	kinds chain.Kinds

	mu     sync.Mutex
	shared map[string]*xla.Portable
	host   *hostPrograms
	all    []interface{ Close() }
	closed bool
}

// New checks a spec, and derives each rank's part. Programs are compiled before the first step that needs them.
func New(backend *xla.Backend, s Spec) (*Programs, error) {
	if backend == nil {
		return nil, errors.New("the backend is nil: open one with xla.Open")
	}
	original := s.Plans
	if s.Apart {
		s.Plans = nil
		for _, p := range original {
			s.Plans = append(s.Plans, halved(p))
		}
	}
	c, err := newCommon(s)
	if err != nil {
		return nil, err
	}
	p := &Programs{original: original, common: c, backend: backend, shared: map[string]*xla.Portable{}}
	if c.hosts {
		if p.host, err = newHostPrograms(); err != nil {
			return nil, err
		}
		p.all = append(p.all, p.host)
	}
	for rank := range s.Plans[0].Ranks {
		p.ranks = append(p.ranks, c.newOwn(rank))
	}
	return p, nil
}

// halved returns a plan with each backward pass split into its two parts.
func halved(p *step.Plan) *step.Plan {
	q := p.Clone()
	for r, list := range q.Ranks {
		q.Ranks[r] = nil
		for _, op := range list {
			if op.Kind == step.Backward {
				input := op
				input.Kind, op.Kind = step.InputGrad, step.WeightGrad
				q.Ranks[r] = append(q.Ranks[r], input)
			}
			q.Ranks[r] = append(q.Ranks[r], op)
		}
	}
	return q
}

// Close frees the programs. None of them may run.
func (p *Programs) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, one := range p.all {
		one.Close()
	}
	p.all = nil
}

// program is a compiled graph function on a rank's devices.
type program interface {
	Call(args ...any) ([]*dtensor.Tensor, error)
}

// layout is the placement of a program's inputs and outputs, and the inputs whose memory it may reuse.
type layout struct {
	in, out []xla.Placement
	donated []int
}

// devices are the devices of a rank, which compile and run its programs.
type devices struct {
	*Programs
	mesh  *xla.Mesh
	first int
}

// compile compiles a program. With one device per rank, equal keys mean the same program on all devices.
func (d *devices) compile(key string, fn func(in []*graph.Node) []*graph.Node, l layout) (program, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.New("engine: the programs are closed: start a new run")
	}
	if d.mesh.NumDevices() > 1 {
		p, err := xla.Compile(d.mesh, fn, xla.In(l.in...).Gives(l.out...).Donates(l.donated...))
		if err == nil {
			d.all = append(d.all, p)
		}
		return p, err
	}
	p := d.shared[key]
	if p == nil {
		var err error
		if p, err = xla.CompilePortable(d.backend, fn, l.donated...); err != nil {
			return nil, err
		}
		d.shared[key], d.all = p, append(d.all, p)
	}
	return onDevice{p, d}, nil
}

// onDevice is a program on one device.
type onDevice struct {
	*xla.Portable
	devices *devices
}

// Call implements [program].
func (p onDevice) Call(args ...any) ([]*dtensor.Tensor, error) {
	for i, a := range args {
		if t, ok := a.(*dtensor.Tensor); ok {
			args[i] = t.Shards()[0]
		}
	}
	out, err := p.Portable.Call(p.devices.first, args...)
	if err != nil {
		return nil, err
	}
	return p.devices.placed(out...)
}

// placed wraps arrays on a rank's one device.
func (d *devices) placed(list ...*tensors.Tensor) ([]*dtensor.Tensor, error) {
	spec, err := xla.Replicated().Spec(d.mesh.DeviceMesh)
	all := make([]*dtensor.Tensor, len(list))
	for i, t := range list {
		if err == nil {
			all[i], err = dtensor.NewTensor(spec, []*tensors.Tensor{t})
		}
	}
	return all, err
}

// place copies an array of the host to the devices.
func (d *devices) place(t *tensors.Tensor, on xla.Placement) (*dtensor.Tensor, error) {
	if d.mesh.NumDevices() > 1 {
		return d.mesh.Place(t, on)
	}
	one, err := d.backend.Put(t, d.first)
	if err != nil {
		return nil, err
	}
	all, err := d.placed(one)
	return all[0], err
}

// segment is a range of a rank's list that runs at once: as one program, or one operation between ranks.
type segment struct {
	from, to int
	local    bool // one program
	io       *io
	ended    []step.Value // nothing needs them after it
	keepsOld bool         // later passes use the parameters from before its update
	program  program      // of a local segment
	sums     []program    // for what ranks sum before it
	phases   []phase
}

// segments cuts a rank's list. Alone says that there are no operations with other ranks.
func (o *own) segments(p *step.Plan, f *step.Flow, alone bool) (all []*segment) {
	list := p.Ranks[o.rank]
	waits := make([]bool, len(list)+1) // for operations between ranks, by position
	for i, done := range f.Done {
		if o.between(p, list[i]) {
			waits[done] = true
		}
	}
	single := !alone && (o.devices() == 1 || o.ring > 1) // with a ring, exchanges in the middle of passes cut their programs
	var open *segment
	micro := -1
	for i, op := range list {
		if op.Kind == step.Free {
			if open == nil {
				open = &segment{from: i, to: i, local: true}
				all = append(all, open)
			}
			open.to = i + 1
			continue
		}
		if o.between(p, op) {
			all, open = append(all, &segment{from: i, to: i + 1}), nil
			continue
		}
		pass := op.Kind.Pass() && op.Kind != step.Update
		apart := waits[i] || pass && single && open != nil && !follows(list[open.from:open.to], op) ||
			pass && p.Micro > 1 && micro >= 0 && op.Micro != micro
		if open != nil && (apart && open.to > open.from || op.Kind == step.Update && !alone) {
			open = nil
		}
		if open == nil {
			open = &segment{from: i, local: true}
			all = append(all, open)
		}
		if open.to = i + 1; pass {
			micro = op.Micro
		}
		if op.Kind == step.Update && !alone {
			open = nil
		}
	}
	for _, s := range all {
		s.ended = endedIn(f, s.from, s.to)
	}
	return all
}

// endedIn lists the values that end in a segment, except those that it makes again.
func endedIn(f *step.Flow, from, to int) (all []step.Value) {
	for i := from; i < to; i++ {
		for _, v := range f.Ends[i] {
			again := false
			for j := i + 1; j < to; j++ {
				again = again || slices.Contains(f.Makes[j], v)
			}
			if !again {
				all = append(all, v)
			}
		}
	}
	return all
}

// follows reports whether a pass belongs to the program of the operations before it: the recomputation of a block
// belongs to its backward pass.
func follows(before []step.Op, op step.Op) bool {
	for _, b := range before {
		if b.Kind.Pass() && (b.Kind != step.Recompute || b.Block != op.Block || op.Kind == step.Recompute) {
			return false
		}
	}
	return true
}

// isBlockPass reports whether a segment is one pass of a block, whose program other blocks of its kind can share.
func isBlockPass(list []step.Op) bool {
	for i, op := range list {
		if op.Kind == step.Update || !op.Kind.Pass() && op.Kind != step.Free || !follows(list[:i], op) {
			return false
		}
	}
	return true
}

// between reports whether an operation is between ranks, or with the host.
func (o *own) between(p *step.Plan, op step.Op) bool {
	kind := op.Kind
	if kind == step.Wait {
		kind = op.Of
	}
	switch kind {
	case step.Send, step.Recv, step.Store, step.Fetch, step.HostUpdate:
		return true
	case step.Gather, step.Reduce:
		a, _ := p.Axis(op.Axis)
		return len(a.Groups) > 0
	}
	return false
}

// prepare makes the program of a segment. Summed are the parameters that have accumulated gradients before it.
func (d *devices) prepare(o *own, p *step.Plan, f *step.Flow, s *segment, sizes *sizes, summed map[int]bool, ranks int) error {
	first := p.Ranks[o.rank][s.from]
	if !s.local && first.Kind != step.HostUpdate {
		return nil
	}
	s.io = o.listIO(p, f, s.from, s.to)
	for _, at := range s.io.touched {
		if !summed[at] {
			s.io.begins = append(s.io.begins, at)
		}
	}
	if s.keepsOld {
		s.io.donated = slices.DeleteFunc(s.io.donated, func(x slot) bool { return o.ofParameters(x) })
	}
	var l layout
	var in []shapes.Shape
	for _, x := range s.io.in {
		on, all := o.lies(x, sizes)
		for _, shape := range all {
			if slices.Contains(s.io.donated, x) {
				l.donated = append(l.donated, len(l.in))
			}
			l.in, in = append(l.in, on), append(in, o.shapeOf(x, shape, s.io))
		}
	}
	for _, x := range s.io.out {
		on, all := o.lies(x, sizes)
		l.out = append(l.out, slices.Repeat([]xla.Placement{on}, len(all))...)
	}
	if len(l.out) == 0 {
		return nil // nothing to compute
	}
	fn := o.segment(p, f, s.from, s.to, s.io, sizes)
	key := o.key(p, s)
	if s.keepsOld {
		key += " keepsOld"
	}
	n := len(in)
	var all []sumOf
	if ranks > 1 && updates(first.Kind) {
		var failed error
		_, err := d.mesh.Shapes(func(in []*graph.Node) []*graph.Node {
			all, s.phases, failed = phasesOf(in, fn)
			return in[:1]
		}, in...)
		if err := errors.Join(failed, err); err != nil {
			return err
		}
	}
	compile := d.compile
	if first.Kind == step.HostUpdate {
		compile = d.compileHost
	}
	for i := range s.phases {
		lay := layout{in: slices.Clone(l.in), out: slices.Repeat([]xla.Placement{xla.Replicated()}, len(s.phases[i].axes))}
		one, err := compile(fmt.Sprint(key, " sums ", i), phaseFn(fn, all, s.phases, i, n), lay)
		if err != nil {
			return err
		}
		s.sums = append(s.sums, one)
		l.in = append(l.in, lay.out...)
	}
	var err error
	full := finalFn(fn, all, s.phases, n)
	if o.ring > 1 && !updates(first.Kind) {
		s.program, err = d.compileCut(key, full, in, l, o.apart())
	} else {
		s.program, err = compile(key, full, l)
	}
	return err
}

// shapeOf returns the shape of a slot as a program takes it.
func (o *own) shapeOf(x slot, shape shapes.Shape, s *io) shapes.Shape {
	switch x.kind {
	case touchedSlot:
		return shapes.Make(dtypes.Int32, len(s.touched))
	case rowSlot:
		return shapes.Make(dtypes.Uint32)
	case stepSlot, shardSlot, ringSlot:
		return shapes.Make(dtypes.Int32)
	case factorSlot:
		return shapes.Make(dtypes.Float32)
	case valueSlot:
		if shape.IsScalar() {
			return shapes.Make(shape.DType, 1)
		}
	}
	return shape
}

// key is equal for segments that can share a program: passes of blocks of one kind, for any micro-batch.
func (o *own) key(p *step.Plan, s *segment) string {
	var b strings.Builder
	list := p.Ranks[o.rank][s.from:s.to]
	programOf := o.model.SharedPrograms()
	micro := -1
	single := isBlockPass(list) && o.devices() == 1
	if !single {
		fmt.Fprint(&b, "rank ", o.rank, " ")
	}
	for _, op := range list {
		if op.Kind == step.Free {
			continue
		}
		if op.Kind.Pass() && micro < 0 {
			micro = op.Micro
		}
		if op.Micro -= micro; single && op.Kind.Pass() {
			fmt.Fprintf(&b, "%c of %d", op.Kind, programOf[op.Block])
			seen := map[int]int{}
			for _, at := range o.blockParams[op.Block] {
				u := o.unitOf[at]
				if _, ok := seen[u.number]; !ok {
					seen[u.number] = len(seen)
				}
				fmt.Fprint(&b, " ", seen[u.number], o.idle[at])
				if o.flat {
					fmt.Fprint(&b, ":", u.size, ",", o.offset(at), ",", o.length(at))
				}
			}
			continue
		}
		fmt.Fprint(&b, " ", p.Text(op))
	}
	for _, at := range s.io.touched {
		fmt.Fprint(&b, " ", slices.Contains(s.io.begins, at))
	}
	for _, list := range [][]slot{s.io.in, s.io.out} {
		fmt.Fprint(&b, " |")
		for _, x := range list {
			if x.number -= micro * o.ofMicro(x); single {
				x.number = 0
				x.value.Block -= firstBlock(p.Ranks[o.rank][s.from:s.to])
				x.value.Unit = 0
			}
			x.value.Micro -= micro
			fmt.Fprint(&b, " ", x)
		}
	}
	return b.String()
}

// firstBlock returns the block of the first pass.
func firstBlock(list []step.Op) int {
	for _, op := range list {
		if op.Kind.Pass() {
			return op.Block
		}
	}
	return 0
}

// ofMicro is 1 for slots whose number is a micro-batch.
func (o *own) ofMicro(x slot) int {
	switch x.kind {
	case targetSlot, rowSlot, lossSlot:
		return 1
	}
	return 0
}

// measure builds the graphs of the blocks to find the shapes of their results, for micro-batches with the given shapes
// on a device. Blocks that share programs are built once.
func (d *devices) measure(o *own, inputs, targets shapes.Shape, split bool) (*sizes, error) {
	s := &sizes{targets: targets}
	x := inputs
	made := map[string]blockSizes{}
	outs := map[string]shapes.Shape{}
	programOf := o.model.SharedPrograms()
	tree := o.passes.Model
	for i, b := range tree.Blocks {
		key := fmt.Sprint(programOf[i], x)
		of, ok := made[key]
		if !ok {
			var in []shapes.Shape
			for _, spec := range b.Params {
				in = append(in, shapes.Make(o.policy.Compute, spec.Shape.Dimensions...))
			}
			n := len(in)
			in = append(in, x)
			if o.model.Noisy {
				in = append(in, shapes.Make(dtypes.Int32), shapes.Make(dtypes.Uint32))
			}
			last := i == len(tree.Blocks)-1
			if last {
				in = append(in, targets)
			}
			operands := func(in []*graph.Node) (c chain.Operands, rest []*graph.Node) {
				c.Weights, c.X, rest = in[:n], in[n], in[n+1:]
				if o.model.Noisy {
					c.Key, c.Row, rest = o.Recipe.Key(rest[0]), rest[1], rest[2:]
				}
				if last {
					c.Targets, rest = rest[0], rest[1:]
				}
				return c, rest
			}
			var uses []bool
			out, err := d.mesh.Shapes(func(in []*graph.Node) []*graph.Node {
				o.onRing(in[0].Graph())
				c, _ := operands(in)
				y, saved := o.passes.Forward(i, c)
				uses = reached(y, in[:n+1])
				return append([]*graph.Node{y}, saved...)
			}, in...)
			if err != nil {
				return nil, fmt.Errorf("engine: block %q, of an input of shape %s: %w", b.Name, x, err)
			}
			of = blockSizes{x: x, saved: out[1:], uses: uses}
			outs[key] = out[0]
			if split && i > 0 {
				more := slices.Clone(of.saved)
				if last {
					for _, s := range o.policy.Scaling.States() {
						more = append(more, s.Shape)
					}
				} else {
					more = append(more, out[0])
				}
				if out, err = d.mesh.Shapes(func(in []*graph.Node) []*graph.Node {
					o.onRing(in[0].Graph())
					c, rest := operands(in)
					saved, rest := rest[:len(of.saved)], rest[len(of.saved):]
					var outGrad *graph.Node
					scaling := rest
					if !last {
						outGrad, scaling = rest[0], nil
					}
					x, forWeights := o.passes.BackwardInput(i, c, saved, outGrad, scaling)
					return append([]*graph.Node{x}, forWeights...)
				}, append(in, more...)...); err != nil {
					return nil, fmt.Errorf("engine: the gradient of block %q: %w", b.Name, err)
				}
				of.forWeights = out[1:]
			}
			made[key] = of
		}
		s.blocks = append(s.blocks, of)
		x = outs[key]
	}
	s.idle = map[string]bool{}
	needed := map[string]bool{}
	for i, more := len(tree.Blocks)-1, true; i >= 0; i-- {
		uses, list := s.blocks[i].uses, tree.Blocks[i].Params
		for k, spec := range list {
			if s.idle[spec.Name] = true; more && uses[k] {
				needed[spec.Name] = true
			}
		}
		more = more && uses[len(list)]
	}
	for name := range needed {
		delete(s.idle, name)
	}
	return s, nil
}

// reached reports for each node whether from depends on it.
func reached(from *graph.Node, nodes []*graph.Node) []bool {
	seen := map[*graph.Node]bool{}
	var visit func(n *graph.Node)
	visit = func(n *graph.Node) {
		if n == nil || seen[n] {
			return
		}
		seen[n] = true
		for _, in := range n.Inputs() {
			visit(in)
		}
	}
	visit(from)
	all := make([]bool, len(nodes))
	for i, n := range nodes {
		all[i] = seen[n]
	}
	return all
}
