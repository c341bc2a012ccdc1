package job

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gomlx/compute/dtypes"

	"github.com/shardbook/shardbook/internal/flags"
	"github.com/shardbook/shardbook/internal/userfile"
	"github.com/shardbook/shardbook/lib/cost"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/sequence"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/tensor"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// Values of --cut besides a list.
const (
	cutEven     = "even"
	CutMeasured = "measured" // balances the measured times of stages
)

// Layout returns the layout of the flags, valid for the batch, or an error that names flags. With CutMeasured the
// caller sets the cut.
func (j *Job) Layout() (parallel.Layout, error) {
	if err := cmp.Or(flags.Check(j.all()), j.Parallel.checkSync()); err != nil {
		return parallel.Layout{}, err
	}
	devices := 1. // a float, since the number of devices may overflow an int
	for _, n := range []int{j.Parallel.Data, j.Parallel.Pipe, j.Parallel.Tensor, j.Parallel.SeqParallel,
		j.Parallel.Replicas} {
		devices *= float64(max(1, n))
	}
	if devices > xla.MaxDevices {
		return parallel.Layout{}, fmt.Errorf("--data, --pipe, --tensor, --seq-parallel and --replicas multiply to "+
			"%.0f devices: want at most %d", devices, xla.MaxDevices)
	}
	l, err := j.layout()
	if err == nil {
		err = l.Validate()
	}
	if err != nil {
		return l, InFlags(err)
	}
	if _, err := l.MicroBatch(j.Batch); err != nil {
		return l, fmt.Errorf("--batch: %w", InFlags(err))
	}
	return l, nil
}

func (j *Job) layout() (l parallel.Layout, err error) {
	p := &j.Parallel
	l = parallel.Layout{Tensor: p.Tensor, TensorSequence: p.TensorSequence, Partition: p.TensorPartition,
		Expert: p.Expert, ZeRO: p.Zero, Prefetch: p.Prefetch, Shards: p.Shards,
		Offload: offload.Host{Update: p.Offload}, RingRanks: p.SeqRanks, Microbatches: p.Accumulate,
		Recompute: p.RecomputeStages, BucketBytes: int64(p.BucketBytes), Every: p.Every}
	switch {
	case p.Shards > 0 && !p.meshed() && p.Data%p.Shards != 0:
		return l, fmt.Errorf("--shards=%d: want a divisor of --data=%d, or 0 for all devices", p.Shards, p.Data)
	case p.Expert > 0 && p.Data%p.Expert != 0 && (p.Data > 1 || max(1, p.Replicas)%p.Expert != 0):
		return l, fmt.Errorf("--expert-parallel=%d: want a divisor of --data=%d", p.Expert, p.Data)
	case p.meshed():
		l.Replicas, l.Data = p.Replicas, p.Data
	case p.OneProgram(): // of devices that shard one copy of the state
		l.Data, l.Shards = cmp.Or(p.Shards, p.Data), 0
		l.Replicas = p.Data / l.Data
	default:
		l.Replicas = p.Data
	}
	if slices.Contains(ddp.Syncs(), ddp.Sync(p.Sync)) {
		l.Sync = ddp.Sync(p.Sync)
	}
	if p.Compress != "" {
		if l.Hook, err = ddp.ParseHook(p.Compress); err != nil {
			return l, fmt.Errorf("--compress-gradients: %w", err)
		}
	}
	if l.Replicas == 1 && !p.meshed() && p.Pipe == 0 { // a run that is resumed on one device
		l.Hook, l.Every = nil, 1
	}
	if err := j.sequences(&l); err != nil || p.Pipe == 0 {
		return l, err
	}
	if p.Accumulate > 1 {
		return l, fmt.Errorf("--accumulate and --pipe=%d, which has --microbatches for that: leave one of them out",
			p.Pipe)
	}
	if l.Plan, err = p.schedule(j.Batch); err != nil {
		return l, err
	}
	if updates := l.Plan.Micro / max(l.Plan.Every, 1); l.Plan.Weights != step.Flush && updates > 1 && j.varies() {
		return l, fmt.Errorf("--schedule=%s makes %d updates in a step, and each would change the learning rate: "+
			"leave out --%s and --warmup", l.Plan.Name, updates, rateFlag)
	}
	l.Cut, err = p.cut()
	return l, err
}

