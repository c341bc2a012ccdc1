package zero_test

import (
	"context"
	"sync"
	"testing"

	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero"
)

// The tests of faults and of what comes after them share three devices and one engine for each form: most of their time is
// the compiler's.
const three = 3

var (
	threeDevices = sync.OnceValue(func() *xla.Backend {
		backend, err := xla.Open(xla.Devices(three), xla.Plugin("cpu"))
		if err != nil {
			panic(err)
		}
		return backend
	})
	toyRecipe   = train.Recipe{Model: toy.Model(true), Rule: optim.AdamW(1e-2)}
	toyForms    = []zero.Options{{Stage: 1}, {Stage: 2, Accumulate: 2}, {Stage: 3, Prefetch: 1}}
	toyEngines  = map[int]*zero.Engine{} // by stage
	faultRows   = 2 * 2 * three
	faultSource = toyBatches(faultRows)
)

// toyEngine returns the engine of a form.
func toyEngine(t *testing.T, o zero.Options) *zero.Engine {
	t.Helper()
	if toyEngines[o.Stage] == nil {
		e, err := zero.NewEngine(threeDevices(), toyRecipe, o)
		if err != nil {
			t.Fatal(err)
		}
		toyEngines[o.Stage] = e
	}
	return toyEngines[o.Stage]
}

// warm returns the engine of a form, whose programs are compiled.
func warm(t *testing.T, o zero.Options) *zero.Engine {
	t.Helper()
	e := toyEngine(t, o)
	ranks(t, e, three, 1, faultSource)
	return e
}

// faulty are ranks of an engine to play faults with.
func faulty(t *testing.T, e *zero.Engine, ranks int) traintest.Ranks[*zero.Rank] {
	return traintest.Ranks[*zero.Rank]{Size: ranks, Batches: toyBatches(2 * 2 * ranks), Folder: t.TempDir(),
		Join: func(ctx context.Context, g group.Group) (*zero.Rank, error) { return e.Join(ctx, g, g.Rank()) },
		Ask: func(r *zero.Rank) map[string]error {
			_, err := r.Params(context.Background())
			return map[string]error{"Params": err}
		}}
}
