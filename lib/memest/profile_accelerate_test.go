package memest

import (
	"math"
	"strconv"
	"strings"
	"testing"
)

// accelerateUnits writes bytes as accelerate does: in the largest unit of which there are at least one, up to TB, rounded to
// two decimals at most, one at least.
func accelerateUnits(bytes int64) string {
	x := float64(bytes)
	units := []string{"bytes", "KB", "MB", "GB", "TB"}
	for x >= 1024 && len(units) > 1 {
		x, units = x/1024, units[1:]
	}
	text := strings.TrimRight(strconv.FormatFloat(x, 'f', 2, 64), "0")
	if strings.HasSuffix(text, ".") {
		text += "0"
	}
	return text + " " + units[0]
}

func TestAccelerateDocumentation(t *testing.T) {
	for _, r := range publishedTable(t, "accelerate.csv") {
		a := Accelerate{Size: r.number("size"), DType: r.text("dtype"), Documented: true}
		for column, bytes := range map[string]int64{
			"total":    listed(t)(a.Loading()).Bytes(),
			"training": listed(t)(a.Training()).Bytes(),
			"largest":  listed(t)(Accelerate{Size: r.number("largest_size"), DType: r.text("dtype")}.Loading()).Bytes(),
		} {
			if got := accelerateUnits(bytes); got != r.text(column) {
				t.Errorf("%s, %s, %s: %s, want %s", r.text("model"), a.DType, column, got, r.text(column))
			}
		}
		// Newer versions have the same for floats, though not by the same rule, and nothing for integers.
		a.Documented = false
		items, err := a.Training()
		if float := strings.HasPrefix(a.DType, "float"); float != (err == nil) {
			t.Errorf("%s: %v", a.DType, err)
		} else if got := (Stage{Items: items}).Bytes(); float && math.Abs(float64(got-4*listed(t)(a.Loading()).Bytes())) > 4 {
			t.Errorf("%s: %d bytes", a.DType, got)
		}
	}
}
