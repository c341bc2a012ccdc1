package mpijob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shardbook/shardbook/internal/launch"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/train"
)

// StatusFailed is the exit status of a process after another one failed: a restart from the last checkpoint may
// succeed. All other errors have status 1.
const StatusFailed = launch.Again

// ExitStatus is an error that is already printed, and the status with which to exit immediately: after a failure,
// unfinished calls between processes may still write to memory.
type ExitStatus int

func (s ExitStatus) Error() string { return fmt.Sprintf("printed already, status %d", int(s)) }

// rollCallTime is how long a rank that cannot continue waits for the others' answers, if the timeout is not shorter.
const rollCallTime = 10 * time.Second

// linger is how long a rank with another one's message waits before it exits: mpirun then kills the others, which may
// be about to print theirs.
const linger = time.Second

// wait waits for linger, and prints nothing if mpirun ends it meanwhile.
func (c *Job) wait() {
	c.quiet()
	time.Sleep(linger)
}

// endReport is what a process sends to the others at the end, in at most reportBytes.
type endReport struct {
	text string
	own  bool // and not an error that another process told it
}

// reportBytes is short enough that sending does not wait for a receiver.
const reportBytes = 2048

// End exchanges how all processes ended, and returns nil if all succeeded. Each error is printed once, by the first
// rank that has it; a rank that only received another's error prints nothing. If a rank does not answer, each of the
// others names it.
func (c *Job) End(err error, out io.Writer) error {
	if c == nil {
		return err
	}
	wait, mine := c.timeout, endReport{}
	if err != nil {
		wait = min(wait, rollCallTime)
		mine = endReport{brief(err), !c.heard(err)}
		c.raise(errors.New(mine.text))
	}
	reports, missing := c.rollCall(mine, wait)
	owners := slices.IndexFunc(reports, func(r endReport) bool { return r.own })
	switch {
	case owners >= 0:
		if !mine.own || !c.sayOwn(out, reports, mine.text) {
			c.wait()
		}
		return ExitStatus(1)
	case len(missing) > 0:
		fmt.Fprintf(out, "shardbook: %s: %s within %v: killed, stalled or cut off; continue from the last "+
			"checkpoint%s\n", c.at(c.Rank()), c.silent(missing), c.timeout, c.seen(err, missing))
		c.wait()
		return ExitStatus(StatusFailed)
	case slices.ContainsFunc(reports, func(r endReport) bool { return r.text != "" }):
		if first := slices.IndexFunc(reports, func(r endReport) bool { return r.text != "" }); first == c.Rank() {
			fmt.Fprintf(out, "shardbook: %s: %s: all ranks answer now, so none has failed, but one may be slower than "+
				"--timeout %v allows\n", c.at(first), mine.text, c.timeout)
		} else {
			c.wait()
		}
		return ExitStatus(StatusFailed)
	}
	return nil
}

// heard reports whether an error is only the consequence of another rank's. A call that the alarm ended fails in the
// same way as one of the rank's own.
func (c *Job) heard(err error) bool {
	if alarm := context.Cause(c.ctx); alarm != nil && errors.Is(err, alarm) {
		return true
	}
	var f *group.Failure
	if errors.As(err, &f) {
		return errors.Is(f, context.DeadlineExceeded) || f.Group != "" || f.Rank != c.Rank()
	}
	return errors.Is(err, train.ErrElsewhere)
}

// sayOwn prints the rank's own error, unless an earlier rank has the same, and reports whether it printed.
func (c *Job) sayOwn(out io.Writer, reports []endReport, text string) bool {
	same := 0
	for other, r := range reports {
		if r.own && r.text == clipped(text) {
			if other < c.Rank() {
				return false
			}
			same++
		}
	}
	if same < len(reports) {
		text = c.at(c.Rank()) + ": " + text
	}
	fmt.Fprintln(out, "shardbook:", text)
	return true
}

// at names a rank and its host.
func (c *Job) at(rank int) string { return fmt.Sprintf("rank %d on %s", rank, c.hosts[rank]) }

// silent names ranks that did not answer.
func (c *Job) silent(ranks []int) string {
	var names []string
	for _, r := range ranks {
		names = append(names, c.at(r))
	}
	return strings.Join(names, ", ") + " did not answer"
}

// seen returns the operation in which a rank detected that a silent rank is missing; "" if it only received the news,
// or waited for a rank that was itself waiting.
func (c *Job) seen(err error, missing []int) string {
	var f *group.Failure
	if errors.As(err, &f) && f.Group == "" && slices.Contains(missing, f.Rank) {
		return " (" + f.Error() + ")"
	}
	return ""
}

// gaveUp is the prefix that the alarm adds to its error.
const gaveUp = "gave up: context canceled: "

// brief returns the text of an error without its consequences.
func brief(err error) string {
	text := err.Error()
	var f *group.Failure
	if errors.As(err, &f) {
		text = f.Error()
	}
	if i := strings.LastIndex(text, gaveUp); i >= 0 {
		return text[i+len(gaveUp):]
	}
	return text
}

func clipped(text string) string { return text[:min(len(text), reportBytes-1)] }

// rollCall sends each rank's report to all, and returns which ranks did not report in time. Ranks send to each other
// because a gather would return nothing if one rank is missing.
func (c *Job) rollCall(mine endReport, wait time.Duration) (reports []endReport, missing []int) {
	n := c.Size()
	reports = make([]endReport, n)
	reports[c.Rank()] = endReport{clipped(mine.text), mine.own}
	letter := make([]uint8, reportBytes)
	copy(letter[1:], reports[c.Rank()].text)
	if mine.own {
		letter[0] = 1
	}
	// No call has a deadline, because a deadline would end the group also for ranks that come later. Unfinished calls
	// end with the process.
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(math.MaxInt64))
	context.AfterFunc(ctx, cancel)
	letters, calls := make([][]uint8, n), make([]*group.Pending, n)
	for other := range n {
		if other != c.Rank() {
			letters[other] = make([]uint8, reportBytes)
			calls[other] = c.ends.Start(ctx, group.RecvCall(letters[other], other))
			c.ends.Start(ctx, group.SendCall(letter, other))
		}
	}
	over := make(chan struct{})
	defer time.AfterFunc(wait, func() { close(over) }).Stop()
	for other, call := range calls {
		if call == nil {
			continue
		}
		select {
		case <-call.Done():
		case <-over:
		}
		select {
		case <-call.Done(): // perhaps both
			if call.Wait() == nil {
				text := strings.TrimRight(string(letters[other][1:]), "\x00")
				reports[other] = endReport{text, letters[other][0] == 1}
				continue
			}
		default:
		}
		missing = append(missing, other)
	}
	return reports, missing
}

// Early is an error before the process has joined the others. With invalid flags all processes have the same one.
type Early struct{ error }

// NewEarly wraps an error.
func NewEarly(err error) Early { return Early{err} }

func (e Early) Unwrap() error { return e.error }

// turn is how long a process other than the first waits before it prints an error that all may have.
const turn = 3 * time.Second

// Mine waits for the first process to print the error, whose exit makes mpirun end this process, too. It reports
// whether this process must print it.
func (e Early) Mine(ctx context.Context) bool {
	if started("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID") == 0 {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(turn):
		return true
	}
}

// Started returns the number of processes that mpirun started; 0 without mpirun.
func Started() int { return started("OMPI_COMM_WORLD_SIZE") }

// started is the number in the first of the variables that is set, by whatever started the process; else 0.
func started(variables ...string) int {
	for _, name := range variables {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
	}
	return 0
}
