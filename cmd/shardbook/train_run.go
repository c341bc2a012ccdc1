package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"time"

	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/internal/job"
	"github.com/shardbook/shardbook/internal/mpijob"
	"github.com/shardbook/shardbook/internal/plugin"
	"github.com/shardbook/shardbook/internal/tensorboard"
	"github.com/shardbook/shardbook/lib/checkpoint"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/xla"
)

// trainAndReport does a job and prints its result.
func trainAndReport(cmd *cobra.Command, j *job.Job, o trainOptions) error {
	signals.allow(o.grace)
	t := &training{job: j, options: o, saved: -1, tracer: &tracer{}}
	if o.engine != engineMPI {
		defer t.close()
		return t.do(cmd)
	}
	processes, world, err := mpijob.Join(cmd.Context(), o.timeout, signals.hush)
	if err != nil {
		return err
	}
	t.mpi = processes
	if err := t.mpi.End(t.do(cmd), cmd.ErrOrStderr()); err != nil {
		return err // an mpijob.ExitStatus ends the process
	}
	t.close()
	return world.Close()
}

// do does the job from its beginning or its last checkpoint to its end, and reports.
func (t *training) do(cmd *cobra.Command) error {
	ctx := cmd.Context()
	t.out, t.given = cmd.OutOrStdout(), cmd.Flags().Changed
	if err := t.options.validate(t.given, t.job); err != nil {
		return err
	}
	if !t.mpi.First() {
		t.out, t.options.log, t.options.chart, t.options.tensorboard = io.Discard, "", "", ""
	}
	if t.given("devices") {
		t.options.devices, _ = cmd.Flags().GetInt("devices")
	}
	var from *checkpoint.Checkpoint
	if t.options.checkpoint != "" {
		var err error
		if err = t.lock(ctx); err != nil {
			return err
		}
		if from, err = t.options.start(); err != nil {
			return err
		}
		if from != nil {
			if t.job, err = t.job.Resumed(cmd.Flags(), from); err != nil {
				return err
			}
		}
	}
	if err := t.open(ctx, from); err != nil {
		return err
	}
	if t.options.compileFor != "" {
		return t.compile(ctx)
	}
	err := t.loop(ctx)
	if err == nil {
		t.loads, err = t.expertLoads()
	}
	if err := errors.Join(err, t.drawLoss()); err != nil {
		return err
	}
	text, err := t.sample(ctx)
	return errors.Join(err, t.report(text), t.learned())
}

// lock locks the folder for this run; with MPI the first process does so for all. A restarted job waits until processes
// of the previous start have ended; other runs do not wait.
func (t *training) lock(ctx context.Context) (err error) {
	if !t.mpi.First() {
		return nil
	}
	if !t.options.resume {
		if err := writable(t.options.checkpoint); err != nil { // fail now rather than at the first save
			return err
		}
	}
	for until := time.Now().Add(t.mpi.Slack()); ; time.Sleep(100 * time.Millisecond) {
		t.unlock, err = checkpoint.Lock(t.options.checkpoint)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // there is no checkpoint, as start says
		}
		if !errors.Is(err, checkpoint.ErrLocked) || time.Now().After(until) || ctx.Err() != nil {
			return err
		}
	}
}

// start returns the checkpoint to continue from, or nil for a new run.
func (o trainOptions) start() (*checkpoint.Checkpoint, error) {
	path, err := checkpoint.Latest(o.checkpoint)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !o.resume:
		return nil, nil
	case err != nil:
		return nil, err
	case !o.resume:
		return nil, fmt.Errorf("--checkpoint: %s exists: continue it with --resume, or choose another folder", path)
	}
	return checkpoint.Open(path)
}

// writable makes the folder for checkpoints, and returns an error if nothing can be written to it.
func writable(folder string) error {
	err := os.MkdirAll(folder, 0o755)
	if err == nil {
		var file *os.File
		if file, err = os.CreateTemp(folder, ".writable-"); err == nil {
			err = errors.Join(file.Close(), os.Remove(file.Name()))
		}
	}
	return inFlag("checkpoint", err)
}

