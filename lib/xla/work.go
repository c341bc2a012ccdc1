package xla

// Operation is an operation of a compiled program that XLA runs as one, and for which a profile has events.
//
// FLOPs are counted as follows:
//   - a matmul: 2·M·N·K, for each index of the batch; a convolution likewise, 2 for each multiplication, including the
//     padding's;
//   - an elementwise operation, such as an addition, an exponential, a comparison or a conversion: 1 per element;
//   - a reduction of n elements to m: n−m times the operation on two elements; over windows of w to m: m·(w−1) times; a
//     scatter: once per element that it adds; sorting n elements along an axis: ⌈log₂ n⌉ comparisons per element;
//   - an all-reduce or reduce-scatter: 1 per element of a device's input;
//   - operations that move data: 0, and so are custom calls, but for cuBLAS's matmuls, cuDNN's attention and the
//     kernels that this package calls for matmuls and sums on CPUs.
//
// Bytes are the least that must move between memory and the device: the parts of the operands that are read and of the
// results that are written, each once. A slice reads only the slice, and an update in place copies nothing else. Inside
// a fusion nothing moves.
type Operation struct {
	Module, Name string // as XLA, and the events of a profile, name them
	Kind         string // "dot", "fusion", "reduce", "custom-call" and so on; of our own kernels "dot" and "reduce"

	Target string // what a custom call calls, such as "__cublas$lt$matmul"

	FLOPs float64 // of one run, on one device
	Bytes int64   // of one run, on one device

	// Runs per run of the program: more than 1 in loops. Of a loop whose length XLA does not know one iteration
	// counts, and of a conditional every branch.
	Runs float64
}

// Operations lists the operations of the program that was most recently compiled or run, after XLA's optimizations. It
// includes those inside loops and branches, but not the loops themselves or operations for which nothing runs. It
// returns an error before the first Call or Prepare, and after Close.
func (p *Program) Operations() ([]Operation, error) {
	return latest(&p.compiled, (*executable).operations)
}

// Work is what one run of a program does on one device.
type Work struct {
	FLOPs, Bytes float64 // see Operation
}

// Work sums the operations, each times its runs. It returns an error where Operations does.
func (p *Program) Work() (Work, error) {
	operations, err := p.Operations()
	if err != nil {
		return Work{}, err
	}
	var w Work
	for _, o := range operations {
		w.FLOPs += o.Runs * o.FLOPs
		w.Bytes += o.Runs * float64(o.Bytes)
	}
	return w, nil
}
