package trace_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/shardbook/shardbook/lib/trace"
)

func ExampleSamples() {
	s := trace.Samples{3 * time.Millisecond, 2 * time.Millisecond, 9 * time.Millisecond, 4 * time.Millisecond}
	fmt.Println(s)
	fmt.Println(s.Mean(), s.Quantile(0.25))
	// Output:
	// median 3.5ms (2ms to 9ms, 4 calls)
	// 4.5ms 2.75ms
}

func TestTime(t *testing.T) {
	for _, test := range []struct {
		how             trace.Timing
		warmUp, samples int
	}{
		{trace.Timing{}, 10, 10},
		{trace.Timing{WarmUp: -1, Calls: 3}, 0, 3},
		{trace.Timing{WarmUp: 2, Calls: 1}, 2, 1},
	} {
		log := ""
		test.how.Sync = func() error { log += "s"; return nil }
		samples, err := trace.Time(func() error { log += "f"; return nil }, test.how)
		if want := strings.Repeat("fs", test.warmUp+test.samples); err != nil || log != want || len(samples) != test.samples {
			t.Errorf("%+v: calls %s, want %s; %d samples, want %d; error %v", test.how, log, want, len(samples), test.samples, err)
		}
	}
}

// A timed call lasts until Sync returns, and takes nothing from the calls around it.
func TestTimeCountsSync(t *testing.T) {
	const long = 20 * time.Millisecond
	samples, err := trace.Time(func() error { return nil }, trace.Timing{WarmUp: -1, Calls: 2, Sync: func() error { time.Sleep(long); return nil }})
	if err != nil || samples.Min() < long { // a sleep is never shorter
		t.Errorf("%v, error %v", samples, err)
	}
}

func TestTimeErrors(t *testing.T) {
	bad := errors.New("bad")
	for _, test := range []struct {
		at      int // the call that fails
		ofSync  bool
		samples int
		want    string
	}{
		{0, false, 0, "trace: warm-up call 1 of 2: bad"},
		{1, true, 0, "trace: warm-up call 2 of 2: bad"},
		{2, true, 0, "trace: timed call 1 of 3: bad"},
		{4, false, 2, "trace: timed call 3 of 3: bad"},
	} {
		calls, syncs := 0, 0
		fails := func(count *int, does bool) func() error {
			return func() error {
				*count++
				if does && *count == test.at+1 {
					return bad
				}
				return nil
			}
		}
		samples, err := trace.Time(fails(&calls, !test.ofSync), trace.Timing{WarmUp: 2, Calls: 3, Sync: fails(&syncs, test.ofSync)})
		if err == nil || err.Error() != test.want || !errors.Is(err, bad) || len(samples) != test.samples || calls != test.at+1 {
			t.Errorf("%+v: error %v, %d samples, %d calls", test, err, len(samples), calls)
		}
	}
	if _, err := trace.Time(nil, trace.Timing{}); err == nil {
		t.Error("no error without a function")
	}
	if _, err := trace.Time(func() error { return nil }, trace.Timing{Calls: -1}); err == nil {
		t.Error("no error of -1 calls")
	}
}

// Quantile has the share of the times below it, as counting tells, and lies between its neighbours.
func TestQuantile(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for range 500 {
		s := make(trace.Samples, 1+random.IntN(9))
		var sum time.Duration
		for i := range s {
			s[i] = time.Duration(random.IntN(20))
			sum += s[i]
		}
		least := func(k int) time.Duration { // the k-th least, the dumb way
			for v := time.Duration(0); ; v++ {
				n := 0
				for _, d := range s {
					if d <= v {
						n++
					}
				}
				if n > k {
					return v
				}
			}
		}
		n := len(s)
		median := (least((n-1)/2) + least(n/2)) / 2
		if s.Min() != least(0) || s.Max() != least(n-1) || s.Median() != median || s.Mean() != sum/time.Duration(n) {
			t.Fatalf("%v: min %d, median %d, mean %d, max %d", []time.Duration(s), s.Min(), s.Median(), s.Mean(), s.Max())
		}
		for k := range n - 1 {
			share := (float64(k) + 0.5) / float64(n-1)
			if got, want := s.Quantile(share), (least(k)+least(k+1))/2; got != want && got != want+1 {
				t.Fatalf("%v: quantile %v is %d, want %d", []time.Duration(s), share, got, want)
			}
		}
		if s.Quantile(-1) != s.Min() || s.Quantile(math.NaN()) != s.Min() || s.Quantile(7) != s.Max() {
			t.Fatalf("%v: quantiles beyond the ends", []time.Duration(s))
		}
	}
	var none trace.Samples
	if none.Min() != 0 || none.Mean() != 0 || none.Median() != 0 || none.Max() != 0 {
		t.Error("no samples are not 0")
	}
}
