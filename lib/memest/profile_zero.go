package memest

// ZeRO computes the model states of a data-parallel device as Rajbhandari et al. 2020, "ZeRO: Memory Optimizations
// Toward Training Trillion Parameter Models", §3.1 and §5: mixed precision with Adam, so 2 bytes for a parameter, 2 for
// its gradient and K=12 for optimizer states. The paper's GB are 10⁹ bytes.
type ZeRO struct {
	Params int64 // Ψ in the paper
	// Stage is what is sharded: 0 nothing, 1 optimizer states, 2 gradients as well, 3 parameters as well.
	Stage   int
	Devices int // data-parallel devices, N_d in the paper
}

func (z ZeRO) validate() error {
	return inRange("ZeRO", field{"Params", z.Params, 1, mostParameters}, field{"Stage", int64(z.Stage), 0, 3},
		field{"Devices", int64(z.Devices), 1, 1 << 31})
}

// States lists the model states: 16Ψ, 4Ψ+12Ψ/N, 2Ψ+14Ψ/N or 16Ψ/N bytes. It returns an error for an invalid field.
func (z ZeRO) States() ([]Item, error) {
	if err := z.validate(); err != nil {
		return nil, err
	}
	from := func(stage int, formula string) string {
		if z.Stage >= stage {
			return formula + "/N"
		}
		return formula
	}
	return vars{"P": z.Params, "N": int64(z.Devices)}.published("Rajbhandari et al. 2020, §5",
		Item{Kind: Parameters, Name: "16-bit parameters", Formula: from(3, "2*P")},
		Item{Kind: Master, Name: "32-bit parameters", Formula: from(1, "4*P")},
		Item{Kind: Gradients, Name: "16-bit gradients", Formula: from(2, "2*P")},
		Item{Kind: Optimizer, Name: "32-bit momentum", Formula: from(1, "4*P")},
		Item{Kind: Optimizer, Name: "32-bit variance", Formula: from(1, "4*P")},
	)
}

// Volume returns the elements, not bytes, that a device sends in a step: 2Ψ, and 3Ψ in stage 3 (§7). The paper leaves
// out a ring's factor (N−1)/N. It returns an error for an invalid field.
func (z ZeRO) Volume() (int64, error) {
	if err := z.validate(); err != nil {
		return 0, err
	}
	if z.Stage == 3 {
		return 3 * z.Params, nil // all-gather of parameters in both passes, reduce-scatter of gradients
	}
	return 2 * z.Params, nil // reduce-scatter of gradients, all-gather of gradients or of updated parameters
}
