package cost

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Hardware is one accelerator.
type Hardware struct {
	Name   string `json:"name"`
	Driver string `json:"driver"` // NVIDIA's driver's name, which profiles have; "" if it is not NVIDIA's
	// Peak is the peak of dense matmuls in FLOPs a second, by input format: "fp32" (without tensor cores), "tf32",
	// "bf16", "fp16", "fp8". Accumulation is in float32.
	Peak            map[string]float64 `json:"peak"`
	MemoryBandwidth float64            `json:"memory_bandwidth"` // bytes a second
	// MemoryBytes is the published number of gigabytes times 2³⁰, as drivers count it. The driver itself uses some of
	// it.
	MemoryBytes int64 `json:"memory_bytes"`
}

// PeakFLOPS returns the peak for a format, in FLOPs a second. For an unknown format it returns an error that lists the
// known ones.
func (h Hardware) PeakFLOPS(format string) (float64, error) {
	peak, ok := h.Peak[format]
	if !ok {
		return 0, fmt.Errorf("cost: %s has no peak for %q: choose one of %q", h.Name, format,
			slices.Sorted(maps.Keys(h.Peak)))
	}
	return peak, nil
}

// hardwareJSON lists accelerators, each with the source of its numbers.
//
//go:embed hardware.json
var hardwareJSON []byte

// Accelerators returns the published numbers of NVIDIA's GPUs from V100 to B200 and of Google's TPUs.
func Accelerators() []Hardware {
	var all []Hardware
	if err := json.Unmarshal(hardwareJSON, &all); err != nil {
		panic(fmt.Errorf("cost: hardware.json: %w", err)) // the file is part of the package, and a test reads it
	}
	return all
}

// Accelerator returns the accelerator with a name, such as "H100 SXM" or the driver's "NVIDIA H100 80GB HBM3". It
// compares names as [Preset] does.
func Accelerator(name string) (Hardware, error) {
	for _, h := range Accelerators() {
		if h.Driver != "" && plain(h.Driver) == plain(name) {
			return h, nil
		}
	}
	return find("accelerator", name, Accelerators(), func(h Hardware) string { return h.Name })
}
