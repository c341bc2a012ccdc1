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
	add := func(name string, items []memest.Item, err error) {
		if err != nil {
			all = append(all, convention{Name: name, Problem: err.Error()})
			return
		}
		all = append(all, convention{Name: name, Items: items, Bytes: memest.Stage{Items: items}.Bytes()})
	}
	l := s.Parallelism
	shared := int64(l.Tensor * l.Pipeline)
	each := (parameters + shared - 1) / shared // "Ψ" of a data-parallel rank

	items, err := memest.ZeRO{Params: each, Stage: l.ZeRO, Devices: l.Data * l.Context}.States()
	add("ZeRO paper", items, err)
	if l.ZeRO >= 2 {
		d := memest.DeepSpeed{Stage: l.ZeRO, Params: each, GPUsPerNode: l.Data * l.Context,
			OffloadOptimizer: s.OffloadOptimizer}
		if m != nil {
			d.LargestLayer = largestTensor(*m) / int64(l.Tensor)
		}
		if items, err = d.States(); m == nil && l.ZeRO == 3 {
			err = errors.New("it needs the largest layer: give the model's sizes")
		}
		add("DeepSpeed", items, err)
	}
	alone := memest.Accelerate{Size: 4 * parameters, DType: "float16"}
	if s.Precision.Compute == dtypes.Float32 {
		alone.DType = "float32"
	}
	if m != nil {
		alone.Size -= 4 * m.Params().Head
	}
	items, err = alone.Training()
	add("accelerate, on one device", items, err)

	notes := memest.Notes{Params: parameters}
	items, err = notes.States()
	add("course notes, on one device", items, err)
	if m == nil {
		return all
	}
	notes = memest.Notes{Layers: m.Layers, Width: m.Width, Heads: m.Heads, Sequence: s.Seq, Batch: s.Batch,
		Precision: s.Precision.Compute.Size()}
	for _, r := range memest.Readings() {
		items, err = notes.Activations(r)
		add("course notes, "+string(r), items, err)
	}
	items, err = korthikanti(s)
	add("Korthikanti et al. 2022", items, err)
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
			Recompute: again,
			Pipeline:  l.Pipeline, Chunks: l.Chunks}.FirstStage()
	}
}
