package cost

// Rates are the speeds of a device's computation and communication. Its methods compare the time of a communication
// with that of the computation that can hide it. They ignore latency. In formulas F is FLOPS, B Bandwidth, e
// ElementBytes.
type Rates struct {
	FLOPS        float64 // FLOPs a second: the peak, or what is attained
	Bandwidth    float64 // bytes a second that the device sends
	ElementBytes float64 // bytes of an element that is sent: 2 for bfloat16, 4 for float32
}

// Overlap compares a communication with the computation that runs at the same time.
type Overlap struct {
	Communication, Computation Seconds

	Ratio   float64 // Communication / Computation
	Hidden  bool    // Ratio < 1: the computation hides the communication, if that can start in time
	Formula string  // the formula of Ratio
}

// DataParallel compares the all-reduce of the gradients of P parameters among n replicas with the backward pass of T
// tokens on each replica:
//
//	communication   e·P·2(n−1)/n / B
//	computation     4·T·P / F
//	ratio           e/(2T) · (n−1)/n · F/B
//
// The ratio depends on tokens and replicas, not on the model. It is the same for one gradient bucket and the part of
// the backward pass that computes it. Nothing hides the last bucket, which is complete only after the pass. It returns
// an error unless all arguments and rates are positive.
func (r Rates) DataParallel(params, tokens float64, replicas int) (Overlap, error) {
	n := float64(replicas)
	return r.compare("e/(2T) · (n−1)/n · F/B", params*2*(n-1)/n, 4*tokens*params,
		quantity{"parameters", params}, quantity{"tokens", tokens}, quantity{"replicas", n})
}

// ZeRO3 compares the all-gather of the next block's P parameters, sharded over n ranks, with the forward pass of T
// tokens on each rank through the current block:
//
//	communication   e·P·(n−1)/n / B
//	computation     2·T·P / F
//	ratio           e/(2T) · (n−1)/n · F/B
//
// The backward pass has the same ratio: twice the computation, and a reduce-scatter besides the all-gather. In a step a
// rank sends 3·e·P·(n−1)/n bytes for each block. Texts that write 3·16h²/n count the elements of a shard, not the bytes
// sent. It returns an error unless all arguments and rates are positive.
func (r Rates) ZeRO3(block, tokens float64, ranks int) (Overlap, error) {
	n := float64(ranks)
	return r.compare("e/(2T) · (n−1)/n · F/B", block*(n-1)/n, 2*tokens*block,
		quantity{"parameters", block}, quantity{"tokens", tokens}, quantity{"ranks", n})
}

// TensorParallel compares the all-gather of an activation [T, h], split over n ranks, with the matmul that follows,
// whose h·h weights are sharded over the ranks:
//
//	communication   e·T·h·(n−1)/n / B
//	computation     2·T·h²/n / F
//	ratio           e/(2h) · (n−1) · F/B
//
// The ratio depends on width and ranks, not on tokens. In a step a block has 8 such all-gathers and reduce-scatters:
// two each for attention and MLP in each pass. Texts that write 8·T·h/n bytes count elements. It returns an error
// unless all arguments and rates are positive.
func (r Rates) TensorParallel(width int, tokens float64, ranks int) (Overlap, error) {
	h, n := float64(width), float64(ranks)
	return r.compare("e/(2h) · (n−1) · F/B", tokens*h*(n-1)/n, 2*tokens*h*h/n,
		quantity{"width", h}, quantity{"tokens", tokens}, quantity{"ranks", n})
}

// Pipeline compares sending a micro-batch's activations [T, h] to the next stage with the forward pass of that stage,
// which has the given number of layers with P parameters each:
//
//	communication   e·T·h / B
//	computation     2·T·P·layers / F
//	ratio           e·h/(2·P·layers) · F/B
//
// With P = 16h² ([RoughBlock]) the ratio is e/(32·h·layers) · F/B: it does not depend on tokens. A micro-batch crosses
// each boundary twice, with 2·e·T·h bytes; texts that write 4·T·h count elements, both sent and received. It returns an
// error unless all arguments and rates are positive.
func (r Rates) Pipeline(width int, block, tokens float64, layers int) (Overlap, error) {
	h, l := float64(width), float64(layers)
	return r.compare("e·h/(2·P·layers) · F/B", tokens*h, 2*tokens*block*l,
		quantity{"width", h}, quantity{"parameters", block}, quantity{"tokens", tokens}, quantity{"layers", l})
}

// compare compares sending elements with computing flops.
func (r Rates) compare(formula string, elements, flops float64, arguments ...quantity) (Overlap, error) {
	rates := []quantity{{"Rates.FLOPS", r.FLOPS}, {"Rates.Bandwidth", r.Bandwidth},
		{"Rates.ElementBytes", r.ElementBytes}}
	if err := positive(append(arguments, rates...)...); err != nil {
		return Overlap{}, err
	}
	o := Overlap{Communication: Seconds(elements * r.ElementBytes / r.Bandwidth), Computation: Seconds(flops / r.FLOPS),
		Formula: formula}
	o.Ratio = float64(o.Communication / o.Computation)
	o.Hidden = o.Ratio < 1
	return o, nil
}
