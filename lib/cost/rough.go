package cost

// RoughBlock returns the usual estimate of a block's parameters for width h: 4h² for attention (3h² for queries, keys
// and values, h² for the output), and in an MLP of hidden width 4h 8h², or 12h² with a gate. That is 12h², or 16h²
// gated. Llama's gated MLP is 8/3·h wide, to have 8h² again (Touvron et al. 2023, §2.2), so its block is no gated one
// here.
func RoughBlock(width int, gated bool) float64 {
	h := float64(width)
	if gated {
		return 16 * h * h
	}
	return 12 * h * h
}

// RoughFLOPs returns the usual estimate of a training run's operations: 2 for each token and parameter forward, a
// multiplication and an addition, and 4 backward (Kaplan et al. 2020, §2.1). Together they are the 6ND of scaling laws;
// with full recomputation, which is one more forward pass, 8ND (Narayanan et al. 2021, §5.1).
func RoughFLOPs(params, tokens float64) (forward, backward float64) {
	return 2 * params * tokens, 4 * params * tokens
}
