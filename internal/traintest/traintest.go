// Package traintest helps tests of training by ranks: with training on one device to compare with, with comparisons of
// results, and with faults.
package traintest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gomlx/compute/dtypes/bfloat16"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Named are parameters by name.
type Named = params.Named[*tensors.Tensor]

// Batches gives the batch of a step.
type Batches = func(step int) (inputs, targets *tensors.Tensor)

// Whole is a model that is one function, not a chain of blocks.
type Whole struct{ train.Model }

// One is a run on one device; close it.
func One(t testing.TB, backend *xla.Backend, recipe train.Recipe) *train.Run {
	t.Helper()
	mesh, err := backend.Mesh(xla.Axis(train.Axis, 1))
	must.Do(t, err)
	run, err := train.New(mesh, recipe)
	must.Do(t, err)
	return run
}

// Alone trains on one device, and returns the parameters and what each step reported.
func Alone(t testing.TB, backend *xla.Backend, recipe train.Recipe, steps int,
	batches Batches) (Named, []train.Metrics) {
	t.Helper()
	run := One(t, backend, recipe)
	defer run.Close()
	var all []train.Metrics
	for step := range steps {
		m, err := run.Step(batches(step))
		must.Do(t, err)
		all = append(all, m)
	}
	values, err := run.Params(0)
	must.Do(t, err)
	named, err := params.Zip(recipe.Model.Params(), values)
	must.Do(t, err)
	return named, all
}

// Apart is the largest difference between two trees, in units in the last place of the largest parameter, in float32.
// NaNs fail the test.
func Apart(t testing.TB, a, b Named) float64 {
	t.Helper()
	var worst, largest float64
	for name := range a {
		x, y := inFull(t, a[name]), inFull(t, b.Get(name))
		for i := range x {
			if x[i] != x[i] || y[i] != y[i] {
				t.Fatalf("%s has NaNs", name)
			}
			worst, largest = max(worst, math.Abs(float64(x[i])-float64(y[i]))), max(largest, math.Abs(float64(x[i])))
		}
	}
	return worst / (float64(math.Nextafter32(float32(largest), 2*float32(largest))) - largest)
}

// inFull copies a tensor's values as float32.
func inFull(t testing.TB, v *tensors.Tensor) (values []float32) {
	t.Helper()
	if err := v.ConstFlatData(func(flat any) {
		switch flat := flat.(type) {
		case []float32:
			values = slices.Clone(flat)
		case []bfloat16.BFloat16:
			for _, x := range flat {
				values = append(values, x.Float32())
			}
		case []int32:
			for _, x := range flat {
				values = append(values, float32(x))
			}
		default:
			t.Fatalf("values of %s", v.DType())
		}
	}); err != nil {
		t.Fatal(err)
	}
	return values
}

// Differ returns the name of a parameter whose bits differ, or that b lacks; "" if there is none.
func Differ(a, b Named) string {
	for name := range a {
		if b[name] == nil || !a[name].Equal(b[name]) {
			return name
		}
	}
	return ""
}

// Agree fails the test unless two trees have the same bits. If programs are compiled as for users, XLA contracts
// multiplications and additions and vectorizes loops differently in different programs: then results may differ by
// bound units in the last place of the largest parameter.
func Agree(t testing.TB, what string, a, b Named, bound float64) {
	t.Helper()
	name := Differ(a, b)
	if name == "" {
		return
	}
	if !devicetest.AsUsersDo() {
		t.Errorf("%s: %s has other bits", what, name)
	} else if off := Apart(t, a, b); !(off <= bound) {
		t.Errorf("%s: %g units apart, want at most %g", what, off, bound)
	}
}

// Last opens the newest checkpoint in a folder.
func Last(t testing.TB, dir string) *checkpoint.Checkpoint {
	t.Helper()
	path, err := checkpoint.Latest(dir)
	must.Do(t, err)
	c, err := checkpoint.Open(path)
	must.Do(t, err)
	return c
}

// State is all that is in the newest checkpoint of a folder.
func State(t testing.TB, dir string) Named {
	t.Helper()
	c := Last(t, dir)
	values, err := c.Read(t.Context(), c.Tree())
	must.Do(t, err)
	named, err := params.Zip(c.Tree(), values)
	must.Do(t, err)
	return named
}

// Fault is what goes wrong with a rank.
type Fault string

const (
	Fails   Fault = "returns an error"
	Panics  Fault = "panics"
	Stalls  Fault = "stalls"
	Cancels Fault = "is cancelled"
)

// Faults are all of them.
var Faults = []Fault{Fails, Panics, Stalls, Cancels}

