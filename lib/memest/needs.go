package memest

import (
	"cmp"
	"slices"
	"strings"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/recompute"
)

// Temporary memory of the moments of the backward pass. These are XLA's buffers; custom kernels may need fewer.

const (
	residual    = "b*s*h*p/(c*r)"
	projections = "4*b*s*(a/t+2*ceil(k/t))*d/c" // queries, keys and values, in float32
	latent      = "4*b*s*a*(2*d+V)/(c*t)"       // the same with latent attention
)

// heads returns a formula of attention, or another for latent attention.
func (s Setup) heads(usual, latent string) string {
	if s.Model.KVRank > 0 {
		return latent
	}
	return usual
}

// loss is the memory of the last normalization, the head and the cross-entropy.
func (s *stage) loss() []need {
	return []need{
		{Logits, "last normalization", 1, residual},
		{Logits, "last normalization's statistics", 1, "4*4*b*s/(c*r)"},
		{Logits, "logits, their exponentials, and their gradient in two layouts", 4, "4*b*s*ceil(v/t)/c"},
	}
}

// mlp is the memory at the gradient of the MLP's activation: the gradients of its output and of its input. With experts
// it is that of all tokens of a device, and the gradient of each token's outputs.
func (s *stage) mlp(at int) []need {
	block := s.plan[at]
	n := need{Temporary, "gradients inside the MLP", 2, "4*b*s*f/(c*t)"}
	var copies []need
	if s.kind(at) == cost.Routed {
		n = need{Temporary, "gradients inside the experts", 2, "4*(K+S)*b*s*F/(c*t)"}
		copies = []need{{Temporary, "gradients of the experts' outputs", 1, "K*b*s*h*p/(c*t)"}}
	}
	half := s.Precision.Compute.IsHalfPrecision()
	switch {
	case s.Model.Gated && half && (s.Model.MLPBias || block.Has(recompute.Act)):
		n.count = 5 // two inputs in two layouts each, and the output
	case s.Model.Gated && half:
		n.count = 3
	case s.Model.Gated && !s.Model.MLPBias:
		n.count = 4 // two inputs in two layouts each
	case !s.Model.MLPBias:
		n.count = 3
	}
	// A gradient overwrites the activation's input if that was recomputed for it alone.
	inner := s.Model.Gated != s.Model.MLPBias && (!s.Model.Gated || block.Has(recompute.Mid))
	if s.Model.Activation == "relu" {
		inner = !s.Model.Gated && !s.Model.MLPBias
	}
	if inner && !half && !s.held() && block.Has(recompute.Up) && block.Has(recompute.Act) {
		n.count--
	}
	return append([]need{n}, copies...)
}

// scores is the memory at the softmax's gradient: the gradient of the weights, and that of the scores in two layouts.
func (s *stage) scores(recomputed bool) []need {
	n := need{Temporary, "gradients of the attention weights and scores", 3, "4*b*a*s*s/(c*t)"}
	if s.Flash {
		n = need{Temporary, "gradient of the attention's output", 1, s.heads("4*b*s*a*d/(c*t)", "4*b*s*a*V/(c*t)")}
	}
	needs := []need{n, {Temporary, "gradient of the values", 1, s.heads(projections, latent)}}
	if recomputed && s.Precision.Compute.IsHalfPrecision() && !s.Flash {
		needs = append(needs, need{Temporary, "scores in the half type", 1, "p*b*a*s*s/(c*t)"})
	}
	return needs
}

// projections is the memory at the gradient of the QKV projection: the gradients of queries, keys and values, each
// padded to the size of all three, and their sum in three layouts.
func (s *stage) projections() []need {
	return []need{{Temporary, "gradients of queries, keys and values", 6, s.heads(projections, latent)}}
}

// held reports whether the update needs all gradients at once.
func (s *stage) held() bool {
	return s.Parallelism.Data > 1 || s.Clip || len(s.Precision.Scaling.States()) > 0
}

