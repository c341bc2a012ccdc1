package memest

import (
	"fmt"
	"strconv"
	"testing"
)

// accelerateUnits formats bytes as accelerate does.
func accelerateUnits(bytes int64) string {
	x, units := float64(bytes), []string{"bytes", "KB", "MB", "GB"}
	for x >= 1024 {
		x, units = x/1024, units[1:]
	}
	text := strconv.FormatFloat(x, 'f', 2, 64)
	return fmt.Sprintf("%s %s", text, units[0])
}

func TestAccelerateDocumentation(t *testing.T) {
	for _, r := range publishedTable(t, "accelerate.csv") {
		a := Accelerate{Size: r.number("size"), DType: r.text("dtype")}
		if got := accelerateUnits(listed(t)(a.Training()).Bytes()); got != r.text("training") {
			t.Errorf("%s, %s: %s, want %s", r.text("model"), a.DType, got, r.text("training"))
		}
	}
}
