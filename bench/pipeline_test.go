package main

import (
	"math"
	"os"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/lib/pipeline"
)

// smallPipeline is a benchmark that is done soon.
func smallPipeline() *pipelineBench {
	return &pipelineBench{pipelineSize{Layers: 8, Width: 6, Rows: 8, Microbatches: 4, ForwardMS: 0.5}}
}

// TestPipelineOurs sleeps and trains by all schedules: the losses of one device and of the ranks must agree.
func TestPipelineOurs(t *testing.T) {
	records, err := run(t, smallPipeline(), settings{rounds: 1})
	if err != nil {
		t.Fatal(err)
	}
	checkPipeline(t, records, "simulated, player-4 over simulated", "xla, ranks-4 over xla")
}

func TestPipelinePeers(t *testing.T) {
	python := os.Getenv(envPython)
	if _, err := peersPython(python); err != nil {
		systest.Skip(t, systest.NoPeers, err)
	}
	b := smallPipeline()
	b.size.ForwardMS = 1
	records, err := run(t, b, settings{rounds: 1, peers: true, python: python})
	if err != nil {
		t.Fatal(err)
	}
	checkPipeline(t, records, "simulated, player-4 over simulated, torch-player-4 over simulated", "xla, ranks-4 over xla, torch, torch-4 over torch")
}

// checkPipeline looks for the records of sleeping and of training ranks, case by case; PyTorch sleeps by three schedules.
func checkPipeline(t *testing.T, records []record, slept, trained string) {
	t.Helper()
	for _, of := range []struct {
		name  string
		kinds []pipeline.Kind
		want  string
	}{
		{"8 layers, sleeping ", trainedKinds, slept},
		{"8 layers, sleeping ", sleptKinds[len(trainedKinds):], strings.Replace(slept, ", torch-player-4 over simulated", "", 1)},
		{"8 layers, width ", trainedKinds, trained},
	} {
		for _, kind := range of.kinds {
			var own []record
			for _, r := range records {
				if strings.HasPrefix(r.Case, of.name) && strings.HasSuffix(r.Case, ", "+string(kind)) {
					own = append(own, r)
				}
			}
			checkCosts(t, own, strings.Split(of.want, ", ")...)
		}
	}
	for _, r := range records {
		if strings.HasPrefix(r.Impl, "player") && r.Cost < 1 {
			t.Errorf("%s took %v of the simulated step, which is the least there can be", r.Case, r.Cost)
		}
	}
}

// TestPipelineSimulated compares a step with the closed form of Narayanan et al. 2021, "Efficient Large-Scale Language Model
// Training on GPU Clusters Using Megatron-LM", §2.2: m+(p−1)/v passes of a rank's share, forward and backward.
func TestPipelineSimulated(t *testing.T) {
	for kind, chunks := range map[pipeline.Kind]float64{pipeline.KindGPipe: 1, pipeline.Kind1F1B: 1, pipeline.KindInterleaved: 2} {
		c := pipelineCase{pipelineSize{Layers: 8, Microbatches: 8, ForwardMS: 5}, kind, pipelineRanks, pipelineRanks * int(chunks)}
		plan, err := c.schedule()
		if err != nil {
			t.Fatal(err)
		}
		line, err := plan.Simulate(c.costs())
		if err != nil {
			t.Fatal(err)
		}
		if want := 2 * 15 * (8 + 3/chunks); math.Abs(line.Makespan-want) > 1e-9 {
			t.Errorf("%s takes %v ms, want %v", kind, line.Makespan, want)
		}
	}
}

func TestPipelineCases(t *testing.T) {
	for want, change := range map[string]func(s *pipelineSize){
		"--layers=12: want a multiple of 8":                 func(s *pipelineSize) { s.Layers = 12 },
		"--d=0: want 1 to 4096":                             func(s *pipelineSize) { s.Width = 0 },
		"--microbatches=6: want a multiple of 4":            func(s *pipelineSize) { s.Microbatches = 6 },
		"--batch=6: want a multiple of the 4 micro-batches": func(s *pipelineSize) { s.Rows = 6 },
		"--ms=NaN: want more than 0, at most 1000":          func(s *pipelineSize) { s.ForwardMS = math.NaN() },
	} {
		b := smallPipeline()
		change(&b.size)
		if _, err := b.cases(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one with %q", b.size, err, want)
		}
	}
}

// TestPipelineCharts draws costs that are made up.
func TestPipelineCharts(t *testing.T) {
	impl := map[string]implementation{}
	for _, im := range (&pipelineBench{}).implementations() {
		impl[im.name] = im
	}
	took := func(name string, ms float64) result { return result{impl[name], sampleTimes{ms}, footprint{}} }
	records := compare("pipeline", testCase{name: "both"}, []result{took("simulated", 100), took("player-4", 101), took("torch-player-4", 110)})
	records = append(records, compare("pipeline", testCase{name: "ours"}, []result{took("simulated", 100), took("player-4", 102)})...)
	records = append(records, compare("pipeline", testCase{name: "trained"}, []result{took("xla", 10), took("ranks-4", 15), took("torch", 20), took("torch-4", 40)})...)
	wantText(t, ratioText(records), (&pipelineBench{}).charts(records),
		"both torch-player-4 1.09 (1.09)", "trained torch-4 – 1.33 (1.33)", // 110/101 and 2/1.5
		"over the simulated step's", "ours player-4 102 simulated 1.020", "over one device's", "trained torch-4 40 torch 2.000")
}
