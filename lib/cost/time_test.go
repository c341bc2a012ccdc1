package cost

import (
	"fmt"
	"math"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
)

// Published training times.
func TestTrainingTime(t *testing.T) {
	for _, c := range read[struct {
		Source                          string
		Flops, Params, Tokens, Attained float64
		Devices                         int
		Printed                         string
	}](t, "training.json") {
		flops := c.Flops
		if flops == 0 { // a forward pass and its recomputation, and a backward pass
			forward, backward := RoughFLOPs(c.Params, c.Tokens)
			flops = 2*forward + backward
		}
		took := must.Get(TrainingTime(flops, c.Devices, c.Attained, 1))(t)
		got := fmt.Sprintf("%.0f days", took/day)
		if took > year {
			got = fmt.Sprintf("%.0f years", took/year)
		}
		if got != c.Printed {
			t.Errorf("%s: %s, want %s", c.Source, got, c.Printed)
		}
	}
}

// Published model FLOPs utilizations.
func TestUtilization(t *testing.T) {
	for _, c := range read[struct {
		Source, Accelerator     string
		Model                   Model
		Devices                 int
		TokensPerSecond         float64 `json:"tokens_per_second"`
		Percent                 string
		PercentWithoutAttention string `json:"percent_without_attention"`
	}](t, "utilization.json") {
		must.Do(t, c.Model.Validate())
		peak := must.Get(must.Get(Accelerator(c.Accelerator))(t).PeakFLOPS("bf16"))(t)
		for length, want := range map[int]string{c.Model.Context: c.Percent, 0: c.PercentWithoutAttention} {
			u := must.Get(Utilization(c.TokensPerSecond*c.Model.TokenFLOPs(length), 1, c.Devices, peak))(t)
			if got := fmt.Sprintf("%.1f", 100*u); got != want {
				t.Errorf("%s, length %d: %s%%, want %s%%", c.Source, length, got, want)
			}
		}
	}
}

func TestTimeErrors(t *testing.T) {
	for _, c := range []struct {
		flops             float64
		devices           int
		peak, utilization float64
		want              string
	}{
		{1, 1, 1, 1, ""},
		{0, 1, 1, 1, "cost: operations is 0: give a positive number"},
		{math.Inf(1), 1, 1, 1, "cost: operations is +Inf: give a positive number"},
		{1, 0, 1, 1, "cost: devices is 0: give a positive number"},
		{1, 1, -1, 1, "cost: peak is -1: give a positive number"},
		{1, 1, 1, math.NaN(), "cost: utilization is NaN: give a positive number"},
		{1, 1, 1, 1.5, "cost: utilization is 1.5: it is a fraction of the peak, so give at most 1"},
	} {
		_, err := TrainingTime(c.flops, c.devices, c.peak, c.utilization)
		check(t, err, c.want)
	}
	_, err := Utilization(1, 0, 1, 1)
	check(t, err, "cost: time is 0: give a positive number")
}

func TestSeconds(t *testing.T) {
	for _, c := range []struct {
		s    Seconds
		want string
	}{
		{0, "0 ns"}, {2.5e-9, "2.5 ns"}, {1e-6, "1 µs"}, {0.0123, "12.3 ms"}, {-0.0123, "-12.3 ms"}, {1, "1 s"},
		{119, "119 s"}, {120, "2 min"},
		{7200, "2 h"}, {2 * day, "2 days"}, {34 * day, "34 days"}, {-3 * year, "-3 years"}, {355.4 * year, "355 years"},
		{Seconds(math.Inf(1)), "+Inf years"}, {Seconds(math.NaN()), "NaN years"},
	} {
		if got := c.s.String(); got != c.want {
			t.Errorf("%g s: %q, want %q", float64(c.s), got, c.want)
		}
	}
}

func TestHardware(t *testing.T) {
	for _, h := range Accelerators() {
		if err := positive(quantity{h.Name + "'s bandwidth", h.MemoryBandwidth},
			quantity{h.Name + "'s memory", float64(h.MemoryBytes)}); err != nil {
			t.Error(err)
		}
		if h.MemoryBytes%(1<<30) != 0 {
			t.Errorf("%s has %d bytes, which is no number of GiB", h.Name, h.MemoryBytes)
		}
		if len(h.Peak) == 0 {
			t.Errorf("%s has no peaks", h.Name)
		}
		last := 0.0
		for _, format := range []string{"fp32", "tf32", "bf16", "fp8"} { // narrower is not slower
			if peak, ok := h.Peak[format]; ok {
				if !(peak >= last && peak > 1e12) {
					t.Errorf("%s has %g operations a second in %s, and %g in a wider format", h.Name, peak, format,
						last)
				}
				last = peak
			}
		}
	}
	h := must.Get(Accelerator("h100-sxm"))(t)
	if peak := must.Get(h.PeakFLOPS("bf16"))(t); peak != 989.4e12 { // NVIDIA H100 whitepaper, table 2
		t.Errorf("H100: %g", peak)
	}
	_, err := h.PeakFLOPS("fp4")
	check(t, err, `cost: H100 SXM has no peak for "fp4": choose one of ["bf16" "fp16" "fp32" "fp8" "tf32"]`)
	_, err = Accelerator("H100")
	check(t, err, `cost: unknown accelerator "H100": of 11, the nearest are ["H100 SXM" "B200" "L4" "H200 SXM"]`)
	for _, h := range Accelerators() {
		if of, err := Accelerator(h.Driver); h.Driver != "" && (err != nil || of.Name != h.Name) {
			t.Errorf("%q is %+v, %v, want %s", h.Driver, of, err, h.Name)
		}
	}
}
