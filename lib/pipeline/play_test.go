package pipeline_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
	"github.com/shardbook/shardbook/lib/trace"
)

// letters counts the messages that are made and not freed.
type letters struct {
	mu    sync.Mutex
	alive int
	twice int // freed again
}

// letter is a message that says which action made it.
type letter struct {
	values [4]int32
	of     *letters
	gone   bool
}

func (l *letters) write(a schedule.Action) *letter {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alive++
	return &letter{values: [4]int32{int32(a.Pass), int32(a.Stage), int32(a.Microbatch), 1}, of: l}
}

func (l *letter) Memory() (group.Type, group.Buffer, error) {
	return group.Int32, group.Buffer{Data: unsafe.Pointer(&l.values), Len: len(l.values)}, nil
}

func (l *letter) Free() error {
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if l.gone {
		l.of.twice++
	}
	l.gone = true
	l.of.alive--
	return nil
}

// instant is a worker that takes no time, and looks at what it gets.
type instant struct {
	letters *letters
	stages  int
	did     []schedule.Action
	used    []int // the versions
}

// wants is the stage and the passes of what an action needs, none for a stage of -1.
func (w *instant) wants(a schedule.Action) (stage int, passes string) {
	switch {
	case a.Pass == schedule.Forward:
		return a.Stage - 1, "F"
	case (a.Pass == schedule.Backward || a.Pass == schedule.InputGrad) && a.Stage < w.stages-1:
		return a.Stage + 1, "BI"
	}
	return -1, ""
}

func (w *instant) Compute(_ context.Context, a schedule.Action, version int, in pipeline.Message) (pipeline.Message, error) {
	w.did, w.used = append(w.did, a), append(w.used, version)
	stage, passes := w.wants(a)
	if (in == nil) != (stage < 0) {
		return nil, fmt.Errorf("it got the message %v", in)
	}
	if in != nil {
		got := in.(*letter)
		right := strings.ContainsRune(passes, rune(got.values[0])) && got.values[1] == int32(stage) && got.values[2] == int32(a.Microbatch)
		if got.gone || !right {
			return nil, fmt.Errorf("it got the message %v, freed: %v", got.values, got.gone)
		}
		if err := in.Free(); err != nil {
			return nil, err
		}
	}
	switch {
	case a.Pass == schedule.Forward && a.Stage < w.stages-1,
		(a.Pass == schedule.Backward || a.Pass == schedule.InputGrad) && a.Stage > 0:
		return w.letters.write(a), nil
	}
	return nil, nil
}

func (w *instant) Room(of schedule.Action) (pipeline.Message, error) {
	return w.letters.write(schedule.Action{Pass: 'x', Stage: of.Stage}), nil
}

// TestPlay plays every named schedule for up to six ranks and twelve micro-batches, over groups whose messages move when both sides
// are there. All ranks come to the end, having done their actions in order with the versions that the schedule has for them, and each
// got the messages that it needed; each message is freed once.
func TestPlay(t *testing.T) {
	leaks := systest.NoLeaks(t)
	played := 0
	for _, kind := range schedule.Kinds() {
		for ranks := 1; ranks <= 6; ranks++ {
			for m := 1; m <= 12; m++ {
				s, err := schedule.New(kind, ranks, m, 0)
				if err != nil {
					continue // not for these numbers
				}
				played++
				playOnce(t, fmt.Sprintf("%s, %d ranks, %d micro-batches", kind, ranks, m), s)
			}
		}
	}
	if played < 500 {
		t.Errorf("%d schedules", played)
	}
	leaks()
}

func playOnce(t *testing.T, name string, s schedule.Schedule) {
	t.Helper()
	player, err := pipeline.NewPlayer(s)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	versions, err := s.Versions()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	count, recorder := &letters{}, trace.New()
	if err := group.Run(t.Context(), len(s.Ranks), func(ctx context.Context, g group.Group) error {
		w := &instant{letters: count, stages: s.Stages}
		if err := player.Play(ctx, g, w, pipeline.PlayOptions{Trace: recorder, First: 10}); err != nil {
			return err
		}
		if !slices.Equal(w.did, s.Ranks[g.Rank()]) || !slices.Equal(w.used, versions[g.Rank()]) {
			t.Errorf("%s: rank %d did %v with versions %v", name, g.Rank(), w.did, w.used)
		}
		return nil
	}); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if count.alive != 0 || count.twice != 0 {
		t.Errorf("%s: %d messages are not freed, %d were freed twice", name, count.alive, count.twice)
	}
	for r, list := range s.Ranks {
		var names []string
		for _, a := range list {
			names = append(names, a.String())
		}
		if got := spanNames(trace.Of(recorder.Spans(), 10+r, trace.Compute)); !slices.Equal(got, names) {
			t.Errorf("%s: rank %d has the spans %v, want %v", name, r, got, names)
		}
	}
}

func spanNames(spans []trace.Span) (names []string) {
	for _, s := range spans {
		names = append(names, s.Name)
	}
	return names
}

// silent is a worker that returns nothing that others wait for.
type silent struct{ *instant }

func (w silent) Compute(ctx context.Context, a schedule.Action, version int, in pipeline.Message) (pipeline.Message, error) {
	out, err := w.instant.Compute(ctx, a, version, in)
	if out != nil {
		err = out.Free()
	}
	return nil, err
}

// TestPlayRefused plays what cannot be.
func TestPlayRefused(t *testing.T) {
	s := newSchedule(t, schedule.Kind1F1B, 2, 3, 0)
	cyclic := newSchedule(t, schedule.Kind1F1B, 2, 3, 0)
	slices.Reverse(cyclic.Ranks[1][:4])
	if _, err := pipeline.NewPlayer(cyclic); err == nil {
		t.Error("backward passes before forward passes: no error")
	}
	player, err := pipeline.NewPlayer(s)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		ranks  int
		worker func(w *instant) pipeline.Worker
		want   string
	}{
		"too many ranks": {3, func(w *instant) pipeline.Worker { return w }, "a group of 3 ranks for the schedule 1f1b of 2"},
		"nothing made": {2, func(w *instant) pipeline.Worker { return silent{w} },
			"the output of stage 0 for micro-batch 0, which rank 1 waits for, is nil"},
	} {
		leaks := systest.NoLeaks(t)
		count := &letters{}
		errs := make([]error, c.ranks)
		_ = group.Run(t.Context(), c.ranks, func(ctx context.Context, g group.Group) error {
			errs[g.Rank()] = player.Play(ctx, g, c.worker(&instant{letters: count, stages: 2}), pipeline.PlayOptions{})
			return errs[g.Rank()]
		}, group.Timeout(time.Minute))
		for r, err := range errs {
			checkError(t, fmt.Sprintf("%s, rank %d", name, r), err, c.want)
		}
		if count.alive != 0 || count.twice != 0 {
			t.Errorf("%s: %d messages are not freed, %d were freed twice", name, count.alive, count.twice)
		}
		leaks()
	}
}
