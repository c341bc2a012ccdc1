// Package mpijob lets the processes of a training job under mpirun compare their settings, agree on decisions, and
// exchange their final status, so that each error is printed once.
package mpijob

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/collective/mpi"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/xla"
)

// Patience is how long ranks of one process wait for each other. A rank that fails tells the others immediately.
const Patience = time.Hour

// Job is this process in a job under mpirun, where each process has one rank on one device; nil is a process that
// trains alone. Processes exchange progress and errors in separate groups, since a failure ends the group in which it
// occurs.
type Job struct {
	group.Group             // of the ranks
	Talk        group.Group // what processes agree on, in the order of the run
	ends        group.Group // the roll call: see End
	hosts       []string    // by rank
	timeout     time.Duration
	quiet       func()
	ctx         context.Context         // ends when any rank has raised the alarm, with what it says
	fail        context.CancelCauseFunc // ends it here
	raise       context.CancelCauseFunc // tells all others
}

// Join waits for the other processes, at most for the timeout. It calls quiet before it waits for others to report an
// error. Close the world at the end.
func Join(ctx context.Context, timeout time.Duration, quiet func()) (*Job, *mpi.Job, error) {
	world, err := mpi.World(mpi.Timeout(timeout))
	if errors.Is(err, mpi.ErrLate) {
		host, _ := os.Hostname()
		fmt.Fprintf(os.Stderr, "shardbook: rank %d on %s: %v\n", started("OMPI_COMM_WORLD_RANK"), host, err)
		return nil, nil, ExitStatus(StatusFailed)
	}
	if err != nil {
		return nil, nil, Early{err}
	}
	c, err := newJob(ctx, world, timeout)
	if err != nil {
		return nil, nil, Early{err}
	}
	c.quiet = quiet
	return c, world, nil
}

// newJob creates this process's Job for the ranks of a group. Its calls wait for the timeout. It is a collective call.
func newJob(ctx context.Context, g group.Group, timeout time.Duration) (*Job, error) {
	ctx = context.WithoutCancel(ctx) // a process that is interrupted ends with the others
	c := &Job{Group: g, timeout: timeout, quiet: func() {}}
	var alarm group.Group
	for _, own := range []*group.Group{&c.Talk, &c.ends, &alarm} {
		var err error
		if *own, err = g.Split(ctx, 0, g.Rank()); err != nil {
			return nil, err
		}
	}
	host, err := os.Hostname()
	if err != nil {
		host = "a host without a name"
	}
	c.ctx, c.fail = context.WithCancelCause(ctx)
	c.raise = c.fail
	if c.hosts, err = Exchange(c, host); err != nil {
		return nil, err
	}
	if n := g.Size(); n > 1 {
		c.listen(ctx, alarm, (g.Rank()+1)%n)
	}
	return c, nil
}

// listen waits in the background for a message that no rank sends. A process that gives up fails this group, which ends
// all waits at once, whatever calls the ranks are in.
func (c *Job) listen(ctx context.Context, alarm group.Group, from int) {
	ctx, c.raise = context.WithCancelCause(ctx)
	ctx, stop := context.WithDeadline(ctx, time.Now().Add(math.MaxInt64)) // or the group's own timeout would end it
	wait := alarm.Start(ctx, group.RecvCall(make([]uint8, 1), from))
	go func() {
		defer stop()
		c.fail(wait.Wait())
	}()
}

// First reports whether this process is the one that prints, and writes files for all.
func (c *Job) First() bool { return c == nil || c.Rank() == 0 }

// Slack is how long the first process may wait for something before the others time out.
func (c *Job) Slack() time.Duration {
	if c == nil {
		return 0
	}
	return c.timeout / 2
}

// Groups returns this process's ranks of a group of n. A process alone has all of them; they wait up to an hour for
// each other, for example while one compiles.
func (c *Job) Groups(n int) ([]group.Group, error) {
	if c == nil {
		return group.New(n, group.Timeout(Patience))
	}
	return []group.Group{c.Group}, nil
}

// Context returns the context for the ranks' calls.
func (c *Job) Context(ctx context.Context) context.Context {
	if c == nil {
		return context.WithoutCancel(ctx) // what is interrupted ends a step first
	}
	return c.ctx
}

// Exchange gives every process the values of all, by rank; a process alone gets its own. It is a collective call.
func Exchange[T any](c *Job, own T) ([]T, error) {
	if c == nil {
		return []T{own}, nil
	}
	text, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	texts, err := group.Exchange(c.ctx, c.Talk, text)
	all := make([]T, len(texts))
	for rank, text := range texts {
		err = cmp.Or(err, json.Unmarshal(text, &all[rank]))
	}
	return all, err
}

