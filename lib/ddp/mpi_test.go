package ddp_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/internal/toy"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/ddp"
	"github.com/shardbook/shardbook/lib/optim"
	"github.com/shardbook/shardbook/lib/train"
	"github.com/shardbook/shardbook/lib/xla"
)

// envRank is set in processes that are ranks. They run this test program, built with the tag mpi.
const envRank = "SHARDBOOK_DDP_RANK"

const processes = 3

// lines trains as one rank of a group, in some forms, and returns a digest of the results.
func lines(ctx context.Context, g group.Group, backend *xla.Backend, device int) (text string, err error) {
	r := train.Recipe{Model: toy.Model(false), Optimizer: optim.AdamW(1e-2)}
	for _, o := range []ddp.Options{{BucketBytes: 160}, {Every: 2}} {
		rank, err := ddp.Join(ctx, g, backend, device, r, o)
		if err != nil {
			return text, err
		}
		var losses []float64
		for range 4 {
			inputs, targets := toy.Batch(rank.Steps(), 2*processes)
			m, err := rank.Step(ctx, inputs, targets)
			if err != nil {
				return text, err
			}
			losses = append(losses, m.Loss)
		}
		all, err := rank.Params(ctx)
		if err != nil {
			return text, err
		}
		h := sha256.New()
		for _, s := range r.Model.Params() {
			if err := binary.Write(h, binary.LittleEndian, tensors.MustCopyFlatData[float32](all[s.Name])); err != nil {
				return text, err
			}
		}
		text += fmt.Sprintf("rank %d, every %d: %x, losses %v\n", g.Rank(), o.Every, h.Sum(nil)[:8], losses)
		if err := rank.Close(); err != nil {
			return text, err
		}
	}
	return text, nil
}

// TestProcesses trains by processes under mpirun and by goroutines. Three ranks' sums come out the same, bit for bit,
// as Open MPI 4.1.4 adds them up. A machine without Open MPI and without the means to get it skips the test; CI and
// root never do.
func TestProcesses(t *testing.T) {
	program := systest.BuildRanks(t, t.TempDir())
	output, _, err := systest.Ranks(t, envRank+"=1", "mpirun", "-n", fmt.Sprint(processes), "--oversubscribe", program)
	if err != nil {
		t.Errorf("mpirun: %v", err)
	}
	backend := devicetest.Open(t, processes)
	var mu sync.Mutex
	check(t, group.Run(context.Background(), processes, func(ctx context.Context, g group.Group) error {
		want, err := lines(ctx, g, backend, g.Rank())
		mu.Lock()
		defer mu.Unlock()
		if !strings.Contains(output, want) {
			t.Errorf("no process says %q", want)
		}
		return err
	}))
	if t.Failed() {
		t.Log(output)
	}
}
