package launch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Progress is how far a job is, in steps that were made.
type Progress struct {
	Saved   int // by the newest checkpoint; 0 if there is none
	Reached int // before the job ended; less than Saved where that is not known
}

// Config is a job and how to supervise it. Its functions are called one at a time, but for Probe.
type Config struct {
	// Hosts returns the hosts there are. It is asked before every start.
	Hosts func(ctx context.Context) ([]Host, error)
	// Probe says which hosts answer, within some seconds.
	Probe func(ctx context.Context, hosts []Host) (live []Host, silent []Silent)
	// Ranks returns the largest world, of at most this many ranks, that can do the job.
	Ranks func(slots int) (int, error)
	// Progress looks how far the job is.
	Progress func() (Progress, error)
	// Start starts the job on hosts, from a step that is saved or from the beginning, 0.
	Start func(hosts []Host, ranks, from int) (Process, error)
	// MinHosts is the smallest number of hosts to start on.
	MinHosts int
	// Restarts is how often the job is started again with no new checkpoint in between.
	Restarts int
	// Grace is how long a job may take to end once it is in trouble or has been interrupted, or a host has fallen
	// silent. Must be positive.
	Grace time.Duration
	// Pause is how long to wait before the n-th start with no new checkpoint in between; nil is half a second to one,
	// doubled each time, up to a minute.
	Pause func(n int) time.Duration
	// Say prints a line.
	Say func(line string)
}

// Supervise starts a job until it ends well, and returns nil then. A job of which a rank or a host failed is started again,
// from its newest checkpoint, on the hosts that answer. So is one that ended with another status than 1 and has a new
// checkpoint: what happened once in many steps need not happen again.
//
// When ctx ends the job is interrupted, and has the grace time to save and to end. Errors are of type [*Error].
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

// pause is the usual Config.Pause. Its jitter keeps jobs that failed together apart.
func pause(n int) time.Duration {
	full := min(time.Minute, time.Second<<min(n-1, 6))
	return full/2 + rand.N(full/2)
}

func interrupted(when string) error {
	return &Error{Again, fmt.Errorf("interrupted %s: the same command continues from there", when)}
}

// supervisor is a job that is supervised.
type supervisor struct {
	Config
	repeat []string // for each restart, how many steps are repeated
	starts int
	failed int // restarts since the last new checkpoint
}

func (s *supervisor) say(format string, args ...any) { s.Say(fmt.Sprintf(format, args...)) }

// once starts the job and waits for its end. again says that it is worth another start, and err why.
func (s *supervisor) once(ctx context.Context) (again bool, err error) {
	hosts, silent, err := s.live(ctx)
	if err != nil {
		return false, err
	}
	ranks, err := s.Ranks(Slots(hosts))
	switch {
	case err != nil && len(silent) > 0: // with them it may be done
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

// judge says whether a job that ended with a status is worth another start.
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

// summary is the last line of a job that is done.
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
