package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// act is what a job does once it is started: it runs for a time, saves, and ends.
type act struct {
	lasts   time.Duration // 0 is a second; forever hangs
	saved   int           // step, by then
	reached int           // step, by then
	status  int
	fails   bool     // it says so at its start
	loses   []string // hosts that fall silent at its start
	mends   []string // hosts that answer again at its start
	deaf    bool     // to interrupts
}

const forever = 1000 * time.Hour

// world is a fake cluster with a job on it.
type world struct {
	mu       sync.Mutex
	hosts    []Host
	silent   map[string]bool
	plays    []act
	progress Progress
	said     []string
	started  []string // hosts, ranks, step
	running  int
}

func (w *world) probe(_ context.Context, hosts []Host) (live []Host, silent []Silent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range hosts {
		if w.silent[h.Name] {
			silent = append(silent, Silent{h, errors.New("no answer")})
		} else {
			live = append(live, h)
		}
	}
	return live, silent
}

func (w *world) start(hosts []Host, ranks, from int) (Process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started = append(w.started, fmt.Sprintf("%s %d %d", list(hosts), ranks, from))
	if len(w.plays) == 0 {
		return nil, errors.New("no more starts")
	}
	a := w.plays[0]
	w.plays = w.plays[1:]
	for _, name := range a.loses {
		w.silent[name] = true
	}
	for _, name := range a.mends {
		delete(w.silent, name)
	}
	p := &fake{world: w, act: a, done: make(chan struct{}), trouble: make(chan struct{}), end: make(chan int, 2)}
	if a.fails {
		close(p.trouble)
	}
	if a.lasts == 0 {
		p.act.lasts = time.Second
	}
	w.running++
	go p.run()
	return p, nil
}

// fake is a Process.
type fake struct {
	world         *world
	act           act
	done, trouble chan struct{}
	end           chan int
	status        int
}

func (p *fake) run() {
	select {
	case <-time.After(p.act.lasts):
		p.status = p.act.status
	case p.status = <-p.end:
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.world.progress = Progress{Saved: max(p.act.saved, p.world.progress.Saved), Reached: p.act.reached}
	p.world.running--
	close(p.done)
}

func (p *fake) Done() <-chan struct{}    { return p.done }
func (p *fake) Status() int              { return p.status }
func (p *fake) Trouble() <-chan struct{} { return p.trouble }
func (p *fake) Kill()                    { p.end <- 137 }
func (p *fake) Interrupt() {
	if !p.act.deaf {
		p.end <- 1
	}
}

// supervise plays a job on hosts a, b and c with two slots each, whose ranks must be even in number.
func supervise(ctx context.Context, w *world) error {
	w.hosts = []Host{{"a", 2}, {"b", 2}, {"c", 1}}
	if w.silent == nil {
		w.silent = map[string]bool{}
	}
	return Supervise(ctx, Config{
		Hosts: func(context.Context) ([]Host, error) { return w.hosts, nil },
		Probe: w.probe,
		Ranks: func(slots int) (int, error) {
			if slots < 2 {
				return 0, errors.New("want 2 ranks")
			}
			return slots - slots%2, nil
		},
		Progress: func() (Progress, error) { return w.progress, nil },
		Start:    w.start, MinHosts: 1, Restarts: 2, Grace: 30 * time.Second,
		Say: func(line string) { w.said = append(w.said, line) },
	})
}

func TestSupervise(t *testing.T) {
	const all = "a:2,b:2,c:1 4 " // and the step
	const begin = all + "0"
	once := []string{begin}
	for _, test := range []struct {
		name    string
		w       *world
		started []string
		said    []string // each in one line, in this order
		status  int      // of the error; 0 is none
		err     string
	}{
		{"well", &world{plays: []act{{saved: 9}}}, once,
			[]string{"start 1: hosts a:2,b:2,c:1, ranks 4, from step 0", "done at the first start"}, 0, ""},
		{"a failed host", &world{plays: []act{{saved: 4, reached: 7, status: Again, loses: []string{"b"}}, {saved: 9}}},
			[]string{begin, "a:2,c:1 2 4"},
			[]string{"status 75", "host b is left out: no answer", "start 2: hosts a:2,c:1, ranks 2, from step 4",
				"the restarts repeated 3 steps"}, 0, ""},
		{"a host that comes back", &world{plays: []act{{status: 205, loses: []string{"a", "c"}},
			{status: 137, mends: []string{"a"}}, {saved: 9}}},
			[]string{begin, "b:2 2 0", "a:2,b:2 4 0"}, nil, 0, ""},
		{"wrong use", &world{plays: []act{{status: 1, saved: 4}}}, once, nil, 1, "status 1"},
		{"a crash at once", &world{plays: []act{{status: 2}}}, once, nil, 2, "status 2"},
		{"a crash with progress", &world{plays: []act{{status: 2, saved: 4, reached: 4}, {saved: 9}}},
			[]string{begin, all + "4"}, nil, 0, ""},
		{"daemons that did not start", &world{plays: []act{{status: 1, loses: []string{"c"}}, {saved: 9}}},
			[]string{begin, "a:2,b:2 4 0"}, []string{"host c does not answer"}, 0, ""},
		{"no progress", &world{plays: []act{{status: 75}, {status: 75}, {status: 75}, {}}},
			[]string{begin, begin, begin}, nil, Again, "2 restarts"},
		{"progress in between", &world{plays: []act{{status: 75}, {status: 75, saved: 2}, {status: 75},
			{status: 75, saved: 4}, {status: 75}, {saved: 9}}},
			[]string{begin, begin, all + "2", all + "2", all + "4", all + "4"}, nil, 0, ""},
		{"too few hosts", &world{plays: []act{{status: 75, loses: []string{"a", "b", "c"}}}},
			once, nil, Again, "0 of 3 hosts answer"},
		{"too few ranks", &world{plays: []act{{status: 75, loses: []string{"a", "b"}}}}, once,
			nil, Again, "c:1: want 2 ranks; a, b did not answer"},
		{"no start", &world{}, once, nil, 1, "no more starts"},
		{"mpirun hangs after a failure", &world{plays: []act{{lasts: forever, fails: true}, {saved: 9}}},
			[]string{begin, begin}, []string{"its ranks failed, and mpirun did not end " + "within 30s"}, 0, ""},
		{"mpirun ends after a failure", &world{plays: []act{{lasts: 20 * time.Second, fails: true, status: 75},
			{saved: 9}}},
			[]string{begin, begin}, []string{"ended with status 75"}, 0, ""},
		{"mpirun hangs without a host", &world{plays: []act{{lasts: forever, loses: []string{"c"}}, {saved: 9}}},
			[]string{begin, "a:2,b:2 4 0"}, []string{"host c does not answer: the job has 30s",
				"a host did not answer"}, 0, ""},
		{"unknown losses", &world{plays: []act{{status: 75, saved: 4, reached: -1}, {saved: 9}}},
			[]string{begin, all + "4"}, []string{"the restarts repeated an unknown number of steps"}, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := test.w
				err := supervise(t.Context(), w)
				var failed *Error
				switch {
				case test.status == 0 && err != nil:
					t.Error(err)
				case test.status != 0 && (!errors.As(err, &failed) || failed.Status != test.status ||
					!strings.Contains(err.Error(), test.err)):
					t.Errorf("%v, want status %d and %q", err, test.status, test.err)
				}
				if !slices.Equal(w.started, test.started) {
					t.Errorf("started %q, want %q", w.started, test.started)
				}
				rest := w.said
				for _, want := range test.said {
					i := slices.IndexFunc(rest, func(line string) bool { return strings.Contains(line, want) })
					if i < 0 {
						t.Fatalf("said %q, want %q", w.said, test.said)
					}
					rest = rest[i+1:]
				}
				if w.running != 0 {
					t.Errorf("%d jobs are left", w.running)
				}
			})
		})
	}
}

