package memest

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestNotesStates(t *testing.T) {
	for _, r := range publishedTable(t, "notes_states.csv") {
		s := listed(t)(Notes{Params: r.number("params")}.States())
		if got := s.Bytes(); got != r.number("gb")*1e9 {
			t.Errorf("%s parameters: %s, want %s", r.text("params"), GB(got), r.text("gb"))
		}
		// 2 + 2 + 12 bytes of each
		P := r.number("params")
		if s.Of(Parameters) != 2*P || s.Of(Gradients) != 2*P || s.Of(Master)+s.Of(Optimizer) != 12*P {
			t.Errorf("%+v", s)
		}
	}
}

// parts is the memory of a count that grows with the sequence, and with its square.
func parts(s Stage) (linear, quadratic int64) {
	for _, it := range s.Items {
		if strings.Contains(it.Formula, "s*s") || strings.Contains(it.Formula, "H*s/d") {
			quadratic += it.Bytes
		} else {
			linear += it.Bytes
		}
	}
	return linear, quadratic
}

// Which reading gives which sum, for all layers.
func TestNotesReadings(t *testing.T) {
	random := rand.New(rand.NewPCG(33, 34))
	for range 300 {
		p := []int64{1, 2, 4}[random.IntN(3)]
		for _, c := range []struct {
			reading Reading
			linear  int64 // multiples of bsd
		}{
			{NormsTogether, (9+5+2)*p + 2}, {NormsEach, (9+5+4)*p + 2}, {PrintedTotal, 17*p + 2}, {HiddenCode, 16*p + 2}, {Approximation, 34},
		} {
			if c.reading == Approximation {
				p = 2
			}
			n := Notes{Layers: 1 + random.IntN(9), Width: 1 + random.IntN(99), Heads: 1 + random.IntN(9), Sequence: 1 + random.IntN(99),
				Batch: 1 + random.IntN(9), Precision: int(p)}
			bsL := int64(n.Batch * n.Sequence * n.Layers)
			linear, quadratic := parts(listed(t)(n.Activations(c.reading)))
			wantLinear, wantQuadratic := c.linear*bsL*int64(n.Width), (2*p+1)*bsL*int64(n.Sequence*n.Heads)
			if linear != wantLinear || quadratic != wantQuadratic {
				t.Fatalf("%+v, %s: %d and %d, want %d and %d", n, c.reading, linear, quadratic, wantLinear, wantQuadratic)
			}
		}
	}
}

// The table of activations follows from no reading, nor from any other multiple of bsd and bs²H. All are tried here: in GB
// and GiB, of all layers and of one, rounded to the nearest, down and up.
//
//   - No multiple of bsd gives the first number of every row; 33bsdL gives that of two, in GB rounded to the nearest.
//   - The second number of every row is 8bs²H of one layer, not of all, in GiB rounded to the nearest or up, or 7bs²H in GB
//     rounded up. 8bs²H is softmax's input and output in float32. But these numbers are Qwen2's numbers of key and value
//     heads as well.
func TestNotesTableOfActivations(t *testing.T) {
	rows := publishedTable(t, "notes_activations.csv")
	firsts, seconds := map[string]int{}, map[string]int{} // how many rows come out
	for unit, bytes := range map[string]float64{"GB": 1e9, "GiB": 1 << 30} {
		for rounding, round := range map[string]func(float64) float64{"nearest": math.Round, "down": math.Floor, "up": math.Ceil} {
			for _, of := range []string{"all layers", "a layer"} {
				for k := 1; k <= 1000; k++ {
					how := fmt.Sprintf("%d of %s in %s, %s", k, of, unit, rounding)
					for _, r := range rows {
						tokens := float64(k) * float64(r.number("batch")*r.number("sequence")) / bytes
						if of == "all layers" {
							tokens *= float64(r.number("layers"))
						}
						if comesOut(t, tokens*float64(r.number("width")), round, r.text("linear")) {
							firsts[how]++
						}
						if comesOut(t, tokens*float64(r.number("sequence")*r.number("heads")), round, r.text("quadratic")) {
							seconds[how]++
						}
					}
				}
			}
		}
	}
	check := func(what string, found map[string]int, rows int, want ...string) {
		var got []string
		for _, how := range slices.Sorted(maps.Keys(found)) {
			if found[how] >= rows {
				got = append(got, how)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s of %d rows: %q, want %q", what, rows, got, want)
		}
	}
	check("first numbers", firsts, 3)
	check("first numbers", firsts, 2, "33 of all layers in GB, nearest")
	check("second numbers", seconds, 3, "7 of a layer in GB, up", "8 of a layer in GiB, nearest", "8 of a layer in GiB, up")
	for _, r := range rows {
		if r.text("quadratic") != r.text("kv_heads") {
			t.Errorf("%s: second number %s, with %s key and value heads", r.text("model"), r.text("quadratic"), r.text("kv_heads"))
		}
	}
}

// comesOut reports whether x is the printed number when it is rounded so to as many decimals.
func comesOut(t *testing.T, x float64, round func(float64) float64, printed string) bool {
	want, err := strconv.ParseFloat(printed, 64)
	if err != nil {
		t.Fatal(err)
	}
	_, decimals, _ := strings.Cut(printed, ".")
	digits := math.Pow10(len(decimals))
	return round(x*digits) == math.Round(want*digits)
}
