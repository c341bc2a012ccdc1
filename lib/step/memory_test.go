package step

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestMemoryRandom counts what random plans hold a second time, value by value.
func TestMemoryRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	for range 500 {
		p := randomPlan(random)
		list := func() (sizes []int64) {
			for range p.Blocks { // and units, which are as many
				sizes = append(sizes, 1+random.Int64N(9))
			}
			return sizes
		}
		s := Sizes{Input: list(), Saved: list(), ForWeightGrad: list(), Full: list(), Sum: list(), Reduced: list()}
		memory, err := p.Memory(s)
		if err != nil {
			t.Fatalf("%v%v", p, err)
		}
		for r, ops := range p.Ranks {
			flow, err := p.Flow(r)
			if err != nil {
				t.Fatal(err)
			}
			held := map[Value]int{}
			for u := range flow.Resident {
				held[Value{Held: Full, Unit: u}]++
			}
			for i, op := range ops {
				for _, v := range flow.Makes[i] {
					if !slices.Contains(flow.Unmade[i], v) {
						held[v]++
					}
				}
				var bytes, reduced int64
				for v, n := range held {
					if v.Held == Reduced { // may be in the place of the sum
						reduced += int64(n) * s.of(v)
					} else if !v.Host {
						bytes += int64(n) * s.of(v)
					}
				}
				for j, op := range ops[:i+1] { // one under way may have an array of its own
					if op.Kind == Reduce && flow.Done[j] >= i {
						reduced += s.of(Value{Held: Reduced, Unit: op.Unit})
					}
				}
				if got := memory[r].Levels[i]; got.Total() > bytes+reduced || got.Total() < bytes {
					t.Fatalf("%vrank %d, position %d, %v: %+v are %d bytes, want %d to %d", p, r, i, p.Text(op), got,
						got.Total(), bytes, bytes+reduced)
				}
				for _, v := range flow.Ends[i] {
					if !slices.Contains(flow.Unmade[i], v) {
						held[v]--
					}
				}
			}
		}
	}
}

// TestMemory compares a step of ZeRO-3 with a count by hand.
func TestMemory(t *testing.T) {
	p := parsed(t, good[2])
	s := Sizes{Input: []int64{1}, Saved: []int64{10}, Full: []int64{100}, Sum: []int64{100}, Reduced: []int64{25},
		Resident: []int64{50}, States: []int64{200}}
	memory, err := p.Memory(s)
	if err != nil {
		t.Fatal(err)
	}
	var gathered []int64
	for _, b := range memory[3].Levels {
		gathered = append(gathered, b.Gathered)
	}
	want := []int64{100, 200, 200, 200, 100, 200, 200, 200, 100, 100, 100, 0, 0}
	if !reflect.DeepEqual(gathered, want) {
		t.Errorf("gathered are %v, want %v", gathered, want)
	}
	if m := memory[0]; m.Peak.Parameters != 100 || m.Peak.States != 400 || m.Levels[0].Activations != 0 ||
		m.Levels[m.At].Total() != m.Total {
		t.Errorf("%+v", m)
	}
	if _, err := p.Memory(Sizes{Saved: []int64{1, 2, 3}}); err == nil ||
		!strings.Contains(err.Error(), "3 values for 2") {
		t.Errorf("three values for two blocks: %v", err)
	}
	traffic, err := p.Traffic(s)
	if want := "map[data:500]"; err != nil || fmt.Sprint(traffic[2]) != want { // three gathers, two reduces
		t.Errorf("%v(%v), want %s", traffic[2], err, want)
	}
}

// TestTraffic counts messages where they are sent, what goes to the host, and of two axes the second by the shard.
func TestTraffic(t *testing.T) {
	p := parsed(t, "plan x blocks=2\naxis data size=2 groups=0-1|2-3\naxis replica size=2 groups=0,2|1,3\naxis own "+
		"size=1\nunits 0-1 reduce=data,replica,own shard=data\n"+
		"ranks 0-3: 0F0 0STORE_F0 1F0 1B0 0FETCH_F0 0B0 0REDUCE_GRAD@data 1REDUCE_GRAD@data 0REDUCE_GRAD@replica "+
		"1REDUCE_GRAD@replica 0REDUCE_GRAD@own 1REDUCE_GRAD@own U0 0UNSHARD 1UNSHARD AVERAGE@replica")
	s := Sizes{Input: []int64{3}, Full: []int64{100}, Sum: []int64{200}, Reduced: []int64{90}, Resident: []int64{7},
		States: []int64{5}}
	traffic, err := p.Traffic(s)
	if want := "map[data:600 host:6 replica:204]"; err != nil || fmt.Sprint(traffic[1]) != want {
		t.Errorf("%v(%v), want %s", traffic, err, want)
	}
	traffic, err = parsed(t, good[0]).Traffic(s)
	if want := "[map[pipe:6] map[pipe:6]]"; err != nil || fmt.Sprint(traffic) != want {
		t.Errorf("%v(%v), want %s", traffic, err, want)
	}
}
