package pipeline

import (
	"fmt"

	"github.com/shardbook/shardbook/lib/step"
)

// maxPasses bounds the passes of a schedule.
const maxPasses = 1 << 20

// builder builds the lists of a schedule.
type builder struct{ *step.Plan }

// blank returns a schedule with empty lists. A rank has chunks stages, each with about passes operations per
// micro-batch.
func blank(kind Kind, ranks, microbatches, chunks, passes int) (builder, error) {
	for _, size := range []struct {
		name  string
		value int
	}{{"ranks", ranks}, {"micro-batches", microbatches}, {"chunks a rank", chunks}} {
		if size.value < 1 {
			return builder{}, fmt.Errorf("schedule %s: %d %s: ask for at least 1", kind, size.value, size.name)
		}
		if size.value > maxPasses {
			return builder{}, fmt.Errorf("schedule %s: %d %s: ask for at most %d", kind, size.value, size.name,
				maxPasses)
		}
	}
	// Divisions, since a product may overflow.
	if maxPasses/passes/ranks/microbatches/chunks == 0 {
		return builder{}, fmt.Errorf(
			"schedule %s: %d ranks, %d micro-batches and %d chunks a rank make more than %d passes: ask for fewer",
			kind, ranks, microbatches, chunks, maxPasses)
	}
	p := &step.Plan{Name: string(kind), Micro: microbatches, Every: microbatches, Weights: step.Flush,
		Ranks: make([][]step.Op, ranks)}
	p.Blocks, p.Units = step.Blocks(ranks * chunks)
	return builder{p}, nil
}

// do appends a stage's pass or update to a rank's list.
func (b builder) do(rank int, kind step.Kind, stage, microbatch int) {
	op := step.Op{Kind: kind, Block: stage, Micro: microbatch}
	if kind == step.Update {
		op.Block, op.Unit = 0, stage
	}
	b.Ranks[rank] = append(b.Ranks[rank], op)
}

// flush ends each rank's list with an update of each of its stages.
func (b builder) flush() *step.Plan {
	for r := range b.Ranks {
		for _, stage := range b.On(r) {
			b.do(r, step.Update, stage, b.Micro-1)
		}
	}
	return b.Plan
}

// looped builds a schedule with stage s on rank s mod ranks. Groups of micro-batches go through the chunks depth first:
// a group goes through all chunks of a rank, then the next group; the last group may be smaller. Backward passes start
// with the last chunk. After ahead(rank) forward passes each rank alternates between backward and forward passes.
func looped(kind Kind, ranks, microbatches, chunks, group int, ahead func(rank int) int) (*step.Plan, error) {
	b, err := blank(kind, ranks, microbatches, chunks, 2)
	if err != nil {
		return nil, err
	}
	b.looped(group, ahead, func(step.Op) {})
	return b.flush(), nil
}

// looped calls did after each backward pass.
func (b builder) looped(group int, ahead func(rank int) int, did func(back step.Op)) {
	for r := range b.Ranks {
		forward, backward := b.order(r, group, step.Forward), b.order(r, group, step.Backward)
		first := min(ahead(r), len(forward))
		b.Ranks[r] = append(b.Ranks[r], forward[:first]...)
		for i, back := range backward {
			b.Ranks[r] = append(b.Ranks[r], forward[min(i+first, len(forward)):min(i+first+1, len(forward))]...)
			b.Ranks[r] = append(b.Ranks[r], back)
			did(back)
		}
	}
}

// order returns a rank's passes of one kind.
func (b builder) order(rank, group int, kind step.Kind) (order []step.Op) {
	ranks := len(b.Ranks)
	chunks := len(b.Blocks) / ranks
	for first := 0; first < b.Micro; first += group {
		for c := range chunks {
			if kind != step.Forward {
				c = chunks - 1 - c
			}
			for m := first; m < min(first+group, b.Micro); m++ {
				order = append(order, step.Op{Kind: kind, Block: c*ranks + rank, Micro: m})
			}
		}
	}
	return order
}

// all is more forward passes than there are.
func all(int) int { return maxPasses }

// oneFOneB returns the number of forward passes of a rank before 1F1B alternates.
func oneFOneB(ranks int) func(rank int) int { return func(r int) int { return ranks - r - 1 } }

// Naive is model parallelism without pipelining: one micro-batch goes forward through all stages and back, then the
// next. One rank works at a time (Huang et al. 2019, "GPipe", figure 2b).
func Naive(ranks, microbatches int) (*step.Plan, error) {
	return looped(KindNaive, ranks, microbatches, 1, 1, func(int) int { return 0 })
}

// GPipe runs all forward passes, then all backward passes (Huang et al. 2019, "GPipe", §2.3, figure 2c). The paper's
// figure goes back through the micro-batches in descending order; here it is ascending, as in all schedules of this
// package, so that all accumulate gradients in the same order. The time is the same.
func GPipe(ranks, microbatches int) (*step.Plan, error) {
	return looped(KindGPipe, ranks, microbatches, 1, microbatches, all)
}

