package engine_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

// TestPredicted compares the bytes that ranks of one device send and hold with the predictions of their plans.
func TestPredicted(t *testing.T) {
	backend := devicetest.Open(t, 8)
	r := train.Recipe{Model: toy.Layers(6, false), Optimizer: optim.AdamW(1e-2)}
	m := r.Model.(chain.Model)
	// of a batch, of a layer, bytes of a float32, of a parameter that is not used
	const rows, width, number, idle = 8, 6, 4, 20
	for _, l := range layouts {
		if l.devices > 1 {
			continue
		}
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			spec := l.plan(t, m)
			spec.Recipe = r
			p := spec.Plans[0]
			s := step.Sizes{}
			for u, unit := range p.Units {
				shards, n := 1, 0
				if unit.Shard != "" {
					a, _ := p.Axis(unit.Shard)
					shards = a.Size
				}
				for _, at := range spec.Members[u] {
					n += (m.Params()[at].Size() + shards - 1) / shards * shards
				}
				full := int64(number * n)
				s.Full, s.Sum = append(s.Full, full), append(s.Sum, full)
				s.Reduced, s.Resident = append(s.Reduced, full/int64(shards)), append(s.Resident, full/int64(shards))
				s.States = append(s.States, 2*full/int64(shards))
			}
			if l.zero == 0 && !l.host { // the loss does not depend on all of the first block
				s.Sum[0] -= idle
				s.Reduced[0] -= idle
			}
			copies := max(1, l.ranks/max(1, l.pipe))
			s.Input = []int64{int64(number * width * rows / l.micro / copies)}
			sent, err := p.Traffic(s)
			check(t, err)
			held, err := p.Memory(s)
			check(t, err)
			run := start(t, backend, spec)
			in, out := toy.Batch(0, rows)
			_, err = run.Step(context.Background(), in, out)
			check(t, err)
			got, err := run.Traffic()
			check(t, err)
			want, most := map[string]int64{}, step.Bytes{} // of the rank that has most
			for i := range sent {
				for axis, n := range sent[i] {
					want[axis] = max(want[axis], n)
				}
				peak := held[i].Peak
				most.Parameters, most.Gathered = max(most.Parameters, peak.Parameters),
					max(most.Gathered, peak.Gathered)
				most.States = max(most.States, peak.States)
				most.Gradients = max(most.Gradients, peak.Gradients)
			}
			if !maps.Equal(got, want) {
				t.Errorf("%v bytes are sent, the plan says %v", got, want)
			}
			for kind, n := range map[memest.Kind]int64{memest.Optimizer: most.States,
				memest.Parameters: most.Parameters} {
				if l.zero > 0 && l.zero < 3 && kind == memest.Parameters {
					n = most.Gathered // what lies there between steps
				}
				if got := run.Memory()[kind]; got != n {
					t.Errorf("%s: %d bytes are held, the plan says %d", kind, got, n)
				}
			}
			// A rank alone has gradients inside of its one program, and what is staged is there twice for a while.
			if got := run.Memory()[memest.Gradients]; got != most.Gradients && l.ranks > 1 && !l.staged {
				t.Errorf("gradients: %d bytes are held, the plan says %d", got, most.Gradients)
			}
			if got := run.Memory()[memest.Communication]; l.zero == 3 && got != most.Gathered {
				t.Errorf("%d bytes of gathered parameters, the plan says %d", got, most.Gathered)
			}
			check(t, run.Close())
		})
	}
}

// TestRefused has what the engine cannot play, with what its errors name.
func TestRefused(t *testing.T) {
	m := toy.Layers(3, false)
	spec := func(change func(p *step.Plan)) engine.Spec {
		p, members := replicas(m, 2, 1)
		p.Inside(train.Axis, 2)
		for u := range p.Units {
			p.Units[u].Reduce = []string{train.Axis, "replica"}
		}
		change(p)
		return engine.Spec{Recipe: train.Recipe{Model: m, Optimizer: optim.SGD(1)},
			Plans:   []*step.Plan{ddp.Average(p, true, false)},
			Members: members}
	}
	check(t, engine.Check(spec(func(*step.Plan) {})))
	for name, c := range map[string]struct {
		spec engine.Spec
		says string
	}{
		"no plan": {engine.Spec{Recipe: train.Recipe{Model: m}}, "has no plans"},
		"order": {spec(func(p *step.Plan) { p.Units[1].Reduce = []string{"replica", train.Axis} }),
			`"replica", between ranks, before`},
		"two axes": {spec(func(p *step.Plan) { p.Units[0].Shard, p.Units[1].Shard = train.Axis, "replica" }),
			"along one axis"},
		"no axis": {spec(func(p *step.Plan) { p.Units[0].Shard = "nowhere" }), `"nowhere"`},
	} {
		if err := engine.Check(c.spec); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q in it", name, err, c.says)
		}
	}
}
