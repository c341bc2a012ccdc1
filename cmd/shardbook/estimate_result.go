package main

import (
	"cmp"
	"fmt"

	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/memest"
)

// estimate is what --json prints. All sizes are bytes.
type estimate struct {
	Unit  string `json:"unit"`
	Total int64  `json:"total_bytes_per_device"` // of the stage whose devices need most
	Host  int64  `json:"host_bytes_per_device"`  // host memory that one of them uses

	Devices    int         `json:"devices"`
	Parameters int64       `json:"parameters"` // of the model
	Model      *cost.Model `json:"model,omitempty"`

	// Items are the lines of a device of that stage, whose sum is the total; HostItems are those in host memory.
	Items       []estimateItem  `json:"items"`
	HostItems   []estimateItem  `json:"host_items,omitempty"`
	WorstMoment string          `json:"worst_moment,omitempty"` // of the stage's step
	Stages      []estimateStage `json:"stages"`

	Fits []fit `json:"fits_on"`
	// RecomputeNote says that --recompute auto found no policy with which the run fits.
	RecomputeNote string `json:"recompute_note,omitempty"`
	// Advice lists single changes. Combined, if no single change suffices, lists changes to make together.
	Advice      []change         `json:"advice,omitempty"`
	Combined    []change         `json:"advice_combined,omitempty"`
	Compute     compute          `json:"compute"`
	Conventions []convention     `json:"conventions,omitempty"`
	Settings    estimateSettings `json:"settings"` // as --file takes them

	advised bool // advice is requested or needed
}

type estimateItem struct {
	Stage int `json:"stage"`
	memest.Item
}

type estimateStage struct {
	memest.Stage
	Bytes int64 `json:"bytes"`
	Host  int64 `json:"host_bytes"`
}

// fit reports whether the run fits in a device's memory.
type fit struct {
	Device string `json:"device,omitempty"`
	Bytes  int64  `json:"memory_bytes"`
	Fits   bool   `json:"fits"`
}

// change is a change that saves memory.
type change struct {
	What  string `json:"what"`
	Cost  string `json:"cost"`
	Bytes int64  `json:"bytes_per_device"` // after this change; in Combined also after the earlier ones
	Fits  *bool  `json:"fits,omitempty"`   // within the memory, if a flag gives it
}

// estimate computes the estimate.
func (r *estimateRequest) estimate(o estimateOptions) (*estimate, error) {
	model, parameters, err := r.model()
	if err != nil {
		return nil, err
	}
	setup, err := r.setup()
	if err != nil {
		return nil, err
	}
	device, budget, err := r.memory()
	if err != nil {
		return nil, err
	}
	if model != nil {
		setup.Model, setup.Seq = *model, cmp.Or(setup.Seq, model.Context)
	}
	auto := r.Recompute == "auto"
	if auto {
		if r.Recompute, err = chooseRecompute(setup, budget); err != nil {
			return nil, err
		}
		setup.Recompute = r.Recompute
	}
	var ledger memest.Ledger
	if model == nil {
		ledger, err = memest.OfParameters(parameters, setup)
	} else {
		ledger, err = memest.Estimate(setup)
	}
	if err != nil {
		return nil, err
	}
	e := &estimate{Unit: "bytes", Parameters: parameters, Model: model, Settings: r.estimateSettings}
	if e.Devices, err = devicesOf(setup.Parallelism); err != nil {
		return nil, err
	}
	e.list(ledger)
	e.fits(device, budget)
	if auto && e.Total > budget {
		e.RecomputeNote = fmt.Sprintf("No recomputation was found that alone makes it fit; this is with %q.",
			r.Recompute)
	}
	if e.advised = o.advise || budget > 0 && e.Total > budget; e.advised && model != nil {
		if err := e.advise(setup, budget); err != nil {
			return nil, err
		}
	}
	if e.Compute, err = r.compute(e, setup.Seq); err != nil {
		return nil, err
	}
	if o.compare {
		e.Conventions = conventions(setup, model, parameters)
	}
	return e, nil
}

// devicesOf returns the number of devices of a layout, or an error if it overflows an int.
func devicesOf(l memest.Parallelism) (int, error) {
	if n := float64(l.Data) * float64(l.Tensor) * float64(l.Context) * float64(l.Pipeline); n > 1<<40 {
		return 0, fmt.Errorf("--data, --tensor, --context and --pipe multiply to %g devices: give smaller numbers", n)
	}
	return l.Devices(), nil
}

// list copies the lines of the ledger.
func (e *estimate) list(ledger memest.Ledger) {
	for _, s := range ledger.Stages {
		e.Stages = append(e.Stages, estimateStage{s, s.Bytes(), s.HostBytes()})
	}
	largest := ledger.Largest()
	e.Total, e.Host, e.Items, e.WorstMoment = largest.Bytes(), largest.HostBytes(), []estimateItem{}, largest.Moment
	for _, it := range largest.Items {
		line := estimateItem{largest.Index, it}
		if it.Host {
			e.HostItems = append(e.HostItems, line)
		} else {
			e.Items = append(e.Items, line)
		}
	}
}
