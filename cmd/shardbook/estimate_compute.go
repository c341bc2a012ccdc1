package main

import (
	"fmt"
	"strings"

	"github.com/shardbook/shardbook/lib/cost"
)

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

// utilization is the assumed fraction of their peak that devices attain.
const utilization = 0.4

// compute returns the FLOPs of training: exactly for a known model, else 6 per parameter and token.
func (r *estimateRequest) compute(e *estimate, seq int) (c compute, err error) {
	forward, backward := cost.RoughFLOPs(float64(e.Parameters), 1)
	c.FLOPsPerToken = forward + backward
	if e.Model != nil {
		m := *e.Model
		m.Context = max(m.Context, seq)
		work, err := m.FLOPs(cost.Step{Sequences: 1, Length: seq})
		if err != nil {
			return c, err
		}
		c.FLOPsPerToken = work.Model() / float64(seq)
	}
	if r.Tokens == "" {
		return c, nil
	}
	if c.Tokens, err = r.Tokens.Count("tokens"); err != nil {
		return c, err
	}
	c.FLOPs = c.FLOPsPerToken * float64(c.Tokens)
	if r.Device == "" {
		return c, nil
	}
	h, err := cost.Accelerator(r.Device)
	if err != nil {
		return c, err
	}
	peak, err := h.PeakFLOPS(strings.TrimSuffix(strings.ToLower(r.Precision), "-pure"))
	if err != nil {
		c.Note = fmt.Sprintf("How long that takes is not known: %v.", err)
		return c, nil
	}
	c.Utilization = utilization
	c.Seconds, err = cost.TrainingTime(c.FLOPs, e.Devices, peak, utilization)
	return c, err
}
