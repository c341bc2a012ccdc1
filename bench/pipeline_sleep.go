package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/pipeline/schedule"
)

// plannedCase reads a case, and makes its schedule.
func plannedCase(params []byte) (c pipelineCase, plan schedule.Schedule, err error) {
	if err = json.Unmarshal(params, &c); err == nil {
		plan, err = c.schedule()
	}
	return c, plan, err
}

// simulated takes just what a schedule's simulation says. It is a subject for ratios.
type simulated struct{ ms float64 }

func serveSimulated(context.Context) (subject, func(), error) { return &simulated{}, func() {}, nil }

func (s *simulated) prepare(params []byte) error {
	c, plan, err := plannedCase(params)
	if err != nil {
		return err
	}
	line, err := plan.Simulate(c.costs())
	s.ms = line.Makespan
	return err
}

func (s *simulated) sample(int) (float64, error) { return s.ms, nil }
func (s *simulated) finish() error               { return nil }

// sleepers play a schedule with ranks that sleep.
type sleepers struct {
	ranks
	player *pipeline.Player
	pipeline.Sleeper
}

func serveSleepers(context.Context) (subject, func(), error) { return &sleepers{}, func() {}, nil }

func (s *sleepers) prepare(params []byte) error {
	c, plan, err := plannedCase(params)
	if err != nil {
		return err
	}
	if s.player, err = pipeline.NewPlayer(plan); err != nil {
		return err
	}
	if s.groups, err = group.New(len(plan.Ranks)); err != nil {
		return err
	}
	s.Sleeper = pipeline.Sleeper{Costs: c.costs(), Unit: time.Millisecond}
	return s.play()
}

// play plays the schedule once. A message from the wrong pass is an error.
func (s *sleepers) play() error {
	return s.do(func(ctx context.Context, i int) error {
		return s.player.Play(ctx, s.groups[i], s.Sleeper, pipeline.PlayOptions{})
	})
}

func (s *sleepers) sample(calls int) (float64, error) {
	if err := s.play(); err != nil { // the first call after a pause is slow
		return 0, err
	}
	begin := time.Now()
	for range calls {
		if err := s.play(); err != nil {
			return 0, err
		}
	}
	return milliseconds(begin, calls), nil
}

func (s *sleepers) finish() error { return s.play() }
