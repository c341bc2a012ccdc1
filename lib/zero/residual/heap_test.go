package residual_test

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/lib/zero/residual"
)

// bitmap is the model of a memory byte by byte: whose each of them is, 0 for nobody's.
func bitmap(events []residual.Event, capacity int) (r residual.Report) {
	memory := make([]int, capacity)
	for i, e := range events {
		if e.Free {
			for at := range memory {
				if memory[at] == e.ID {
					memory[at] = 0
				}
			}
			continue
		}
		run, placed := 0, false
		for at := 0; at < capacity && !placed; at++ {
			if run++; memory[at] != 0 {
				run = 0
			}
			if run == int(e.Bytes) {
				for b := at - run + 1; b <= at; b++ {
					memory[b] = e.ID
				}
				r.Highest, placed = max(r.Highest, int64(at+1)), true
			}
		}
		if !placed {
			r.Failed, r.At, r.Asked = true, i, e.Bytes
			break
		}
		used := int64(0)
		for _, id := range memory {
			if id != 0 {
				used++
			}
		}
		r.Peak = max(r.Peak, used)
	}
	run := int64(0)
	for _, id := range memory {
		run++
		if id != 0 {
			run = 0
			r.Used++
		}
		r.Largest = max(r.Largest, run)
	}
	r.Free = int64(capacity) - r.Used
	return r
}

// Random sequences fare as in the memory made of bytes; and with what lives long in a region, all of that takes one place.
func TestReplayRandomly(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	failed, fragmented := 0, 0
	for range 2000 {
		capacity := 1 + random.IntN(60)
		var events []residual.Event
		var live []int
		for id := range 1 + random.IntN(30) {
			if len(live) > 0 && random.IntN(5) < 2 {
				k := random.IntN(len(live))
				events = append(events, residual.Event{ID: live[k], Free: true})
				live = append(live[:k], live[k+1:]...)
				continue
			}
			events = append(events, residual.Event{ID: id + 1, Bytes: 1 + random.Int64N(12), Long: random.IntN(3) == 0})
			live = append(live, id+1)
		}
		got, err := residual.Replay(events, int64(capacity))
		if err != nil {
			t.Fatal(err)
		}
		if want := bitmap(events, capacity); got != want {
			t.Fatalf("%v in %d bytes: %+v, want %+v", events, capacity, got, want)
		}
		if got.Failed {
			failed++
		}
		if got.Fragmented() {
			fragmented++
		}
		in, err := residual.WithRegion(events)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range in {
			if e.Long && i > 0 {
				t.Fatalf("%v: with a region %v, where event %d still lives long", events, in, i)
			}
		}
		if _, err := residual.Replay(in, 0); err != nil {
			t.Fatalf("%v: with a region %v: %v", events, in, err)
		}
	}
	if failed < 100 || fragmented < 100 {
		t.Errorf("%d sequences failed, %d for want of one piece: too few to say anything", failed, fragmented)
	}
}

func TestReplayErrors(t *testing.T) {
	for want, events := range map[string][]residual.Event{
		"event 0 frees allocation 3":     {{ID: 3, Free: true}},
		"event 2 frees allocation 3":     {{ID: 3}, {ID: 3, Free: true}, {ID: 3, Free: true}},
		"event 1 allocates ID 3":         {{ID: 3, Bytes: 1}, {ID: 3, Bytes: 1}},
		"event 0 allocates -1 bytes":     {{ID: 3, Bytes: -1}},
		"event 1 allocates 922337203685": {{ID: 3, Bytes: 1}, {ID: 4, Bytes: 1<<63 - 1}},
	} {
		if _, err := residual.Replay(events, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		if _, err := residual.WithRegion(events); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("WithRegion: error %v, want %q", err, want)
		}
	}
	if _, err := residual.Replay(nil, -1); err == nil || !strings.Contains(err.Error(), "capacity is -1 bytes") {
		t.Errorf("error %v", err)
	}
	short := []residual.Event{{ID: 1, Bytes: 5}, {ID: 1, Free: true}}
	if same, err := residual.WithRegion(short); err != nil || !reflect.DeepEqual(same, short) {
		t.Errorf("with nothing that lives long: %v, %v", same, err)
	}
}
