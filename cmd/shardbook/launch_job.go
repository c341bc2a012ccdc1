package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/launch"
	"github.com/shardbook/shardbook/internal/userfile"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/xla"
)

// launchJob is a job of train: it computes on how many ranks the job can run, and its progress.
type launchJob struct {
	train  *cobra.Command // with its flags set
	args   []string       // of train
	folder string         // of checkpoints
	starts int
}

// newLaunchJob reads train's flags.
func newLaunchJob(args []string, folder string) (*launchJob, error) {
	train, args, err := newCommand().Find(append([]string{"train"}, args...))
	if err != nil {
		return nil, err
	}
	if err := train.ParseFlags(args); errors.Is(err, pflag.ErrHelp) {
		return nil, errors.New("--help after --: see shardbook train --help")
	} else if err != nil {
		return nil, fmt.Errorf("after --: %w (see shardbook train --help)", err)
	} else if err := flags.Settle(train.Flags()); err != nil {
		return nil, fmt.Errorf("after --: %w", err)
	}
	given := train.Flags()
	engine := given.Lookup("engine")
	switch rest := given.Args(); {
	case len(rest) > 0:
		return nil, fmt.Errorf("after --: %.80q is not a flag: see shardbook train --help", rest[0])
	case given.Changed("checkpoint"):
		return nil, errors.New("--checkpoint is a flag of launch: give it before the --")
	case engine != nil && engine.Changed && engine.Value.String() != engineMPI:
		return nil, fmt.Errorf("--engine=%.40s: launch always starts ranks as processes: leave it out", engine.Value)
	}
	return &launchJob{train: train, args: args, folder: folder}, nil
}

// newest returns the newest checkpoint, or nil.
func (l *launchJob) newest() (*checkpoint.Checkpoint, error) {
	path, err := checkpoint.Latest(l.folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return checkpoint.Open(path)
}

// settings returns the job of the newest checkpoint, or else of the flags.
func (l *launchJob) settings() (*job.Job, error) {
	j, given := job.New(), l.train.Flags()
	if err := cmp.Or(j.Set(given), j.Complete(given.Changed)); err != nil {
		return nil, err
	}
	from, err := l.newest()
	if err == nil && from != nil {
		j, err = j.Resumed(given, from)
	}
	if err != nil {
		return nil, err
	}
	return j, j.Parallel.ReadFile()
}

// ranks returns the largest number of ranks, at most slots, on which the job can run.
func (l *launchJob) ranks(slots int) (int, error) {
	j, err := l.settings()
	if err != nil {
		return 0, err
	}
	flag, number := j.Parallel.ByProcess()
	each, fixed := j.Parallel.PerCopy(), l.train.Flags().Changed(flag)
	n := min(slots, xla.MaxDevices) / each
	switch {
	case slots < each:
		return 0, fmt.Errorf("the job needs %d ranks at least (--pipe, --seq-ranks), and the hosts have slots for %d",
			each, slots)
	case fixed && (*number > n || *number < 1):
		return 0, fmt.Errorf("--%s=%d needs %d ranks, and the hosts have slots for %d: leave it out to use as many as "+
			"there are", flag, *number, *number*each, slots)
	case fixed:
		n = *number
	}
	for ; n > 0; n-- {
		some := *j
		_, number := some.Parallel.ByProcess()
		*number = n
		some.Parallel.Choose(true)
		if _, err = some.Layout(); err == nil || fixed {
			return n * each, err
		}
	}
	return 0, fmt.Errorf("no number of ranks up to %d can do the job: %w", slots, err)
}

// progress returns the step of the newest checkpoint, and the last one in train's --log.
func (l *launchJob) progress() (launch.Progress, error) {
	p := launch.Progress{Reached: -1}
	from, err := l.newest()
	if err != nil {
		return p, err
	}
	if from != nil {
		p.Saved = from.Step
	}
	if path := l.log(); path != "" {
		p.Reached = lastLogged(path)
	}
	return p, nil
}

// start returns train's command line for the next start, from a saved step or from 0.
func (l *launchJob) start(ranks, from int) ([]string, error) {
	l.starts++
	j, err := l.settings()
	if err != nil {
		return nil, err
	}
	args := append([]string{"train"}, l.args...)
	args = append(args, "--engine", engineMPI, "--checkpoint", l.folder)
	if flag, _ := j.Parallel.ByProcess(); !l.train.Flags().Changed(flag) {
		args = append(args, "--"+flag, strconv.Itoa(ranks/j.Parallel.PerCopy()))
	}
	if from > 0 && !l.train.Flags().Changed("resume") {
		args = append(args, "--resume")
	}
	return args, nil
}

// log returns the value of train's --log.
func (l *launchJob) log() string { return l.train.Flags().Lookup("log").Value.String() }

// lastLogged is the step of the last complete line of a log, or -1.
func lastLogged(path string) int {
	file, err := userfile.Open(path, math.MaxInt64)
	if err != nil {
		return -1
	}
	defer file.Close()
	const enough = 64 << 10 // bytes, for several lines
	info, err := file.Stat()
	if err != nil {
		return -1
	}
	begin := max(0, info.Size()-enough)
	text, err := io.ReadAll(io.NewSectionReader(file, begin, enough))
	if err != nil {
		return -1
	}
	for _, line := range slices.Backward(bytes.Split(text, []byte("\n"))) {
		var r stepRecord
		if json.Unmarshal(line, &r) == nil && r.Step > 0 {
			return r.Step
		}
	}
	return -1
}

// startOver empties train's --log before a run from the beginning, since train rejects a log with lines. Lines of
// earlier starts of this command are dropped, because nothing of these was saved. A log that existed before this
// command is renamed, and its new name returned. A file that is not a log is not changed; train rejects it.
func (l *launchJob) startOver() (moved string, err error) {
	path := l.log()
	info, err := os.Stat(path)
	if path == "" || err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return "", nil
	}
	old, err := openLog(path, math.MaxInt)
	if err != nil {
		return "", nil
	}
	old.Close()
	if l.starts > 0 {
		err = os.Truncate(path, 0)
	} else {
		moved = unused(path)
		err = os.Rename(path, moved)
	}
	return moved, inFlag("log", err)
}

// unused returns the path with the first number appended for which there is no file.
func unused(path string) string {
	for i := 1; ; i++ {
		name := fmt.Sprintf("%s.%d", path, i)
		if _, err := os.Lstat(name); err != nil {
			return name
		}
	}
}
