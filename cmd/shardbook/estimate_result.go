package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/memest"
)

// estimate is what --json prints. All sizes are bytes.
type estimate struct {
	Unit  string `json:"unit"`
	Total int64  `json:"total_bytes_per_device"` // of the stage whose devices need most
	Host  int64  `json:"host_bytes_per_device"`  // host memory that one of them uses

	Devices    int         `json:"devices"`
	Parameters int64       `json:"parameters"`        // of the model
	Active     int64       `json:"active_parameters"` // those that a token passes through
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
	Advice      []change       `json:"advice,omitempty"`
	Combined    []change       `json:"advice_combined,omitempty"`
	Compute     compute        `json:"compute"`
	Conventions []convention   `json:"conventions,omitempty"`
	Settings    map[string]any `json:"settings"` // as --file takes them

	request *estimateRequest
	largest memest.Stage // that of the total
	advised bool         // advice is requested or needed
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

// compute is the FLOPs of training without recomputation.
type compute struct {
	FLOPsPerToken float64 `json:"flops_per_token"`
	Tokens        int64   `json:"tokens,omitempty"`
	FLOPs         float64 `json:"flops,omitempty"` // of all tokens
	// Seconds is the training time on the devices at this fraction of their peak.
	Seconds     cost.Seconds `json:"seconds,omitempty"`
	Utilization float64      `json:"utilization,omitempty"`
	// Note says why there is no time although it was requested.
	Note string `json:"note,omitempty"`
}

// estimate computes the estimate.
func (r *estimateRequest) estimate() (*estimate, error) {
	model, parameters, err := r.theModel()
	if err != nil {
		return nil, err
	}
	if err := r.complete(model); err != nil {
		return nil, err
	}
	device, budget, err := r.limit()
	if err != nil {
		return nil, err
	}
	auto := r.setup.Recompute == "auto"
	if auto {
		if err := r.chooseRecompute(budget); err != nil {
			return nil, err
		}
	}
	var ledger memest.Ledger
	if model == nil {
		ledger, err = memest.OfParameters(parameters, r.setup)
	} else {
		ledger, err = memest.Estimate(r.setup)
	}
	if err != nil {
		return nil, err
	}
	e := &estimate{Unit: "bytes", Parameters: parameters, Active: parameters, Model: model, request: r,
		Settings: flags.Values(r.flags, job.GroupRun, job.GroupOutput)}
	if model != nil {
		e.Active = model.Params().Active()
	}
	l := r.setup.Parallelism
	if n := float64(l.Data) * float64(l.Tensor) * float64(l.Context) * float64(l.Pipeline); n > 1<<40 {
		return nil, fmt.Errorf("--data, --tensor, --context and --pipe multiply to %g devices: give smaller numbers", n)
	}
	e.Devices = l.Devices()
	e.list(ledger)
	e.fits(device, budget)
	if auto && e.Total > budget {
		e.RecomputeNote = fmt.Sprintf("No recomputation was found that alone makes it fit; this is with %q.",
			r.setup.Recompute)
	}
	if e.advised = r.advise || budget > 0 && e.Total > budget; e.advised && model != nil {
		if err := e.advise(budget); err != nil {
			return nil, err
		}
	}
	if e.Compute, err = e.compute(); err != nil {
		return nil, err
	}
	if r.compare {
		e.Conventions = conventions(r.setup, model, parameters)
	}
	return e, nil
}

// list copies the lines of the ledger.
func (e *estimate) list(ledger memest.Ledger) {
	for _, s := range ledger.Stages {
		e.Stages = append(e.Stages, estimateStage{s, s.Bytes(), s.HostBytes()})
	}
	largest := ledger.Largest()
	e.largest = largest
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

// fits compares the total with the budget, or without one with the memory of all accelerators.
func (e *estimate) fits(device string, budget int64) {
	if budget > 0 {
		e.Fits = []fit{{device, budget, e.Total <= budget}}
		return
	}
	for _, h := range cost.Accelerators() {
		e.Fits = append(e.Fits, fit{h.Name, h.MemoryBytes, e.Total <= h.MemoryBytes})
	}
}

// advise lists changes that save memory; a budget of 0 means none.
func (e *estimate) advise(budget int64) error {
	list := func(changes []memest.Change) (all []change) {
		for _, c := range changes {
			advice := change{What: c.What, Cost: c.Cost, Bytes: c.Bytes}
			if budget > 0 {
				advice.Fits = &c.Fits
			}
			all = append(all, advice)
		}
		return all
	}
	changes, err := memest.Advise(e.request.setup, budget)
	e.Advice = list(changes)
	enough := func(c memest.Change) bool { return c.Fits }
	if err != nil || budget == 0 || slices.ContainsFunc(changes, enough) {
		return err
	}
	changes, err = memest.Combine(e.request.setup, budget)
	e.Combined = list(changes)
	return err
}

// utilization is the assumed fraction of their peak that devices attain.
const utilization = 0.4

// compute returns the FLOPs of training: exactly for a known model, else 6 per parameter and token.
func (e *estimate) compute() (c compute, err error) {
	r := e.request
	forward, backward := cost.RoughFLOPs(float64(e.Parameters), 1)
	c.FLOPsPerToken = forward + backward
	if e.Model != nil {
		m := *e.Model
		m.Context = max(m.Context, r.setup.Seq)
		work, err := m.FLOPs(cost.Step{Sequences: 1, Length: r.setup.Seq})
		if err != nil {
			return c, err
		}
		c.FLOPsPerToken = work.Model() / float64(r.setup.Seq)
	}
	if r.tokens == "" {
		return c, nil
	}
	if c.Tokens, err = r.tokens.Count("tokens"); err != nil {
		return c, err
	}
	c.FLOPs = c.FLOPsPerToken * float64(c.Tokens)
	if r.device == "" {
		return c, nil
	}
	h, err := cost.Accelerator(r.device)
	if err != nil {
		return c, err
	}
	peak, err := h.PeakFLOPS(strings.TrimSuffix(strings.ToLower(r.precision), "-pure"))
	if err != nil {
		c.Note = fmt.Sprintf("How long that takes is not known: %v.", err)
		return c, nil
	}
	c.Utilization = utilization
	c.Seconds, err = cost.TrainingTime(c.FLOPs, e.Devices, peak, utilization)
	return c, err
}
