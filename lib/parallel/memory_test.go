package parallel_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/expert"
	"github.com/shardbook/shardbook/lib/memest"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/parallel"
	"github.com/shardbook/shardbook/lib/pipeline"
	"github.com/shardbook/shardbook/lib/precision"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// shardBytes is the size in float32 of a device's shards of a model's parameters.
func shardBytes(r train.Recipe, devices int) (sum int64) {
	for _, s := range r.Model.Params() {
		sum += 4 * int64((s.Size()+devices-1)/devices)
	}
	return sum
}

// TestMemory compares what devices hold between steps, and before the first, with a count: each stage of ZeRO shards
// what it says.
func TestMemory(t *testing.T) {
	mixed := must.Get(precision.ParsePolicy("bf16"))(t)
	r := train.Recipe{Model: small(1), Optimizer: optim.AdamW(1e-2)}
	half := r
	half.Precision = mixed
	moe := train.Recipe{Model: experts(expert.Softmax, 0), Optimizer: optim.AdamW(1e-2)}
	dense, routed, buffers := moe.Model.Params().Bytes(), int64(0), int64(2*8*4) // which have no states
	for _, s := range moe.Model.Params() {
		if strings.Contains(s.Name, ".experts.") {
			routed += 4 * int64(s.Size())
		}
	}
	dense -= routed
	whole, part := r.Model.Params().Bytes(), shardBytes(r, 4)
	for _, c := range []struct {
		recipe train.Recipe
		layout parallel.Layout
		want   int64 // of the first device, if it is counted here as well
	}{
		{r, parallel.Layout{Data: 4}, 3 * whole},
		{r, parallel.Layout{Data: 4, ZeRO: 1}, whole + 2*part},
		{r, parallel.Layout{Data: 4, ZeRO: 3}, 3 * part},
		{half, parallel.Layout{Data: 4, ZeRO: 2}, whole/2 + 3*part},
		{half, parallel.Layout{Data: 4, ZeRO: 3}, 3*part + part/2},
		{r, parallel.Layout{Replicas: 2, Pipe: 2, Tensor: 2, TensorSequence: true}, 0},
		{half, parallel.Layout{Pipe: 2, Data: 2, Tensor: 2, ZeRO: 1}, 0},
		{moe, parallel.Layout{Data: 4, Expert: 4}, 3*(dense+routed/4) - 2*buffers},
		{moe, parallel.Layout{Data: 4, Expert: 2, ZeRO: 1}, dense + routed/2 + 2*(dense+routed-buffers)/4},
		{moe, parallel.Layout{Replicas: 4, Expert: 4}, 3*(dense+routed/4) - 2*buffers},
		{moe, parallel.Layout{Replicas: 4, Expert: 2, ZeRO: 1}, 0},
		{moe, parallel.Layout{Replicas: 2, Expert: 2, Pipe: 2, Schedule: pipeline.KindDualPipe, Microbatches: 4}, 0},
		{moe, parallel.Layout{Tensor: 4, Data: 2, Expert: 2, ZeRO: 2}, 0},
	} {
		p := must.Get(parallel.NewPlan(sharing(c.recipe, c.layout, ""), c.layout))(t)
		runtime.GC() // numbers that programs were given wait for it
		before := devices().Live()
		run := start(t, c.recipe, c.layout)
		for step := range 2 {
			steps(t, run, step, texts(8))
			for device, live := range devices().Live() {
				var want int64
				if device < c.layout.Devices() {
					kinds := must.Get(p.Bytes(device / c.layout.PerRank()))(t)
					want = kinds[memest.Parameters] + kinds[memest.Master] + kinds[memest.Optimizer]
					if step > 0 && c.layout.Pipe > 1 { // programs of several passes leave room for their sums
						want += kinds[memest.Gradients]
					}
					if device == 0 && c.want != 0 && want != c.want {
						t.Errorf("%+v: the plan has %d bytes, want %d", c.layout, want, c.want)
					}
				}
				const numbers = 64 // bytes of counters, and of numbers that wait for the garbage collector
				if step > 0 && c.layout.Expert > 1 && c.layout.Replicas > 1 {
					continue // what tokens arrived in is lent again in the next step
				}
				if got := live.Bytes - before[device].Bytes; got < want || got > want+numbers {
					t.Errorf("%+v, after %d steps: device %d has %d bytes, want %d", c.layout, step, device, got, want)
				}
			}
		}
		if err := run.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestPeaks compares the most that lies on a device at once: from stage to stage it shrinks by what is sharded besides.
func TestPeaks(t *testing.T) {
	r := train.Recipe{Model: small(2), Optimizer: optim.SGD(1e-2)}
	var peaks, planned []int64
	for zero := 1; zero <= 3; zero++ {
		l := parallel.Layout{Data: 4, ZeRO: zero, Microbatches: 2}
		peaks = append(peaks, peak(t, r, l))
		p := must.Get(parallel.NewPlan(r, l))(t)
		kinds := must.Get(p.Bytes(0))(t)
		planned = append(planned, kinds[memest.Parameters]+kinds[memest.Gradients])
	}
	t.Logf("at most %d bytes, of which parameters and gradients %d", peaks, planned)
	for i, got := range peaks { // besides them there are a micro-batch and what is gathered
		if want := planned[i]; got < want || got > want*6/5 || i > 0 && want > planned[i-1]-1000 {
			t.Errorf("stage %d needs %d bytes, want from %d to a fifth more", i+1, got, want)
		}
	}
}

// peak trains in a layout on devices of its own.
func peak(t *testing.T, r train.Recipe, l parallel.Layout) int64 {
	t.Helper()
	backend := must.Get(xla.Open(xla.Devices(l.Devices()), xla.Plugin("cpu")))(t)
	defer backend.Close()
	run := must.Get(parallel.New(t.Context(), backend, r, l, parallel.Options{}))(t)
	defer run.Close()
	steps(t, run, 2, texts(8))
	return backend.PeakBytes()[0]
}

// TestEstimatedStates compares what memest says of a layout's states and gradients, kind by kind, with the plan's own
// count: equal, where nothing is padded and the pipeline is cut where memest cuts it. In mixed precision what lies
// there between steps is at most what memest says, and at least that without a copy of the parameters to compute with;
// gradients are summed in float32, of which it knows nothing. Activations and temporaries are memest's own tests'
// business.
func TestEstimatedStates(t *testing.T) {
	c := small(2)
	c.Vocab = 16
	mixed := must.Get(precision.ParsePolicy("bf16"))(t)
	states := []memest.Kind{memest.Parameters, memest.Master, memest.Optimizer}
	for _, s := range shapesOf(deviceCount) {
		for zero := range 4 {
			if s.pipe > 2 {
				continue
			}
			l := parallel.Layout{Pipe: s.pipe, Data: s.data, Tensor: s.tensor, Ring: s.seq, ZeRO: zero}
			for _, policy := range []precision.Policy{{}, mixed} {
				of := setup(c)
				of.Optimizer, of.Precision = optim.AdamW(1e-2), policy
				ledger := must.Get(l.Estimate(of, layoutRows))(t)
				p := must.Get(parallel.NewPlan(sharing(train.Recipe{Model: c, Optimizer: of.Optimizer,
					Precision: policy},
					l, ""), l))(t)
				for rank, stage := range ledger.Stages {
					kinds := must.Get(p.Bytes(rank))(t)
					var sum, said int64
					for _, kind := range states {
						sum, said = sum+kinds[kind], said+stage.Of(kind)
					}
					copied := stage.Of(memest.Parameters)
					if sum > said || sum < said-copied || sum == 0 {
						t.Errorf("%+v, stage %d: %v, memest says states of %d bytes", l, rank, kinds, said)
					}
					if policy.Mixed() {
						continue
					}
					for _, kind := range append(states, memest.Gradients) {
						if kinds[kind] != stage.Of(kind) {
							t.Errorf("%+v, stage %d: %v of %d bytes, memest says %d", l, rank, kind, kinds[kind],
								stage.Of(kind))
						}
					}
				}
			}
		}
	}
}
