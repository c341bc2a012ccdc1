package main

import (
	"errors"
	"fmt"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/recompute"
)

// convention is the result of a published formula for the same run, which counts only what its source counts.
type convention struct {
	Name  string        `json:"name"`
	Items []memest.Item `json:"items,omitempty"`
	Bytes int64         `json:"bytes_per_device,omitempty"`
	// Problem says why the formula does not apply.
	Problem string `json:"problem,omitempty"`
}

// conventions lists the published formulas; without a model only those of model states.
func conventions(s memest.Setup, m *cost.Model, parameters int64) []convention {
	var all []convention
	add := func(name string) func([]memest.Item, error) {
		return func(items []memest.Item, err error) {
			c := convention{Name: name, Items: items, Bytes: memest.Stage{Items: items}.Bytes()}
			if err != nil {
				c = convention{Name: name, Problem: err.Error()}
			}
			all = append(all, c)
		}
	}
	l := s.Parallelism
	shared := int64(l.Tensor * l.Pipeline)
	each := (parameters + shared - 1) / shared // "Ψ" of a data-parallel rank

	ofMLPs := func(items []memest.Item, err error) ([]memest.Item, error) {
		if m != nil && m.Experts > 0 {
			return nil, errors.New("it is for models without experts")
		}
		return items, err
	}
	ofCopies := func(items []memest.Item, err error) ([]memest.Item, error) {
		if l.Expert > 1 {
			return nil, errors.New("it does not support expert parallelism")
		}
		return items, err
	}
	add("ZeRO paper")(ofCopies(memest.ZeRO{Params: each, Stage: l.ZeRO, Devices: l.Data * l.Context}.States()))
	d := memest.DeepSpeed{Stage: l.ZeRO, Params: each, GPUsPerNode: l.Data * l.Context,
		OffloadOptimizer: s.OffloadOptimizer}
	switch {
	case l.ZeRO == 3 && m == nil:
		add("DeepSpeed")(nil, errors.New("it needs the largest layer: give the model's sizes"))
	case l.ZeRO >= 2:
		if m != nil {
			d.LargestLayer = largestTensor(*m) / int64(l.Tensor)
		}
		add("DeepSpeed")(ofCopies(d.States()))
	}
	alone := memest.Accelerate{Size: 4 * parameters, DType: "float16"}
	if s.Precision.Compute == dtypes.Float32 {
		alone.DType = "float32"
	}
	if m != nil {
		alone.Size -= 4 * m.Params().Head
	}
	add("accelerate, on one device")(alone.Training())
	add("course notes, on one device")(memest.Notes{Params: parameters}.States())
	if m == nil {
		return all
	}
	notes := memest.Notes{Layers: m.Layers, Width: m.Width, Heads: m.Heads, Sequence: s.Seq, Batch: s.Batch,
		Precision: s.Precision.Compute.Size()}
	for _, r := range memest.Readings() {
		add("course notes, " + string(r))(ofMLPs(notes.Activations(r)))
	}
	add("Korthikanti et al. 2022")(korthikanti(s))
	return all
}

// largestTensor is the number of elements of the largest tensor.
func largestTensor(m cost.Model) int64 {
	var most int64
	for _, t := range m.Tensors() {
		most = max(most, t.Size())
	}
	return most
}

// korthikanti computes activations by the paper's formulas, if they cover the run.
func korthikanti(s memest.Setup) ([]memest.Item, error) {
	known := map[recompute.Policy]cost.Recompute{recompute.None: cost.Nothing, "none": cost.Nothing,
		recompute.Selective: cost.Selective, recompute.Block: cost.Full}
	again, ok := known[s.Recompute]
	switch l := s.Parallelism; {
	case !ok:
		return nil, fmt.Errorf("it supports recomputation of nothing, selective or block, not %q", s.Recompute)
	case l.Context > 1:
		return nil, errors.New("it does not support context parallelism")
	case l.Schedule != memest.OneFOneB && l.Schedule != memest.Interleaved:
		return nil, fmt.Errorf("it supports only the schedules %q and %q", memest.OneFOneB, memest.Interleaved)
	default:
		return memest.Korthikanti{Model: s.Model, Batch: s.Batch, Seq: s.Seq, Tensor: l.Tensor, SequenceParallel: l.Seq,
			Recompute: again, Pipeline: l.Pipeline, Chunks: l.Chunks}.FirstStage()
	}
}
