// Package offload trains a chain of blocks on one device, and keeps what is not needed for a while in the host's memory:
// the optimizer's states, the inputs of blocks between the two passes, or both.
//
// The device computes block by block, each with programs of its own: forward; backward, which computes the block again
// from its input and takes its gradients (so only inputs of blocks are kept between the passes); and update, right after
// the backward pass of the block, so that a gradient lives for one block only. Between them, what comes and goes is
// moved in the background, on a stream for each direction, up to [Options].Prefetch blocks ahead of its use.
//
//   - Activations on the host: vDNN (Rhu et al. 2016, "vDNN: Virtualized Deep Neural Networks for Scalable,
//     Memory-Efficient Neural Network Design", §III) and, for the inputs of recomputed blocks, ZeRO-R's P_a+cpu
//     (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", §6.1).
//   - Optimizer states on the host and the update there: ZeRO-Offload (Ren et al. 2021, "ZeRO-Offload: Democratizing
//     Billion-Scale Model Training", §3 and §4.1), on one device. Gradients go down, parameters come up.
//   - Optimizer states on the host and the update on the device: the states go up and down around it, which moves more
//     but needs no processor that can compute the rule.
//
// What a transfer is: the contents of a buffer of the device are copied to memory that Go owns, and the buffer is freed
// at once; and the other way round. Where the device is a CPU, its memory and the host's are the same RAM: the copies
// are real, but each costs a memcpy, not a way over PCIe, and no RAM is saved. [Options].Bandwidth simulates a slower
// link. How many bytes lie on the device is the same as on a GPU.
//
// What a run learns is what a train.Run learns: see [Run].
package offload

import (
	"errors"
	"fmt"
	"math"

	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/trace"
)

// Where says in which memory something is kept, or which processor computes it.
type Where int

const (
	Device Where = iota // the mesh's device
	Host                // the computer that the device belongs to
)

// String returns "device" or "host".
func (w Where) String() string {
	switch w {
	case Device:
		return "device"
	case Host:
		return "host"
	}
	return fmt.Sprintf("Where(%d)", int(w))
}

// Options say what is kept where. The zero value keeps everything on the device.
type Options struct {
	// Precision says in which types parameters are kept and the model computes; the zero value is float32 throughout.
	// In mixed precision the device holds the parameters in the type to compute in, and the master copy is one of the
	// optimizer's states. Loss scaling and stochastic rounding are not supported.
	Precision precision.Policy

	// Optimizer is where the optimizer's states are between their updates.
	Optimizer Where
	// Update is where they are updated. On the Host, which must have the states then, the rule's graph is computed by
	// GoMLX's backend in plain Go; a master copy of the parameters is kept there, too.
	Update Where
	// Activations is where the input of a block is between its forward and its backward pass. That of the last block
	// stays on the device, since its passes follow each other.
	Activations Where

	// Prefetch is how many blocks ahead of the device's work data may be on their way to it, and for how many blocks
	// behind it on their way to the host. With 0 the device waits for each transfer. The results are the same.
	Prefetch int
	// Bandwidth, where it is not 0, makes each transfer take at least its bytes divided by it, in bytes per second: a
	// simulated link, slower than the real one, whose two directions do not disturb each other.
	Bandwidth float64
	// Trace, where it is not nil, gets spans of rank 0 on the streams "compute" (the device's work), "to host", "to
	// device", "host" (updates there) and "wait" (the device has no work, for want of data or of room), and counters
	// of the bytes of each kind on the device and on the host, such as "device optimizer".
	Trace *trace.Recorder
}

// Validate returns an error that says what is not valid, with its value and what to do.
func (o Options) Validate() error {
	for _, w := range []struct {
		name  string
		where Where
	}{{"Optimizer", o.Optimizer}, {"Update", o.Update}, {"Activations", o.Activations}} {
		if w.where != Device && w.where != Host {
			return fmt.Errorf("offload: Options.%s is %s: set it to Device or Host", w.name, w.where)
		}
	}
	switch {
	case o.Update == Host && o.Optimizer == Device:
		return errors.New("offload: Options.Update is Host and Options.Optimizer is Device: set both to Host, or the update to Device")
	case o.Prefetch < 0:
		return fmt.Errorf("offload: Options.Prefetch is %d: set it to a number of blocks, at least 0", o.Prefetch)
	case !(o.Bandwidth >= 0 && o.Bandwidth < math.Inf(1)):
		return fmt.Errorf("offload: Options.Bandwidth is %g: set it to bytes per second, or to 0 for no simulated link", o.Bandwidth)
	case o.Precision.Scaling != precision.Scaling{}:
		return errors.New("offload: Options.Precision scales the loss: a block is updated before all gradients are known to be " +
			"finite, so use float32 or bfloat16")
	case o.Precision.StochasticUpdate:
		return errors.New("offload: Options.Precision rounds updates stochastically: keep a master copy instead")
	}
	return nil
}
