package cost

// RoughBlock returns the usual estimate of a block's parameters for width h: 12h², of which 4h² are attention and 8h²
// an MLP of hidden width 4h; or 16h² if that MLP is gated. Use gated=false for Llama, whose gated MLP has hidden width
// 8/3·h and so 8h² parameters (Touvron et al. 2023, §2.2).
func RoughBlock(width int, gated bool) float64 {
	h := float64(width)
	if gated {
		return 16 * h * h
	}
	return 12 * h * h
}

// RoughFLOPs returns the usual estimate of a training run's FLOPs: 2 for each token and parameter in the forward pass,
// 4 in the backward pass (Kaplan et al. 2020, §2.1). The sum is the 6ND of scaling laws; with full recomputation, which
// is one more forward pass, it is 8ND (Narayanan et al. 2021, §5.1).
func RoughFLOPs(params, tokens float64) (forward, backward float64) {
	return 2 * params * tokens, 4 * params * tokens
}
