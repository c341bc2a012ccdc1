package xla

import (
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestCanaryNumbersAreExact checks what the canaries rely on: every partial sum
// is a multiple of 1/2 of at most 128, which all types hold exactly (BFloat16,
// the shortest, has 8 bits of significand: multiples of 1/2 up to 128).
func TestCanaryNumbersAreExact(t *testing.T) {
	const n = canarySide
	x, w := canaryMatrix(7), canaryMatrix(5)
	half := make([]float32, n*n)
	for i := range half {
		half[i] = 0.5
	}
	for name, b := range map[string][]float32{"inputs": w, "constant": half} {
		var anything bool
		for col := range n {
			var positive, negative float64
			for row := range n {
				var element float64
				for k := range n {
					element += float64(x[row*n+k]) * float64(b[k*n+col])
				}
				positive += max(element, 0)
				negative += min(element, 0)
			}
			// Any order of summation stays between the sums of one sign.
			if positive > 128 || negative < -128 {
				t.Fatalf("%s, column %d: partial sums may reach %v and %v", name, col, positive, negative)
			}
			anything = anything || positive+negative != 0
		}
		if !anything {
			t.Errorf("%s: every sum is 0, which a device that computes nothing would get right", name)
		}
	}
}

// TestCanariesNotice spoils a right result in several ways: each must be noticed.
func TestCanariesNotice(t *testing.T) {
	for name, spoil := range map[string]func([]float64){
		"NaN":           func(v []float64) { v[0] = math.NaN() },
		"garbage":       func(v []float64) { v[len(v)-1] = 1e30 },
		"one unit":      func(v []float64) { v[len(v)/2]++ },
		"half the work": func(v []float64) { clear(v[len(v)/2:]) },
	} {
		want := columnSums(canaryMatrix(7), canaryMatrix(5))
		got := append([]float64(nil), want...)
		spoil(got)
		c := compareValues("a product", got, want)
		if c.OK() || !strings.Contains(c.String(), "wrong") {
			t.Errorf("%s: %v passes as right", name, c)
		}
	}
}

// TestBadFusionsAreRefused opens the plugin with XLA's faulty fusions switched on.
// Where they compute rightly on this processor the backend opens; garbage must
// never get through.
func TestBadFusionsAreRefused(t *testing.T) {
	if os.Getenv("SHARDBOOK_TEST_OPEN") != "" {
		b, err := Open(Devices(2), Plugin("cpu"), AllCanaries())
		if err != nil {
			os.Stdout.WriteString("refused: " + err.Error())
			return
		}
		defer b.Close()
		for _, c := range b.info.Canaries {
			if !c.OK() {
				os.Stdout.WriteString("opened with " + c.String())
				return
			}
		}
		os.Stdout.WriteString("opened and right")
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestBadFusionsAreRefused$")
	cmd.Env = append(os.Environ(), "SHARDBOOK_TEST_OPEN=1",
		"XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT,LIBRARY_FUSION_TYPE_REDUCE")
	output, err := cmd.CombinedOutput()
	text := string(output)
	t.Log(text)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case strings.Contains(text, "opened and right"):
	case strings.Contains(text, "refused: ") && strings.Contains(text, "computes wrongly") && strings.Contains(text, "XLA_FLAGS"):
	default:
		t.Errorf("neither opened rightly nor refused with the reason")
	}
}
