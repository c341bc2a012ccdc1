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

// Stage 3 sends 1.5 times as much (Rajbhandari et al. 2020, §7).
func TestZeROVolume(t *testing.T) {
	for stage, want := range []int64{2000, 2000, 2000, 3000} {
		if got, err := (ZeRO{Params: 1000, Stage: stage, Devices: 1}).Volume(); got != want || err != nil {
			t.Errorf("stage %d sends %d, %v; want %d", stage, got, err, want)
		}
	}
	if _, err := (ZeRO{}).Volume(); err == nil {
		t.Error("the volume of no parameters: no error")
	}
}