// Follow waits until the first process has finished what it does alone; see [Job.Tick].
func (c *Job) Follow() error {
	for more := []uint8{1}; more[0] == 1; {
		if err := group.Broadcast(c.ctx, c.Talk, more, 0); err != nil {
			return err
		}
	}
	return nil
}

// Tick tells the waiting processes that the first one still works alone, or has finished, so that they do not time out.
func (c *Job) Tick(more bool) error {
	if c == nil {
		return nil
	}
	told := []uint8{0}
	if more {
		told[0] = 1
	}
	return group.Broadcast(c.ctx, c.Talk, told, 0)
}

// Trait is a property that all processes of a run must share, and its value in this one.
type Trait struct{ What, Is string }

// pluginText says what the plugin is, wherever it lies.
func pluginText(i xla.Info) string {
	return fmt.Sprintf("%s for %s, API %s", filepath.Base(i.Plugin), i.Platform, i.API)
}

// ownSHA is the hash of this program.
func ownSHA() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(path)
	return fmt.Sprintf("%x", sha256.Sum256(program)), err
}

// Same returns an error if processes differ in their program, their plugin or the given traits. All processes return
// the same error, about the first difference.
func (c *Job) Same(plugin xla.Info, own []Trait) error {
	program, err := ownSHA()
	if err != nil {
		return err
	}
	own = append([]Trait{{"a program of SHA-256", program}, {"a plugin", pluginText(plugin)}}, own...)
	all, err := Exchange(c, own)
	if err != nil {
		return err
	}
	for i, want := range all[0] {
		for rank, traits := range all {
			if traits[i] != want {
				return fmt.Errorf("%s has %s, %s has %s: start the same program with the same flags and files on all "+
					"hosts", c.at(rank), traits[i], c.at(0), want)
			}
		}
	}
	return nil
}

// String returns the trait's value for an error.
func (t Trait) String() string {
	is := t.Is
	if is == "" {
		is = "none"
	}
	if len(is) > 80 {
		is = fmt.Sprintf("%.32s… (%d bytes, SHA-256 %.16x)", is, len(is), sha256.Sum256([]byte(is)))
	}
	return t.What + " " + strings.ReplaceAll(is, "\n", " ")
}

// SeesFolder returns an error if the process does not see the folder that rank 0 saves to. It is a collective call.
func (c *Job) SeesFolder(folder string) (err error) {
	name := ""
	if c.First() {
		file, err := os.CreateTemp(folder, ".seen-by-all-")
		if err != nil {
			return fmt.Errorf("--checkpoint: %w", err)
		}
		defer os.Remove(file.Name())
		file.Close()
		name = filepath.Base(file.Name())
	}
	names, err := Exchange(c, name)
	if err != nil {
		return err
	}
	problem := ""
	if _, err := os.Stat(filepath.Join(folder, names[0])); err != nil {
		problem = fmt.Sprintf("--checkpoint: %s is not the folder of %s (%v): give a folder that all hosts share",
			folder, c.at(0), err)
	}
	problems, err := Exchange(c, problem) // also, so that the file is there until all have looked
	if err != nil {
		return err
	}
	for rank, p := range problems {
		if p != "" {
			return fmt.Errorf("%s: %s", c.at(rank), p)
		}
	}
	return nil
}

// Gather gives all processes the parameters of the full tree, of which each has some. It is a collective call.
func (c *Job) Gather(tree params.Tree, own params.Named[*tensors.Tensor]) error {
	if c == nil {
		return nil
	}
	var names []string
	for _, s := range tree {
		if own[s.Name] != nil {
			names = append(names, s.Name)
		}
	}
	all, err := Exchange(c, names)
	if err != nil {
		return err
	}
	for _, s := range tree {
		has := func(names []string) bool { return slices.Contains(names, s.Name) }
		lacks := func(names []string) bool { return !has(names) }
		from := slices.IndexFunc(all, has)
		if from < 0 || !slices.ContainsFunc(all, lacks) {
			continue
		}
		if own[s.Name] == nil {
			own[s.Name] = tensors.FromShape(s.Shape)
		}
		e := own[s.Name].MutableBytes(func(data []byte) { err = group.Broadcast(c.ctx, c.Talk, data, from) })
		if err := errors.Join(err, e); err != nil {
			return err
		}
	}
	return nil
}

// Most returns the maximum over all processes for each kind. It is a collective call.
func (c *Job) Most(own map[string]int64) (map[string]int64, error) {
	all, err := Exchange(c, own)
	if err != nil {
		return nil, err
	}
	most := map[string]int64{}
	for _, kinds := range all {
		for kind, n := range kinds {
			most[kind] = max(most[kind], n)
		}
	}
	return most, nil
}
