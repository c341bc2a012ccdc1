package devicetest

import (
	"sync"

	"github.com/gomlx/compute"
)

// WithBarriers is PureGo with what Node.Checkpoint is made of, which it lacks: barriers. As it runs one operation after
// another as they are written, they need do nothing, and what is recomputed has the bits of the first time. What it
// returns cannot be given to it again.
var WithBarriers = sync.OnceValue(func() compute.Backend { return barrierBackend{PureGo()} })

type (
	barrierBackend  struct{ compute.Backend }
	barrierBuilder  struct{ compute.Builder }
	barrierFunction struct{ compute.Function }
)

func (b barrierBackend) Builder(name string) compute.Builder {
	return barrierBuilder{b.Backend.Builder(name)}
}

func (b barrierBuilder) Main() compute.Function { return barrierFunction{b.Builder.Main()} }

func (f barrierFunction) OptimizationBarrier(xs ...compute.Value) ([]compute.Value, error) {
	same := make([]compute.Value, len(xs))
	for i, x := range xs {
		var err error
		if same[i], err = f.Identity(x); err != nil {
			return nil, err
		}
	}
	return same, nil
}

func (f barrierFunction) SchedulingBarrier(x compute.Value, _ ...compute.Value) (compute.Value, error) {
	return f.Identity(x)
}
