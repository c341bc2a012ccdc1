package trace_test

import (
	"errors"
	"fmt"
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
		if want := strings.Repeat("fs", test.warmUp+test.samples); err != nil || log != want ||
			len(samples) != test.samples {
			t.Errorf("%+v: calls %s, want %s; %d samples; error %v", test, log, want, len(samples), err)
		}
	}
}

// A timed call lasts until Sync returns, and takes nothing from the calls around it.
func TestTimeCountsSync(t *testing.T) {
	const long = 20 * time.Millisecond
	wait := func() error { time.Sleep(long); return nil }
	samples, err := trace.Time(func() error { return nil }, trace.Timing{WarmUp: -1, Calls: 2, Sync: wait})
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
		samples, err := trace.Time(fails(&calls, !test.ofSync),
			trace.Timing{WarmUp: 2, Calls: 3, Sync: fails(&syncs, test.ofSync)})
		if !errors.Is(err, bad) || err.Error() != test.want || len(samples) != test.samples || calls != test.at+1 {
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

func TestQuantile(t *testing.T) {
	for _, test := range []struct {
		samples                trace.Samples
		min, median, mean, max time.Duration
		upperQuarter           time.Duration
	}{
		{nil, 0, 0, 0, 0, 0},
		{trace.Samples{7}, 7, 7, 7, 7, 7},
		{trace.Samples{30, 10}, 10, 20, 20, 30, 25},
		{trace.Samples{9, 1, 5}, 1, 5, 5, 9, 7},
		{trace.Samples{40, 0, 20, 60, 80}, 0, 40, 40, 80, 60},
	} {
		s := test.samples
		if s.Min() != test.min || s.Median() != test.median || s.Mean() != test.mean || s.Max() != test.max ||
			s.Quantile(0.75) != test.upperQuarter || s.Quantile(-1) != test.min || s.Quantile(7) != test.max {
			t.Errorf("%v, mean %d, upper quarter from %d, want %+v", s, s.Mean(), s.Quantile(0.75), test)
		}
	}
}
