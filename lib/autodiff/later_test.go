package autodiff_test

import (
	"slices"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
)

// inThree returns the gradients of a piece by two programs after the forward one: the last input's by the first of
// them, as in a pipeline stage. If nothing was saved, all is recomputed.
func (p piece) inThree(t *testing.T, on compute.Backend, kept []*tensors.Tensor) (grads, left []*tensors.Tensor) {
	t.Helper()
	s := p.split()
	slices.Reverse(s.Of)
	of := func(in nodes) (own, v, known, rest nodes) {
		n, m := len(p.in), len(p.in)+len(p.v)
		if kept != nil {
			known = append(nodes{}, in[m:m+len(kept)]...)
		}
		return in[:n], in[n:m], known, in[m+len(kept):]
	}
	first := func(in nodes) nodes {
		own, v, known, _ := of(in)
		early, left := s.BackwardFirst(1, own, known, v)
		return append(slices.Clone(early), left...)
	}
	later := func(in nodes) nodes {
		own, v, known, left := of(in)
		return s.BackwardLater(1, own, known, v, left)
	}
	args := slices.Concat(p.in, p.v, kept)
	early := run(t, on, p.program("first"), first, args...)
	left = early[1:]
	rest := run(t, on, p.program("later"), later, slices.Concat(args, left)...)
	grads = append(early[:1:1], rest...)
	slices.Reverse(grads)
	return grads, left
}

// The gradients of three programs have the same bits as those of one, if operations run as they are written, whether
// the forward program saves something or all is recomputed.
func TestLater(t *testing.T) {
	leaving := 0
	check := func(p piece) {
		forward := run(t, devicetest.WithBarriers(), p.program("forward"), p.forward, p.in...)
		want := p.inOne(t, devicetest.WithBarriers())[len(p.v):]
		for _, kept := range [][]*tensors.Tensor{append([]*tensors.Tensor{}, forward[len(p.v):]...), nil} {
			got, left := p.inThree(t, devicetest.WithBarriers(), kept)
			sameBits(t, got, want)
			if len(left) > 0 {
				leaving++
			}
		}
	}
	for seed := range uint64(40) {
		if check(randomPiece(seed)); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if leaving < 40 {
		t.Errorf("only %d of 80 leave something for later", leaving)
	}
	for _, m := range models() {
		if m.name != "flash" && m.name != "loops" { // which need XLA
			if check(m.piece); t.Failed() {
				t.Fatal(m.name)
			}
		}
	}
}

// TestLaterOnXLA compares the number of matmuls with that of one backward program: none is computed twice.
func TestLaterOnXLA(t *testing.T) {
	for _, m := range models() {
		if !m.onXLA || m.name == "loops" { // which cannot be copied
			continue
		}
		m.name += "_later"
		got, kept := m.inTwo(t, devicetest.One())
		grads, _ := m.inThree(t, devicetest.One(), append([]*tensors.Tensor{}, kept...))
		for i, want := range got[len(m.v):] {
			if d := apart(grads[i], want); !(d <= 64*0x1p-23) {
				t.Errorf("%s: gradient %d differs by %g of its largest element", m.name, i, d)
			}
		}
		for _, op := range []string{"dot", "custom-call"} {
			first, later, both := m.count(t, "first", op), m.count(t, "later", op), m.count(t, "backward", op)
			if first+later != both {
				t.Errorf("%s: %d and %d operations %q in two programs, %d in one", m.name, first, later, op, both)
			}
		}
	}
}

// TestLaterTakesGradients has both programs multiply the output gradient of the same matmul: only the first one
// computes it.
func TestLaterTakesGradients(t *testing.T) {
	p := piece{name: "once", in: []*tensors.Tensor{random(1, 64, 64), random(2, 64, 64)},
		v:  []*tensors.Tensor{random(3, 64, 64)},
		fn: func(in nodes) nodes { return nodes{graph.Tanh(graph.Dot(in[0], in[1]).Product())} }}
	_, kept := p.inTwo(t, devicetest.One())
	if _, left := p.inThree(t, devicetest.One(), kept); len(left) != 1 {
		t.Errorf("%d values are left, want 1", len(left))
	}
	for which, want := range map[string]int{"first": 1, "later": 0} {
		if n := p.count(t, which, "tanh"); n != want {
			t.Errorf("%d times tanh in the %s program, want %d", n, which, want)
		}
	}
}