// training is a job under way.
type training struct {
	job     *job.Job
	options trainOptions
	out     io.Writer
	mpi     *mpijob.Job            // nil is a process alone
	given   func(flag string) bool // says which flags were
	backend *xla.Backend
	run     *ranks
	devices int // of all processes
	batches *gpt.Batches
	unlock  func()   // of the folder for checkpoints; nil where it is not locked
	log     *os.File // nil where there is no --log
	tracer  *tracer
	sent    *traffic
	traced  *traceResult
	events  *tensorboard.Writer // nil where there is no --tensorboard
	rate    optim.Schedule
	began   int // step
	saved   int // step of the newest checkpoint
	records []stepRecord
	loads   []expertLoad // at the end
	lap     time.Time    // when the step under way began
}

// open prepares training from the checkpoint, or from the beginning if it is nil.
func (t *training) open(ctx context.Context, from *checkpoint.Checkpoint) error {
	j := t.job
	layout, err := t.layout()
	if err != nil {
		return err
	}
	devices := layout.Devices()
	t.devices = devices
	if t.mpi != nil {
		devices = layout.PerRank()
	}
	if given := t.options.devices; given != 0 && given != devices {
		return fmt.Errorf("--devices=%d: the layout needs %d: leave out --devices, or change the layout",
			given, devices)
	}
	j.ChooseFlash(false)
	recipe, err := j.Recipe()
	if err != nil {
		return err
	}
	plan, err := j.Check(recipe, layout)
	if err == nil {
		err = t.options.suits(j.Parallel, layout)
	}
	if err == nil && plan != nil {
		t.sent, err = shardTraffic(plan)
	}
	if err != nil {
		return err
	}
	was := j.TextSHA
	corpus, err := j.Corpus()
	if err != nil {
		return err
	}
	if from != nil && j.TextSHA != was {
		return fmt.Errorf("--text: %s has changed since %s was saved, so the run cannot be continued: start a new one "+
			"in another folder", j.Text, from.Path)
	}
	if t.batches, err = corpus.Batches(j.Model, j.Batch); err != nil {
		return job.InFlags(err)
	}
	if t.tracer, err = openTrace(t.options.trace); err != nil {
		return err
	}
	if t.backend, err = t.openDevices(ctx, devices, layout.PerRank()); err != nil {
		return err
	}
	onCPU := t.backend.Info().Platform == plugin.CPU
	if t.options.trace != "" && onCPU && j.Parallel.OneProgram() {
		return notOneProgram("trace", j.Parallel)
	}
	if !onCPU {
		j.ChooseFlash(true)
		if recipe, err = j.Recipe(); err != nil {
			return err
		}
	}
	if err := t.compare(from); err != nil {
		return err
	}
	in := around{t.options.link, t.tracer.rec, t.mpi}
	if t.run, err = newRanks(ctx, t.backend, j, layout, recipe, t.batches.Step, in); err != nil {
		return err
	}
	if from != nil {
		if err := t.run.Load(ctx, from); err != nil {
			return err
		}
		t.saved, t.began = from.Step, from.Step
	}
	if t.began > j.Steps {
		return fmt.Errorf("--steps=%d: %s is already at step %d: give more steps", j.Steps, from.Path, t.began)
	}
	t.tracer.plan(t.began, j.Steps)
	if t.log, err = openLog(t.options.log, t.began); err != nil {
		return err
	}
	if err := t.openCurves(); err != nil {
		return err
	}
	return t.predict(recipe, layout)
}

// layout returns the job's layout on the started processes.
func (t *training) layout() (parallel.Layout, error) {
	p := &t.job.Parallel
	err := p.ReadFile()
	if err == nil && t.mpi != nil {
		err = p.ForProcesses(t.mpi.Size(), t.given)
	}
	if err != nil {
		return parallel.Layout{}, err
	}
	p.Choose(t.options.needsRanks())
	return t.job.Layout()
}