// gradients is the memory of gradients after the backward pass of the last blocks: residuals blocks have added to the
// gradient of the residual stream, and the parameter gradients of blocks blocks are complete. -1 is the moment before
// the head's gradient. XLA adds up the terms of the residual stream, two for each block and one for the head, only at
// the end. Parameter gradients count only where held: otherwise Compiled applies them at once. Planned lists them as
// states.
func (s *stage) gradients(residuals, blocks int) []need {
	var needs []need
	if s.first && s.Method == Compiled {
		needs = append(needs, need{Temporary, "gradient of the token table", 1, "4*ceil(v/t)*h"})
	}
	if s.Method == Compiled && !s.held() && !s.Precision.Mixed() {
		needs = append(needs, need{Temporary, "copies of weights that are updated while in use", 1, s.copied()})
	}
	if s.Method == Compiled {
		needs = append(needs, s.update()...)
	}
	if s.Method == Compiled && s.Precision.Mixed() {
		needs = append(needs, need{Temporary, "parameters in the type of the passes, of blocks", int64(len(s.plan)),
			"p*(" + s.elementsOf("h.") + ")"},
			need{Temporary, "parameters in the type of the passes, of the head", 1,
				"p*(" + s.elementsOf("lnf", "head") + ")"})
	}
	if blocks < 0 {
		return needs
	}
	needs = append(needs, need{Temporary, "gradients of the residual stream", int64(2*residuals + 1), residual})
	if s.Method == Compiled && s.held() {
		needs = append(needs, need{Temporary, "gradients of the head", 1, "4*(" + s.elementsOf("lnf", "head") + ")"},
			need{Temporary, "gradients of blocks", int64(blocks), "4*(" + s.elementsOf("h.") + ")"})
	}
	return needs
}

// end is the memory when the last gradient is complete: all gradients where they are held, and after a data-parallel
// all-reduce their means as well.
func (s *stage) end() []need {
	_, lamb := s.Optimizer.(optim.LAMBOptimizer)
	_, adafactor := s.Optimizer.(optim.AdafactorOptimizer)
	late := lamb || adafactor // these need norms of full parameters first, and XLA delays the updates
	if s.Method != Compiled || !late && !s.held() {
		return nil
	}
	needs := []need{
		{Temporary, "gradients outside of the blocks", 1, "4*(" + s.elementsOf("tok", "pos", "lnf", "head") + ")"},
		{Temporary, "gradients of blocks", int64(len(s.plan)), "4*(" + s.elementsOf("h.") + ")"},
	}
	if s.Parallelism.Data == 1 {
		needs = append(needs, need{Temporary, "gradients of the residual stream", int64(2*len(s.plan) + 1), residual})
		if s.held() {
			needs = append(needs, need{Temporary, "squares of the largest gradient", 1, "4*(" + s.largest() + ")"})
		}
		return needs
	}
	for _, n := range needs {
		n.kind, n.name = Communication, "means over the devices of "+n.name
		needs = append(needs, n)
	}
	return needs
}

// largest is the formula of the elements of the largest tensor.
func (s *stage) largest() string {
	return slices.MaxFunc(s.tensors, func(a, b tensor) int { return cmp.Compare(a.Size(), b.Size()) }).elements
}

// elementsOf is the formula of the elements of all tensors whose names have one of the prefixes; "0" if there is none.
func (s *stage) elementsOf(prefixes ...string) string {
	var found []string
	for _, t := range s.tensors {
		for _, p := range prefixes {
			if strings.HasPrefix(t.Name, p) {
				found = append(found, t.elements)
			}
		}
	}
	if found == nil {
		return "0"
	}
	return strings.Join(found, "+")
}

// block is the formula of the elements of the stage's largest block.
func (s *stage) block() string {
	var largest string
	most := int64(-1)
	for _, kind := range []cost.Part{cost.MLP, cost.Routed} {
		var terms []string
		size := int64(0)
		for _, t := range s.tensors {
			if strings.HasPrefix(t.Name, "h.") && (t.only() == "" || t.only() == kind) {
				terms, size = append(terms, t.elements), size+t.Size()
			}
		}
		if size > most {
			largest, most = strings.Join(terms, "+"), size
		}
	}
	return largest
}

// copied is the formula of the weights that XLA copies because the input gradient still needs them when they are
// updated in place. XLA reuses the buffers of earlier copies, so that only one of each size counts.
func (s *stage) copied() string {
	var found []string
	seen := map[int64]bool{}
	for _, t := range s.tensors {
		if strings.HasPrefix(t.Name, "h.") && strings.HasSuffix(t.Name, ".w") && !seen[t.Size()] {
			seen[t.Size()] = true
			found = append(found, t.elements)
		}
	}
	return "4*(" + strings.Join(found, "+") + ")"
}

// update is the memory of the optimizer's update. Adam and SGD are fused loops over each parameter and need none.
func (s *stage) update() []need {
	switch s.Optimizer.(type) {
	case optim.Adam8bitOptimizer:
		return []need{
			{Temporary, "both means of blocks in float32", int64(len(s.plan)), "8*(" + s.elementsOf("h.") + ")"},
			{Temporary, "both means in float32, outside of the blocks", 1,
				"8*(" + s.elementsOf("tok", "pos", "lnf", "head") + ")"},
		}
	case optim.LionOptimizer, optim.LAMBOptimizer, optim.AdafactorOptimizer:
		return []need{{Temporary, "update of the largest parameter", 1, "4*(" + s.largest() + ")"}}
	}
	return nil
}
