package mpijob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/launch"
	"github.com/shardbook/shardbook/lib/train"
)

// StatusFailed is the exit status of a process of which another one failed: it is worth to start again from the last
// checkpoint. All other errors have status 1.
const StatusFailed = launch.Again

// ExitStatus is an error that is printed already, and the status to end the process with, at once: what a failure has
// left under way between processes may still move data.
type ExitStatus int

func (s ExitStatus) Error() string { return fmt.Sprintf("printed already, status %d", int(s)) }

// rollCallTime is how long a rank that cannot continue waits for the others to answer, if the timeout is not shorter.
const rollCallTime = 10 * time.Second

// linger is how long a rank waits of which another one failed, or that leaves it to another to say what went wrong: at
// its end mpirun wakes the stopped and ends the others, which are about to say it.
const linger = time.Second

// wait lingers, and says nothing where mpirun ends it meanwhile.
func (c *Job) wait() {
	c.quiet()
	time.Sleep(linger)
}

// endReport is what a process says at the end, in at most reportBytes.
type endReport struct {
	text string
	own  bool // and nothing that it heard of another
}

// reportBytes is short enough for a message that is sent whether or not anyone receives it.
const reportBytes = 2048

// End has all processes tell each other how they ended, and each error said once, by the first rank that has it: a rank
// that heard of another's error says nothing, but where a rank does not answer each of the others names it. It returns
// nil where all ended well.
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
		fmt.Fprintf(out, "shardbook: %s: %s within %v: killed, stalled or cut off; continue from the last checkpoint%s\n",
			c.at(c.Rank()), c.silent(missing), c.timeout, c.seen(err, missing))
		c.wait()
		return ExitStatus(StatusFailed)
	case slices.ContainsFunc(reports, func(r endReport) bool { return r.text != "" }):
		if first := slices.IndexFunc(reports, func(r endReport) bool { return r.text != "" }); first == c.Rank() {
			fmt.Fprintf(out, "shardbook: %s: %s: all ranks answer now, so none has failed, but one may be slower than --timeout "+
				"%v allows\n",
				c.at(first), mine.text, c.timeout)
		} else {
			c.wait()
		}
		return ExitStatus(StatusFailed)
	}
	return nil
}

// heard says whether an error is only what the rank heard or saw of another. A call that the alarm ended fails as the
// rank's own.
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

// sayOwn prints the rank's own error, unless a rank before it has the same, and reports whether it did.
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

// at is a rank and its host.
func (c *Job) at(rank int) string { return fmt.Sprintf("rank %d on %s", rank, c.hosts[rank]) }

// silent says which ranks did not answer.
func (c *Job) silent(ranks []int) string {
	var names []string
	for _, r := range ranks {
		names = append(names, c.at(r))
	}
	return strings.Join(names, ", ") + " did not answer"
}

// seen is in which operation a rank saw that one of those that do not answer is missing; "" where it only heard of it,
// or where what it waited for was another rank that waited itself.
func (c *Job) seen(err error, missing []int) string {
	var f *group.Failure
	if errors.As(err, &f) && f.Group == "" && slices.Contains(missing, f.Rank) {
		return " (" + f.Error() + ")"
	}
	return ""
}

// gaveUp is what the alarm's failure says before the error that it was raised for.
const gaveUp = "gave up: context canceled: "

// brief is an error without what it led to.
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

// rollCall gives each rank's report to all, and says who did not report in time. Ranks send to each other rather than
// gather, which tells nothing at all where one is missing.
func (c *Job) rollCall(mine endReport, wait time.Duration) (reports []endReport, missing []int) {
	n := c.Size()
	reports = make([]endReport, n)
	reports[c.Rank()] = endReport{clipped(mine.text), mine.own}
	letter := make([]uint8, reportBytes)
	copy(letter[1:], reports[c.Rank()].text)
	if mine.own {
		letter[0] = 1
	}
	// No call has a deadline, which would end the group for those who come later, too: what does not end is left to the
	// process's end.
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
