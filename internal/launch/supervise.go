package launch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Progress counts the completed steps of a job.
type Progress struct {
	Saved   int // by the newest checkpoint; 0 if there is none
	Reached int // before the job ended; less than Saved where that is not known
}

// Config is a job and how to supervise it. Its functions are not called concurrently, except Probe.
type Config struct {
	// Hosts returns the available hosts. It is called before every start.
	Hosts func(ctx context.Context) ([]Host, error)
	// Probe returns which hosts answer and which do not. It should take a few seconds at most.
	Probe func(ctx context.Context, hosts []Host) (live []Host, silent []Silent)
	// Ranks returns the largest number of ranks, at most slots, on which the job can run.
	Ranks func(slots int) (int, error)
	// Progress returns the job's progress.
	Progress func() (Progress, error)
	// Start starts the job on hosts, from a saved step, or 0 for the beginning.
	Start func(hosts []Host, ranks, from int) (Process, error)
	// MinHosts is the smallest number of hosts to start on.
	MinHosts int
	// Restarts is the maximum number of restarts without a new checkpoint in between.
	Restarts int
	// Grace is the time in which a job must end after a sign of trouble, an interrupt, or a host that stopped
	// answering. It must be positive.
	Grace time.Duration
	// Pause returns the time to wait before the n-th restart without a new checkpoint. It defaults to a random 0.5 to 1
	// s, doubled each time, up to a minute.
	Pause func(n int) time.Duration
	// Say prints a line.
	Say func(line string)
}

// Supervise runs a job until it succeeds, and then returns nil. If a rank or a host fails, it restarts the job from the
// newest checkpoint on the hosts that answer. It also restarts a job that ended with another status than 1 and has a
// new checkpoint, since a rare failure may not repeat.
//
// When ctx ends, Supervise interrupts the job, which has the grace time to save and end. Errors are of type [*Error].
func Supervise(ctx context.Context, c Config) error {
	s := &supervisor{Config: c}
	if s.Pause == nil {
		s.Pause = pause
	}
	for {
		again, err := s.once(ctx)
		if !again {
			return err
		}
		if s.failed++; s.failed > s.Restarts {
			return &Error{Again, fmt.Errorf("%w; %d restarts with no new checkpoint were allowed (--restarts)", err,
				s.Restarts)}
		}
		wait := s.Pause(s.failed)
		s.say("%v; starting again in %v", err, wait.Round(time.Millisecond))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return interrupted("between two starts")
		}
	}
}

// pause is the default of Config.Pause. Its jitter keeps jobs that failed at the same time from restarting at the same
// time.
func pause(n int) time.Duration {
	full := min(time.Minute, time.Second<<min(n-1, 6))
	return full/2 + rand.N(full/2)
}

func interrupted(when string) error {
	return &Error{Again, fmt.Errorf("interrupted %s: the same command continues from there", when)}
}

// supervisor is the state of Supervise.
type supervisor struct {
	Config
	repeat []string // for each restart, how many steps are repeated
	starts int
	failed int // restarts since the last new checkpoint
}

func (s *supervisor) say(format string, args ...any) { s.Say(fmt.Sprintf(format, args...)) }

// once starts the job and waits for its end. again reports whether to restart it; err is the reason.
func (s *supervisor) once(ctx context.Context) (again bool, err error) {
	hosts, silent, err := s.live(ctx)
	if err != nil {
		return false, err
	}
	ranks, err := s.Ranks(Slots(hosts))
	switch {
	case err != nil && len(silent) > 0: // they may make it possible
		return false, &Error{Again, fmt.Errorf("%s: %w; %s did not answer", list(hosts), err, names(silent))}
	case err != nil:
		return false, &Error{1, fmt.Errorf("%s: %w", list(hosts), err)}
	}
	before, err := s.Progress()
	if err != nil {
		return false, &Error{1, err}
	}
	s.starts++
	s.say("start %d: hosts %s, ranks %d, from step %d", s.starts, list(hosts), ranks, before.Saved)
	p, err := s.Start(hosts, ranks, before.Saved)
	if err != nil {
		return false, &Error{1, err}
	}
	killed := watch(ctx, s.Config, p, hosts)
	after, err := s.Progress()
	switch {
	case p.Status() == 0:
		s.summary()
		return false, err
	case err != nil:
		return false, &Error{1, err}
	case ctx.Err() != nil:
		return false, interrupted(fmt.Sprintf("with step %d saved", after.Saved))
	}
	progress := after.Saved > before.Saved
	if progress {
		s.failed = 0
	}
	s.repeat = append(s.repeat, "an unknown number of")
	if after.Reached >= after.Saved {
		s.repeat[len(s.repeat)-1] = fmt.Sprint(after.Reached - after.Saved)
	}
	return s.judge(ctx, p.Status(), killed, hosts, progress)
}

// live returns the hosts to start on, and those that do not answer.
func (s *supervisor) live(ctx context.Context) (live []Host, silent []Silent, err error) {
	all, err := s.Hosts(ctx)
	if err != nil {
		return nil, nil, &Error{1, err}
	}
	live, silent = s.Probe(ctx, all)
	if ctx.Err() != nil {
		return nil, nil, interrupted("before a start")
	}
	for _, h := range silent {
		s.say("host %s is left out: %v", h.Name, h.Err)
	}
	if need := max(s.MinHosts, 1); len(live) < need {
		return nil, nil, &Error{Again, fmt.Errorf("%d of %d hosts answer, and at least %d are needed (--min-hosts)",
			len(live), len(all), need)}
	}
	return live, silent, nil
}

// judge decides whether a job that ended with a status is restarted.
func (s *supervisor) judge(ctx context.Context, status int, killed error, hosts []Host, progress bool) (bool, error) {
	ended := fmt.Errorf("the job ended with status %d", status)
	switch {
	case killed != nil:
		return true, killed
	case status == Again || status >= 128 || status != 1 && progress:
		return true, ended
	}
	if _, silent := s.Probe(ctx, hosts); len(silent) > 0 {
		return true, fmt.Errorf("%w, and host %s does not answer", ended, names(silent))
	}
	return false, &Error{status, fmt.Errorf("%w, and no rank or host failed: see what the ranks say", ended)}
}

// summary prints the last line of a finished job.
func (s *supervisor) summary() {
	if len(s.repeat) == 0 {
		s.say("done at the first start")
		return
	}
	s.say("done at start %d; the restarts repeated %s steps", s.starts, strings.Join(s.repeat, ", "))
}

func names(silent []Silent) string {
	all := make([]string, len(silent))
	for i, h := range silent {
		all[i] = h.Name
	}
	return strings.Join(all, ", ")
}
