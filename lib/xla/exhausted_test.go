package xla

import (
	"errors"
	"strings"
	"testing"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/shardbook/shardbook/internal/must"
)

// A program whose output does not fit into the memory of any machine.
func TestOutOfMemory(t *testing.T) {
	b := must.Get(Open(Devices(1), Plugin("cpu")))(t)
	defer b.Close()
	mesh := must.Get(b.Mesh(Axis("data", 1)))(t)
	p := must.Get(Compile(mesh, func(x *graph.Node) *graph.Node {
		return graph.Add(graph.Iota(x.Graph(), shapes.Make(dtypes.Float32, 1<<20, 1<<21), 0), x)
	}, In(Replicated()).Gives(Replicated())))(t)
	defer p.Close()
	_, err := p.Call(float32(1))
	if !errors.Is(err, ErrOutOfMemory) || !strings.Contains(err.Error(),
		": a device is out of memory (Out of memory allocating 8796093022208 bytes): take a smaller batch") {
		t.Errorf("%v", err)
	}
}

// What XLA says, in the forms that it has on GPUs.
func TestExplain(t *testing.T) {
	for _, c := range []struct{ says, reason string }{
		{"executing: PJRT error (code=8): Out of memory while trying to allocate 64.00GiB.\nBufferAssignment OOM\n", "Out of " +
			"memory while trying to allocate 64.00GiB"},
		{"PJRT error (code=13): RESOURCE_EXHAUSTED: " + strings.Repeat("x", 1000), strings.Repeat("x", mostReason)},
		{"PJRT error (code=13): failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
			"out of memory"},
		{"PJRT error (code=2): CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_OUT_OF_MEMORY"},
	} {
		err := explain(errors.New(c.says))
		if want := "a device is out of memory (" + c.reason + "): take"; !errors.Is(err, ErrOutOfMemory) ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.80q: %v, want %q", c.says, err, want)
		}
		if again := explain(err); again != err {
			t.Errorf("explained twice: %v", again)
		}
	}
	if other := errors.New("PJRT error (code=3): bad shape"); explain(other) != other {
		t.Error("another error is replaced")
	}
}
