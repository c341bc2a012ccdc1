package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/spf13/pflag"

	"github.com/shardbook/shardbook/lib/chain"
	"github.com/shardbook/shardbook/lib/gpt"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/step"
	"github.com/shardbook/shardbook/lib/train"
)

// newPipeline measures what a pipeline costs, in two ways. Ranks that only sleep show the overhead of carrying a
// schedule out: its step over the simulated one. Ranks that train layers show the cost of the pipeline on shared cores:
// its step over the same system's on one device.
func newPipeline() *benchmark {
	var s pipelineSize
	return &benchmark{name: "pipeline", about: fmt.Sprintf(
		"a step of a pipeline of %d ranks, over the simulated one or the system's own on one device", pipelineRanks),
		flags: s.flags, cases: s.cases, implementations: pipelineImplementations}
}

// Classes of [newPipeline]: what the ranks do.
const (
	ranksSleep = "sleep"
	ranksTrain = "train"
)

// pipelineRanks is the number of ranks of a pipeline.
const pipelineRanks = 4

// pipelineRate is the learning rate of plain gradient descent.
const pipelineRate = 0.1

// Schedules of [newPipeline].
var (
	trainedKinds = []pipeline.Kind{pipeline.KindGPipe, pipeline.Kind1F1B, pipeline.KindInterleaved}
	// sleptKinds begins with those that PyTorch has too.
	sleptKinds = append(trainedKinds[:3:3], pipeline.KindZBH1, pipeline.KindZBH2, pipeline.KindZBV)
)

// pipelineSize is a stack of layers, gelu(x·w + b), their batch, and the time that a layer sleeps instead.
type pipelineSize struct {
	Layers       int     `json:"layers"`
	Width        int     `json:"width"`
	Rows         int     `json:"rows"`
	Microbatches int     `json:"microbatches"`
	ForwardMS    float64 `json:"forward_ms"`
}

func (s *pipelineSize) flags(flags *pflag.FlagSet) {
	flags.IntVar(&s.Layers, "layers", 8, fmt.Sprintf("number of layers, a multiple of %d", 2*pipelineRanks))
	flags.IntVar(&s.Width, "d", 1024, "hidden size")
	flags.IntVar(&s.Rows, "batch", 512, "examples of a batch")
	flags.IntVar(&s.Microbatches, "microbatches", 8, "micro-batches of a step")
	flags.Float64Var(&s.ForwardMS, "ms", 5,
		"milliseconds that a layer sleeps forward; backward it sleeps twice as long")
}

func (s *pipelineSize) cases() (cases []testCase, err error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	for _, of := range []struct {
		class, name string
		kinds       []pipeline.Kind
	}{
		{ranksSleep, fmt.Sprintf("%d layers, sleeping %g ms", s.Layers, s.ForwardMS), sleptKinds},
		{ranksTrain, fmt.Sprintf("%d layers, width %d, %d rows", s.Layers, s.Width, s.Rows), trainedKinds},
	} {
		for _, kind := range of.kinds {
			c := pipelineCase{pipelineSize: *s, Kind: kind, Ranks: pipelineRanks}
			plan, err := c.schedule()
			if err != nil {
				return nil, err
			}
			c.Stages = len(plan.Blocks)
			cases = append(cases, testCase{name: fmt.Sprintf("%s, %s", of.name, kind), class: of.class, params: c,
				within: trainTolerance})
		}
	}
	return cases, nil
}

func pipelineImplementations() []implementation {
	name := func(of string) string { return fmt.Sprintf("%s-%d", of, pipelineRanks) }
	return []implementation{
		{name: "simulated", about: "the time of the schedule if messages took none", role: base, class: ranksSleep,
			serve: serveSimulated},
		{name: name("player"), about: "ranks of one process, which sleep", role: ours, class: ranksSleep,
			over: "simulated", serve: serveTrial(pipelineRanks, sleepers)},
		{name: name("torch-player"), about: "torch.distributed.pipelining by gloo, in processes which sleep",
			role: peer, class: ranksSleep, over: "simulated",
			commands: torchProcesses(pipelineRanks, "pipeline.py", ranksSleep)},
		{name: "xla", about: "this project on one XLA CPU device, a step in one program", role: base, class: ranksTrain,
			serve: serveTrial(1, oneDevice)},
		{name: name("ranks"), about: "ranks of one process, a device each", role: ours, class: ranksTrain, over: "xla",
			serve: serveTrial(pipelineRanks, layers)},
		{name: "torch", about: "eager, a thread a core", role: base, class: ranksTrain,
			commands: torchProcesses(1, "pipeline.py", ranksTrain)},
		{name: name("torch"), about: "torch.distributed.pipelining by gloo, in processes that share the cores",
			role: peer, class: ranksTrain, over: "torch",
			commands: torchProcesses(pipelineRanks, "pipeline.py", ranksTrain)},
	}
}