// compare returns an error if the processes' jobs differ. from is the checkpoint to continue from, or nil.
func (t *training) compare(from *checkpoint.Checkpoint) error {
	if t.mpi == nil {
		return nil
	}
	j, o, step := t.job, t.options, "a new run"
	if from != nil {
		step = fmt.Sprintf("step %d", from.Step)
	}
	own := []mpijob.Trait{
		{What: "--text with the SHA-256", Is: j.TextSHA}, {What: "--schedule-file with", Is: j.Parallel.ScheduleText},
		{What: "--save-every", Is: fmt.Sprint(o.saveEvery)}, {What: "--sample", Is: fmt.Sprint(o.sample)},
		{What: "--link", Is: o.link.String()}, {What: "--timeout", Is: o.timeout.String()},
		{What: "--checkpoint to save to", Is: fmt.Sprint(o.checkpoint != "")}, {What: "--checkpoint with", Is: step}}
	for _, flag := range j.Values() {
		own = append(own, mpijob.Trait{What: flag[0], Is: flag[1]})
	}
	if err := t.mpi.Same(t.backend.Info(), own); err != nil || o.checkpoint == "" {
		return err
	}
	return t.mpi.SeesFolder(o.checkpoint)
}

func (t *training) close() {
	t.log.Close()
	t.tracer.file.Close()
	t.events.Close()
	if t.run != nil {
		t.run.Close()
	}
	if t.backend != nil {
		t.backend.Close()
	}
	if t.unlock != nil {
		t.unlock()
	}
}

// loop trains to the last step, or until it is interrupted, and then saves.
func (t *training) loop(ctx context.Context) error {
	bar := newProgress("train")
	defer bar.done()
	done := func(m metrics) error {
		record, err := t.record(m)
		if err != nil {
			return err
		}
		t.records = append(t.records, record)
		if !t.mpi.First() {
			return nil
		}
		bar.show("training", record.Step, t.job.Steps, record.text(t.job.Model.Experts))
		return errors.Join(writeLog(t.log, record), t.writeEvent(record))
	}
	for interrupted := false; t.run.Steps() < t.job.Steps && !interrupted; {
		step := t.run.Steps()
		t.tracer.at(step)
		until := t.tracer.next(step, min(t.job.Steps, step-step%t.options.saveEvery+t.options.saveEvery))
		t.lap = time.Now()
		train := func() error { return t.run.Train(ctx, until, t.batches.Step, done) }
		if err := t.tracer.record(t.backend, step, train); err != nil {
			return err
		}
		interrupted = t.run.Steps() < until // all processes agree on it, although a signal may reach only some
		if t.run.Steps()%t.options.saveEvery == 0 {
			if err := t.save(); err != nil {
				return err
			}
		}
	}
	var err error
	if t.traced, err = t.tracer.write(t.run.Steps()); err != nil {
		return err
	}
	if t.run.Steps() < t.job.Steps {
		return t.interrupted()
	}
	return t.save()
}

// record makes the record of the step that has just ended. A loss that is not finite is an error, which ends the run.
func (t *training) record(m metrics) (stepRecord, error) {
	step, now := t.began+len(t.records)+1, time.Now()
	seconds := now.Sub(t.lap).Seconds()
	t.lap = now
	if math.IsNaN(m.Loss) || math.IsInf(m.Loss, 0) {
		return stepRecord{}, fmt.Errorf("step %d: the loss is %g: %s", step, m.Loss,
			t.job.Remedy("try a smaller --lr, --clip 1, or --precision fp32"))
	}
	if math.IsNaN(m.GradNorm) || math.IsInf(m.GradNorm, 0) {
		m.GradNorm = 0 // JSON has no NaN; the step was skipped, or the next loss is NaN
	}
	tokens := float64(t.job.Batch * t.job.Model.Seq)
	e := m.Experts
	return stepRecord{Step: step, Loss: m.Loss, GradNorm: m.GradNorm, Scale: m.Scale, Skipped: m.Skipped,
		Staleness: m.Staleness,
		Seconds:   seconds, TokensPerS: tokens / seconds, Bytes: m.Bytes, Balance: e.Balance,
		Dropped: e.Dropped / max(1, e.Blocks)}, nil
}

