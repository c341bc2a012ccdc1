package train_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// passes compiles the loss of a shared model, or that and its gradients, for a batch of n sequences, without running
// it.
func (w way) passes(t testing.TB, c gpt.Config, batch int, backward bool) *xla.Program {
	t.Helper()
	mesh, m, tree := w.mesh(t), w.model(c), slices.Clone(c.Params())
	shards, err := m.Shards(mesh.AxisSize)
	must.Do(t, err)
	var on []xla.Placement
	var args []any
	for i, s := range tree {
		lies, value := xla.Replicated(), tensors.FromShape(s.Shape)
		if len(shards.Cuts) > 0 && shards.Cuts[i] != nil {
			lies = xla.Shard(shards.Cuts[i].Axis, shards.Axis)
			if value, err = shards.Cuts[i].Stack(value); err != nil {
				t.Fatal(err)
			}
			tree[i].Shape = shards.Cuts[i].Part(s.Shape) // a device's
		}
		on, args = append(on, lies), append(args, value)
	}
	text := tensors.FromShape(shapes.Make(dtypes.Int32, batch, c.Seq))
	gives := []xla.Placement{xla.Replicated()}
	if backward {
		gives = append(gives, on...)
	}
	program := must.Get(xla.Compile(mesh, func(in []*graph.Node) []*graph.Node {
		p := in[:len(tree)]
		loss := m.Loss(tree.Nodes(p), in[len(tree)], in[len(tree)+1])
		if !backward {
			return []*graph.Node{loss}
		}
		return append([]*graph.Node{loss}, graph.Gradient(loss, p...)...)
	}, xla.In(append(slices.Clone(on), xla.Shard(0, train.Axis), xla.Shard(0, train.Axis))...).Gives(gives...)))(t)
	t.Cleanup(program.Close)
	must.Do(t, program.Prepare(append(args, text, text)...))
	return program
}

// traffic is the collectives by kind.
type traffic map[xla.CollectiveKind]xla.Traffic

func (of traffic) add(kind xla.CollectiveKind, count, bytes int) {
	of[kind] = xla.Traffic{Kind: kind, Count: of[kind].Count + count, Bytes: of[kind].Bytes + int64(bytes)}
}

// theory is the traffic of the passes of a model for a batch of n sequences.
func (w way) theory(t testing.TB, c gpt.Config, batch int, backward bool) traffic {
	t.Helper()
	of, ring, ulysses, n := traffic{}, max(1, w.ring), max(1, w.ulysses), max(1, w.tensor)
	batch /= max(1, w.data)
	local := w.placement.Local(c.Seq, ring*ulysses) // tokens
	keys := max(1, c.KVHeads)
	if c.KVHeads == 0 {
		keys = c.Heads
	}
	if n > 1 {
		// (Shoeybi et al. 2019, §3): each block all-reduces x twice, the embedding once, and the loss three numbers per
		// token.
		x, passes := 4*batch*local*c.Width, 1
		sums, heads := 2*c.Layers+1, 0
		if backward { // in the place of the embedding's sum, there is that of the head
			passes, heads = 2, 1
		}
		cuts := must.Get(w.model(c).Config.Rules().Cuts(c.Params(), n))(t)
		biases, whole := 1, 0 // whole: bytes of parameters that no rule cuts
		if c.NoBias {
			biases = 0
		}
		for i, s := range c.Params() {
			if cuts[i] == nil {
				whole += s.Size() * 4
			}
		}
		of.add(xla.AllToAll, 1, 4*n)
		of.add(xla.AllReduce, 2, 4*batch*local*3)
		// the gradients of key heads on several devices
		if backward && keys < n {
			of.add(xla.AllReduce, c.Layers, c.Layers*4*2*keys*(c.Width/c.Heads)*(c.Width+biases))
		}
		switch {
		case !w.sequence:
			all := 2*c.Layers*passes + 1 + heads
			of.add(xla.AllReduce, all, all*x)
		// (Korthikanti et al. 2022, §4.2.2): all-gathers and reduce-scatters replace all-reduces, also in the head
		default:
			gathers, scatters := 2*c.Layers+1, sums
			if backward {
				if gathers, scatters = 2*gathers, 2*scatters; !w.overlap {
					gathers += 2*c.Layers + 1 // what columns gathered, again
				}
				pieces := c.Layers + 1 // blocks and head
				if c.Positions != gpt.Rotary {
					pieces++
				}
				of.add(xla.AllReduce, pieces, whole)
			}
			if w.overlap { // all but the embedding's own are rings of n−1 permutes
				of.add(xla.Permute, (gathers+scatters-passes)*(n-1), (gathers+scatters-passes)*(n-1)*x/n)
				gathers, scatters = passes-1, 1
			}
			if gathers > 0 {
				of.add(xla.AllGather, gathers, gathers*x)
			}
			of.add(xla.ReduceScatter, scatters, scatters*x)
		}
	}
	group := w.model(c).Sequence
	forward, back := group.Traffic(sequence.Layer{Batch: batch, Tokens: c.Seq, Heads: c.Heads / n,
		KeyHeads: max(1, keys/n),
		Width:    c.Width / c.Heads, Type: dtypes.Float32}, ring, ulysses)
	if backward {
		forward = append(forward, back...)
	}
	for _, m := range forward {
		of.add(m.Kind, c.Layers*m.Count, c.Layers*int(m.Bytes))
	}
	for _, ranks := range []int{ring, ulysses} { // each device asks once where it is
		if ranks > 1 {
			of.add(xla.AllToAll, 1, 4*ranks)
		}
	}
	return of
}

// step is the traffic of a training step with AdamW, which also averages the loss and all gradients.
func (w way) step(t testing.TB, c gpt.Config, batch int, clips bool) traffic {
	t.Helper()
	of := w.theory(t, c, batch, true)
	if clips && w.tensor > 1 { // a sum of squares
		of.add(xla.AllReduce, 1, 4)
	}
	if n := max(1, w.data) * max(1, w.ring) * max(1, w.ulysses); n > 1 {
		shards := must.Get(w.model(c).Shards(w.mesh(t).AxisSize))(t)
		bytes := 4 // the loss
		for i, s := range c.Params() {
			var cut *params.Cut
			if len(shards.Cuts) > 0 {
				cut = shards.Cuts[i]
			}
			bytes += 4 * cut.Part(s.Shape).Size()
		}
		of.add(xla.AllReduce, 1, bytes)
	}
	return of
}

func report(t testing.TB, of interface{ Collectives() (xla.Report, error) }) traffic {
	t.Helper()
	r := must.Get(of.Collectives())(t)
	found := traffic{}
	for _, m := range r {
		found[m.Kind] = m
	}
	return found
}

// The devices send exactly the bytes that theory predicts, in the forward pass and in both passes. (The tests of
// equality compare full steps of models with another number of layers.)
func TestSharedTraffic(t *testing.T) {
	c := even
	c.Layers = 2
	for _, w := range []way{
		{tensor: 4},
		{tensor: 2, sequence: true},
		{ring: 3, ulysses: 2},
		{ring: 2, gather: true},
	} {
		for _, backward := range []bool{false, true} {
			if backward && (w.gather || w.tensor == 4) {
				continue // what TestSharedEqualsOneDeviceOdd compares has two layers as well
			}
			got, want := report(t, w.passes(t, c, 2, backward)), w.theory(t, c, 2, backward)
			if !maps.Equal(got, want) {
				t.Errorf("%v, backward %v: %v, want %v", w, backward, got, want)
			}
		}
	}
}