// ErrLuck is the error of a rank that fails.
var ErrLuck = errors.New("out of luck")

// boom is what a rank panics with.
const boom = "boom"

// Strike makes the fault happen: a rank that stalls calls wait, and one that is cancelled calls cancel.
func (f Fault) Strike(wait, cancel func()) error {
	switch f {
	case Fails:
		return ErrLuck
	case Panics:
		panic(boom)
	case Stalls:
		wait()
	case Cancels:
		cancel()
	}
	return nil
}

// Trap is a rank's view of a group and of its sub-groups, in which the fault happens in one call.
type Trap struct {
	group.Group
	*trigger
}

type trigger struct {
	strike func() error
	calls  atomic.Int64 // so far
	at     atomic.Int64 // the number of the call that strikes, from 1; none at 0
}

// NewTrap sets a trap, which is not armed yet.
func NewTrap(g group.Group, strike func() error) Trap { return Trap{g, &trigger{strike: strike}} }

// Calls is the number of calls so far.
func (t Trap) Calls() int64 { return t.calls.Load() }

// Arm has the first, the middle or the last of the next calls strike; with any other word, none.
func (t Trap) Arm(at string, calls int64) {
	n, ok := map[string]int64{"first": 0, "middle": calls / 2, "last": calls - 1}[at]
	if ok {
		t.at.Store(t.Calls() + n + 1)
	}
}

// pace is the time that a rank takes before each call, unless its context has ended.
const pace = time.Millisecond

func (t Trap) pull(ctx context.Context) error {
	if ctx.Err() == nil {
		time.Sleep(pace)
	}
	if t.calls.Add(1) == t.at.Load() {
		return t.strike()
	}
	return nil
}

// Do implements [group.Group].
func (t Trap) Do(ctx context.Context, call group.Call) error {
	if err := t.pull(ctx); err != nil {
		return err
	}
	return t.Group.Do(ctx, call)
}

// Start implements [group.Group].
func (t Trap) Start(ctx context.Context, call group.Call) *group.Pending {
	if err := t.pull(ctx); err != nil {
		return group.NewPending(func() error { return err })
	}
	return t.Group.Start(ctx, call)
}

// Split implements [group.Group].
func (t Trap) Split(ctx context.Context, color, key int) (group.Group, error) {
	of, err := t.Group.Split(ctx, color, key)
	if of == nil || err != nil {
		return nil, err
	}
	return Trap{of, t.trigger}, nil
}

// Case is a fault of a rank in the second of three steps.
type Case struct {
	Fault  Fault
	At     string // before the step, or in its first, middle or last call of a group
	Victim int
}

func (c Case) String() string { return fmt.Sprintf("rank %d %s, %s", c.Victim, c.Fault, c.At) }

// Rank is a rank of an engine.
type Rank interface {
	comparable
	Step(ctx context.Context, inputs, targets *tensors.Tensor) (train.Metrics, error)
	Steps() int
	Save(ctx context.Context, dir string, meta any, keep int) error
	Load(ctx context.Context, c *checkpoint.Checkpoint) error
	Close() error
}

// Ranks are those that cases are played with.
type Ranks[R Rank] struct {
	Size    int
	Join    func(ctx context.Context, g group.Group) (R, error)
	Batches Batches
	// Ask calls other methods of a failed rank, and returns their errors by method. It may be nil.
	Ask    func(r R) map[string]error
	Folder string // for checkpoints that must be refused
}

// patience is how long ranks wait for each other.
const patience = time.Minute

// Play trains with the fault. Each rank but the victim must get an error that names it, and whatever is asked of a
// rank after that, what to do. Only for a rank that stalls do the others wait for their time.
//
// The clock is synctest's: it stands still while a rank computes, and moves on when all wait, so that none but the
// victim is late however busy the machine is. Each call takes a moment of it: deadlines end in the order in which
// ranks began to wait. The programs of the ranks' devices may be compiled in it; what ranks of other tests share
// they must have before.
func (all Ranks[R]) Play(t *testing.T, c Case) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if err := all.play(c); err != nil {
			t.Errorf("%v: %v", c, err)
		}
		if waited := time.Since(begun); (waited >= patience) != (c.Fault == Stalls) {
			t.Errorf("%v: the ranks waited for %v, with a timeout of %v", c, waited, patience)
		}
	})
}

