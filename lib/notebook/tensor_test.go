package notebook_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	_ "github.com/gomlx/compute/gobackend"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/notebook"
)

// randomTensor fills a tensor with random bits, NaNs of every kind among them.
func randomTensor(t *testing.T, r *rand.Rand, dtype dtypes.DType, dims ...int) *tensors.Tensor {
	t.Helper()
	tensor := tensors.FromShape(shapes.Make(dtype, dims...))
	if tensor.Size() == 0 {
		return tensor
	}
	err := tensor.MutableBytes(func(data []byte) {
		for i := range data {
			data[i] = byte(r.Uint32())
			if dtype == dtypes.Bool {
				data[i] &= 1
			}
		}
	})
	must.Do(t, err)
	return tensor
}

func bits(t *testing.T, tensor *tensors.Tensor) []byte {
	t.Helper()
	if tensor.Size() == 0 {
		return nil
	}
	var data []byte
	must.Do(t, tensor.ConstBytes(func(b []byte) { data = bytes.Clone(b) }))
	return data
}

func checkSame(t *testing.T, got, want *tensors.Tensor) {
	t.Helper()
	if got == want || !got.IsLocal() {
		t.Errorf("not a local copy")
	}
	if !got.Shape().Equal(want.Shape()) || fmt.Sprint(got.Shape()) != fmt.Sprint(want.Shape()) {
		t.Errorf("shape %s, want %s", got.Shape(), want.Shape())
	}
	if !bytes.Equal(bits(t, got), bits(t, want)) {
		t.Errorf("%s: other bits came back", want.Shape())
	}
}

func TestKeepTensors(t *testing.T) {
	types := []dtypes.DType{
		dtypes.Bool, dtypes.Int8, dtypes.Int16, dtypes.Int32, dtypes.Int64, dtypes.Uint8, dtypes.Uint16, dtypes.Uint32,
		dtypes.Uint64, dtypes.Float16, dtypes.BFloat16, dtypes.Float32, dtypes.Float64, dtypes.Complex64,
		dtypes.Complex128, dtypes.Int4, dtypes.Uint4, dtypes.Int2, dtypes.Uint2, dtypes.Int1, dtypes.Uint1,
	}
	r := rand.New(rand.NewPCG(1, 2))
	everywhere(t, func(t *testing.T) {
		for _, dtype := range types {
			for _, dims := range [][]int{nil, {0}, {1}, {3, 5}, {2, 0, 3}, {257}} {
				want := randomTensor(t, r, dtype, dims...)
				checkSame(t, roundTrip(t, "tensor", want), want)
			}
		}
	})
}

func TestKeepTensorAxisNames(t *testing.T) {
	want := tensors.FromShape(shapes.Make(dtypes.Float32, 2, 3).WithAxisNames("batch", "width"))
	got := roundTrip(t, "named", want)
	checkSame(t, got, want)
	if names := got.Shape().AxisNames; len(names) != 2 || names[1] != "width" {
		t.Errorf("axis names %q", names)
	}
}

type training struct {
	Step       int
	Parameters map[string]*tensors.Tensor
	Layers     [][]*tensors.Tensor
	Best       *tensors.Tensor
	Missing    *tensors.Tensor
}

func TestKeepParameters(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	tensor := func(dims ...int) *tensors.Tensor { return randomTensor(t, r, dtypes.BFloat16, dims...) }
	want := training{
		Step:       7,
		Parameters: map[string]*tensors.Tensor{"/model/w": tensor(4, 4), "/model/b": tensor(4)},
		Layers:     [][]*tensors.Tensor{{tensor(1), tensor()}, nil},
		Best:       tensor(2),
	}
	everywhere(t, func(t *testing.T) {
		got := roundTrip(t, "training", &want)
		if got.Step != 7 || got.Missing != nil || len(got.Parameters) != 2 || len(got.Layers) != 2 ||
			got.Layers[1] != nil {
			t.Fatalf("got %+v", got)
		}
		for name, parameter := range want.Parameters {
			checkSame(t, got.Parameters[name], parameter)
		}
		for i, layer := range want.Layers[0] {
			checkSame(t, got.Layers[0][i], layer)
		}
		checkSame(t, got.Best, want.Best)
	})
}

// A tensor that is only on a device is fetched, and stays where it is.
func TestKeepDeviceTensor(t *testing.T) {
	backend := must.Get(compute.NewWithConfig("go"))(t)
	defer backend.Finalize()
	want := tensors.FromValue([]float32{1, 2, 3})
	tensor := must.Get(want.OnDeviceClone(backend, 0))(t)
	if tensor.HasLocal() {
		t.Fatal("the tensor is not only on the device, so this test shows nothing")
	}
	checkSame(t, roundTrip(t, "device", tensor), want)
	if !tensor.IsOnDevice(0) || !bytes.Equal(bits(t, tensor), bits(t, want)) {
		t.Error("the tensor that was kept has changed")
	}
}

// Trained parameters are kept as they are.
func ExampleKept() {
	parameters := map[string]*tensors.Tensor{"weights": tensors.FromValue([][]float32{{1, 2}, {3, 4}})}
	if err := notebook.Keep("parameters", parameters); err != nil {
		fmt.Println(err)
	}

	kept, err := notebook.Kept[map[string]*tensors.Tensor]("parameters")
	fmt.Println(kept["weights"].Value(), err)
	// Output: [[1 2] [3 4]] <nil>
}