// A host that is silent for less than the grace time, again and again, does no harm.
func TestShortSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{plays: []act{{lasts: 10 * time.Minute, saved: 9}}}
		stop := make(chan struct{})
		go func() {
			for silent := true; ; silent = !silent {
				select {
				case <-time.After(17 * time.Second): // and up to 10 s until it is seen
				case <-stop:
					return
				}
				w.mu.Lock()
				if delete(w.silent, "c"); silent {
					w.silent["c"] = true
				}
				w.mu.Unlock()
			}
		}()
		if err := supervise(t.Context(), w); err != nil || len(w.started) != 1 {
			t.Errorf("%v, starts %q", err, w.started)
		}
		close(stop)
	})
}

func TestInterrupt(t *testing.T) {
	for _, test := range []struct {
		name  string
		after time.Duration
		plays []act
		want  string
	}{
		{"the job", time.Minute, []act{{lasts: forever, saved: 5}}, "interrupted with step 5 saved"},
		{"a job that does not listen", time.Minute, []act{{lasts: forever, deaf: true}},
			"interrupted with step 0 saved"},
		{"between starts", 1100 * time.Millisecond, []act{{status: 75}, {}}, "interrupted between two starts"},
		{"before the start", 0, []act{{}}, "interrupted before a start"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.after)
				defer cancel()
				w := &world{plays: test.plays}
				err := supervise(ctx, w)
				var failed *Error
				if !errors.As(err, &failed) || failed.Status != Again || !strings.Contains(err.Error(), test.want) ||
					w.running != 0 {
					t.Errorf("%v, want status %d and %q; %d jobs are left", err, Again, test.want, w.running)
				}
			})
		})
	}
}

func TestPause(t *testing.T) {
	for n := 1; n < 100; n++ {
		full := min(time.Minute, time.Duration(float64(time.Second)*float64(uint(1)<<min(n-1, 20))))
		if got := pause(n); got < full/2 || got > full {
			t.Errorf("pause before start %d: %v, want %v to %v", n, got, full/2, full)
		}
	}
}