// learned returns an error if the run has skipped all of its steps.
func (t *training) learned() error {
	if len(t.records) == 0 || slices.ContainsFunc(t.records, func(r stepRecord) bool { return !r.Skipped }) {
		return nil
	}
	return fmt.Errorf("all %d steps were skipped, because gradients were not finite: %s", len(t.records),
		t.job.Remedy("give it more --steps, a smaller --loss-scale, or --precision bf16"))
}

// save saves the run, unless this step is saved already or there is no folder. A signal does not interrupt it.
func (t *training) save() error {
	if t.options.checkpoint == "" || t.saved == t.run.Steps() {
		return nil
	}
	defer signals.save()()
	if err := t.run.Save(context.Background(), t.options.checkpoint, t.job, t.options.keep); err != nil {
		return err
	}
	t.saved = t.run.Steps()
	return nil
}

// interrupted saves the run and returns an error that says how to resume it. A signal does not interrupt it.
func (t *training) interrupted() error {
	signals.save()
	if t.options.checkpoint == "" {
		return fmt.Errorf("interrupted after step %d; with --checkpoint DIR it could be resumed", t.run.Steps())
	}
	if err := t.save(); err != nil {
		return err
	}
	return fmt.Errorf("interrupted after step %d, which is saved: continue with --resume --checkpoint %s",
		t.run.Steps(), t.options.checkpoint)
}

// sample generates text with the trained model.
func (t *training) sample(ctx context.Context) (string, error) {
	if t.options.sample == 0 {
		return "", nil
	}
	full, err := t.run.Params()
	if err != nil {
		return "", err
	}
	if !t.mpi.First() {
		return "", t.mpi.Follow()
	}
	weights, program, err := t.nextLogits(full)
	defer func() {
		for _, w := range weights {
			w.(*tensors.Tensor).FinalizeAll()
		}
	}()
	if err != nil {
		return "", err
	}
	defer program.Close()
	bar := newProgress("train")
	defer bar.done()
	done := 0
	text, err := t.job.Model.Generate([]byte(t.options.prompt), t.options.sample, t.options.sampling,
		func(tokens *tensors.Tensor, last int32) ([]float32, error) {
			if ctx.Err() != nil {
				return nil, errors.New("interrupted before all text was written")
			}
			out, err := program.Call(0, append(weights, tokens, last)...)
			if err != nil {
				return nil, err
			}
			if err := t.mpi.Tick(true); err != nil {
				return nil, err
			}
			done++
			bar.show("writing", done, t.options.sample, "text")
			return tensors.CopyFlatData[float32](out[0])
		})
	return t.options.prompt + string(text), errors.Join(err, t.mpi.Tick(false))
}

// nextLogits compiles the model, and copies the full parameters to device 0, in the type that they are stored in.
func (t *training) nextLogits(full params.Named[*tensors.Tensor]) (weights []any, program *xla.Portable, err error) {
	policy := t.run.recipe.Policy()
	tree := t.run.recipe.Model.Params().As(policy.Compute)
	values, err := full.List(tree)
	if err != nil {
		return nil, nil, err
	}
	for _, w := range values {
		placed, err := t.backend.Put(w, 0)
		if err != nil {
			return weights, nil, err
		}
		weights = append(weights, placed)
	}
	program, err = xla.CompilePortable(t.backend, func(in []*graph.Node) []*graph.Node {
		p := tree.Nodes(precision.Cast(in[:len(tree)], policy.Compute))
		return []*graph.Node{t.job.Model.NextLogits(p, in[len(tree)], in[len(tree)+1])}
	})
	return slices.Clip(weights), program, err
}
