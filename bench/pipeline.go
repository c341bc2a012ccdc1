package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/shardbook/shardbook/lib/chart"
	"github.com/shardbook/shardbook/lib/pipeline"
)

// pipelineBench measures what a pipeline costs, in two ways. Ranks that only sleep show what playing a schedule takes
// beyond the schedule itself: its step over the simulated one. Ranks that train layers show what is paid for the pipeline
// on cores that all of them share: its step over the same system's on one device.
type pipelineBench struct{ size pipelineSize }

func newPipeline() benchmark { return &pipelineBench{} }

func (*pipelineBench) name() string { return "pipeline" }

func (*pipelineBench) about() string {
	return fmt.Sprintf("a step of a pipeline of %d ranks, over the simulated one or the system's own on one device", pipelineRanks)
}

// Classes of [pipelineBench]: what the ranks do.
const (
	ranksSleep = "sleep"
	ranksTrain = "train"
)

func (b *pipelineBench) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&b.size.Layers, "layers", 8, fmt.Sprintf("number of layers, a multiple of %d", 2*pipelineRanks))
	flags.IntVar(&b.size.Width, "d", 1024, "features")
	flags.IntVar(&b.size.Rows, "batch", 512, "rows of a batch")
	flags.IntVar(&b.size.Microbatches, "microbatches", 8, "micro-batches of a step")
	flags.Float64Var(&b.size.ForwardMS, "ms", 5, "milliseconds that a layer sleeps forward; backward it sleeps twice as long")
}

func (b *pipelineBench) cases() (cases []testCase, err error) {
	if err := b.size.check(); err != nil {
		return nil, err
	}
	for _, of := range []struct {
		class, name string
		kinds       []pipeline.Kind
	}{
		{ranksSleep, fmt.Sprintf("%d layers, sleeping %g ms", b.size.Layers, b.size.ForwardMS), sleptKinds},
		{ranksTrain, fmt.Sprintf("%d layers, width %d, %d rows", b.size.Layers, b.size.Width, b.size.Rows), trainedKinds},
	} {
		for _, kind := range of.kinds {
			c := pipelineCase{pipelineSize: b.size, Kind: kind, Ranks: pipelineRanks}
			s, err := c.schedule()
			if err != nil {
				return nil, err
			}
			c.Stages = len(s.Blocks)
			cases = append(cases, testCase{name: fmt.Sprintf("%s, %s", of.name, kind), class: of.class, params: c, within: trainTolerance})
		}
	}
	return cases, nil
}

func (*pipelineBench) implementations() []implementation {
	name := func(of string) string { return fmt.Sprintf("%s-%d", of, pipelineRanks) }
	return []implementation{
		{name: "simulated", about: "what the schedule takes if passes take their time and messages none", role: base, class: ranksSleep,
			serve: serveSimulated},
		{name: name("player"), about: "ranks of one process, which sleep", role: ours, class: ranksSleep, over: "simulated", serve: serveSleepers},
		{name: name("torch-player"), about: "torch.distributed.pipelining by gloo, in processes which sleep", role: peer, class: ranksSleep,
			over: "simulated", processes: pipelineRanks, commands: torchProcesses(pipelineRanks, "pipeline.py", ranksSleep)},
		{name: "xla", about: "this project on one XLA CPU device, a step in one program", role: base, class: ranksTrain,
			serve: serveLayers(1, startWhole)},
		{name: name("ranks"), about: "ranks of one process, a device each", role: ours, class: ranksTrain, over: "xla",
			serve: serveLayers(pipelineRanks, startPipeline)},
		{name: "torch", about: "eager, a thread a core", role: base, class: ranksTrain, commands: torchProcesses(1, "pipeline.py", ranksTrain)},
		{name: name("torch"), about: "torch.distributed.pipelining by gloo, in processes that share the cores", role: peer, class: ranksTrain,
			over: "torch", processes: pipelineRanks, commands: torchProcesses(pipelineRanks, "pipeline.py", ranksTrain)},
	}
}

// charts draws the costs of either class.
func (*pipelineBench) charts(records []record) (charts []*chart.Chart) {
	class := map[string]string{}
	for _, im := range (&pipelineBench{}).implementations() {
		class[im.name] = im.class
	}
	for _, of := range []struct{ class, over string }{{ranksSleep, "the simulated step's"}, {ranksTrain, "one device's"}} {
		own := slices.DeleteFunc(slices.Clone(records), func(r record) bool { return class[r.Impl] != of.class })
		if len(own) > 0 {
			charts = append(charts, costCharts("a pipeline", of.over, own)...)
		}
	}
	return charts
}
