package cost

// Rates is how fast a device computes and sends, for the question whether communication hides behind computation. The
// model has bandwidths only: latency, which makes small messages slower, is left out, so that ratios show what they
// depend on. F and B in formulas are FLOPS and Bandwidth, e is ElementBytes.
type Rates struct {
	FLOPS        float64 // operations a second: the peak, or the share of it that is attained
	Bandwidth    float64 // bytes a second that the device sends
	ElementBytes float64 // bytes of a number that is sent: 2 for bfloat16, 4 for float32
}

// Overlap compares a communication with the computation that runs beside it.
type Overlap struct {
	Communication, Computation Seconds
	// Ratio is the communication by the computation.
	Ratio float64
	// Hidden is whether the ratio is below 1: the communication takes no time of its own, if it can start in time.
	Hidden bool
	// Formula is the ratio in the letters of the function that returned it.
	Formula string
}

// DataParallel compares the all-reduce of all gradients among n replicas with the backward pass, of T tokens on each
// replica and any number of parameters P:
//
//	communication   e·P·2(n−1)/n / B
//	computation     4·T·P / F
//	ratio           e/(2T) · (n−1)/n · F/B
//
// The ratio depends on tokens and replicas, not on the model. It is also that of one bucket of gradients to the part of
// the backward pass that makes a bucket; comparing one bucket with the whole pass, as the bucket's size suggests, would
// find everything hidden. What no backward pass hides is the last bucket, which is there when the pass is over.
// It returns an error unless all arguments and rates are positive.
func (r Rates) DataParallel(params, tokens float64, replicas int) (Overlap, error) {
	n := float64(replicas)
	return r.compare("e/(2T) · (n−1)/n · F/B", params*2*(n-1)/n, 4*tokens*params,
		quantity{"parameters", params}, quantity{"tokens", tokens}, quantity{"replicas", n})
}

// ZeRO3 compares the all-gather of the next block's P parameters, of which each of n ranks holds an n-th, with the
// forward pass of T tokens on each rank through the block before it:
//
//	communication   e·P·(n−1)/n / B
//	computation     2·T·P / F
//	ratio           e/(2T) · (n−1)/n · F/B
//
// The backward pass computes twice as much, and beside the all-gather has a reduce-scatter of the same size, so its
// ratio is the same. A step sends 3·e·P·(n−1)/n bytes a block and rank. Texts that write 3·16h²/n bytes count what a
// rank holds, not what it sends, and elements, not bytes. It returns an error unless all arguments and rates are
// positive.
func (r Rates) ZeRO3(block, tokens float64, ranks int) (Overlap, error) {
	n := float64(ranks)
	return r.compare("e/(2T) · (n−1)/n · F/B", block*(n-1)/n, 2*tokens*block,
		quantity{"parameters", block}, quantity{"tokens", tokens}, quantity{"ranks", n})
}

// TensorParallel compares the all-gather of an activation, T tokens of width h of which each of n ranks holds an n-th,
// with the product by the next matrix, h² parameters of which each rank holds an n-th:
//
//	communication   e·T·h·(n−1)/n / B
//	computation     2·T·h²/n / F
//	ratio           e/(2h) · (n−1) · F/B
//
// The ratio depends on width and ranks, not on tokens. A block has 8 such all-gathers and reduce-scatters in a step,
// two for each of attention and MLP in either pass; texts that write 8·T·h/n bytes count elements. It returns an error
// unless all arguments and rates are positive.
func (r Rates) TensorParallel(width int, tokens float64, ranks int) (Overlap, error) {
	h, n := float64(width), float64(ranks)
	return r.compare("e/(2h) · (n−1) · F/B", tokens*h*(n-1)/n, 2*tokens*h*h/n,
		quantity{"width", h}, quantity{"tokens", tokens}, quantity{"ranks", n})
}

// Pipeline compares the activations of a micro-batch, T tokens of width h sent to the next stage, with the forward pass
// of that stage, of the given layers with P parameters each:
//
//	communication   e·T·h / B
//	computation     2·T·P·layers / F
//	ratio           e·h/(2·P·layers) · F/B
//
// With P = 16h² ([RoughBlock]) it is e/(32·h·layers) · F/B: it depends on width, layers and rates, not on tokens. A
// micro-batch crosses each boundary twice, 2·e·T·h bytes; texts that write 4·T·h bytes count elements, both sent and
// received. It returns an error unless all arguments and rates are positive.
func (r Rates) Pipeline(width int, block, tokens float64, layers int) (Overlap, error) {
	h, l := float64(width), float64(layers)
	return r.compare("e·h/(2·P·layers) · F/B", tokens*h, 2*tokens*block*l,
		quantity{"width", h}, quantity{"parameters", block}, quantity{"tokens", tokens}, quantity{"layers", l})
}

// compare takes the elements to send and the operations beside them.
func (r Rates) compare(formula string, elements, flops float64, arguments ...quantity) (Overlap, error) {
	rates := []quantity{{"Rates.FLOPS", r.FLOPS}, {"Rates.Bandwidth", r.Bandwidth}, {"Rates.ElementBytes", r.ElementBytes}}
	if err := positive(append(arguments, rates...)...); err != nil {
		return Overlap{}, err
	}
	o := Overlap{Communication: Seconds(elements * r.ElementBytes / r.Bandwidth), Computation: Seconds(flops / r.FLOPS),
		Formula: formula}
	o.Ratio = float64(o.Communication / o.Computation)
	o.Hidden = o.Ratio < 1
	return o, nil
}
