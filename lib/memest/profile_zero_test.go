package memest

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
)

func TestZeROTable(t *testing.T) {
	for _, r := range publishedTable(t, "zero_table1.csv") {
		for stage := 1; stage <= 3; stage++ {
			want := r.text(fmt.Sprint("stage", stage))
			bytes := listed(t)(ZeRO{Params: r.number("params"), Stage: stage,
				Devices: int(r.number("devices"))}.States()).Bytes()
			_, decimals, _ := strings.Cut(want, ".")
			digit := int64(math.Pow10(9 - len(decimals))) // the last printed digit, in bytes
			if r.text("rounding") == "nearest" {
				bytes += digit / 2
			}
			if got := strconv.FormatFloat(float64(bytes/digit*digit)/1e9, 'f', len(decimals), 64); got != want {
				t.Errorf("%s parameters, stage %d, %s devices: %s GB, want %s", r.text("params"), stage,
					r.text("devices"), got, want)
			}
		}
	}
}

// One device, or stage 0, has all 16Ψ bytes. Stage 3 sends 1.5 times as much (Rajbhandari et al. 2020, §7).
func TestZeROStages(t *testing.T) {
	for stage, volume := range []int64{2000, 2000, 2000, 3000} {
		z := ZeRO{Params: 1000, Stage: stage, Devices: 1}
		if got := listed(t)(z.States()).Bytes(); got != 16000 {
			t.Errorf("stage %d alone: %d bytes", stage, got)
		}
		if got, err := z.Volume(); got != volume || err != nil {
			t.Errorf("stage %d sends %d, %v; want %d", stage, got, err, volume)
		}
	}
	if got := listed(t)(ZeRO{Params: 1000, Devices: 64}.States()).Bytes(); got != 16000 {
		t.Errorf("stage 0: %d bytes", got)
	}
	if _, err := (ZeRO{}).Volume(); err == nil {
		t.Error("the volume of no parameters is no error")
	}
}