// OneFOneB is 1F1B with a flush: after some forward passes, each rank alternates between backward and forward passes
// (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", §2.2.1, there
// PipeDream-flush). It takes as long as [GPipe], but rank r saves the activations of at most min(ranks-r, microbatches)
// micro-batches.
func OneFOneB(ranks, microbatches int) (*step.Plan, error) {
	return looped(Kind1F1B, ranks, microbatches, 1, microbatches, oneFOneB(ranks))
}

// Interleaved is 1F1B with several stages per rank: stage s is on rank s mod ranks, so a micro-batch passes each rank
// chunks times, and the bubble is chunks times smaller (Narayanan et al. 2021, "Efficient Large-Scale Language Model
// Training on GPU Clusters", §2.2.2). Micro-batches go through all chunks in groups of ranks, so their number must be a
// multiple of ranks. With one chunk it is 1F1B, for any number.
func Interleaved(ranks, microbatches, chunks int) (*step.Plan, error) {
	if chunks == 1 {
		return looped(KindInterleaved, ranks, microbatches, 1, ranks, oneFOneB(ranks))
	}
	// The first backward pass is that of the last stage for micro-batch 0, which first takes chunks-1 rounds of a
	// group, and the way to the last rank and back.
	p, err := looped(KindInterleaved, ranks, microbatches, chunks, ranks,
		func(r int) int { return (chunks-1)*ranks + 2*(ranks-r-1) })
	if err == nil && microbatches%ranks != 0 {
		would := fmt.Sprint(ranks)
		if below := microbatches / ranks * ranks; below > 0 {
			would = fmt.Sprintf("%d or %d", below, below+ranks)
		}
		return nil, fmt.Errorf("schedule %s: %d micro-batches are not a multiple of %d ranks: use %s",
			KindInterleaved, microbatches, ranks, would)
	}
	return p, err
}

// BreadthFirst sends all micro-batches through one chunk before the next chunk begins, forward and then back
// (Lamy-Poirier 2022, "Breadth-First Pipeline Parallelism", §4). Stage s is on rank s mod ranks. A chunk's weights are
// needed, and its gradients complete, once per step, which suits sharded data parallelism.
func BreadthFirst(ranks, microbatches, chunks int) (*step.Plan, error) {
	return looped(KindBreadthFirst, ranks, microbatches, chunks, microbatches, all)
}

// Looped has the stages of [Interleaved], and runs all forward passes before all backward passes, both depth first:
// groups of ranks micro-batches go through all chunks, backward from the last. It takes any number of micro-batches;
// the last group may be smaller.
func Looped(ranks, microbatches, chunks int) (*step.Plan, error) {
	return looped(KindLooped, ranks, microbatches, chunks, ranks, all)
}

// PipeDream is asynchronous 1F1B without a flush: each stage is updated after each micro-batch's backward pass, so
// there is no bubble except at the start and end of training (Narayanan et al. 2019, "PipeDream", §3.2). Both passes of
// a micro-batch use the same version of the weights (§3.3): the newest one when its forward pass begins ([step.Stash]),
// or, if vertical, the version that the first stage used ([step.Vertical]).
func PipeDream(ranks, microbatches int, vertical bool) (*step.Plan, error) {
	if vertical {
		return unflushed(KindPipeDreamVertical, ranks, microbatches, 1, step.Vertical)
	}
	return unflushed(KindPipeDream, ranks, microbatches, 1, step.Stash)
}

// TwoBW is PipeDream-2BW: asynchronous 1F1B with an update after each batch of "every" micro-batches, whose gradients use
// the version of the weights before the newest (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN
// Training", §3.1). Micro-batch i, in batch t = i/every, uses version max(t-1, 0), so W(t+1) = W(t) - v·∇f(W(t-1)). A
// rank stores at most two versions. This requires every >= ranks; microbatches must be a multiple of every.
func TwoBW(ranks, microbatches, every int) (*step.Plan, error) {
	p, err := unflushed(Kind2BW, ranks, microbatches, every, step.Double)
	switch {
	case err != nil:
	case every < ranks:
		return nil, fmt.Errorf("schedule %s: an update every %d micro-batches is too often for %d ranks "+
			"with two versions of the weights: use at least %d", Kind2BW, every, ranks, ranks)
	case microbatches%every != 0:
		return nil, fmt.Errorf("schedule %s: %d micro-batches are not a multiple of the %d of an update: use %d",
			Kind2BW, microbatches, every, (microbatches/every+1)*every)
	}
	return p, err
}

// unflushed is 1F1B with an update of each stage after the backward passes of every micro-batches.
func unflushed(kind Kind, ranks, microbatches, every int, weights step.Weights) (*step.Plan, error) {
	b, err := blank(kind, ranks, microbatches, 1, 3)
	if err != nil {
		return nil, err
	}
	b.Every, b.Weights = every, weights
	b.looped(microbatches, oneFOneB(ranks), func(back step.Op) {
		if (back.Micro+1)%max(every, 1) == 0 {
			b.do(back.Block, step.Update, back.Block, back.Micro)
		}
	})
	return b.Plan, nil
}
