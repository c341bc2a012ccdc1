package residual_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/collective/group"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/xla"
	"github.com/shardbook/shardbook/lib/zero/residual"
)

// checkpoint has other bytes for each seed, all kinds of them.
func checkpoint(seed int, shape shapes.Shape) *tensors.Tensor {
	t := tensors.FromShape(shape)
	t.MutableBytes(func(data []byte) {
		for i := range data {
			data[i] = byte((i*31 + i/251 + seed*7) % 256)
		}
	})
	return t
}

func bytesOf(t *tensors.Tensor) (all []byte) {
	t.ConstBytes(func(data []byte) { all = slices.Clone(data) })
	return all
}

// What ranks put comes back bit by bit, in any order and of any type; between the passes each has its part of it alone, and
// afterwards nothing.
func TestStash(t *testing.T) {
	of := []shapes.Shape{shapes.Make(dtypes.Float32, 8, 6), shapes.Make(dtypes.BFloat16, 7, 5), shapes.Make(dtypes.Float16, 3),
		shapes.Make(dtypes.Uint8, 2), shapes.Make(dtypes.Float32)}
	backend := devicetest.Open(t, 4)
	for _, ranks := range []int{1, 2, 3, 4} {
		for _, where := range []offload.Where{offload.Device, offload.Host} {
			t.Run(fmt.Sprintf("%d ranks, %v", ranks, where), func(t *testing.T) {
				want := [2]int64{}
				for _, s := range of {
					n := s.ByteSize() / int64(ranks)
					want[where] += s.ByteSize() - n*int64(ranks-1)
				}
				err := group.Run(context.Background(), ranks, func(ctx context.Context, g group.Group) error {
					s, err := residual.NewStash(backend, g.Rank(), g, where)
					if err != nil {
						return err
					}
					for i, shape := range of {
						x, err := backend.Put(checkpoint(i, shape), g.Rank())
						if err != nil {
							return err
						}
						if err := s.Put(ctx, i, x); err != nil {
							return err
						}
					}
					device, host := s.Bytes()
					if device != want[0] || host != want[1] {
						t.Errorf("rank %d keeps %d bytes on the device and %d on the host, want %v", g.Rank(), device, host, want)
					}
					if live := backend.Live()[g.Rank()].Bytes; live != want[0] {
						t.Errorf("device %d has %d bytes, want %d", g.Rank(), live, want[0])
					}
					for i := len(of) - 1; i >= 0; i-- {
						x, err := s.Get(ctx, i)
						if err != nil {
							return err
						}
						if got := bytesOf(x); !x.Shape().Equal(of[i]) || !slices.Equal(got, bytesOf(checkpoint(i, of[i]))) {
							t.Errorf("checkpoint %d is %s with %v", i, x.Shape(), got)
						}
						if !x.IsOnDevice(xla.DeviceNum(g.Rank())) {
							t.Errorf("checkpoint %d is not on device %d", i, g.Rank())
						}
						if err := x.FinalizeAll(); err != nil {
							return err
						}
					}
					if device, host := s.Bytes(); device+host != 0 {
						t.Errorf("rank %d keeps %d and %d bytes of nothing", g.Rank(), device, host)
					}
					if device, host := s.Peak(); device != want[0] || host != want[1] {
						t.Errorf("rank %d has kept %d and %d bytes at most, want %v", g.Rank(), device, host, want)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				for device, live := range backend.Live() {
					if live.Buffers != 0 {
						t.Errorf("device %d still has %+v", device, live)
					}
				}
			})
		}
	}
}

// What can be known to be wrong is an error, and changes nothing.
func TestStashErrors(t *testing.T) {
	backend := devicetest.Open(t, 2)
	err := group.Run(context.Background(), 1, func(ctx context.Context, g group.Group) error {
		for want, make := range map[string]func() (*residual.Stash, error){
			"no backend or no group": func() (*residual.Stash, error) { return residual.NewStash(backend, 0, nil, offload.Host) },
			"on device 2 of 2":       func() (*residual.Stash, error) { return residual.NewStash(backend, 2, g, offload.Host) },
			"in Where(7)":            func() (*residual.Stash, error) { return residual.NewStash(backend, 0, g, 7) },
		} {
			if _, err := make(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		}
		s, err := residual.NewStash(backend, 1, g, offload.Device)
		if err != nil {
			return err
		}
		shape := shapes.Make(dtypes.Float32, 4)
		on := func(device int) *tensors.Tensor {
			x, err := backend.Put(checkpoint(0, shape), device)
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		if err := s.Put(ctx, 3, on(1)); err != nil {
			return err
		}
		gone := on(1)
		if err := gone.FinalizeAll(); err != nil {
			return err
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		elsewhere, again := on(0), on(1)
		for want, x := range map[string]*tensors.Tensor{
			"checkpoint 4: Tensor is nil":                   nil,
			"checkpoint 4: Tensor shape is invalid":         gone,
			"checkpoint 4: it does not lie on device 1":     elsewhere,
			"checkpoint 4: the tensor has no elements":      tensors.FromShape(shapes.Make(dtypes.Float32, 0)),
			"checkpoint 4: it does not lie on device 1 of ": checkpoint(0, shape),
		} {
			if err := s.Put(ctx, 4, x); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		}
		if err := s.Put(ctx, 3, again); err == nil || !strings.Contains(err.Error(), "checkpoint 3: there is one already") {
			t.Errorf("error %v", err)
		}
		if err := s.Put(ended, 4, again); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		if _, err := s.Get(ctx, 4); err == nil || !strings.Contains(err.Error(), "checkpoint 4: there is none") {
			t.Errorf("error %v", err)
		}
		if err := s.Drop(4); err == nil || !strings.Contains(err.Error(), "checkpoint 4: there is none") {
			t.Errorf("error %v", err)
		}
		if device, _ := s.Bytes(); device != 16 {
			t.Errorf("the stash keeps %d bytes, want 16", device)
		}
		return errors.Join(s.Close(), elsewhere.FinalizeAll(), again.FinalizeAll())
	})
	if err != nil {
		t.Fatal(err)
	}
	for device, live := range backend.Live() {
		if live.Buffers != 0 {
			t.Errorf("device %d still has %+v", device, live)
		}
	}
}

// A rank that fails between the passes fails the others, which keep what they have until they close their stash. Nothing of
// it is left, on the devices or running.
func TestStashWhenARankFails(t *testing.T) {
	const ranks = 3
	backend := devicetest.Open(t, ranks)
	before := runtime.NumGoroutine()
	broken := errors.New("broken")
	err := group.Run(context.Background(), ranks, func(ctx context.Context, g group.Group) error {
		s, err := residual.NewStash(backend, g.Rank(), g, offload.Device)
		if err != nil {
			return err
		}
		x, err := backend.Put(checkpoint(0, shapes.Make(dtypes.Float32, 100)), g.Rank())
		if err != nil {
			return err
		}
		if err := s.Put(ctx, 0, x); err != nil {
			return err
		}
		if err := group.Barrier(ctx, g); err != nil {
			return err
		}
		if g.Rank() == 1 {
			return errors.Join(broken, s.Close())
		}
		var failure *group.Failure
		if _, err := s.Get(ctx, 0); !errors.As(err, &failure) || failure.Rank != 1 || !errors.Is(err, broken) {
			t.Errorf("rank %d: error %v, want one that names rank 1", g.Rank(), err)
		}
		if device, _ := s.Bytes(); device != 400-2*133 {
			t.Errorf("rank %d keeps %d bytes after the failure", g.Rank(), device)
		}
		return s.Close()
	})
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	for device, live := range backend.Live() {
		if live.Buffers != 0 {
			t.Errorf("device %d still has %+v", device, live)
		}
	}
	for begun := time.Now(); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}