// sequences sets the sequence parallelism of the layout.
func (j *Job) sequences(l *parallel.Layout) (err error) {
	switch p := &j.Parallel; {
	case p.SeqParallel > j.Model.Seq:
		return fmt.Errorf("--seq-parallel=%d: a sequence has --seq %d tokens, and each device takes at least one: "+
			"want at most %[2]d", p.SeqParallel, j.Model.Seq)
	case p.SeqRanks && p.SeqMethod != "" && p.SeqMethod != "ring" && (p.SeqMethod != "hybrid" || p.SeqUlysses == 0):
		return fmt.Errorf("--seq-ranks and --seq-method=%s: rings only; choose --seq-method ring, "+
			"or hybrid with --seq-ulysses, the devices of a rank", p.SeqMethod)
	default:
		l.Ring, l.Ulysses, err = parallel.SequenceDegrees(p.SeqParallel, p.SeqMethod, p.SeqUlysses, j.keyHeads())
		return err
	}
}

// cut returns the number of blocks of each stage if --cut is a list, else nil.
func (p *Parallel) cut() (cut []int, err error) {
	if p.Cut == "" || p.Cut == cutEven || p.Cut == CutMeasured {
		return nil, nil
	}
	const most = 1 << 30 // more blocks than a stage can have, and few enough that sums of them are exact
	for text := range strings.SplitSeq(p.Cut, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("--cut=%.60s: want %s, %s, or how many blocks each stage has, at least 1, as 3,2,1",
				p.Cut, cutEven, CutMeasured)
		}
		cut = append(cut, n)
	}
	return cut, nil
}

// ReadFile reads the schedule of --schedule-file, if set. The file sets the number of ranks.
func (p *Parallel) ReadFile() error {
	if p.File == "" {
		return nil
	}
	s, err := ReadSchedule(p.File, os.Stdin)
	if err != nil {
		return fmt.Errorf("--schedule-file: %w", err)
	}
	if err := s.Check(); err != nil {
		return fmt.Errorf("--schedule-file: %s: %w", p.File, err)
	}
	n := len(s.Ranks)
	switch {
	case p.Pipe != 0 && p.Pipe != n:
		return fmt.Errorf("--pipe=%d: %s is a schedule of %d ranks: leave --pipe out, or choose another file", p.Pipe,
			p.File, n)
	case p.PipeSchedule != "" || p.Microbatches > 0 || p.Chunks > 0:
		return errors.New("--schedule, --microbatches and --chunks are part of the schedule of --schedule-file: " +
			"leave them out")
	}
	p.Pipe, p.ScheduleText = n, s.String()
	return nil
}

// schedule returns the schedule of a pipeline. If --microbatches is not set, it chooses a number that divides the
// pipeline's shard of the batch.
func (p *Parallel) schedule(batch int) (*step.Plan, error) {
	if p.ScheduleText != "" {
		s, err := step.Parse(p.ScheduleText)
		if err == nil && len(s.Ranks) != p.Pipe {
			err = fmt.Errorf("it has %d ranks, --pipe is %d", len(s.Ranks), p.Pipe)
		}
		if err != nil {
			err = fmt.Errorf("--schedule-file: %w", err)
		}
		return s, err
	}
	build := func(microbatches int) (*step.Plan, error) {
		s, err := pipeline.NewSchedule(cmp.Or(p.PipeSchedule, pipeline.Kind1F1B), p.Pipe, microbatches, p.Chunks)
		if err != nil {
			err = fmt.Errorf("--pipe=%d, --schedule, --microbatches, --chunks: %w", p.Pipe, err)
		}
		return s, err
	}
	if p.Microbatches > 0 {
		return build(p.Microbatches)
	}
	usual, rows := 2*p.Pipe, batch/p.Data/max(p.Replicas, 1)
	for _, m := range usualMicrobatches(usual) {
		if rows%m != 0 {
			continue
		}
		if s, err := build(m); err == nil {
			return s, nil
		}
	}
	if s, err := build(usual); err != nil {
		return s, err
	}
	return nil, fmt.Errorf("--batch=%d: the schedule %s takes no number of micro-batches that divides a pipeline's %d "+
		"sequences: choose a multiple of %d", batch, cmp.Or(p.PipeSchedule,
		pipeline.Kind1F1B), rows, usual*p.Data*max(p.Replicas, 1))
}

// usualMicrobatches lists numbers to try, the best first.
func usualMicrobatches(usual int) (all []int) {
	for m := usual; m <= 4*usual; m++ {
		all = append(all, m)
	}
	for m := usual - 1; m > 0; m-- {
		all = append(all, m)
	}
	return all
}

