// Package offload keeps in the host's memory what a device does not need for a while: the inputs of blocks between
// their passes, the optimizer's states, or both; and it has the host make the updates.
//
//   - Activations on the host: vDNN (Rhu et al. 2016, "vDNN: Virtualized Deep Neural Networks for Scalable,
//     Memory-Efficient Neural Network Design", §III) and, for the inputs of recomputed blocks, ZeRO-R's P_a+cpu
//     (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", §6.1).
//   - Updates on the host: ZeRO-Offload (Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training",
//     §3 and §4.1). Gradients go down, parameters come up, and states never move.
//   - Optimizer states on the host and the update on the device: the states go up and down around it, which moves more
//     but needs no processor that can compute the rule.
//
// Each is a rewrite of a plan ([Inputs], [States], [Updates], [UpdateAtOnce]), and goes with any layout: [Host] puts
// them together, and parallel.Layout has one. [New] trains on one device.
//
// What a transfer is: an array of the device is copied to memory of the host and freed, and the other way round. Where
// the device is a CPU, its memory and the host's are the same RAM: the copies are real, but each costs a memcpy, not a
// way over PCIe, and no RAM is saved. [Options].Bandwidth simulates a slower link. How many bytes lie on the device is
// the same as on a GPU.
package offload

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Host says what lies in the host's memory, or is done by the host. The zero value is nothing.
type Host struct {
	// Activations are the inputs of blocks between their passes. That of the last block stays on the device, since its
	// passes follow each other.
	Activations bool `json:"activations,omitempty"`
	// Optimizer is the optimizer's states, and the master copy of the parameters where there is one. Each unit is
	// updated as soon as its gradients are complete.
	Optimizer bool `json:"optimizer,omitempty"`
	// Update is the update, and with it the optimizer's states and a master copy of the parameters. It is computed in
	// plain Go.
	Update bool `json:"update,omitempty"`
	// Prefetch is how many passes ahead of the device's work data may be on their way to it, and how many transfers may
	// be on their way to the host; a block that is computed again right before its backward pass is one pass with it.
	// With 0 the device waits for each. The results are the same.
	Prefetch int `json:"prefetch,omitempty"`
}

// Validate returns an error that says what is not valid, with its value and what to do.
func (h Host) Validate() error {
	if h.Prefetch < 0 {
		return fmt.Errorf("offload: Host.Prefetch is %d: set it to a number of passes, at least 0", h.Prefetch)
	}
	return nil
}

// Into writes it into a plan. A recipe that clips gradients or scales losses has the host update all units at once,
// behind all passes; else each is updated as soon as its gradients have come.
func (h Host) Into(p *step.Plan, recipe train.Recipe) *step.Plan {
	switch {
	case h.Update && recipe.NeedsAllGradients():
		p = Updates(p, h.Prefetch)
	case h.Update:
		p = Updates(UpdateAtOnce(p), h.Prefetch)
	case h.Optimizer:
		p = States(p, h.Prefetch)
	}
	if h.Activations {
		p = Inputs(p, h.Prefetch)
	}
	return p
}

// Options say what [New] keeps where.
type Options struct {
	Host
	// Bandwidth, where it is not 0, makes each transfer take at least its bytes divided by it, in bytes per second: a
	// simulated link, slower than the real one, whose two directions do not disturb each other.
	Bandwidth float64
	// Timeout is how long one pass may take, and an update twice as long; 0 is an hour.
	Timeout time.Duration
	// Trace, where it is not nil, gets spans of rank 0 on the streams "compute" (the device's work), "to host", "to
	// device", "host" (updates there) and "wait" (the device has no work, for want of data or of room), and counters of
	// the bytes of each kind: on the device as "optimizer", on the host as "host optimizer".
	Trace *trace.Recorder
}

// Plan is what [New] has the device and the host do in a step, and when. It needs no devices.
func (o Options) Plan(r train.Recipe) (*step.Plan, error) {
	s, err := o.spec(r)
	if err != nil {
		return nil, err
	}
	return s.Plans[0], nil
}

// New starts a run of a recipe on the backend's first device. The device computes block by block, and each block again
// for its backward pass: only inputs of blocks are kept between the passes. Each unit is updated as soon as its
// gradients are complete, unless the recipe clips or scales; the optimizer's states then cannot be on the host without
// the update.
func New(ctx context.Context, backend *xla.Backend, r train.Recipe, o Options) (train.Trainer, error) {
	s, err := o.spec(r)
	if err != nil {
		return nil, err
	}
	return engine.Start(ctx, backend, s)
}

// spec is a run of a recipe, as the engine has it.
func (o Options) spec(r train.Recipe) (s engine.Spec, err error) {
	if err := o.Validate(); err != nil {
		return s, err
	}
	if !(o.Bandwidth >= 0 && o.Bandwidth < math.Inf(1)) {
		return s, fmt.Errorf("offload: Options.Bandwidth is %g: "+
			"set it to bytes per second, or to 0 for no simulated link", o.Bandwidth)
	}
	if s, err = engine.Alone(r, 1); err != nil {
		return s, err
	}
	p := recompute.Blocks(s.Plans[0])
	if !r.NeedsAllGradients() && !o.Optimizer && !o.Update {
		p = UpdateAtOnce(p)
	}
	s.Options = engine.Options{Blockwise: true, HostLink: o.Bandwidth, Timeout: o.Timeout, Trace: o.Trace}
	return s.Checked(o.Into(p, r))
}