func (s *pipelineSize) check() error {
	switch most := stackMost; {
	case s.Layers < 1 || s.Layers > most || s.Layers%(2*pipelineRanks) != 0:
		return fmt.Errorf("--layers=%d: want a multiple of %d, two stages a rank, at most %d", s.Layers,
			2*pipelineRanks, most)
	case s.Width < 1 || s.Width > most:
		return fmt.Errorf("--d=%d: want 1 to %d", s.Width, most)
	case s.Microbatches < 1 || s.Microbatches > most || s.Microbatches%pipelineRanks != 0:
		return fmt.Errorf("--microbatches=%d: want a multiple of %d, at most %d", s.Microbatches, pipelineRanks, most)
	case s.Rows < 1 || s.Rows > most || s.Rows%s.Microbatches != 0:
		return fmt.Errorf("--batch=%d: want a multiple of the %d micro-batches, at most %d", s.Rows, s.Microbatches,
			most)
	case !(s.ForwardMS > 0 && s.ForwardMS <= 1000):
		return fmt.Errorf("--ms=%g: want more than 0, at most 1000", s.ForwardMS)
	}
	return nil
}

// pipelineCase is a size with a schedule.
type pipelineCase struct {
	pipelineSize
	Kind   pipeline.Kind `json:"kind"`
	Ranks  int           `json:"ranks"`
	Stages int           `json:"stages"`
}

func (c pipelineCase) schedule() (*step.Plan, error) {
	return pipeline.NewSchedule(c.Kind, c.Ranks, c.Microbatches, 0)
}

// costs are the times that the passes of a stage sleep, in milliseconds.
func (c pipelineCase) costs() step.Costs {
	forward := []float64{c.ForwardMS * float64(c.Layers) / float64(c.Stages)}
	return step.Costs{Forward: forward, InputGrad: forward, WeightGrad: forward}
}

// model has the numbered arrays of [flashData] as weights, and biases of 0.
func (c pipelineCase) model() chain.Model {
	layer := func(name string) chain.Block {
		w, b := params.New(name+".w", dtypes.Float32, c.Width, c.Width), params.New(name+".b", dtypes.Float32, c.Width)
		return chain.Block{Params: params.Tree{w, b}, Apply: func(p params.Nodes, x, _, _ *graph.Node) *graph.Node {
			y := graph.Dot(x, p.Get(name+".w")).Product()
			return gpt.GELU(graph.Add(y, graph.ExpandLeftToRank(p.Get(name+".b"), 2)))
		}}
	}
	// A GELU halves the mean square, about.
	return equalBlocks(c.Layers, layer, math.Sqrt(2/float64(c.Width)))
}

// trial trains the model, with the same batch in every step.
func (c pipelineCase) trial(start startRun) trial {
	return trial{start: start, recipe: train.Recipe{Model: c.model(), Optimizer: optim.SGD(pipelineRate)},
		batch: func(int) (inputs, targets *tensors.Tensor, err error) {
			return numberedArray(c.Layers, 1, c.Rows, c.Width), numberedArray(c.Layers+1, 1, c.Rows, c.Width), nil
		}}
}

// smallest trains a layer for each stage, of one number for each micro-batch.
func (c pipelineCase) smallest(o pipeline.Options) trial {
	o.Fused = true
	c.Layers, c.Width, c.Rows = c.Stages, 1, c.Microbatches
	return c.trial(startPipeline(o))
}

// plannedCase reads a case, and makes its schedule.
func plannedCase(params []byte) (c pipelineCase, plan *step.Plan, err error) {
	if err = json.Unmarshal(params, &c); err == nil {
		plan, err = c.schedule()
	}
	return c, plan, err
}

// layers train by the schedule of the case, oneDevice without one.
func layers(params []byte) (trial, error) {
	c, plan, err := plannedCase(params)
	return c.trial(startPipeline(pipeline.Options{Schedule: plan})), err
}

func oneDevice(params []byte) (trial, error) {
	c, _, err := plannedCase(params)
	return c.trial(startOne), err
}

// sleepers are ranks whose passes sleep.
func sleepers(params []byte) (trial, error) {
	c, plan, err := plannedCase(params)
	costs := c.costs()
	t := c.smallest(pipeline.Options{Schedule: plan,
		Pace: func(op step.Op) time.Duration { return time.Duration(costs.Time(op) * float64(time.Millisecond)) }})
	t.sleeps = true
	return t, err
}

// simulated takes the time of a schedule's simulation. It is a subject for ratios.
type simulated struct{ ms float64 }

func serveSimulated(context.Context) (subject, func(), error) { return &simulated{}, func() {}, nil }

func (s *simulated) prepare(params []byte) (facts, error) {
	c, plan, err := plannedCase(params)
	if err != nil {
		return facts{}, err
	}
	line, err := plan.Simulate(c.costs())
	s.ms = line.Makespan
	return facts{}, err
}

func (s *simulated) sample(int) (float64, error) { return s.ms, nil }
func (s *simulated) finish() error               { return nil }