// play trains with the fault, and checks the errors of all ranks.
func (all Ranks[R]) play(c Case) error {
	var survivors sync.WaitGroup
	survivors.Add(all.Size - 1)
	ranks, errs := make([]R, all.Size), make([]error, all.Size)
	train := func(ctx context.Context, g group.Group) (err error) {
		me := g.Rank()
		own, cancel := context.WithCancel(ctx)
		defer cancel()
		strike := func() error { return c.Fault.Strike(survivors.Wait, cancel) }
		view := NewTrap(g, strike)
		if ranks[me], err = all.Join(ctx, view); err != nil {
			return err
		}
		for step := range 3 {
			before := view.Calls()
			if me == c.Victim && step == 1 && c.At == "before" {
				if err := strike(); err != nil {
					return err
				}
			}
			inputs, targets := all.Batches(step)
			if _, err := ranks[me].Step(own, inputs, targets); err != nil {
				return err
			}
			if me == c.Victim && step == 0 {
				view.Arm(c.At, view.Calls()-before)
			}
		}
		return nil
	}
	_ = group.Run(context.Background(), all.Size, func(ctx context.Context, g group.Group) error {
		if g.Rank() != c.Victim {
			defer survivors.Done()
		}
		errs[g.Rank()] = train(ctx, g)
		return errs[g.Rank()]
	}, group.Timeout(patience))
	var wrong []error
	for r, rank := range ranks {
		if r != c.Victim {
			wrong = append(wrong, c.named(r, errs[r]))
		}
		var none R
		if rank == none {
			wrong = append(wrong, fmt.Errorf("rank %d has not joined: %w", r, errs[r]))
			continue
		}
		if err := all.failed(rank); err != nil {
			wrong = append(wrong, fmt.Errorf("rank %d, then: %w", r, err))
		}
	}
	return errors.Join(wrong...)
}

// named says what is wrong with another rank's error. The failure of a group behind it names the victim, the
// operation and its number; of a part of the group that numbers its ranks anew it is said with the numbers among
// all. Where the victim has returned, its own error may be there instead: it has ended the context in which the rank
// was computing, or waited for others. Of a rank that stalls in one part of the group, those of another part know
// only who does not come to them, and that this one waits in the first.
func (c Case) named(r int, err error) error {
	if err == nil {
		return fmt.Errorf("rank %d has no error", r)
	}
	own := regexp.MustCompile(fmt.Sprintf(`rank %d: (%v|panic: %s|(?:\w+: )?rank %[1]d has failed)`, c.Victim, ErrLuck,
		boom))
	if c.Fault != Stalls && own.MatchString(err.Error()) {
		return nil
	}
	failure := firstOf(err)
	if failure == nil || failure.Seq == 0 || !strings.Contains(failure.Error(),
		fmt.Sprintf("%v #%d", failure.Kind, failure.Seq)) {
		return fmt.Errorf("rank %d: %w; that does not say in which operation a rank failed", r, err)
	}
	named := failure.Rank
	anew := regexp.MustCompile(`rank (\d+), in a group of the ranks \[[\d ]+\]: ` + regexp.QuoteMeta(failure.Error()))
	if at := anew.FindStringSubmatch(err.Error()); at != nil {
		named, _ = strconv.Atoi(at[1])
	}
	waits := regexp.MustCompile(`\(it is in [\w-]+ #\d+ of split`).MatchString(failure.Reason)
	elsewhere := waits && !strings.Contains(failure.Reason, "of "+failure.Group)
	if named != c.Victim && !(c.Fault == Stalls && elsewhere) {
		return fmt.Errorf("rank %d: %w; that names rank %d, not %d", r, err, named, c.Victim)
	}
	return nil
}

// firstOf is the failure that an error began with: a rank that fails by one is the reason of another, in another part
// of the group.
func firstOf(err error) (first *group.Failure) {
	for failure := first; errors.As(err, &failure); err = failure.Err {
		first = failure
	}
	return first
}

// failed checks the errors of a rank's methods after it has failed, and closes it, twice.
func (all Ranks[R]) failed(r R) error {
	ctx := context.Background()
	made := r.Steps()
	inputs, targets := all.Batches(1)
	_, step := r.Step(ctx, inputs, targets) // a failure before the step is noticed by it
	answers := map[string]error{"Step": step, "Save": r.Save(ctx, all.Folder, nil, 1), "Load": r.Load(ctx, nil)}
	if all.Ask != nil {
		for method, err := range all.Ask(r) {
			answers[method] = err
		}
	}
	var errs []error
	for what, err := range answers {
		if err == nil || !strings.Contains(err.Error(), "join a new group and load the last checkpoint") {
			errs = append(errs, fmt.Errorf("%s of a failed rank: %v", what, err))
		}
	}
	if r.Steps() != made {
		errs = append(errs, fmt.Errorf("a failed rank has made %d steps, before %d", r.Steps(), made))
	}
	return errors.Join(append(errs, r.Close(), r.Close())...)
}
