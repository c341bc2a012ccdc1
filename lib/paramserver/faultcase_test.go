package paramserver_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/internal/traintest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/paramserver"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// The tests of faults and of what comes after them share three devices and one engine for each form: most of their time
// is the compiler's.
const world = 3

var (
	threeDevices = sync.OnceValue(func() *xla.Backend {
		backend, err := xla.Open(xla.Devices(world), xla.Plugin("cpu"))
		if err != nil {
			panic(err)
		}
		return backend
	})
	toyRecipe = train.Recipe{Model: toy.Model(false), Optimizer: optim.AdamW(1e-2)}
	toyForms  = map[string]paramserver.Options{
		"servers":       {BucketBytes: 160},
		"micro-batches": {BucketBytes: 160, Accumulate: world, Servers: 2},
		"async":         {BucketBytes: 160, Async: true},
	}
	toyEngines = map[string]*paramserver.Programs{}
)

// toyEngine returns the engine of a form.
func toyEngine(t *testing.T, form string) *paramserver.Programs {
	t.Helper()
	if toyEngines[form] == nil {
		e := must.Get(paramserver.NewPrograms(threeDevices(), toyRecipe, toyForms[form]))(t)
		toyEngines[form] = e
	}
	return toyEngines[form]
}

// warm returns the engine of a form, whose programs are compiled.
func warm(t *testing.T, form string) *paramserver.Programs {
	t.Helper()
	e := toyEngine(t, form)
	if err := group.Run(context.Background(), world, func(ctx context.Context, g group.Group) error {
		rank, err := e.Join(ctx, g, g.Rank())
		if err == nil {
			_, err = steady(ctx, g, rank, 2, toyRows(form, world))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return e
}

// toyRows are batches of two examples for each micro-batch.
func toyRows(form string, ranks int) traintest.Batches {
	return toy.Batches(2 * ranks * max(1, toyForms[form].Accumulate))
}

// only is a rank's view of a group that leaves to a trap what a rank does in the same order each time: the servers
// beside it do the rest.
type only struct {
	traintest.Trap
	on func(call group.Call) bool
}

func (o *only) Do(ctx context.Context, call group.Call) error {
	if o.on(call) {
		return o.Trap.Do(ctx, call)
	}
	if ctx.Err() == nil {
		time.Sleep(time.Millisecond) // as a trap does, so that deadlines end in the order in which ranks began to wait
	}
	return o.Group.Do(ctx, call)
}

// pushes reports whether a call announces a bucket to a server.
func pushes(call group.Call) bool {
	return call.Kind == group.KindSend && call.Type == group.Int64 && *(*int64)(call.In.Data) == 0
}

// names checks that another rank's error has the failure of a group, or the victim's own error, which ends the context
// in which the others compute.
func names(victim int, err error) error {
	if err != nil && strings.Contains(err.Error(), fmt.Sprintf("rank %d: %v", victim, traintest.ErrLuck)) {
		return nil
	}
	var failure *group.Failure
	if !errors.As(err, &failure) || failure.Rank != victim {
		return fmt.Errorf("%v: that is no failure of rank %d", err, victim)
	}
	return nil
}