// Check returns the plan of the recipe in the layout, or nil if the run has none, or an error if they do not fit. It
// does not check runs with parameter servers, which do so themselves.
func (j *Job) Check(r train.Recipe, l parallel.Layout) (*parallel.Plan, error) {
	p := j.Parallel
	if p.Compress != "" && r.Policy().Reduce != dtypes.Float32 {
		return nil, fmt.Errorf("--compress-gradients=%s takes gradients that are accumulated in float32: choose "+
			"--precision fp32 or bf16", p.Compress)
	}
	if p.Tensor > 1 {
		if _, err := j.Model.Rules().Cuts(j.Model.Params(), p.Tensor); err != nil {
			return nil, fmt.Errorf("--tensor=%d: %w", p.Tensor, InFlags(err))
		}
	}
	switch {
	case p.Planned():
		return j.Plan(r, l)
	case p.Sync == Auto && p.Sharing(): // like sharding by hand
		p.Sync = SPMD
		r.Model = p.model(j.Model)
		fallthrough
	case p.Sharing():
		_, err := j.Plan(r, l)
		return nil, err
	}
	return nil, nil
}

// Setup returns the run's setup for package memest, without its layout.
func (j *Job) Setup(r train.Recipe) memest.Setup {
	return memest.Setup{Model: cost.FromGPT(j.Model), Seq: j.Model.Seq, Precision: r.Precision, Optimizer: r.Optimizer,
		Recompute: j.Model.Recompute, Flash: j.Model.Flash, Dropout: j.Model.Dropout, Clip: r.Clip > 0}
}

// Plan returns the plan of a recipe in a layout, or an error if the estimated memory does not fit the devices.
func (j *Job) Plan(r train.Recipe, l parallel.Layout) (*parallel.Plan, error) {
	if memory := int64(j.Parallel.DeviceMemory); memory > 0 {
		if err := l.Fits(j.Setup(r), j.Batch, memory); err != nil {
			return nil, InFlags(err)
		}
	}
	plan, err := parallel.NewPlan(r, l)
	return plan, InFlags(err)
}

// maxSchedule is the maximum size of a schedule file in bytes.
const maxSchedule = 64 << 20

// ReadSchedule reads a schedule from a file, or from standard input if the path is -. It detects the format, CSV or the
// text of [step.Parse], by the first line.
func ReadSchedule(path string, in io.Reader) (*step.Plan, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = userfile.ReadAll(in, "the standard input", maxSchedule)
	} else {
		text, err = userfile.Read(path, maxSchedule)
	}
	if err != nil {
		return nil, err
	}
	var s *step.Plan
	if isText(string(text)) {
		s, err = step.Parse(string(text))
	} else {
		s, err = step.ReadCSV(strings.NewReader(string(text)))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// isText reports whether the text is in the format of [step.Parse], not CSV, by its first line that is no comment.
func isText(text string) bool {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			word, _, _ := strings.Cut(line, " ")
			return word == "schedule" || word == "plan"
		}
	}
	return false
}

// model returns the model for the devices of a rank.
func (p *Parallel) model(c gpt.Config) train.Model {
	if !p.Sharing() && p.Expert == 0 || p.Sync == Auto { // the compiler shards the model of one device
		return c
	}
	m := gpt.Parallel{Config: c, Sequence: p.sequenceGroup()}
	if c.Experts.Experts > 0 {
		m.Experts = parallel.Layout{Expert: p.Expert, Tensor: p.Tensor}.Experts()
	}
	if p.Tensor > 0 {
		m.Tensor = tensor.Group{Axis: parallel.Tensor, Sequence: p.TensorSequence, Overlap: p.TensorOverlap}
	}
	return m
}

// sequenceGroup returns the group of sequence-parallel devices.
func (p *Parallel) sequenceGroup() (g sequence.Group) {
	if p.SeqParallel == 0 {
		return g
	}
	g.Placement = p.Placement
	if p.SeqMethod != "ulysses" {
		g.Ring, g.Gather, g.Placement = parallel.Ring, p.SeqMethod == "allgather", cmp.Or(p.Placement, sequence.Zigzag)
	}
	if p.SeqMethod == "ulysses" || p.SeqMethod == "hybrid" {
		g.Ulysses = parallel.Ulysses
	}
	return g
}

// keyHeads returns the number of key/value heads of a device.
func (j *Job) keyHeads() int {
	return max(1, cmp.Or(j.Model.KVHeads, j.Model.Heads)/max(1, j.Parallel.Tensor))
}
