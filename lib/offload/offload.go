// Package offload moves what a device does not need for a while to host memory: the inputs of blocks between their
// passes, the optimizer states, or both. It can also update parameters on the host.
//
//   - Activations on the host: vDNN (Rhu et al. 2016, "vDNN: Virtualized Deep Neural Networks for Scalable,
//     Memory-Efficient Neural Network Design", §III) and, for the inputs of recomputed blocks, ZeRO-R's P_a+cpu
//     (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", §6.1).
//   - Updates on the host: ZeRO-Offload (Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training",
//     §3 and §4.1). Gradients are copied to the host and parameters back; optimizer states never move.
//   - Optimizer states on the host and updates on the device: states are copied to the device and back around each
//     update, which moves more bytes, but the host computes nothing.
//
// [New] trains on one device. Each technique rewrites a plan ([Inputs], [States], [Updates], [UpdateAtOnce]) and works
// with any layout: [Host] combines them, and parallel.Layout has a Host.
//
// A transfer copies an array of the device to host memory and frees it, or the reverse. If the device is a CPU, both
// memories are the same RAM: the copies are real, but cost a memcpy and not a way over PCIe, and save no RAM.
// [Options].Bandwidth simulates a slower link. The bytes on the device are the same as on a GPU.
package offload

import (
	"context"
	"fmt"
	"math"
	"time"

	_ "github.com/gomlx/compute/gobackend" // runs updates on the host

	"github.com/shardbook/shardbook/internal/engine"
	"github.com/shardbook/shardbook/lib/recompute"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Host says what is moved to host memory or computed there. The zero value is nothing.
type Host struct {
	// Activations moves the inputs of blocks between their passes. The input of the last block stays on the device,
	// since its passes follow each other.
	Activations bool `json:"activations,omitempty"`
	// Optimizer moves the optimizer states, and the master weights if there are any. Each unit is updated as soon as
	// its gradients are complete.
	Optimizer bool `json:"optimizer,omitempty"`
	// Update runs updates on the host, in plain Go, with optimizer states and master weights in host memory.
	Update bool `json:"update,omitempty"`
	// Prefetch is the number of passes by which data are fetched early, and the maximal number of transfers to the host
	// under way. A block's recomputation and its backward pass count as one pass. With 0 the device waits for each
	// transfer. The results are the same.
	Prefetch int `json:"prefetch,omitempty"`
}

// Validate returns an error that names the invalid field, its value and what to do.
func (h Host) Validate() error {
	if h.Prefetch < 0 {
		return fmt.Errorf("offload: Host.Prefetch is %d: set it to a number of passes, at least 0", h.Prefetch)
	}
	return nil
}

// Into rewrites a plan. If the recipe clips gradients or scales losses, the host updates all units after all passes;
// otherwise each unit as soon as its gradients have arrived.
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

// Options configure [New].
type Options struct {
	Host
	// Bandwidth, if not 0, simulates a link to the host of that many bytes per second and direction: each transfer
	// takes at least its bytes divided by Bandwidth.
	Bandwidth float64
	// Timeout is the maximal time of a pass; an update may take twice as long. 0 means an hour.
	Timeout time.Duration
	// Trace, if not nil, records spans of rank 0 on the streams "compute" (the device works), "to host", "to device",
	// "host" (updates there) and "wait" (the device waits for data or memory), and counters of the bytes of each kind:
	// "optimizer" on the device, "host optimizer" on the host.
	Trace *trace.Recorder
}

// Plan returns what the device and the host do in a training step. It needs no devices.
func (o Options) Plan(r train.Recipe) (*step.Plan, error) {
	s, err := o.spec(r)
	if err != nil {
		return nil, err
	}
	return s.Plans[0], nil
}

// New starts training on the backend's first device. The device computes block by block, saves only the inputs of
// blocks between the passes, and recomputes each block for its backward pass. Each unit is updated as soon as its
// gradients are complete, unless the recipe clips gradients or scales losses; the optimizer states then cannot be on
// the host without the update.
func New(ctx context.Context, backend *xla.Backend, r train.Recipe, o Options) (train.Trainer, error) {
	s, err := o.spec(r)
	if err != nil {
		return nil, err
	}
	return engine.Start(ctx, backend, s)
}

// spec returns the engine's description of a run.
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
