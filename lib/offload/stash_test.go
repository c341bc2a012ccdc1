package offload_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/tensors"
	"github.com/gomlx/gomlx/core/tensors/dtensor"

	"github.com/shardbook/shardbook/internal/devicetest"
	"github.com/shardbook/shardbook/lib/offload"
	"github.com/shardbook/shardbook/lib/params"
	"github.com/shardbook/shardbook/lib/trace"
	"github.com/shardbook/shardbook/lib/xla"
)

func newStash(t *testing.T, m *xla.Mesh, bandwidth float64, r *trace.Recorder) *offload.Stash {
	t.Helper()
	s, err := offload.NewStash(m, bandwidth, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Tensors of any type go to the host and come back as they were, from one device and from several; while they are
// away the devices have exactly their bytes less.
func TestStash(t *testing.T) {
	b := devicetest.OpenOwn(t, 4)
	m, err := b.Mesh(xla.Axis("x", 4))
	if err != nil {
		t.Fatal(err)
	}
	s := newStash(t, m, 0, nil)
	var tree params.Tree
	for i, d := range []dtypes.DType{dtypes.Float32, dtypes.BFloat16, dtypes.Int8, dtypes.Bool, dtypes.Float64, dtypes.Int32} {
		tree = append(tree, params.New(d.String(), d, 8, i+1))
	}
	live := func() (bytes int64) {
		for _, l := range b.Live() {
			bytes += l.Bytes
		}
		return bytes
	}
	var want [][]byte
	for i, spec := range tree {
		x := tensors.FromShape(spec.Shape)
		x.MutableBytes(func(to []byte) {
			for k := range to {
				to[k] = byte(k*7+i) & 1
			}
		})
		placement := []xla.Placement{xla.Replicated(), xla.Shard(0, "x")}[i%2]
		placed, err := m.Place(x, placement)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, bytesOf(t, x))
		if err := s.Put(t.Context(), spec.Name, placed); err != nil {
			t.Fatal(err)
		}
	}
	// What is put away last has left when all has.
	if err := s.Put(t.Context(), "last", place(t, m, 1)); err != nil {
		t.Fatal(err)
	}
	last, err := s.Get(t.Context(), "last")
	if err != nil {
		t.Fatal(err)
	}
	if left := live(); left != 4*4 { // on four devices
		t.Errorf("%d bytes on the devices when all but 16 are away", left)
	}
	if err := last[0].FinalizeAll(); err != nil {
		t.Fatal(err)
	}
	for i, spec := range tree {
		if i%3 == 0 {
			if err := s.Prefetch(t.Context(), spec.Name); err != nil {
				t.Fatal(err)
			}
		}
		xs, err := s.Get(t.Context(), spec.Name)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := xs[0].Merge()
		if err != nil {
			t.Fatal(err)
		}
		if got := bytesOf(t, whole); !slices.Equal(got, want[i]) {
			t.Errorf("%s came back as %v, was %v", spec, got, want[i])
		}
		bytes := spec.Bytes()
		if i%2 == 0 {
			bytes *= 4 // replicated
		}
		if got := live(); got != bytes {
			t.Errorf("%s: %d bytes on the devices, want %d", spec, got, bytes)
		}
		if err := xs[0].FinalizeAll(); err != nil {
			t.Fatal(err)
		}
	}
}

func bytesOf(t *testing.T, x *tensors.Tensor) (data []byte) {
	t.Helper()
	if err := x.ConstBytes(func(b []byte) { data = slices.Clone(b) }); err != nil {
		t.Fatal(err)
	}
	return data
}

func place(t *testing.T, m *xla.Mesh, n int) *dtensor.Tensor {
	t.Helper()
	x, err := m.Place(make([]float32, n), xla.Replicated())
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// What is put away leaves the device and is counted on the host; what is not fetched is freed by Close.
func TestStashBytes(t *testing.T) {
	b := devicetest.OpenOwn(t, 1)
	m := mesh(t, b)
	s := newStash(t, m, 0, nil)
	x, y := place(t, m, 100), place(t, m, 10)
	for _, c := range []struct {
		key string
		x   *dtensor.Tensor
	}{{"x", x}, {"y", y}} {
		if err := s.Put(t.Context(), c.key, c.x); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Get(t.Context(), "y"); err != nil { // y left after x
		t.Fatal(err)
	}
	onDevice, onHost := s.Bytes()
	if live := b.Live()[0].Bytes; live != 40 || onDevice != 0 || onHost != 400 {
		t.Errorf("%d bytes on the device, the stash has %d there and %d on the host; want 40, 0 and 400", live, onDevice, onHost)
	}
	if err := s.Prefetch(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	onDevice, onHost = s.Bytes()
	if live := b.Live()[0].Bytes; live != 40 || onDevice != 0 || onHost != 0 {
		t.Errorf("after Close: %d bytes on the device, the stash has %d there and %d on the host; want 40, 0 and 0", live, onDevice, onHost)
	}
}

// A transfer takes at least what the simulated link says; a cancelled Get leaves the tensor where it is, and the next
// one has it.
func TestStashWaits(t *testing.T) {
	before := runtime.NumGoroutine()
	m := mesh(t, devicetest.One())
	r := trace.New()
	s := newStash(t, m, 4e4, r)
	if err := s.Put(t.Context(), "x", place(t, m, 100)); err != nil { // 400 bytes: 10 ms each way
		t.Fatal(err)
	}
	if err := s.Prefetch(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Get(gone, "x"); !matches(err, "canceled") {
		t.Errorf("Get with a cancelled context: %v", err)
	}
	xs, err := s.Get(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := xs[0].FinalizeAll(); err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{"to host", "to device"} {
		if took := trace.Of(r.Spans(), 0, way); len(took) != 1 || trace.Busy(took).Seconds() < 0.01 {
			t.Errorf("400 bytes at 40000 a second took %v", took)
		}
	}

	// Years of waiting end with the context, and the transfers are carried out.
	slow := newStash(t, m, 1e-9, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 3 {
		key := fmt.Sprint(i)
		if err := slow.Put(ctx, key, place(t, m, 1+i)); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if _, err := slow.Get(ctx, key); !matches(err, "canceled") {
				t.Errorf("Get %d: %v", i, err)
			}
		})
	}
	cancel()
	all.Wait()
	for i := range 3 {
		xs, err := slow.Get(t.Context(), fmt.Sprint(i))
		if err != nil || xs[0].Shape().Size() != 1+i {
			t.Fatalf("after a cancelled Get: %v, %v", xs, err)
		}
		if err := xs[0].FinalizeAll(); err != nil {
			t.Fatal(err)
		}
	}
	noLeak(t, before)
}

// Close does not wait for years, whichever way its tensors go, and the stash can be used again.
func TestStashCloses(t *testing.T) {
	before := runtime.NumGoroutine()
	b := devicetest.OpenOwn(t, 1)
	m := mesh(t, b)
	s := newStash(t, m, 1e-9, nil)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := s.Put(gone, "up", place(t, m, 1)); err != nil {
			t.Fatal(err)
		}
		if err := s.Prefetch(t.Context(), "up"); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := s.Put(t.Context(), fmt.Sprint(i), place(t, m, 1)); err != nil {
				t.Fatal(err)
			}
			if err := s.Prefetch(t.Context(), fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		onDevice, onHost := s.Bytes()
		if live := b.Live()[0]; live.Buffers != 0 || onDevice != 0 || onHost != 0 {
			t.Errorf("after Close: %+v on the device, the stash has %d bytes there and %d on the host", live, onDevice, onHost)
		}
	}
	noLeak(t, before)
}

// Of several who put the same tensors away at once, one has. There are many tensors, so that all are at it together.
func TestStashTakesOnce(t *testing.T) {
	m := mesh(t, devicetest.One())
	s := newStash(t, m, 0, nil)
	xs := make([]*dtensor.Tensor, 100)
	for i := range xs {
		xs[i] = place(t, m, 1)
	}
	for range 20 {
		took, all := make(chan string, 4), sync.WaitGroup{}
		for i := range cap(took) {
			all.Go(func() {
				if err := s.Put(t.Context(), fmt.Sprint(i), xs...); err == nil {
					took <- fmt.Sprint(i)
				} else if !matches(err, "in the stash already") {
					t.Error(err)
				}
			})
		}
		if all.Wait(); len(took) != 1 {
			t.Fatalf("%d have put the same tensors away", len(took))
		}
		if _, err := s.Get(t.Context(), <-took); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range xs {
		if err := x.FinalizeAll(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStashErrors(t *testing.T) {
	ctx, b := t.Context(), devicetest.One()
	m := mesh(t, b)
	if _, err := offload.NewStash(nil, 0, nil); !matches(err, "needs a mesh") {
		t.Errorf("no mesh: %v", err)
	}
	if _, err := offload.NewStash(m, -1, nil); !matches(err, "Bandwidth is -1") {
		t.Errorf("bandwidth −1: %v", err)
	}
	s := newStash(t, m, 0, nil)
	x, freed := place(t, m, 3), place(t, m, 3)
	if err := freed.FinalizeAll(); err != nil {
		t.Fatal(err)
	}
	other, err := b.Mesh(xla.Axis("other", 1))
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := place(t, other, 3)
	defer elsewhere.FinalizeAll()
	for what, c := range map[string]struct {
		xs   []*dtensor.Tensor
		want string
	}{
		"nil":       {[]*dtensor.Tensor{nil}, "nil or freed"},
		"freed":     {[]*dtensor.Tensor{freed}, "nil or freed"},
		"twice":     {[]*dtensor.Tensor{x, x}, "in the stash already"},
		"elsewhere": {[]*dtensor.Tensor{elsewhere}, "lies on the mesh"},
	} {
		if err := s.Put(ctx, "a", c.xs...); !matches(err, c.want) {
			t.Errorf("%s: error %v, want %q", what, err, c.want)
		}
	}
	for _, key := range []string{"a", "none"} {
		if _, err := s.Get(ctx, key); !matches(err, "holds nothing under") {
			t.Errorf("Get %q: %v", key, err)
		}
		if err := s.Prefetch(ctx, key); !matches(err, "holds nothing under") {
			t.Errorf("Prefetch %q: %v", key, err)
		}
	}
	if err := s.Put(ctx, "a", x); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(ctx, "b", x); !matches(err, "in the stash already") {
		t.Errorf("what is there under another key: %v", err)
	}
	y := place(t, m, 3)
	defer y.FinalizeAll()
	if err := s.Put(ctx, "a", y); !matches(err, "holds something under") {
		t.Errorf("a key in use: %v", err)
	}
}
