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
	Name string `json:"name"`
	// Peak is the operations a second of dense matrix products by the format of their factors: "fp32", "tf32", "bf16",
	// "fp16", "fp8". Sums are float32. ("fp32" is outside of tensor cores.)
	Peak            map[string]float64 `json:"peak"`
	MemoryBandwidth float64            `json:"memory_bandwidth"` // bytes a second
	// MemoryBytes is the maker's number of gigabytes with 2^30 bytes each, as drivers count it. The driver keeps some
	// of it.
	MemoryBytes int64 `json:"memory_bytes"`
}

// PeakFLOPS returns the peak for a format. A format that the hardware does not have is an error that lists those it
// has.
func (h Hardware) PeakFLOPS(format string) (float64, error) {
	peak, ok := h.Peak[format]
	if !ok {
		return 0, fmt.Errorf("cost: %s has no peak for %q: choose one of %q", h.Name, format,
			slices.Sorted(maps.Keys(h.Peak)))
	}
	return peak, nil
}

// hardwareJSON has accelerators, each with the source of its numbers.
//
//go:embed hardware.json
var hardwareJSON []byte

// Accelerators returns the accelerators that are known, as their makers publish them: NVIDIA's from V100 to B200 and
// Google's TPUs.
func Accelerators() []Hardware {
	var all []Hardware
	if err := json.Unmarshal(hardwareJSON, &all); err != nil {
		panic(fmt.Errorf("cost: hardware.json: %w", err)) // the file is part of the package, and a test reads it
	}
	return all
}

// Accelerator returns the accelerator of that name, such as "H100 SXM". Names are compared as by [Preset].
func Accelerator(name string) (Hardware, error) {
	return find("accelerator", name, Accelerators(), func(h Hardware) string { return h.Name })
}
